"""The search for low losses of the deep unconstrained features model, and the files in which its results are kept."""

import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from lib.models.unconstrained import labels, objective, scores
from lib.search import best_known as bk
from lib.search.best_known.__main__ import check
from lib.search.best_known.initial import KINDS
from lib.theory import halves, low_rank

FILES = sorted(bk.FOLDER.glob("*.npz"))
quick = settings(max_examples=25, deadline=None)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_factors(K, L, d, seed=0):
    shapes = [(d, K), *[(d, d)] * (L - 1), (K, d)]
    return [normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)]


def loss_of(factors, lam):
    return objective(factors[0], factors[1:], labels(factors[-1].shape[-2], 1), lam, relu=True)


def frame(K, L, size):
    return [size * torch.eye(K, dtype=torch.float64)] * (L + 1)


def collapse(K, L, lam, loss):
    return low_rank.dnc_loss(K, L, lam, 1) if loss == "mse" else bk.collapse_cross_entropy(K, L, lam)


def by_numpy(solution):
    """(1) in plain numpy, without any code of the library."""
    A, *Ws = (q.numpy() for q in solution.factors)
    norms = (A**2).sum() + sum((W**2).sum() for W in Ws)
    for W in Ws[:-1]:
        A = np.maximum(W @ A, 0)
    Z = Ws[-1] @ A
    if solution.kind == "mse":
        fit = ((Z - np.eye(solution.K)) ** 2).sum() / (2 * solution.K)
    else:
        fit = np.mean(np.log(np.exp(Z).sum(0)) - np.diag(Z))
    return fit + solution.lam / 2 * norms


# The decay at which solutions are compared


@quick
@given(st.integers(2, 8), st.integers(1, 6), st.floats(0.02, 0.48))
def test_at_the_decay_the_best_orthogonal_frame_has_the_level(K, L, level):
    lam = bk.decay_at(K, L, level)

    def cost(size):
        return loss_of(frame(K, L, size), lam).item()

    grid = np.linspace(0.3, 1.2, 50)
    near = grid[np.argmin([cost(size) for size in grid])]
    lowest = minimize_scalar(cost, bounds=(near - 0.05, near + 0.05), method="bounded").fun
    assert lowest == pytest.approx(level, abs=1e-9)
    assert low_rank.dnc_loss(K, L, lam, 1) == pytest.approx(level, abs=1e-9)


def test_deep_collapse_with_cross_entropy_is_the_best_that_treats_classes_alike():
    lam = bk.simplex_decay(3, 2)
    assert bk.symmetric_search(3, 2, lam, runs=6) == pytest.approx(bk.collapse_cross_entropy(3, 2, lam), abs=1e-10)


# Descent


def test_a_disturbed_frame_falls_back_to_collapse_where_nothing_lower_is_near():
    K, L = 3, 3
    lam = bk.decay_at(K, L)
    start = bk.perturbed([q[None] for q in frame(K, L, 0.95)], 6, np.random.default_rng(0), (0.03,))
    factors, values = bk.descend(start, lam)
    torch.testing.assert_close(values, torch.full((6,), 0.2).double(), rtol=0, atol=1e-8)
    torch.testing.assert_close(loss_of(factors, lam), values, rtol=0, atol=1e-14)


def test_a_short_search_finds_three_classes_below_collapse():
    lam = bk.decay_at(3, 4)
    found, effort = bk.search(3, 4, lam, descents=40, seed=0, d=6, runs=16)
    assert found.loss < 0.2 - 1e-3
    assert found.loss == pytest.approx(by_numpy(found), abs=1e-12)
    counts, lowest = zip(*effort, strict=True)
    assert counts == (16, 32, 48) and list(lowest) == sorted(lowest, reverse=True)
    assert found.loss <= lowest[-1] + 1e-11


def test_the_halves_are_among_the_starts():
    K, L = 15, 3
    lam = bk.decay_at(K, L)
    factors, _ = bk.initial_factors(K, L, 20, 2, np.random.default_rng(0), kinds=["halves"])
    assert bk.descend(factors, lam)[1].min() < halves.loss(K, L, lam, 1) + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("L", [2, 3, 5])
def test_initial_factors_have_the_shapes_of_the_problem_and_are_finite(kind, L):
    K, d = 5, 7
    factors, names = bk.initial_factors(K, L, d, 4, np.random.default_rng(0), kinds=[kind])
    assert names == [kind] * 4
    assert [tuple(q.shape[1:]) for q in factors] == [(K, K), (d, K), *[(d, d)] * (L - 2), (K, d)]
    assert all(q.isfinite().all() for q in factors)


def test_parallel_and_silent_units_merge_without_a_trace_in_the_loss():
    H, W1, W2, W3 = random_factors(4, 3, 5, seed=3)
    parts = torch.tensor([0.6, 0.8], dtype=torch.float64)
    doubled = torch.cat([W1[:4], parts[:, None] * W1[4], torch.zeros(1, 5, dtype=torch.float64)])
    split = torch.cat([W2[:, :4], W2[:, 4:] * parts, normal(5, 1)], 1)
    slim = bk.merged([H, doubled, split, W3])
    assert slim[1].shape[0] <= 5
    before, after = (loss_of(q, 0.1).item() for q in ([H, doubled, split, W3], slim))
    assert after <= before + 1e-9
    expected = scores(H, [W1, W2, W3], relu=True)
    torch.testing.assert_close(scores(slim[0], slim[1:], relu=True), expected, rtol=0, atol=1e-9)
    zero = [0 * q for q in slim]  # has no units to merge
    assert all(torch.equal(a, b) for a, b in zip(bk.merged(zero), zero, strict=True))


