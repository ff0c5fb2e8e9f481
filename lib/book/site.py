"""Composing the pages from prose and executed results, and publishing them as one site."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import re
import shutil
import time
from pathlib import Path

import nbformat
import yaml

from lib.book import api, assets, symbols
from lib.book import records as recorded
from lib.book.chapters import BUILD, ROOT, BadInput, Page, code_hash, pages, sha, version
from lib.book.run import executed_notebook, noted
from lib.data.files import atomically
from lib.ledger import claims, declarations, errata
from lib.ledger import pages as tables

FIELDS = ("id", "verdict", "measured", "expected", "chapter", "profile", "device", "dataset", "seconds", "recorded")
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp")
RENDERERS = (
    "jupyter-book", "Sphinx", "myst-nb", "myst-parser", "sphinx-book-theme", "pydata-sphinx-theme", "sphinx-proof",
    "sphinx-exercise", "sphinxcontrib-bibtex", "sphinx-design", "sphinx-mathjax-offline", "docutils", "Pygments",
)  # fmt: skip


class SiteError(RuntimeError):
    """The site could not be built; the published one is as it was."""


def with_results(page: Page):
    """The chapter as a notebook: the prose of now, the outputs of its last execution, the injected parameters.

    Outputs belong to code cells by their order, which is sound because the code cells are compared first. Returns None
    when the chapter has not been executed since its code changed.
    """
    executed = executed_notebook(page)
    if executed is None or executed.metadata.book.key["code"] != code_hash(page.code):
        return None
    cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    injected = [cell for cell in cells if "injected-parameters" in cell.metadata.get("tags", [])]
    results = iter([cell for cell in cells if cell not in injected])
    notebook = _without_results(page)
    composed = []
    for cell in notebook.cells:
        composed.append(cell)
        if cell.cell_type == "code":
            result = next(results)
            cell.outputs, cell.execution_count = result.outputs, result.execution_count
        if injected and "parameters" in cell.metadata.get("tags", []):
            source = injected[0].source.replace("# Parameters", "# Parameters of this build", 1)
            metadata = {"tags": ["injected-parameters"]}
            composed.append(nbformat.v4.new_code_cell(source, metadata=metadata, id="injected"))
            composed[-1].execution_count = injected[0].execution_count
    notebook.cells = composed
    notebook.metadata["language_info"] = executed.metadata.get("language_info", {})
    return notebook


def render_claims(notebook, page: Page) -> list[dict]:
    """Judge the claims of a notebook against the declarations of now, in place; returns their records."""
    records = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if claims.MIME in output.get("data", {}):
            record = {**output.data[claims.MIME], "chapter": page.short}
            try:
                record = claims.judge(record)
            except (ValueError, KeyError) as error:
                raise SiteError(f"{page.name}: claim {record.get('id')}: {error}") from error
            output.data[claims.MIME], output.data["text/html"] = record, tables.claim(record)
            records.append(dict(record))
    return records


def collect(everything: list[Page]) -> list[dict]:
    """The records of the claims that the chapters, as last executed, measured; judged by the declarations of now."""
    records = []
    for page in everything:
        if page.is_chapter and (notebook := with_results(page)) is not None:
            records += render_claims(notebook, page)
    return records


def claim_rows(records: list[dict], kept: dict[str, dict]) -> tuple[list[dict], bytes]:
    """The rows of `claims.json`, in the order of the declarations, and the file's content.

    records: of the executed chapters. kept: what `lib.book.records.read` found, the row's `recorded`.
    """
    measured = {record["id"]: record for record in records}
    rows = []
    for name, declaration in declarations.read().claims.items():
        absent = {"id": name, "verdict": "not run", "measured": {}, "expected": declaration["expect"]}
        record = measured.get(name, absent)
        if claim := kept.get(name):
            parts = {part: claim[part] for part in ("verdict", "measured", "profile", "finished", "outdated")}
            record = {**record, "recorded": {**parts, "device": claim["machine"]["name"]}}
        rows.append({field: record.get(field) for field in FIELDS})
    return rows, (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()


def write_claims(records: list[dict], kept: dict[str, dict]) -> list[dict]:
    """Write `claims.json` as the chapters are now, whatever site is published; returns its rows. Raises SiteError."""
    rows, content = claim_rows(records, kept)
    try:
        with atomically(BUILD / "claims.json") as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise SiteError(f"{BUILD / 'claims.json'} cannot be written: {error}") from error
    return rows


def publish(root: Path = ROOT, partial: bool = False) -> tuple[Path, bool, list[Page]]:
    """Compose all pages, build them into a new folder and make that the site; the old site stays until then.

    A site that is not as its seal says is built anew. `claims.json` is a link to the site's, so they change together.
    With `partial`, chapters without results are shown without them (and Sphinx's warnings are not errors, since
    references into those results lead nowhere). Returns the path of the site, whether it was built anew, and the
    chapters without results. Raises SiteError.
    """
    everything = pages(root)
    try:
        kept = recorded.read(root)
        files, records, missing = _compose(everything, root, kept)
    except BadInput:
        raise
    except ValueError as error:  # a module that is not there, or declarations that changed while chapters were executed
        raise SiteError(f"the pages could not be composed, the published site is as it was: {error}") from error
    if missing and not partial:
        names = ", ".join(page.short for page in missing)
        raise SiteError(f"without results, with those of other code, or edited since: {names}; execute them first")
    _, files["downloads/claims.json"] = claim_rows(records, kept)
    sites, html = BUILD / "sites", BUILD / "html"
    try:
        digest = _sync(files)
        site = next(filter(_whole, sites.glob(f"{digest}*")), None)
        current = site is not None and html.resolve() == site.resolve()
        if site is None:
            site = sites / f"{digest}-{time.time_ns():x}"  # a damaged one of this digest may be the published one
            _build(root, files, site, strict=not missing)
        _link(BUILD / "claims.json", Path("html", "claims.json"))
        if not current:
            _switch(html, site)
    except OSError as error:
        raise SiteError(f"the site cannot be written to {BUILD}, the published one is as it was: {error}") from error
    for old in sites.iterdir():
        if old != site and old.name != "jupyter_execute":
            shutil.rmtree(old, ignore_errors=True)
    return html, not current, missing


def _compose(everything: list[Page], root: Path, kept: dict[str, dict]):
    """All files of the Sphinx source folder, the claims' records, and the chapters without results.

    kept: the claims that are recorded of the `paper` profile.
    """
    files: dict[str, bytes] = {}
    chapters = [page for page in everything if page.is_chapter]
    notebooks = {page: with_results(page) for page in chapters}
    missing = [page for page, notebook in notebooks.items() if notebook is None]
    records = [record for page, found in notebooks.items() if found for record in render_claims(found, page)]
    measured = {record["id"]: record for record in records}
    statements = tables.places({page.short: page.text for page in chapters})
    for page, notebook in notebooks.items():
        opening = [] if notebook is None else _opening(notebook)
        if notebook is None:
            notebook = _without_results(page)
            note = ":::{warning}\nThis chapter has not been executed in this build, so it shows no results.\n:::"
        else:
            note = _run_note(page, opening)
        prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        for cell in prose:
            cell.source = _cite(tables.measured_by(errata.expand(cell.source, measured, statements), measured), root)
            if "<!-- verdicts -->" in cell.source:
                cell.source = cell.source.replace("<!-- verdicts -->", tables.tally(records))
            if "<!-- symbols -->" in cell.source:
                cell.source = cell.source.replace("<!-- symbols -->", symbols.table(symbols.read(root)))
        if page not in missing:
            files[f"downloads/{page.name}.ipynb"] = nbformat.writes(notebook).encode()
        files[f"downloads/{page.name}.md"] = page.text.encode()
        notebook.cells = [cell for cell in notebook.cells if cell not in opening]
        _insert_note(notebook, note)
        _fold_audit(notebook)
        for cell in prose:
            cell.source = _link_chapters(cell.source, page, everything)
        files[f"{page.name}.ipynb"] = nbformat.writes(notebook).encode()
    for page in everything:
        if page.is_chapter:
            continue
        text = _cite(api.fill(page.text), root)
        if "<!-- ledger -->" in text:
            text = text.replace("<!-- ledger -->", tables.ledger(records, kept, statements))
        if "<!-- errata -->" in text:
            headings, _ = errata.sections([page.path for page in chapters])
            text = text.replace("<!-- errata -->", errata.page(measured, headings))
        if "<!-- unmeasured -->" in text:
            text = text.replace("<!-- unmeasured -->", recorded.overview(kept, measured, root))
        files[f"{page.name}.md"] = _link_chapters(text, page, everything).encode()
    fixed = (root / name for name in ("_config.yml", "_toc.yml", "references.bib", symbols.FILE))
    pictures = (path for path in (root / "chapters").rglob("*.*") if path.suffix in PICTURES)
    for path in (*fixed, *(root / "_static").rglob("*"), *pictures):
        if path.is_file():
            files[path.relative_to(root).as_posix()] = path.read_bytes()
    if config := files.get("_config.yml"):
        files["_config.yml"] = _cite(config.decode(), root).encode()
    return files, records, missing


def _cite(text: str, root: Path) -> str:
    """`<!-- cite authors -->`, and `version` and `button` likewise, replaced by what CITATION.cff says."""
    mark = r"<!-- cite (authors|version|button) -->"
    if not re.search(mark, text):
        return text
    try:
        about = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf8"))
        names = [one.get("name") or f"{one['given-names']} {one['family-names']}" for one in about["authors"]]
        entry = f"""@misc{{how-representations-collapse,
  title  = {{{{{about["title"]}}}}},
  author = {{{" and ".join(f"{{{name}}}" for name in names)}}},
  year   = {{{about["date-released"].year}}},
  note   = {{Version {about["version"]}}}
}}"""
    except (OSError, AttributeError, KeyError, TypeError, yaml.YAMLError) as error:
        raise SiteError(f"CITATION.cff does not say how to cite the book: {error!r}") from error
    button = f"""```{{raw}} html
<p><button class="cite" type="button" hidden>Copy the BibTeX entry</button>
<span class="cite-said" role="status"></span></p>
```

