"""The search for low losses of the deep unconstrained features model, and the files in which its results are kept."""

import math
import shutil

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from lib.models.unconstrained import labels, objective, scores
from lib.search import best_known as bk
from lib.theory import low_rank

FILES = sorted(bk.FOLDER.glob("*.npz"))
quick = settings(max_examples=25, deadline=None)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_factors(runs, K, L, d, seed=0):
    shapes = [(d, K), *[(d, d)] * (L - 1), (K, d)]
    return [normal(runs, *shape, seed=seed + i) for i, shape in enumerate(shapes)]


def frame(K, L, size):
    return [size * torch.eye(K, dtype=torch.float64)] * (L + 1)


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
        return bk.evaluate(frame(K, L, size), lam).item()

    grid = np.linspace(0.3, 1.2, 50)
    near = grid[np.argmin([cost(size) for size in grid])]
    lowest = minimize_scalar(cost, bounds=(near - 0.05, near + 0.05), method="bounded").fun
    assert lowest == pytest.approx(level, abs=1e-9)


@pytest.mark.parametrize("level", [0, 0.5, -1, math.nan])
def test_a_level_that_no_frame_has_is_refused(level):
    with pytest.raises(ValueError, match="level"):
        bk.decay_at(4, 3, level)


def test_deep_collapse_with_cross_entropy_is_the_best_that_treats_classes_alike():
    lam = bk.simplex_decay(3, 2)
    assert bk.symmetric_search(3, 2, lam, runs=6) == pytest.approx(bk.collapse_cross_entropy(3, 2, lam), abs=1e-10)


# Descent


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_with_the_right_slopes_the_smoothed_risk_is_the_objective_with_its_gradient(loss):
    K, L, lam = 4, 3, 0.03
    factors = [q.requires_grad_() for q in random_factors(5, K, L, 6)]
    value = objective(factors[0], factors[1:], labels(K, 1), lam, lam, relu=True, loss=loss)
    expected = torch.autograd.grad(value.sum(), factors)
    parts, slopes = [q.detach() for q in factors], []
    A = parts[0]
    for W in parts[1:-1]:
        slopes.append((W @ A > 0).double())
        A = (W @ A).clamp(min=0)
    smoothed, gradients, _ = bk.smoothed_risk(parts, torch.full((5,), lam, dtype=torch.float64), slopes, 1e-3, loss)
    torch.testing.assert_close(smoothed, value.detach(), rtol=0, atol=1e-12)
    for g, e in zip(gradients, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["mse", "ce", "exact"])
def test_the_gradient_of_the_smoothed_risk_is_its_slope(loss):
    factors = random_factors(1, 3, 3, 5)
    factors = factors[:-1] if loss == "exact" else factors
    slopes = [torch.rand(1, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) for _ in range(2)]
    lam, step = torch.tensor([0.05], dtype=torch.float64), 1e-6

    def risk(t):
        moved = [q + t * p for q, p in zip(factors, along, strict=True)]
        return bk.smoothed_risk(moved, lam, slopes, 0.5, loss)

    for seed in range(5):
        along = [normal(*q.shape, seed=100 + 10 * seed + i) for i, q in enumerate(factors)]
        slope = ((risk(step)[0] - risk(-step)[0]) / (2 * step)).item()
        exact = sum((g * p).sum() for g, p in zip(risk(0)[1], along, strict=True)).item()
        assert slope == pytest.approx(exact, rel=1e-6, abs=1e-8)


def test_the_exact_fit_is_the_least_last_layer_that_gives_the_identity():
    factors = random_factors(1, 3, 3, 6)[:-1]
    A = factors[0][0]
    for W in factors[1:]:
        A = (W[0] @ A).clamp(min=0)
    last = torch.linalg.pinv(A)
    expected = 0.5 * sum(q.square().sum() for q in [*factors, last])
    slopes = [torch.ones(1, 6, 3).double() * 0.5] * 2
    value = bk.smoothed_risk(factors, torch.ones(1).double(), slopes, 1e-9, "exact")[0]
    torch.testing.assert_close(last @ A, torch.eye(3).double(), rtol=0, atol=1e-9)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_every_row_descends_its_own_quadratic():
    scales, centre = torch.logspace(-2, 2, 12).double(), normal(20, 12)
    data = scales * (1 + torch.arange(20).double()[:, None])

    def function(x, data, centre):
        return (data * (x - centre) ** 2).sum(1) / 2, data * (x - centre)

    found = bk.lbfgs(function, torch.zeros(20, 12).double(), [data, centre], 200, 1e-10)
    torch.testing.assert_close(found, centre, rtol=0, atol=1e-7)


