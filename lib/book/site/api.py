"""The API pages: which names of `lib` are public, and the directives by which Sphinx shows their docstrings.

A name is public if a module defines it without a leading underscore, or lists it in `__all__`; a constant counts only
if a comment `#:` documents it. Sources are read, not imported.
"""

from __future__ import annotations

import ast
import html
import re
from functools import cache
from typing import NamedTuple

from sphinx.pycode import ModuleAnalyzer

from lib.book.inputs import imported, modules


class Name(NamedTuple):
    """A public name: where readers import it from, what it is, its docstring, and the public members of a class."""

    module: str
    name: str
    kind: str  # function, class or data
    doc: str
    members: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence of the docstring, on one line of reStructuredText."""
        first = " ".join(self.doc.strip().split("\n\n")[0].split())
        return re.split(r"(?<!al)(?<!eq)(?<!\.)\.(?=\s+[A-Z`:])", first)[0].rstrip(".:")


@cache
def public(module: str) -> tuple[Name, ...]:
    """The public names of a module, in the order of its source, or of its `__all__`."""
    text = modules()[module].read_text(encoding="utf-8")
    tree, comments = ast.parse(text), ModuleAnalyzer.for_string(text, module).find_attr_docs()
    names = (n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    if listed := ast.literal_eval(next(names, ast.List([]))):
        sources = {
            name: full.rpartition(".")[0]
            for name, full in imported(text, module)
            if full.startswith(("lib.", "collapsemetrics."))
        }
        known = {name: found for name, source in sources.items() for found in public(source) if found.name == name}
        return tuple(known[name]._replace(module=module) for name in listed if name in known)
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            body = node.body if kind == "class" else []
            members = [n.name for n in body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
            found.append(Name(module, node.name, kind, ast.get_docstring(node) or "", tuple(members)))
        elif isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            if not name.startswith("_") and ("", name) in comments:
                found.append(Name(module, name, "data", "\n".join(comments["", name]).strip()))
    return tuple(found)


def fill(text: str) -> str:
    """A page with `<!-- api-table MODULE -->` replaced by a table and `<!-- api MODULE -->` by documentation.

    `<!-- api MODULE of PART PART -->` shows those names of the package MODULE that its modules PART define.
    """
    text = re.sub(r"<!-- api-table ([\w.]+) -->", lambda match: _table(match[1]), text)
    mark = r"<!-- api ([\w.]+)(?: of ([\w ]+))? -->"
    return re.sub(mark, lambda match: _documentation(match[1], (match[2] or "").split()), text)


def _table(module: str) -> str:
    """What a module is about and, folded below it, a row for each public name: a link and its first sentence."""
    role = {"function": "func", "class": "class", "data": "data"}
    rows = [f"   * - :{role[n.kind]}:`~{n.module}.{n.name}`\n     - {n.summary}" for n in public(module)]
    head = [f".. py:currentmodule:: {module}", "", ".. list-table::", "   :widths: 3 7", "   :class: api-table", ""]
    title = f"<summary><code>{module}</code> {_about(module)}</summary>"
    return f'<details class="api-module">{title}\n\n{_rst(head + rows)}\n\n</details>'


def _about(module: str) -> str:
    """The first sentence of a module's docstring, without reStructuredText markup."""
    doc = ast.get_docstring(ast.parse(modules()[module].read_text(encoding="utf-8"))) or ""
    plain = re.sub(r"[`*]|:\w+:", "", Name(module, "", "module", doc).summary)
    return html.escape(plain, quote=False)


def _documentation(module: str, parts: list[str]) -> str:
    """The docstrings of the module and of its public names, or of those names that `parts` define.

    The module's own docstring is shown only with its first name.
    """
    names = [*public(module)]
    if parts:
        wanted = {each.name for part in parts for each in public(f"{module}.{part}")}
        names = [each for each in names if each.name in wanted]
    lines = [f"``{module}``", ""]
    if names[:1] == [*public(module)][:1]:
        lines += [f".. automodule:: {module}", ""]
    for name in names:
        if name.kind == "data":
            lines += [f".. py:data:: {name.name}", f"   :module: {module}", ""]
            lines += [f"   {line}" for line in name.doc.splitlines()]
        else:
            lines.append(f".. auto{name.kind}:: {module}.{name.name}")
            if name.members:
                lines.append(f"   :members: {', '.join(name.members)}")
        lines.append("")
    return _rst(lines)


def _rst(lines: list[str]) -> str:
    return "\n".join(["```{eval-rst}", *lines, "```"])
