"""What the results of a chapter depend on, and whether they are stale."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from lib.book.folders import ROOT
from lib.book.kernel.notes import data_folder
from lib.book.kernel.profiles import PROFILES, pick
from lib.book.page import Page, parsed

# The tool does not change what a chapter computes: claims are judged again at each publication, so an edit of a rule
# must not cost an execution. What `pick` takes of the settings is part of the code's own hash.
NOT_INPUTS = re.compile(r"lib\.book\b")

Parts = dict[str, list[str]]  # by module, the texts of the definitions that count
#: Packages that compute, by the name under which they are imported, and the distributions whose versions count.
COMPUTING = "torch torchvision numpy scipy networkx sympy optuna pandas lightning transformers accelerate"
COMPUTES = {name: name for name in COMPUTING.split()} | {"sklearn": "scikit-learn", "PIL": "pillow"}


@functools.cache
def version(distribution: str) -> str | None:
    """The installed version, None for a package that is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)


def key(page: Page, given: dict, before: dict | None = None, look: Callable | None = None) -> dict:
    """Everything that the results of a chapter depend on, by part, so that a difference can be named.

    before: the key of an execution, which knows the files and the data that it read; they are looked at again.
    look: :func:`fingerprint`, or a version of it that remembers where it has looked.
    """
    before, parameters = before or {"files": {}, "data": {}}, page.parameters(given)
    parts = imported_parts(page.code, page.root)
    reached = {part for name in imports(page, parts) for part in name.split(".")}  # lib.data.vision.torchvision, too
    computing = {COMPUTES[name] for name in reached & COMPUTES.keys()} | {"torch", "numpy"}
    return {
        **hashes(page, parameters.get("profile"), before["files"], parts),
        "parameters": parameters,
        "versions": {name: version(name) for name in sorted(computing)},
        "data": data_read(before["data"], parameters.get("dataset"), look or fingerprint),
    }


def hashes(page: Page, profile: str | None = None, read: Iterable[str] = (), parts: Parts | None = None) -> dict:
    """The part of the key that the repository decides: the code cells, what they use of lib, the files.

    These are the files in the folder of the page's name, and those in `read`: what an execution was seen to read.
    parts: what :func:`imported_parts` has found, if it was asked before.
    """
    parts = parts or imported_parts(page.code, page.root)
    names = {path.relative_to(page.root).as_posix() for path in page.files} | {*read}
    return {
        "code": code_hash(page.code, profile),
        "lib": {name: sha("".join(map(_hash, texts)).encode()) for name, texts in parts.items()},
        "files": {name: content(page.root / name) for name in sorted(names)},
    }


def imports(page: Page, parts: Parts | None = None) -> set[str]:
    """What a chapter imports, itself or through parts of `lib`, and all parent packages; parts as for `hashes`."""
    parts = parts or imported_parts(page.code, page.root)
    sources = [[cell.source for cell in page.code], *parts.values()]
    names = [name.split(".") for texts in sources for source in texts for _, name in imported(source)]
    return {".".join(name[:i]) for name in names for i in range(1, len(name) + 1)}


def differences(old: dict | None, new: dict) -> list[str]:
    """What changed between two keys, in words; empty when the results of `old` are still good.

    The keys of a record are no more than :func:`hashes`: with what else it was measured, it says itself.
    """
    if not old:
        return ["never executed"]
    reasons = ["its code cells changed"] if old["code"] != new["code"] else []
    for name, value in json.loads(json.dumps(new.get("parameters", {}))).items():  # as a kept key has them
        if (before := old["parameters"].get(name)) != value:
            reasons.append(f"parameter {name}: {before!r} -> {value!r}")
    for name, value in sorted(new["lib"].items()):  # a module no longer imported shows in what imported it
        if old["lib"].get(name) != value:
            reasons.append(f"{name} {'changed' if name in old['lib'] else 'is imported now'}")
    for name, present in new.get("versions", {}).items():
        if old["versions"].get(name) != present:
            reasons.append(f"{name} {old['versions'].get(name)} -> {present}")
    if old.get("data") != new.get("data"):
        reasons.append("the data set changed")
    if changed := {name for name, _ in old["files"].items() ^ new["files"].items()}:
        reasons.append(f"{', '.join(sorted(changed))} changed")
    return reasons