def test_a_disturbed_frame_falls_back_to_collapse_where_nothing_lower_is_near():
    K, L = 3, 3
    lam = bk.decay_at(K, L)
    start = bk.perturbed([q[None] for q in frame(K, L, 0.95)], 6, np.random.default_rng(0), (0.03,))
    factors, values = bk.descend(start, lam)
    torch.testing.assert_close(values, torch.full((6,), 0.2).double(), rtol=0, atol=1e-8)
    torch.testing.assert_close(bk.evaluate(factors, lam), values, rtol=0, atol=1e-14)


def test_a_short_search_finds_three_classes_below_collapse():
    lam = bk.decay_at(3, 4)
    found = bk.search(3, 4, lam, seconds=0.01, seed=0, d=4, runs=7)
    assert found.loss < 0.2 - 1e-3
    assert found.loss == pytest.approx(by_numpy(found), abs=1e-12)


@pytest.mark.parametrize("kind", bk.KINDS)
@pytest.mark.parametrize("L", [2, 3, 5])
def test_starts_have_the_shapes_of_the_problem_and_are_finite(kind, L):
    K, d = 5, 7
    factors, names = bk.starts(K, L, d, 4, np.random.default_rng(0), kinds=[kind])
    assert names == [kind] * 4
    assert [tuple(q.shape[1:]) for q in factors] == [(K, K), (d, K), *[(d, d)] * (L - 2), (K, d)]
    assert all(q.isfinite().all() for q in factors)


# Fewer units


def test_parallel_and_silent_units_merge_without_a_trace_in_the_loss():
    H, W1, W2, W3 = (q[0] for q in random_factors(1, 4, 3, 5, seed=3))
    parts = torch.tensor([0.6, 0.8], dtype=torch.float64)
    doubled = torch.cat([W1[:4], parts[:, None] * W1[4], torch.zeros(1, 5, dtype=torch.float64)])
    split = torch.cat([W2[:, :4], W2[:, 4:] * parts, normal(5, 1)], 1)
    slim = bk.merged([H, doubled, split, W3])
    assert slim[1].shape[0] <= 5
    before, after = (bk.evaluate(q, 0.1).item() for q in ([H, doubled, split, W3], slim))
    assert after <= before + 1e-9
    expected = scores(H, [W1, W2, W3], relu=True)
    torch.testing.assert_close(scores(slim[0], slim[1:], relu=True), expected, rtol=0, atol=1e-9)


def test_the_zero_solution_has_no_units_to_merge_and_a_name():
    zero = [
        torch.zeros(4, 3).double(),
        torch.zeros(4, 4).double(),
        torch.zeros(4, 4).double(),
        torch.zeros(3, 4).double(),
    ]
    assert all(torch.equal(a, b) for a, b in zip(bk.merged(zero), zero, strict=True))
    assert bk.structure(zero[0]) == "zero"


def test_zero_units_change_nothing():
    factors = [q[0] for q in random_factors(1, 4, 3, 5)]
    wide = bk.widened(factors, 8)
    assert [tuple(q.shape) for q in wide] == [(8, 4), (8, 8), (8, 8), (4, 8)]
    assert bk.evaluate(wide, 0.1) == pytest.approx(bk.evaluate(factors, 0.1).item(), abs=1e-13)


# Names


@pytest.mark.parametrize(
    ("edges", "name"),
    [
        (list(nx.complete_graph(4).edges), "K4"),
        ([*nx.complete_graph(4).edges, (2,)], "K4 + 1 loop"),
        (list(nx.cycle_graph(4).edges), "C4"),
        ([(0, 1), (1, 2), (2, 3)], "path P4"),
        ([(0, 1), (0, 2), (0, 3)], "star S3"),
        ([(0,), (0, 1), (1,)], "K2 + 2 loops"),
        ([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)], "2 × K3"),
        ([(0, 1), (1, 2), (0, 2), (3,)], "K3 ∪ single class"),
        ([(0, 1, 2), (0,), (1,), (2,)], "points of a triangle"),
        ([(0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1)], "points of a tetrahedron"),
        ([(0,), (1,), (2,)], "frame"),
    ],
)
def test_the_structure_is_that_of_the_graph_in_whatever_order_and_with_units_doubled(edges, name):
    rng = np.random.default_rng(0)
    T = bk.incidence([edges[i] for i in rng.permutation(len(edges))])
    rows = np.r_[np.arange(len(T)), rng.integers(0, len(T), 3)] if name != "frame" else np.arange(len(T))
    means = torch.from_numpy(T[rng.permutation(rows)])
    assert bk.structure(means) == name


# Files


@pytest.fixture
def solution():
    factors = [q[0] for q in random_factors(1, 3, 3, 4)]
    return bk.Solution(3, 3, 0.02, "mse", factors, bk.evaluate(factors, 0.02).item(), "made up")


