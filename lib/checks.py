"""What several modules need: a check at the door in the same words, and what a source text does."""

from __future__ import annotations

import ast
import textwrap


def positive_integers(**numbers: int) -> None:
    """ValueError that names the first of the numbers which is not a positive integer.

    >>> positive_integers(K=3, n=2)
    >>> positive_integers(K=3, n=0)
    Traceback (most recent call last):
    ValueError: n = 0: a positive integer is needed
    """
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r}: a positive integer is needed")


def program(source: str) -> str:
    """What a source text does: without its docstrings, its comments and its layout. Broken code comes back as it is.

    >>> program("def f(x):\\n    'Twice x.'\\n    return 2*x  # doubled")
    'def f(x):\\n    return 2 * x'
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return source
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return ast.unparse(tree)
