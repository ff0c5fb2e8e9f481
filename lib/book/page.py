"""The table of contents, its pages, and the cells of those that are chapters."""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import yaml

from lib.book.folders import ROOT

#: Of the parts of the book.
NUMBERS = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")


class BadInput(ValueError):
    """The command cannot start: the message names what is wrong and what is allowed."""


class SiteError(RuntimeError):
    """The site could not be built; the published one is as it was."""


@dataclass(frozen=True)
class Page:
    """A page of the table of contents; it is a chapter when its front matter names a kernel."""

    name: str  # "chapters/feature-collapse/theorems"
    root: Path = field(default=ROOT, repr=False)

    @property
    def path(self) -> Path:
        return self.root / f"{self.name}.md"

    @property
    def short(self) -> str:
        return self.name.removeprefix("chapters/")

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf8")

    @property
    def title(self) -> str:
        heading = re.search(r"^# (.*)$", self.text, re.MULTILINE)
        return heading[1] if heading else ""

    @functools.cached_property
    def is_chapter(self) -> bool:
        return re.match(r"---\n.*?^kernelspec:.*?^---$", self.text, re.MULTILINE | re.DOTALL) is not None

    @functools.cached_property
    def notebook(self):
        """The Markdown source as a notebook without outputs."""
        import jupytext

        return jupytext.reads(self.text, fmt="md:myst")

    @functools.cached_property
    def code(self) -> list:
        """The code cells of the notebook, read without the rest of it: each has `source` and `metadata`."""
        from jupytext.myst import CODE_DIRECTIVE, get_parser, read_fenced_cell

        found, depth = [], 0
        try:
            for token in get_parser().parse(self.text + "\n"):
                depth += token.nesting
                if depth == 0 and token.type == "fence" and token.info.startswith(CODE_DIRECTIVE):
                    metadata, lines = read_fenced_cell(token, len(found), "Code")
                    found.append(SimpleNamespace(source="\n".join(lines), metadata=metadata))
        except Exception as error:
            raise BadInput(f"{self.name}.md cannot be read as a MyST Markdown notebook: {error}") from error
        return found

    @functools.cached_property
    def declared(self) -> dict:
        """Names and default values of the cell tagged `parameters`."""
        names = {}
        for cell in self.code:
            if "parameters" in cell.metadata.get("tags", []):
                for node in parsed(cell.source).body:
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                        names[node.targets[0].id] = None
                        with contextlib.suppress(ValueError):  # no plain value
                            names[node.targets[0].id] = ast.literal_eval(node.value)
        return names

    @property
    def files(self) -> list[Path]:
        """Stored results that the page reads: the files in the folder of the same name, beside it."""
        found = self.path.with_suffix("").rglob("*")
        return sorted(path for path in found if path.is_file() and not path.name.startswith("."))

    def parameters(self, given: dict) -> dict:
        """The given parameters that the chapter declares, with its own values for the others."""
        return {**self.declared, **{key: value for key, value in given.items() if key in self.declared}}


def contents(root: Path = ROOT) -> list[tuple[int, str, str]]:
    """For each page of `_toc.yml`: its level, the part that begins with it, and its name."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    listed = [(1, "", toc["root"])]
    for part in toc.get("parts", [toc]):  # without parts, everything is one part
        for number, chapter in enumerate(part["chapters"]):
            listed.append((2, "" if number else part.get("caption", ""), chapter["file"]))
            listed += [(3, "", section["file"]) for section in chapter.get("sections", [])]
    return listed


def pages(root: Path = ROOT) -> list[Page]:
    """The pages of `_toc.yml`, in reading order. Raises BadInput for a missing file."""
    found = [Page(name, root) for _, _, name in contents(root)]
    for page in found:
        if not page.path.is_file():
            raise BadInput(f"_toc.yml lists {page.name}, but there is no file {page.name}.md")
    return found


def chapters(root: Path = ROOT) -> list[Page]:
    return [page for page in pages(root) if page.is_chapter]


def select(everything: list[Page], pattern: str) -> list[Page]:
    """The chapters named by a path or glob (or several, separated by commas); all of them for an empty pattern.

    `chapters/feature-collapse/theorems.md`, the same without `.md` or without `chapters/`, and globs of these are
    understood. Raises BadInput with the list of known chapters when one matches nothing.
    """
    wanted = [part.strip() for part in pattern.split(",") if part.strip()]
    if not wanted:
        return everything
    chosen = set()
    for part in wanted:
        plain = part.removeprefix("./").removesuffix(".md").removesuffix("/")
        names = ((page, name) for page in everything for name in (page.name, page.short))
        hits = {page for page, name in names if fnmatch.fnmatchcase(name, plain) or name.startswith(f"{plain}/")}
        if not hits:
            known = "\n  ".join(f"{page.name}.md" for page in everything)
            raise BadInput(f"unknown chapter {part!r}; known chapters:\n  {known}")
        chosen |= hits
    return [page for page in everything if page in chosen]


def parsed(source: str) -> ast.Module:
    """The syntax tree of a cell without the lines of IPython (`%magic`, `!command`); an empty one for broken code."""
    try:
        return ast.parse(re.sub(r"^[ \t]*[%!].*", "", source, flags=re.MULTILINE))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])  # the execution of the chapter will say where