def test_a_solution_comes_back_as_it_was_saved(tmp_path, solution):
    path = bk.save(solution, tmp_path)
    back = bk.load(path)
    assert path.name == "mse-K03-L3-lam0.02000.npz"
    assert back._replace(factors=None) == solution._replace(factors=None)
    assert all(torch.equal(a, b) for a, b in zip(back.factors, solution.factors, strict=True))
    assert [s.name for s in bk.stored("mse", tmp_path)] == [path.name]


def test_a_file_that_states_another_loss_than_its_matrices_have_is_refused(tmp_path, solution):
    with pytest.raises(ValueError, match="states the loss"):
        bk.save(solution._replace(loss=solution.loss - 2e-9), tmp_path)
    assert not list(tmp_path.iterdir())
    path = bk.save(solution, tmp_path)
    content = dict(np.load(path))
    np.savez(path, **content | {"W2": content["W2"] * (1 + 1e-6)})
    with pytest.raises(ValueError, match="states the loss"):
        bk.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W2": None}, "W2|are needed"),
        ({"W9": np.eye(3)}, "W9"),
        ({"lam": None}, "lam missing"),
        ({"lam": -1.0}, "lam > 0"),
        ({"K": 4}, "K = 4 columns"),
        ({"n": 2}, "n = 1"),
        ({"kind": "hinge"}, "hinge"),
        ({"W1": np.eye(5)}, "W1 is"),
        ({"W1": np.full((4, 4), np.nan)}, "finite"),
        ({"W1": np.eye(4, dtype=np.float32)}, "float64"),
        ({"loss": np.array([1.0])}, "loss missing"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, solution, change, message):
    path = bk.save(solution, tmp_path)
    content = {key: value for key, value in (dict(np.load(path)) | change).items() if value is not None}
    np.savez(path, **content)
    with pytest.raises(ValueError, match=message) as raised:
        bk.load(path)
    assert path.name in str(raised.value)


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "mse-K03-L3.npz"
    path.write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="not a readable"):
        bk.load(path)
    with pytest.raises(ValueError, match="not a readable"):
        bk.load(tmp_path / "missing.npz")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_of_the_book_has_the_loss_it_states_by_plain_numpy_and_beats_collapse(path):
    solution = bk.load(path)
    assert by_numpy(solution) == pytest.approx(float(np.load(path)["loss"]), abs=1e-11)
    if solution.kind == "mse":
        assert solution.loss < low_rank.dnc_loss(solution.K, solution.L, solution.lam, 1) - 1e-8
    else:
        assert solution.loss < bk.collapse_cross_entropy(solution.K, solution.L, solution.lam) - 1e-8
    assert path.name == solution.name


def test_the_files_are_small():
    assert FILES and sum(path.stat().st_size for path in FILES) < 300_000


# The command line


def test_check_reports_a_damaged_file_and_fails(tmp_path, solution, capsys):
    path = bk.save(solution, tmp_path)
    assert bk.main(["check", "--folder", str(tmp_path)]) == 0
    shutil.copy(path, tmp_path / "mse-copy.npz")
    path.write_bytes(path.read_bytes()[:100])
    assert bk.main(["check", "--folder", str(tmp_path)]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["1", "4"], ["3", "1"], ["3", "4", "--seconds", "0"], ["3", "4", "--loss", "x"]])
def test_a_search_with_wrong_parameters_says_so(tmp_path, arguments, capsys):
    assert bk.main(["search", *arguments, "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().out.startswith("error: ")


def test_a_search_that_finds_nothing_lower_stores_nothing(tmp_path, capsys):
    assert bk.main(["search", "2", "2", "--seconds", "0.01", "--width", "2", "--folder", str(tmp_path)]) == 0
    assert "nothing is stored" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_file_under_another_name_fails_the_check(tmp_path, solution, capsys):
    bk.save(solution, tmp_path).rename(tmp_path / "mse-K06-L4.npz")
    assert bk.check(tmp_path) == 1
    assert f"belongs into {solution.name}" in capsys.readouterr().out


def test_a_flipped_byte_is_refused_or_harmless(tmp_path, solution):
    content = bk.save(solution, tmp_path).read_bytes()
    broken = tmp_path / "broken.npz"
    for place in range(0, len(content), max(len(content) // 60, 1)):
        broken.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        try:
            assert bk.load(broken).loss == pytest.approx(solution.loss, abs=1e-9)
        except ValueError as error:
            assert "broken.npz" in str(error)


@pytest.mark.parametrize("lam", [0.0, -0.1, float("nan"), float("inf")])
def test_decays_that_are_not_positive_are_refused(lam):
    for attempt in (
        lambda: bk.descend(random_factors(2, 3, 2, 4), lam),
        lambda: bk.collapse_cross_entropy(3, 2, lam),
        lambda: bk.symmetric_search(3, 2, lam),
    ):
        with pytest.raises(ValueError, match="lam"):
            attempt()
