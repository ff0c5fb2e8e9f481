"""The ways that chapters take in the `paper` profile alone, walked at the sizes of `smoke`, on the CPU."""

import ast
import linecache
import sys
import warnings

import pytest
import torch

from lib.book import folders
from lib.book.kernel import profiles
from lib.book.page import chapters

CHAPTERS = chapters()


def code_of(page):
    """The code cells; commands to the notebook itself are left out."""
    return ["\n".join(line for line in c.source.splitlines() if not line.startswith("%")) for c in page.code]


def uses(page):
    """(node, parent) wherever the code of a chapter reads `profile`."""
    for parent in ast.walk(ast.parse("\n".join(code_of(page)))):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Name) and node.id == "profile" and isinstance(node.ctx, ast.Load):
                yield node, parent


def asks_for_paper(page):
    """Does it do something else in this profile, besides downloading?"""
    downloads = page.text.count('download=profile == "paper"')
    return sum(isinstance(parent, ast.Compare) for _, parent in uses(page)) > downloads


OTHER_WAYS = [page for page in CHAPTERS if asks_for_paper(page)]


def is_allowed(node, parent):
    """Is this use of `profile` one that the next test, and the reader, can follow?"""
    if isinstance(parent, ast.Compare):
        return [ast.unparse(part) for part in (parent.left, *parent.comparators) if part is not node] == ["'paper'"]
    if isinstance(parent, ast.Call):
        return ast.unparse(parent.func) in ("claims.Ledger", "pick", "profiles.pick", "image_sets.load_wanted")
    return isinstance(parent, ast.FormattedValue) or (isinstance(parent, ast.keyword) and parent.arg == "profile")


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.name)
def test_a_chapter_picks_its_sizes_from_one_table(page):
    """Whatever else asks for the profile asks whether it is `paper`."""
    assert [ast.unparse(parent) for node, parent in uses(page) if not is_allowed(node, parent)] == []
    assert page.text.count("pick(SETTINGS, profile)") <= 1


def walk(page, monkeypatch):
    """Execute a chapter with profile `paper` and the sizes of `smoke`; its names in the end."""
    pick = profiles.pick
    monkeypatch.setattr(profiles, "pick", lambda settings, profile: pick(settings, "smoke"))
    names, default, threads = {"__name__": "__main__", "In": [""]}, torch.get_default_dtype(), torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, code in enumerate(code_of(page)):
                file = f"<{page.name}, code cell {number}>"  # whose lines `inspect` finds, as in a notebook
                linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
                exec(compile(code, file, "exec"), names)
                names.update(names.keys() & {"profile"} and {"profile": "paper", "device": "cpu"})
        return names
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """That of a build, but with a closed door to the network: a data set that is not there is not downloaded."""
    monkeypatch.setenv("MPLBACKEND", "agg")  # figures are made and not drawn, which the pages of `smoke` are for
    monkeypatch.setenv("COLLAPSE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COLLAPSE_UNFINISHED", str(tmp_path / "unfinished"))
    for scheme in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")
    monkeypatch.chdir(folders.ROOT)


@pytest.mark.parametrize("page", OTHER_WAYS, ids=lambda page: page.name)
def test_the_ways_of_the_paper_profile_end_without_an_error(page, monkeypatch):
    assert "pick(SETTINGS, profile)" in page.text, "its sizes would be the paper's"
    assert walk(page, monkeypatch)["profile"] == "paper"