::::{{dropdown}} BibTeX entry
:class-container: cite-entry

```bibtex
{entry}
```
::::"""
    parts = {"authors": ", ".join(names), "version": str(about["version"]), "button": button}
    return re.sub(mark, lambda match: parts[match[1]], text)


def _without_results(page: Page):
    """A copy of the chapter's notebook, with names of its cells that stay the same from build to build."""
    notebook = copy.deepcopy(page.notebook)
    notebook.metadata.pop("jupytext", None)  # a downloaded notebook stands alone and is not paired with anything
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return notebook


def _opening(notebook) -> list:
    """The cells that prepare a page: up to its first output the settings, and what is folded before all other code."""
    opening, folded = [], True
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        if cell.outputs:
            break
        settings = "pick(SETTINGS, profile)" in cell.source
        tags = {"parameters", "injected-parameters", "hide-input"} & set(cell.metadata.get("tags", []))
        folded = folded and bool(tags or settings)
        if folded or settings:
            opening.append(cell)
    return opening


def _run_note(page: Page, opening: list) -> str:
    """How the reader runs the chapter, how what is shown was run, and the code that opens it."""

    def code(value) -> str:  # between more backticks than it has in a row, on one line
        text = " ".join(str(value).split())
        fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
        return f"{fence} {text} {fence}"

    about = noted(page)
    parameters = dict(about["key"]["parameters"])
    profile = parameters.pop("profile", "laptop")
    command = f"make book CHAPTER={page.name}.md PROFILE={profile}"
    if parameters.get("device", "auto") != "auto":
        command += f" DEVICE={parameters['device']}"
    if "seed" in parameters and parameters["seed"] != page.declared["seed"]:
        command += f" SEED={parameters['seed']}"
    rest = "".join(f", {name} {code(value)}" for name, value in parameters.items())
    took = f"{seconds:.0f} s" if (seconds := about["seconds"]) < 100 else f"{seconds / 60:.1f} min"
    name = page.name.rpartition("/")[2]
    source = "\n\n".join(cell.source.strip() for cell in opening)
    fence = "`" * (1 + max(map(len, re.findall("``+", source)), default=2))
    return f"""<details class="run-note"><summary>Run, change, download this page</summary>

```bash
{command}
```

executes this chapter and renders the book. Change its parameters or its code and run the command again;
`make lab` opens it as a notebook.

What the page shows was executed with profile `{profile}`{rest} in {took}.

- {{download}}`Executed notebook ({name}.ipynb) </downloads/{page.name}.ipynb>`
- {{download}}`Markdown source ({name}.md) </downloads/{page.name}.md>`

<p class="code-switch" hidden><button type="button" value="shown">Show all code</button>
<button type="button" value="hidden">Hide all code</button></p>

The page opens with this code:

{fence}ipython3
{source}
{fence}

</details>"""


