"""Saving a chapter in JupyterLab: its Markdown changes where it was edited, and nowhere else."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from jupytext.myst import myst_to_notebook


def keep_form(model: dict, path: str, contents_manager, **_) -> None:
    """Make what Jupyter is about to write over a Markdown file keep that file's form, by `merged`.

    A hook of Jupyter's contents manager (`pre_save_hook`), which `make lab` sets; `model["content"]` changes in place.
    """
    file = Path(contents_manager.root_dir, path.strip("/"))
    if model["type"] == "file" and file.suffix == ".md" and file.is_file():
        model["content"] = merged(file.read_text(encoding="utf8"), model["content"])


def merged(old: str, new: str) -> str:
    """The notebook of `new`, in the form of `old` wherever the two agree.

    jupytext has a form of its own: it writes its version and the kernel's name into the front matter and a blank line
    below the options of a cell, and breaks long texts in them. Here an unchanged cell keeps its lines, an edited one
    its options, and the file its front matter. Returns `new` where the result would not be the same notebook.

    Args:
        old: MyST Markdown, as a person wrote it.
        new: MyST Markdown, as jupytext writes it.
    """
    before, after = _cells(old), _cells(new)
    matcher = difflib.SequenceMatcher(None, [key for key, _ in before], [key for key, _ in after], autojunk=False)
    text = old[: len(old) - sum(len(lines) for _, lines in before)]
    for _, a, end_a, b, end_b in matcher.get_opcodes():
        if end_a - a == end_b - b:
            text += "".join(map(_edited, before[a:end_a], after[b:end_b]))
        else:
            text += "".join(lines for _, lines in after[b:end_b])
    return text if [key for key, _ in _cells(text)] == [key for key, _ in after] else new


def _cells(text: str) -> list[tuple[tuple, str]]:
    """For each cell of a notebook: type, source, options, whether a mark `+++` ends it; and its lines."""
    notebook = myst_to_notebook(text, add_source_map=True)
    cells, lines, below = notebook.cells, text.splitlines(keepends=True), notebook.metadata.source_map
    starts = [line - (cell.cell_type != "markdown") for cell, line in zip(cells, below, strict=True)]  # below a fence
    found = []
    for cell, start, end in zip(cells, starts, [*starts[1:], len(lines)], strict=True):
        own, options = "".join(lines[start:end]), json.dumps(cell.metadata, sort_keys=True)
        found.append(((cell.cell_type, cell.source.rstrip(), options, "\n+++" in own), own))
    return found


def _edited(old: tuple, new: tuple) -> str:
    """The lines of a cell after an edit: the old ones with the new source, or the new ones where more changed."""
    (kind, source, *rest), lines = old
    (new_kind, new_source, *new_rest), new_lines = new
    if not source or (kind, rest) != (new_kind, new_rest):
        return new_lines
    head, _, tail = lines.rpartition(source)
    return head + new_source + tail