def code_hash(cells, profile: str | None = None) -> str:
    """SHA-256 of the code cells and of the tags that change what executing them does.

    Only the profile's column of `SETTINGS` counts, if the cells do nothing with this table but `pick` that column.
    """
    mentions = re.findall(r"\bpick\(SETTINGS, profile\)|\bSETTINGS\b", "\n".join(cell.source for cell in cells))
    picked = sorted(mentions) == ["SETTINGS", "pick(SETTINGS, profile)"]
    parts = []
    for cell in cells:
        tags = sorted(set(cell.metadata.get("tags", [])) & {"parameters", "raises-exception"})
        source = _column(cell.source, profile) if profile in PROFILES and picked else cell.source
        parts.append(f"{','.join(tags)}\n{source.strip()}")
    return sha("\n\0\n".join(parts).encode())


def _column(source: str, profile: str) -> str:
    """A cell with its table `SETTINGS` replaced by what `pick(SETTINGS, profile)` makes of it."""
    for node in parsed(source).body if "SETTINGS" in source else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SETTINGS":
            with contextlib.suppress(ValueError):  # a table that `pick` refuses counts as it is
                node.value = _picked(node.value, profile)
                lines = source.split("\n")
                lines[node.lineno - 1 : node.end_lineno] = [ast.unparse(node)]
                return "\n".join(lines)
    return source


def _picked(table: ast.expr, profile: str) -> ast.Dict:
    """The syntax of what `pick` makes of a table, from the syntax of the table."""
    if not isinstance(table, ast.Dict):
        raise ValueError("no dictionary")
    rows = {}
    for name, row in zip(table.keys, table.values, strict=True):
        rows[ast.literal_eval(name)] = row.elts if isinstance(row, ast.Tuple) else ast.literal_eval(row)
    picked = pick(rows, profile)
    return ast.Dict([ast.Constant(name) for name in picked], list(picked.values()))


class _Module(NamedTuple):
    """A module of `lib`: the texts of its definitions, what it imports, and the definitions that count so far."""

    parts: dict[str, str]
    imports: list[tuple[str, str]]
    package: str
    counted: set[str]


def imported_parts(cells, root: Path = ROOT) -> Parts:
    """What the cells use of `lib`, directly or through other parts of it: by module, the texts of the definitions used.

    A definition (of a function, a class, a name) counts if its name stands in code that counts; so do the statements of
    its module that define nothing. A whole module counts if its name stands without an attribute. What a package passes
    on counts in the module that defines it. Imports inside functions are seen, `importlib.import_module` is not.
    """
    files, read = modules(root), {}
    text = "\n".join(cell.source for cell in cells)  # what one cell imports, another one uses
    queue = [name for cell in cells for name in _used(imported(cell.source), text, {""})]
    while queue:
        name, leaf = queue.pop(), ""
        while name and name not in files:
            name, _, leaf = name.rpartition(".")
        if name and not NOT_INPUTS.match(name):
            if name not in read:
                source = files[name].read_text(encoding="utf8")
                package = name if files[name].stem == "__init__" else name.rpartition(".")[0]
                read[name] = _Module(_definitions(source), imported(source, package), package, set())
            queue += _count(read[name], leaf)
    return {name: _texts(module) for name, module in sorted(read.items()) if module.counted}


def _count(module: _Module, leaf: str) -> list[str]:
    """Let the definition `leaf` count (all, if there is none of that name), and what it needs of its module; the full
    names of what these need of other modules."""
    if leaf not in module.parts and (passed_on := [full for alias, full in module.imports if alias == leaf]):
        return passed_on
    wanted, needed = {"", leaf}, []
    if not leaf or leaf not in module.parts:
        wanted = {*module.parts}
        needed = [full for _, full in module.imports]
    while wanted := wanted - module.counted:
        module.counted.add(name := wanted.pop())
        part = module.parts[name]
        needed += _used(module.imports, part) + _used(imported(part, module.package), part, {""})
        wanted |= _names(part).keys() & module.parts.keys()
    return needed