def _insert_note(notebook, note: str) -> None:
    """Put a note right after the first heading of the page."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (heading := re.search(r"^# .*$", cell.source, re.MULTILINE)):
            cell.source = f"{cell.source[: heading.end()]}\n\n{note}\n{cell.source[heading.end() :]}"
            return


def _fold_audit(notebook) -> None:
    """Fold what stands below the last heading of a page that says before it what to remember."""
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    if any(re.search("^## What to remember$", cell.source, re.MULTILINE) for cell in prose):
        heading, fold = "^## What was measured$", '\n\n<details class="audit"><summary>The list</summary>\n\n'
        for cell in prose:
            cell.source = re.sub(heading, lambda match: match[0] + fold, cell.source, flags=re.MULTILINE)
        notebook.cells.append(nbformat.v4.new_markdown_cell("</details>", id="end-of-audit"))


def _link_chapters(text: str, page: Page, everything: list[Page]) -> str:
    """Links to the Markdown file of a chapter become links to its notebook, which is what Sphinx sees."""
    known = {other.name for other in everything if other.is_chapter}
    here = os.path.dirname(page.name)

    def link(match) -> str:
        target = os.path.normpath(os.path.join(here, match[1]))
        return f"]({match[1]}.ipynb" if target in known else match[0]

    return re.sub(r"\]\(([\w./-]+)\.md(?=[)#])", link, text)


def _sync(files: dict[str, bytes]) -> str:
    """Make the Sphinx source folder equal to `files`, touching only what differs; returns the site's digest."""
    source = BUILD / "source"
    digest = hashlib.sha256("".join(f"{name} {version(name)}\n" for name in RENDERERS).encode())
    for path in sorted(Path(__file__).resolve().parents[1].rglob("*.[pj][ys]")):
        digest.update(path.read_bytes())  # docstrings are on the pages about the library, and lib.book makes all pages
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
        path = source / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in source.rglob("*"):
        if path.is_file() and path.relative_to(source).as_posix() not in files:
            path.unlink()
    return digest.hexdigest()[:16]


