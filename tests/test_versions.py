"""The versions that the book names.

What one interpreter can say about the others is tested here: that all code is written in the oldest Python, that each
name of `torch` exists in the version at hand (those that only a GPU's code path reaches included), and that the pins,
the constraints and the ranges agree.
"""

import ast
import importlib.metadata
import pkgutil
import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lib.book.folders import ROOT
from lib.book.page import chapters

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
EXTRAS = PROJECT["project"]["optional-dependencies"].values()
ALL = [Requirement(line) for group in (PROJECT["project"]["dependencies"], *EXTRAS) for line in group]
RANGES = [wanted for wanted in ALL if not wanted.url]


def name_of(requirement):
    return canonicalize_name(requirement.name)


def pinned(file):
    """{package: version} of a file in which every line is a package and its one version, a comment, or this folder."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text("utf8").splitlines()]
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups() for line in lines if line not in ("", "--editable .")]
    return {canonicalize_name(name): version for name, version in pins}


def sources():
    """Every program of the book by name: its modules, tests and benchmarks, and of each chapter the code cells."""
    modules = [path for folder in ("lib", "tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]
    yield from ((path.relative_to(ROOT).as_posix(), path.read_text("utf8")) for path in modules)
    for page in chapters():
        yield page.name, "\n\n".join(cell.source for cell in page.code)


def test_all_code_is_written_in_the_oldest_python_that_is_named():
    oldest = tuple(map(int, re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["project"]["requires-python"]).groups()))
    for where, text in sources():
        ast.parse(text, where, feature_version=oldest)


def test_every_name_of_torch_that_the_book_uses_exists_in_this_version():
    """As an attribute, or as a module that has to be imported first."""
    names = {}
    for where, text in sources():
        attributes = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
        names |= {name: where for name in attributes if re.fullmatch(r"torch(?!\.ops\.torchvision)(\.\w+)+", name)}
    assert len(names) > 100 and "torch.cuda.is_available" in names
    for name, where in names.items():
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            pytest.fail(f"{where} uses {name}")


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


def test_the_readme_and_the_package_name_the_same_pythons():
    """`.ci/run` asks the package index whether all that is pinned runs on them."""
    known = re.search(r"Python 3\.(\d+) to 3\.(\d+)", (ROOT / "README.md").read_text("utf8")).groups()
    versions = [f"3.{minor}" for minor in range(int(known[0]), int(known[1]) + 1)]
    listed = [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if ":: Python :: 3." in name]
    assert versions == listed and PROJECT["project"]["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("wanted", RANGES, ids=str)
def test_the_pins_lie_within_the_ranges_of_the_package(wanted):
    assert wanted.specifier.contains(pinned("requirements.txt")[name_of(wanted)])


def test_the_book_its_package_and_its_list_of_changes_are_of_one_version():
    book = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    newest = re.search(r"^## ([\d.]+) \(([\d-]+)\)$", (ROOT / "CHANGELOG.md").read_text("utf8"), re.MULTILINE)
    assert [book["version"], str(book["date-released"])] == [*newest.groups()]
    assert book["version"] == PROJECT["project"]["version"]


def test_every_file_that_names_an_address_names_that_of_the_configuration():
    """Two files cannot read `_config.yml`: whoever fills in an address there is reminded of them."""
    configuration = yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))
    site, repository = configuration["html"]["baseurl"], configuration["repository"]["url"]
    book = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    assert (book.get("url", ""), book.get("repository-code", "")) == (site, repository)
    links = PROJECT["project"].get("urls", {})
    assert (links.get("Homepage", ""), links.get("Repository", "")) == (site, repository)