# Files


def test_a_solution_without_a_name_is_described_by_the_units_that_its_classes_fire():
    """Three classes that fire a unit each, one that fires all three, and two on edges, not all equally strong."""
    means = torch.tensor([[1.0, 0, 0, 0.5, 0.6, 0], [0, 1, 0, 0.5, 0.4, 0.3], [0, 0, 1, 0.5, 0, 0.7]]).double()
    one = torch.eye(3).double()
    triangle = bk.Solution(6, 3, 0.02, "mse", [means, one, one, normal(6, 3)], math.nan, "made up")
    assert bk.describe(triangle) == "weighted sets: 3 of 1, 2 of 2, 1 of 3, over 3"
    frame = triangle._replace(K=3, factors=[one] * 4)
    assert bk.describe(frame) == "DNC" and bk.ranks(frame) == [3, 3, 3]


@pytest.fixture
def solution():
    factors = random_factors(3, 3, 4)
    return bk.Solution(3, 3, 0.02, "mse", factors, loss_of(factors, 0.02).item(), "made up")


def test_a_solution_comes_back_as_it_was_saved(tmp_path, solution):
    path = bk.save(solution, tmp_path)
    back = bk.load(path)
    assert path.name == "mse-K03-L3-lam0.02000.npz"
    assert back._replace(factors=None) == solution._replace(factors=None)
    assert all(torch.equal(a, b) for a, b in zip(back.factors, solution.factors, strict=True))
    assert [s.name for s in bk.stored("mse", tmp_path)] == [path.name]


DAMAGES = [
    ({"lam": None}, "lam missing"),
    ({"K": 3.0}, "K"),
    ({"kind": "hinge"}, "hinge"),
    ({"W2": None, "W9": np.eye(3)}, "W9"),
    ({"W1": np.eye(5)}, "W_1"),
    ({"W1": np.full((4, 4), np.nan)}, "finite"),
    ({"W1": np.eye(4)}, "states the loss"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, solution, change, message):
    path = bk.save(solution, tmp_path)
    content = {key: value for key, value in (dict(np.load(path)) | change).items() if value is not None}
    np.savez(path, **content)
    with pytest.raises(ValueError, match=rf"{path.name}: .*({message})"):
        bk.load(path)
    path.unlink()
    with pytest.raises(ValueError, match="states the loss"):
        bk.save(solution._replace(loss=solution.loss - 2e-9), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_of_the_book_has_the_loss_it_states_by_plain_numpy_and_beats_collapse(path):
    solution = bk.load(path)
    assert by_numpy(solution) == pytest.approx(float(np.load(path)["loss"]), abs=1e-11)
    assert solution.loss < collapse(solution.K, solution.L, solution.lam, solution.kind) - 1e-8
    assert path.name == solution.name


# What was searched, and a file beside it


def test_every_cell_of_the_table_was_searched_and_its_search_ends_at_the_stored_loss():
    efforts, cells = bk.efforts(), {bk.file_name(*cell): cell for cell in bk.cells()}
    assert len(cells) == len(bk.cells()) and {path.name for path in FILES} <= cells.keys()
    assert sum(path.stat().st_size for path in FILES) < 300_000
    for name, cell in cells.items():
        known = bk.load(bk.FOLDER / name).loss if (bk.FOLDER / name).exists() else collapse(*cell)
        assert efforts[name][-1, 0] >= 2520, name
        assert efforts[name][:, 1].min() >= known - 2e-9, name


def test_without_polish_a_search_ends_where_its_descents_do():
    lam = bk.decay_at(3, 4)
    found, effort = bk.search(3, 4, lam, descents=8, seed=3, d=4, runs=8, polish=False)
    assert found.loss == effort[-1][1] == pytest.approx(by_numpy(found), abs=1e-12)


def test_a_file_is_compared_with_collapse_or_with_what_is_stored(tmp_path):
    name = FILES[0].name
    assert f"lower by {collapse(*bk.load(FILES[0])[:4]) - bk.load(FILES[0]).loss:.3g}" in check(FILES[0], tmp_path)
    shutil.copy(FILES[0], tmp_path)
    assert check(FILES[0], tmp_path).endswith("not lower")
    bk.save(bk.load(FILES[1]), tmp_path).rename(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name}: holds another problem"):
        check(FILES[0], tmp_path)


WRONG = [
    ("lam", lambda: bk.descend([q[None] for q in random_factors(3, 2, 4)], math.nan)),
    ("K", lambda: bk.search(1, 4, 0.1)),
    ("L", lambda: bk.search(3, 1, 0.1)),
    ("loss", lambda: bk.search(3, 4, 0.1, "hinge")),
    ("kind", lambda: bk.initial_factors(3, 4, 4, 2, np.random.default_rng(0), kinds=["x"])),
]


@pytest.mark.parametrize(("name", "call"), WRONG)
def test_wrong_arguments_are_named(name, call):
    with pytest.raises(ValueError, match=name):
        call()