def _build(root: Path, files: dict[str, bytes], site: Path, strict: bool) -> None:
    """Run Sphinx into a temporary folder beside `site` and rename it.

    Parsed pages are kept in `doctrees`, their pictures in `jupyter_execute`, every page is written anew. What is kept
    is only trusted when it is whole and the last run ended well under the same configuration: a page with a warning
    must be read, and warn, again.
    """
    from jupyter_book.sphinx import build_sphinx

    doctrees, pictures = BUILD / "doctrees", site.with_name("jupyter_execute")
    temporary = site.with_name(f".{site.name}.new")
    common = {name: content for name, content in files.items() if not name.startswith(("chapters/", "downloads/"))}
    trusted = hashlib.sha256(repr(sorted(common.items())).encode() + str(strict).encode()).hexdigest()
    known = doctrees / "trusted"
    if not (_whole(doctrees) and _whole(pictures) and known.read_text() == trusted):
        shutil.rmtree(doctrees, ignore_errors=True)
        shutil.rmtree(pictures, ignore_errors=True)
    known.unlink(missing_ok=True)
    for left in site.parent.glob(".*.new"):  # by builds that were killed
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    source, log = BUILD / "source", io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(log):
        status = build_sphinx(
            source, temporary, noconfig=True, path_config=source / "_config.yml", doctreedir=doctrees,
            confoverrides={
                "external_toc_path": str(source / "_toc.yml"),
                "html_search_scorer": str(Path(__file__).with_name("scorer.js")),
                "nitpicky": True,
                "latex_individualpages": False,
            },
            warningiserror=strict, keep_going=True,
        )  # fmt: skip
    if isinstance(status, (KeyboardInterrupt, OSError)):
        raise status
    if status:
        shutil.rmtree(temporary, ignore_errors=True)
        problems = re.sub(r"\x1b\[[0-9;]*m", "", log.getvalue()).replace(f"{source}/", "").strip()
        raise SiteError(f"Sphinx found problems, the published site is as it was:\n{problems}")
    _finish(files, temporary)
    assets.trim(temporary)
    if symbols.FILE in files:
        symbols.mark(temporary, symbols.read(root))
    pictures.mkdir(exist_ok=True)  # there are none where no chapter has results
    known.write_text(trusted)
    for folder in (doctrees, pictures, temporary):
        seal(folder)
    os.replace(temporary, site)


