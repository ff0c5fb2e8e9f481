"""What several modules need: a check at the door in the same words, and what a source text does."""

from __future__ import annotations

import ast
import json
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
    """What a source text does, as JSON: without its docstrings, its comments and its layout, and the same for every
    version of Python. Broken code comes back as it is.

    >>> program("def f(x):\\n    'Twice x.'\\n    return 2*x  # doubled") == program("def f(x): return 2 * x")
    True
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return source
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return json.dumps(_shape(tree))


def _shape(node):
    """A syntax tree as lists; fields that are empty are left out, for versions of Python differ in those."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *(field for field in fields if field[1] not in ("None", []))]
    return [_shape(item) for item in node] if isinstance(node, list) else repr(node)
