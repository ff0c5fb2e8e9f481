"""Publishing the composed pages as one site; the old site stays until the new one is complete."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sysconfig
from pathlib import Path

import yaml

from lib.book import folders
from lib.book import records as recorded
from lib.book.atomic import atomically
from lib.book.folders import ROOT
from lib.book.ledger import declarations
from lib.book.page import Page, SiteError, pages
from lib.book.site import assets, compose, symbols

MAKE_PAGES = (
    "(?i)sphinx|docutils|myst|jupyter_book|pydata|pybtex|jinja2|pygments|markdown|mdit|nbformat|jupytext|fonttools"
)
FIELDS = ("id", "verdict", "measured", "expected", "chapter", "profile", "device", "dataset", "seconds", "recorded")


def claim_rows(measured: dict[str, dict], kept: dict[str, dict]) -> tuple[list[dict], bytes]:
    """The rows of `claims.json`, in the order of the declarations, and the file's content.

    measured: {id: record} of the executed chapters. kept: what `lib.book.records.read` found, which becomes
    the rows' `recorded`.
    """
    rows = []
    for name, declaration in declarations.read().claims.items():
        absent = {"id": name, "verdict": "not run", "measured": {}, "expected": declaration["expect"]}
        record = measured.get(name, absent)
        if claim := kept.get(name):
            parts = {part: claim[part] for part in ("verdict", "measured", "profile", "finished", "outdated")}
            record = {**record, "recorded": {**parts, "device": claim["machine"]["name"]}}
        rows.append({field: record.get(field) for field in FIELDS})
    return rows, (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()


def write_claims(measured: dict[str, dict], kept: dict[str, dict]) -> list[dict]:
    """Write `claims.json` for the chapters as they are now, whatever site is published; returns its rows."""
    rows, content = claim_rows(measured, kept)
    with atomically(folders.BUILD / "claims.json") as partial:
        partial.write_bytes(content)
    return rows


def publish(root: Path = ROOT, partial: bool = False) -> tuple[Path, bool, list[Page], list[str]]:
    """Compose all pages, build them into a new folder and make that the site; the old site stays until then.

    `claims.json` is a link to the site's own file, so both change together.
    With `partial`, chapters without results are shown without them (and Sphinx's warnings are not errors, since
    references into those results lead nowhere). Returns the path of the site, whether it was built anew, the chapters
    without results, and Sphinx's warnings about the other pages. Raises SiteError.
    """
    everything = pages(root)
    try:
        kept = recorded.read(root)
        files, measured, missing = compose.compose(everything, root, kept)
    except ValueError as error:  # a module that is not there, or declarations that changed while chapters were executed
        raise SiteError(f"the pages could not be composed, the published site is as it was: {error}") from error
    if missing and not partial:
        names = ", ".join(page.short for page in missing)
        raise SiteError(f"without results, with those of other code, or edited since: {names}; execute them first")
    _, files["downloads/claims.json"] = claim_rows(measured, kept)
    sites, html = folders.BUILD / "sites", folders.BUILD / "html"
    try:
        site = sites / _sync(files)
        current, found = html.resolve() == site.resolve(), []
        if not site.is_dir():
            found = _build(root, files, site, strict=not missing)
        _link(folders.BUILD / "claims.json", Path("html", "claims.json"))
        if not current:
            _link(html, site.relative_to(html.parent))
    except OSError as error:
        raise SiteError(
            f"the site cannot be written to {folders.BUILD}, the published one is as it was: {error}"
        ) from error
    for old in sites.iterdir():  # sites that this one replaces
        if old != site and old.name != "jupyter_execute":
            shutil.rmtree(old, ignore_errors=True)
    shown = [page.name for page in everything if page not in missing]
    return html, not current, missing, [line for line in found if any(f"{name}." in line for name in shown)]


def _sync(files: dict[str, bytes]) -> str:
    """Make the Sphinx source folder equal to `files`, touching only what differs; returns the site's digest.

    A link in that folder is removed, and nothing is written or deleted where it leads.
    """
    source = folders.BUILD / "source"
    packages = sorted(path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))
    packages = [name for name in packages if re.match(MAKE_PAGES, name)]  # their names and versions
    digest = hashlib.sha256("\n".join(packages).encode())
    for path in sorted(Path(__file__).resolve().parents[2].rglob("*.[pj][ys]")):
        digest.update(path.read_bytes())  # docstrings are on the pages about the library, and lib.book makes all pages
    for path in source.rglob("*"):
        gone = path.is_file() and path.relative_to(source).as_posix() not in files  # a page that the book had
        if gone or path.is_symlink():
            path.unlink()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
        path = source / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return digest.hexdigest()[:16]


def _build(root: Path, files: dict[str, bytes], site: Path, strict: bool) -> list[str]:
    """Run Sphinx into a temporary folder beside `site` and rename it; returns its warnings.

    Parsed pages are kept in `doctrees`, their pictures in `jupyter_execute`; every page is written anew. What is kept
    is trusted only when the last run ended well under the same configuration: a page with a warning must be read, and
    warn, again.
    """
    from jupyter_book.sphinx import build_sphinx

    doctrees, pictures = folders.BUILD / "doctrees", site.with_name("jupyter_execute")
    temporary = site.with_name(f".{site.name}.new")
    common = {name: content for name, content in files.items() if not name.startswith(("chapters/", "downloads/"))}
    trusted = hashlib.sha256(repr(sorted(common.items())).encode() + str(strict).encode()).hexdigest()
    known = doctrees / "trusted"
    if not (known.is_file() and known.read_text() == trusted):  # Sphinx makes both anew
        shutil.rmtree(doctrees, ignore_errors=True)
        shutil.rmtree(pictures, ignore_errors=True)
    known.unlink(missing_ok=True)  # until Sphinx has ended well
    for left in site.parent.glob(".*.new"):  # by builds that were killed
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    source, log = folders.BUILD / "source", io.StringIO()
    configuration = {
        "external_toc_path": str(source / "_toc.yml"),
        "html_search_scorer": str(Path(__file__).with_name("scorer.js")),
        "latex_individualpages": False,
    }
    options = {"doctreedir": doctrees, "confoverrides": configuration, "warningiserror": strict, "keep_going": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(log):
        status = build_sphinx(source, temporary, noconfig=True, path_config=source / "_config.yml", **options)
    if isinstance(status, (KeyboardInterrupt, OSError)):
        raise status
    problems = re.sub(r"\x1b\[[0-9;]*m", "", log.getvalue()).replace(f"{source}/", "").strip()
    if status:
        shutil.rmtree(temporary, ignore_errors=True)  # half a site
        raise SiteError(f"Sphinx found problems, the published site is as it was:\n{problems}")
    _finish(files, temporary)
    assets.finish(temporary)
    symbols.mark(temporary, symbols.read(root))
    pictures.mkdir(exist_ok=True)  # there are none where no chapter has results
    known.write_text(trusted)
    os.replace(temporary, site)
    return problems.splitlines()


def _finish(files: dict[str, bytes], out: Path) -> None:
    """Write the entry page and the claims."""
    first = yaml.safe_load(files["_toc.yml"])["root"]
    (out / "index.html").write_text(compose.TEMPLATES.get_template("index.html").render(first=first))
    (out / "claims.json").write_bytes(files["downloads/claims.json"])


def _link(path: Path, target: Path) -> None:
    """Make `path` a link to `target`, in one step."""
    link = path.with_name(f".{path.name}.new")
    link.unlink(missing_ok=True)  # what a build that was killed left
    link.symlink_to(target)
    os.replace(link, path)