def _texts(module: _Module) -> list[str]:
    """The definitions of a module that count, and the imports that these use."""
    parts = [module.parts[name] for name in sorted(module.counted)]
    names = {name for part in parts for name in _names(part)}
    used = {(alias, full) for alias, full in module.imports if alias in names or not alias.isidentifier()}
    lines = [f"import {full.removesuffix('.*')}" + f" as {alias}" * alias.isidentifier() for alias, full in used]
    return parts + sorted(lines)


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The files of `lib` by the names under which they are imported; `collapsemetrics` is a package of its own."""
    found = {}
    for path in sorted((root / "lib").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found[name.removeprefix("lib.") if "collapsemetrics" in name else name] = path
    return found


def content(path: Path) -> str | None:
    """The hash of a file, or of the names in a folder; None where there is neither."""
    if path.is_dir():
        return sha("\n".join(sorted(os.listdir(path))).encode())
    return sha(path.read_bytes()) if path.is_file() else None


def data_read(names: Iterable[str], dataset: str | None, look: Callable[[str], str | None]) -> dict[str, str | None]:
    """The state of the data: of each named folder in the data folder, and of what else decides which data are read.

    With `dataset = "auto"` that is which sets there are, and with the path of a reader's own images these.
    """
    found = {name: look(str(data_folder() / name)) for name in names if name not in ("auto", "dataset")}
    if dataset == "auto":
        there = [path.parent.name + "/" + path.name for path in data_folder().glob("*/*")]
        found["auto"] = sha(os.fsencode("\n".join(sorted(there))))
    elif dataset and os.path.exists(os.path.expanduser(dataset)):
        found["dataset"] = look(os.path.expanduser(dataset))
    return found


def fingerprint(place: str) -> str | None:
    """Hash of names, sizes and modification times of a file or below a folder, None where there is nothing.

    The files themselves are not read; links are followed.
    """
    if not os.path.exists(place):
        return None
    paths = [place] if os.path.isfile(place) else []
    for folder, _, names in os.walk(place, followlinks=True):
        paths += [f"{folder}/{name}" for name in names]  # text rather than Path: there may be many thousands
    entries = []
    for path in paths:
        with contextlib.suppress(OSError):  # a link that leads nowhere, a file that has gone meanwhile
            status = os.stat(path)
            entries.append(f"{path[len(place) :]}\0{status.st_size}\0{int(status.st_mtime)}")
    return sha(os.fsencode("\n".join(sorted(entries))))


@functools.cache
def imported(source: str, package: str = "") -> list[tuple[str, str]]:
    """What a source imports, each by its name there and its full name (`lib.a.b` for `from lib.a import b`).

    `package` is the package in which the source lies; relative imports start there.
    """
    found: list[tuple[str, str]] = []
    for node in ast.walk(parsed(source)) if "import" in source else []:
        if isinstance(node, ast.Import):
            found += [(alias.asname or alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else None
            where = ".".join(filter(None, [above, node.module]))
            found += [(alias.asname or alias.name, f"{where}.{alias.name}") for alias in node.names]
    return found


def _used(imports: list[tuple[str, str]], text: str, otherwise: Iterable[str] = ()) -> list[str]:
    """The full names of what a text uses of the imports: `lib.figures.panels` where it has `figures.panels`,
    `lib.figures` where `figures` stands without an attribute. What is imported under no name of its own always counts;
    `otherwise` gives the attributes assumed for names that the text does not have."""
    names = _names(text)
    found = [(full, names.get(name, otherwise if name.isidentifier() else {""})) for name, full in imports]
    return [f"{full}.{each}".removesuffix(".") for full, attributes in found for each in attributes]


@functools.cache
def _definitions(source: str) -> dict[str, str]:
    """The texts of what a module defines at its top level, by name; "" has the statements that define nothing."""
    body, lines = parsed(source).body, source.split("\n")
    found = {"": ""}
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = {node.name} if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else set()
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        for name in names or {""}:
            found[name] = found.get(name, "") + "\n".join([*lines[first - 1 : node.end_lineno], ""])
    return found


@functools.cache
def _names(text: str) -> dict[str, set[str]]:
    """The names in a text, each with the attributes that it has there; "" is for the name alone."""
    found, owners = {}, set()
    for node in ast.walk(parsed(text)):  # which reaches an attribute before the name that has it
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owners.add(node.value)
            found.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Name) and node not in owners:
            found.setdefault(node.id, set()).add("")
    return found


@functools.cache
def _hash(source: str) -> str:
    """Hash of what a text of code does; neither comments nor docstrings nor layout count."""
    return sha(program(source).encode())


def program(source: str) -> str:
    """What a source text does, as JSON: without its docstrings, comments and layout, and the same for every version of
    Python. Broken code comes back as it is.

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
    """A syntax tree as lists; empty fields are left out, since versions of Python differ in those."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *(field for field in fields if field[1] not in ("None", []))]
    return [_shape(item) for item in node] if isinstance(node, list) else repr(node)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