def seal(folder: Path) -> None:
    """List the files of a finished folder and their hashes in its `.seal`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / ".seal")
    with open(folder / ".seal", "w") as file:
        json.dump({path.relative_to(folder).as_posix(): sha(path.read_bytes()) for path in files}, file)
        file.flush()
        os.fsync(file.fileno())


def _whole(folder: Path) -> bool:
    """Does a folder have all files that its seal lists, as they were?"""
    try:
        sealed = json.loads((folder / ".seal").read_text())
        return all(sha((folder / name).read_bytes()) == digest for name, digest in sealed.items())
    except (OSError, ValueError, AttributeError):
        return False


def _finish(files: dict[str, bytes], out: Path) -> None:
    """The entry page, the claims, and behind each page's download button the executed notebook without its note."""
    first = yaml.safe_load(files["_toc.yml"])["root"].removesuffix(".md")
    link = f'<meta http-equiv="Refresh" content="0; url={first}.html" />'
    icon = '<link rel="icon" href="data:,">'  # or the browser asks for a favicon.ico that is not there
    (out / "index.html").write_text(
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{link}{icon}<title>The book</title></head>'
        f'<body><a href="{first}.html">The book</a></body></html>\n'
    )
    (out / "claims.json").write_bytes(files["downloads/claims.json"])
    _lead_on(files, out)
    for name, content in files.items():
        target = out / "_sources" / name.removeprefix("downloads/")
        if name.startswith("downloads/") and name.endswith(".ipynb") and target.is_file():
            target.write_bytes(content)


def _lead_on(files: dict[str, bytes], out: Path) -> None:
    """Links to what a chapter had go on working: `<!-- moved to one two -->` names the ones beside it that have it.

    The old page gets each name of theirs that it does not have itself, with a link that a script follows at once.
    """
    for name in (name for name in files if re.fullmatch(r"chapters/.*\.(ipynb|md)", name)):
        if found := re.search(r"(?<!`)<!-- moved to ([^>]*) -->", files[name].decode()):
            page = (out / name).with_suffix(".html")
            before, end, after = page.read_text(encoding="utf8").rpartition("</article>")
            items = dict.fromkeys(_names(before), "")
            for other in found[1].split():
                for one in _names(page.with_name(f"{other}.html").read_text(encoding="utf8")):
                    link = f'<a href="{other}.html#{one}">It is on another page now.</a>'
                    items.setdefault(one, f'<li id="{one}">{link}</li>')
            moved = f'<ul class="moved">{"".join(items.values())}</ul>'
            page.write_text(f"{before}{moved}{end}{after}", encoding="utf8")


def _names(html: str) -> list[str]:
    """The names in the article of a page, without those that Sphinx numbers."""
    article = html[html.find("<article") :].partition("</article>")[0]
    return re.findall(r' id="(?!id\d+"|proof-content"|proof")([^"]+)"', article)


def _switch(html: Path, site: Path) -> None:
    """Let `html` mean the finished site."""
    if html.is_dir() and not html.is_symlink():  # not ours: a folder that an earlier tool made
        old = html.with_name("html.old")
        if old.exists():
            raise SiteError(f"{html} is no site of this book and cannot be moved to {old}, which is there: remove one")
        os.replace(html, old)
    _link(html, site.relative_to(html.parent))


def _link(path: Path, target: Path) -> None:
    """Let `path` mean `target`, in one step."""
    link = path.with_name(f".{path.name}.new")
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    os.replace(link, path)
