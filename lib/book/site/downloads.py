"""What readers take away: notebooks in plain Markdown that install what they call, and the wheel that they install."""

from __future__ import annotations

import base64
import hashlib
import io
import posixpath
import re
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat

from lib.book.ledger.claims import record_files
from lib.book.page import Page

NAME = "how_representations_collapse"
DECLARATIONS = ("papers", "claims", "errata")  # what a chapter reads of `chapters/*.yml`
#: Of a role, its target and a text of its own or None: what it shows, and the page it leads to, from here, or None.
Resolve = Callable[[str, str, str | None], tuple[str, str | None]]

INSTALL = """\
# The pages of the book call a library of its own. Where it is there already, this cell does nothing.
try:
    import lib.book
except ImportError:
    import importlib.metadata, pathlib, subprocess, sys

    wheel, site = "{wheel}", "{site}"
    folder = pathlib.Path(wheel).absolute().with_suffix("")
    if not folder.exists():
        if not (site or pathlib.Path(wheel).exists()):
            raise FileNotFoundError(
                f"{{wheel}} is needed beside this notebook: every page of the book offers it "
                "under 'Run, change, download this page'"
            )
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--target", folder, site + wheel], check=True)
    sys.path.insert(0, str(folder))
    for line in importlib.metadata.requires("{name}"):
        package = line.split(">=")[0]
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{{package}} is not installed, and some pages need it: pip install '{{line}}'")
"""


def wheel(root: Path, everything: list[Page]) -> tuple[str, bytes]:
    """The file name and the content of a wheel of what chapters call and read.

    It holds `lib`, `collapsemetrics`, the declarations, the stored results of chapters and the records, where the
    library looks for them, and asks for the packages that `pyproject.toml` lists as `book`.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]
    library = (path for path in (root / "lib").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    files = {re.sub("^lib/(?=collapsemetrics/)", "", str(path.relative_to(root))): path for path in library}
    read = [path for name in DECLARATIONS if (path := root / f"chapters/{name}.yml").is_file()]
    read += [path for page in everything if page.is_chapter for path in page.files]
    read += record_files(root)
    files |= {path.relative_to(root).as_posix(): path for path in read}
    contents = {name: files[name].read_bytes() for name in sorted(files)}
    content = "".join(map(_digest, contents.values()))
    version = f"{project['version']}+{hashlib.sha256(content.encode()).hexdigest()[:8]}"  # a folder for each content
    info = f"{NAME}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in project["optional-dependencies"]["book"])
    about = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
    contents[f"{info}/METADATA"] = f"{about}Requires-Python: {project['requires-python']}\n{needs}".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},{_digest(content)},{len(content)}\n" for name, content in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():  # without times, so that the same files make the same wheel
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return f"{NAME}-{version}-py3-none-any.whl", packed.getvalue()


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def standalone(notebook, page: str, resolve: Resolve, wheel: str, site: str):
    """Make a composed notebook one that reads and runs away from the book; returns it.

    page: its name, from which relative links start. site: the address of the book, empty where nobody has said it.
    """
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _links(plain(cell.source, resolve), page, site)
        for output in cell.get("outputs", ()):
            if shown := output.get("data", {}).get("text/html"):
                output["data"]["text/html"] = _links("".join(shown), page, site)
    first = next(n for n, cell in enumerate(notebook.cells) if cell.cell_type == "code")  # that of the parameters
    source = INSTALL.format(wheel=wheel, site=site, name=NAME)
    notebook.cells.insert(first, nbformat.v4.new_code_cell(source.strip(), id="install"))
    return notebook


def _links(text: str, page: str, site: str) -> str:
    """Relative links lead to the site; where its address is not known, their text stays."""

    def leads(target: str) -> str:
        if target.startswith("#"):
            return f"{site}{page}.html{target}"
        target = re.sub(r"\.(?:md|ipynb)(?=#|$)", ".html", target)
        return site + posixpath.normpath(posixpath.join(posixpath.dirname(page), target))

    here = r"(?!https?:|data:)"
    link = rf"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\({here}([^)\s]+)\)"
    if not site:
        text = re.sub(rf'<a [^>]*href="{here}[^"]*"[^>]*>(.*?)</a>', r"\1", text, flags=re.DOTALL)
        return re.sub(link, r"\1", text)
    text = re.sub(rf'(<a [^>]*href="){here}([^"]*)', lambda found: found[1] + leads(found[2]), text)
    return re.sub(link, lambda found: f"[{found[1]}]({leads(found[2])})", text)


def plain(text: str, resolve: Resolve) -> str:
    """MyST Markdown as Markdown that every notebook shows: no roles, no directives, no labels.

    >>> print(plain("See {eq}`a`.", lambda role, target, shown: ("(I.2.3)", None)))
    See (I.2.3).
    """
    lines, done = text.split("\n"), []
    while lines:
        line = lines.pop(0)
        fence = re.match(r" *([`:~]{3,})(?:\{([\w:-]+)\} *(.*))?", line)
        if fence:
            end = (n for n, other in enumerate(lines) if other.strip().startswith(fence[1]) and not other.strip(" `:~"))
            end = next(end, len(lines))
            body, lines = lines[:end], lines[end + 1 :]
            if fence[2]:
                done.append(_directive(fence[2], fence[3], body, resolve))
            else:
                done += [line, *body, fence[1]]
        elif not re.fullmatch(r"\([\w-]+\)=", line):  # a label
            done.append(re.sub(r"\{([a-z:]+)\}`([^`]+)`", lambda role: _role(role[1], role[2], resolve), line))
    return "\n".join(done)


def _role(role: str, text: str, resolve: Resolve) -> str:
    explicit = re.fullmatch(r"(.*?)\s*<(.+)>", text)
    shown, address = resolve(role, explicit[2], explicit[1]) if explicit else resolve(role, text, None)
    return f"[{shown}]({address})" if address else shown


def _directive(name: str, title: str, body: list[str], resolve: Resolve) -> str:
    options = {}
    while body and (option := re.fullmatch(r":([\w-]+):\s*(.*)", body[0])):
        options[option[1]] = option[2]
        body = body[1:]
    label = options.get("label")
    if name == "math":
        number = f" \\tag{{{resolve('eq', label, None)[0].strip('()')}}}" if label else ""
        return "\n".join(["$$", *body, f"{number}$$"])
    inner, title = plain("\n".join(body), resolve).strip(), plain(title, resolve)
    if name == "dropdown":
        return f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>"
    if name == "prf:proof":
        return f"*Proof.* {inner}"
    if name in ("solution-start", "solution-end"):
        return "**Solution.**" if name == "solution-start" else ""
    if name.startswith("prf:") or name == "exercise":
        number = resolve("prf:ref" if name.startswith("prf:") else "ref", label, None)[0]
        title = f"{number}. {title}" if title else number
    elif name in ("raw", "grid"):
        return inner
    return _quoted(f"**{title}**\n\n{inner}")


def _quoted(text: str) -> str:
    """A quoted block, in which a displayed formula is one line: notebooks would take the marks for mathematics."""
    text = re.sub(r"\$\$.+?\$\$", lambda formula: " ".join(formula[0].split("\n")), text, flags=re.DOTALL)
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
