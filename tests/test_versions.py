"""The versions that the book names: Python 3.11 to 3.14, PyTorch 2.11 and later.

What one interpreter can say about the others is tested here: that all code is written in the oldest Python, that each
name of `torch` exists in the version at hand (those that only a GPU's code path reaches included), and that the pins,
the constraints and the ranges agree.
"""

import ast
import contextlib
import importlib
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement

from lib.book import chapters

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
EXTRAS = PROJECT["project"]["optional-dependencies"].values()
ALL = [Requirement(line) for group in (PROJECT["project"]["dependencies"], *EXTRAS) for line in group]
RANGES = [wanted for wanted in ALL if not wanted.url]


def name_of(requirement):
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def pinned(file):
    """{package: version} of a file in which every line is a package and its one version, or a comment."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text("utf8").splitlines()]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines if line), file
    wanted = [Requirement(line) for line in lines if line]
    pins = {name_of(pin): str(pin.specifier).removeprefix("==") for pin in wanted}
    assert len(pins) == len(wanted), f"{file} names a package twice"
    return pins


def sources():
    """Every program of the book by name: its modules, tests and benchmarks, and of each chapter the code cells."""
    modules = [path for folder in ("lib", "tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]
    yield from ((path.relative_to(ROOT).as_posix(), path.read_text("utf8")) for path in modules)
    for page in chapters.chapters(ROOT):
        yield page.name, "\n\n".join(cell.source for cell in page.code)


def torch_names(text):
    """The dotted names below `torch` that a program uses: "cuda.is_available", "nn.functional.one_hot", ..."""
    tree = ast.parse(text)
    stand_for = {"torch": ""}  # what the program calls the modules of torch
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            below = "".join(f"{part}." for part in node.module.split(".")[1:])
            yield from (below + name.name for name in node.names)
            stand_for |= {name.asname or name.name: f"{below}{name.name}." for name in node.names}
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in stand_for:
            yield stand_for[node.id] + ".".join(reversed(parts))


def exists(name):
    """Whether `torch` has this name: as an attribute, or as a module that has to be imported first."""
    thing, path = torch, "torch"
    for part in name.split("."):
        path = f"{path}.{part}"
        try:
            thing = getattr(thing, part) if hasattr(thing, part) else importlib.import_module(path)
        except ImportError:
            return False
    return True


def test_all_code_is_written_in_the_oldest_python_that_is_named():
    for where, text in [*sources(), ("new.py", "type Pair = tuple")]:
        with pytest.raises(SyntaxError) if where == "new.py" else contextlib.nullcontext():
            ast.parse(text, where, feature_version=(3, 11))


def test_every_name_of_torch_that_the_book_uses_exists_in_this_version():
    used = {(name, where) for where, text in sources() for name in torch_names(text)}
    names = {name for name, _ in used}
    assert len(names) > 150 and {"nn.functional.one_hot", "cuda.is_available"} <= names
    missing = {name for name in names if not name.startswith("ops.torchvision") and not exists(name)}
    assert sorted((name, where) for name, where in used if name in missing) == []


def test_the_constraints_pin_everything_that_the_pinned_packages_bring_along():
    pins, constraints = pinned("requirements.txt"), pinned("constraints.txt")
    assert {name: constraints.get(name) for name in pins} == pins
    reached, queue = set(), list(pins)
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            needed = map(Requirement, importlib.metadata.requires(name) or [])
            queue += [name_of(one) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    made_for_cuda = {name for name in reached if name.startswith(("nvidia-", "cuda-", "triton"))}  # torch pins its own
    assert sorted(reached - made_for_cuda - constraints.keys()) == [], "`make constraints` renews the file"


@pytest.mark.parametrize("wanted", RANGES, ids=str)
def test_the_pins_lie_within_the_ranges_of_the_package(wanted):
    assert wanted.specifier.contains(pinned("requirements.txt")[name_of(wanted)])


def test_the_book_its_package_and_its_list_of_changes_are_of_one_version():
    book = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    newest = re.search(r"^## ([\d.]+) \(([\d-]+)\)$", (ROOT / "CHANGELOG.md").read_text("utf8"), re.MULTILINE)
    assert [book["version"], str(book["date-released"])] == [*newest.groups()]
    assert book["version"] == PROJECT["project"]["version"]


def test_the_ranges_begin_at_the_versions_that_the_book_names():
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    lowest = {name_of(wanted): min(s.version for s in wanted.specifier if s.operator == ">=") for wanted in RANGES}
    assert lowest["torch"] == "2.11"
    listed = {line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert listed == set(PYTHONS)
