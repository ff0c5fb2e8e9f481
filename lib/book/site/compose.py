"""Composing the pages of the site from prose and executed results."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

import nbformat
import yaml
from jinja2 import Environment, PackageLoader

from lib.book import records as recorded
from lib.book.execute import executed_notebook, noted
from lib.book.inputs import code_hash
from lib.book.ledger import claims, errata, tables
from lib.book.page import Page, SiteError
from lib.book.site import changes, downloads, symbols

NOT_EXECUTED = ":::{warning}\nThis chapter has not been executed in this build, so it shows no results.\n:::"
# BibTeX has a meaning of its own for the braces that Jinja usually looks for.
TEMPLATES = Environment(loader=PackageLoader("lib.book.site"), variable_start_string="<<", variable_end_string=">>")
FIXED = ("_config.yml", "_toc.yml", "references.bib", symbols.FILE)  # beside the pages


def with_results(page: Page):
    """The chapter as a notebook: its current prose, the outputs of its last execution, and the injected parameters.

    Outputs are matched to code cells by order, which is sound because the code cells are compared first. Returns None
    when the chapter has not been executed since its code changed.
    """
    executed = executed_notebook(page)
    if executed is None:
        return None
    key = executed.metadata.book.key
    if key["code"] != code_hash(page.code, key["parameters"].get("profile")):
        return None
    results = [cell for cell in executed.cells if cell.cell_type == "code"]
    injected = next((cell for cell in results if "injected-parameters" in _tags(cell)), None)
    notebook = _without_results(page)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, result in zip(code, (cell for cell in results if cell is not injected), strict=True):
        cell.outputs, cell.execution_count = result.outputs, result.execution_count
    if injected:
        injected.source = injected.source.replace("# Parameters", "# Parameters of this build", 1)
        injected.id = "injected"
        declared = next(number for number, cell in enumerate(notebook.cells) if "parameters" in _tags(cell))
        notebook.cells.insert(declared + 1, injected)
    notebook.metadata["language_info"] = executed.metadata.get("language_info", {})
    return notebook


def _tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def collect(everything: list[Page]) -> tuple[dict, dict[str, dict]]:
    """The chapters as they were last executed (`with_results`), and the records of the claims that they measured.

    The claims are judged by the current declarations, in the notebooks as well.
    """
    notebooks = {page: with_results(page) for page in everything if page.is_chapter}
    records = {}
    for page, notebook in notebooks.items():
        for shown in claims.collect(notebook) if notebook else ():
            record = {**shown[claims.MIME], "chapter": page.short}
            try:
                record = claims.judge(record)
            except (ValueError, KeyError) as error:
                raise SiteError(f"{page.name}: claim {record.get('id')}: {error}") from error
            shown[claims.MIME], shown["text/html"] = record, tables.claim(record)
            records[record["id"]] = record
    return notebooks, records


def compose(everything: list[Page], root: Path, kept: dict[str, dict]):
    """All files of the Sphinx source folder, the claims' records, and the chapters without results.

    kept: what `lib.book.records.read` found.
    """
    notebooks, measured = collect(everything)
    best = tables.evidence(measured, kept)
    statements = tables.places({page.short: page.text for page in notebooks})
    marks = {
        "verdicts": lambda: tables.tally(best),
        "symbols": lambda: symbols.table(symbols.read(root)),
        "ledger": lambda: tables.ledger(measured, kept, statements),
        "errata": lambda: errata.page(best, errata.sections(page.path for page in notebooks)[0]),
        "unmeasured": lambda: recorded.overview(kept, measured, root),
        "changes": lambda: changes.page(root, measured),
        "cite authors": lambda: cite(root)["authors"],
        "cite version": lambda: cite(root)["version"],
        "cite button": lambda: cite(root)["button"],
    }

    def fill(text: str) -> str:
        return re.sub(rf"<!-- ({'|'.join(marks)}) -->", lambda match: marks[match[1]](), text)

    wheel, packed = downloads.wheel(root, everything)
    where = {"wheel": wheel, **places(root)}
    files: dict[str, bytes] = {f"downloads/{wheel}": packed}
    for page in everything:
        if page.is_chapter:
            composed = notebooks[page] or _without_results(page)
            for cell in _prose(composed):
                text = tables.measured_by(errata.expand(cell.source, best, statements), best)
                cell.source = _link_chapters(fill(text), page, everything)
            files |= _chapter(page, composed, notebooks[page] is not None, where)
        else:
            files[f"{page.name}.md"] = _link_chapters(fill(page.text), page, everything).encode()
    for path in (*(root / name for name in FIXED), *(root / "_static").glob("*.*")):
        files[path.relative_to(root).as_posix()] = path.read_bytes()
    files["_config.yml"] = fill(files["_config.yml"].decode()).encode()
    return files, measured, [page for page, notebook in notebooks.items() if notebook is None]


def _prose(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def _chapter(page: Page, notebook, executed: bool, where: dict[str, str]) -> dict[str, bytes]:
    """The files of a chapter: what Sphinx reads, with a note under the title, and what readers download."""
    files = {f"downloads/{page.name}.md": page.text.encode()}
    note = NOT_EXECUTED
    if executed:
        files[f"downloads/{page.name}.ipynb"] = nbformat.writes(notebook).encode()
        opening = _opening(notebook)
        note = _run_note(page, opening, where)
        notebook.cells = [cell for cell in notebook.cells if cell not in opening]
    if title := next((cell for cell in _prose(notebook) if re.search("(?m)^# ", cell.source)), None):
        title.source = re.sub("(?m)^# .*", lambda h1: f"{h1[0]}\n\n{note}\n", title.source, count=1)
    files[f"{page.name}.ipynb"] = nbformat.writes(notebook).encode()
    return files


def cite(root: Path) -> dict[str, str]:
    """What CITATION.cff says: the authors, the version, and a button with the BibTeX entry."""
    about = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf8"))
    names = [one.get("name") or f"{one['given-names']} {one['family-names']}" for one in about["authors"]]
    where = places(root)
    url = where["site"] or where["repository"]
    button = TEMPLATES.get_template("cite.md").render(about=about, names=names, url=url)
    return {"authors": ", ".join(names), "version": str(about["version"]), "button": button}


def places(root: Path) -> dict[str, str]:
    """Where the book lives, by `_config.yml`: its `site`, its `repository`, and what `github` calls that.

    Each is empty where nobody has said it.
    """
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    site = config.get("html", {}).get("baseurl", "")
    repository = config.get("repository", {}).get("url", "").rstrip("/").removesuffix(".git")
    return {"site": site, "repository": repository, "github": repository.partition("https://github.com/")[2]}


def _without_results(page: Page):
    """A copy of the chapter's notebook, with cell names that stay the same from build to build."""
    notebook = copy.deepcopy(page.notebook)
    notebook.metadata.pop("jupytext", None)  # a downloaded notebook stands alone and is not paired with anything
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return notebook


def _opening(notebook) -> list:
    """The cells that prepare a page: before its first output, the settings and what is folded before all other code."""
    opening, folded = [], True
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        if cell.outputs:
            break
        settings = "pick(SETTINGS, profile)" in cell.source
        tags = {"parameters", "injected-parameters", "hide-input"} & set(_tags(cell))
        folded = folded and bool(tags or settings)
        if folded or settings:
            opening.append(cell)
    return opening


def _run_note(page: Page, opening: list, where: dict[str, str]) -> str:
    """How the reader runs the chapter, how the results shown were computed, and the code that opens it."""
    about = noted(page)
    parameters = dict(about["key"]["parameters"])
    profile = parameters.pop("profile", "laptop")
    command = f"make book CHAPTER={page.name}.md PROFILE={profile}"
    if parameters.get("device", "auto") != "auto":
        command += f" DEVICE={parameters['device']}"
    if "seed" in parameters and parameters["seed"] != page.declared["seed"]:
        command += f" SEED={parameters['seed']}"
    took = f"{seconds:.0f} s" if (seconds := about["seconds"]) < 100 else f"{seconds / 60:.1f} min"
    source = "\n\n".join(cell.source.strip() for cell in opening)
    template = TEMPLATES.get_template("run-note.md")
    about = {"page": page, "command": command, "profile": profile, "rest": parameters, "took": took, "source": source}
    return template.render(**about, **where, up="../" * page.name.count("/"))


def _link_chapters(text: str, page: Page, everything: list[Page]) -> str:
    """Links to the Markdown file of a chapter become links to its notebook, which is what Sphinx sees."""
    known = {other.name for other in everything if other.is_chapter}
    here = os.path.dirname(page.name)

    def link(match) -> str:
        target = os.path.normpath(os.path.join(here, match[1]))
        return f"]({match[1]}.ipynb" if target in known else match[0]

    return re.sub(r"\]\(([\w./-]+)\.md(?=[)#])", link, text)
