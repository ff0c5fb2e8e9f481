"""Deep neural collapse and the graph solution: closed forms against the objective and independent searches, float64."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lib.models.unconstrained import activations, labels, objective
from lib.theory import low_rank as theory

quick = settings(max_examples=25, deadline=None)
few = settings(max_examples=8, deadline=None)

layers = st.integers(2, 6)
samples = st.integers(1, 3)
seeds = st.integers(0, 10**6)
strengths = st.floats(0.02, 0.9)  # of the decays, relative to where deep neural collapse becomes the zero solution


def decays(K, L, n, strength, seed):
    return theory.random_decays(np.random.default_rng(seed), K, L, n, strength ** (L + 1))


def evaluate(solution, K, lam, n):
    return objective(*solution, labels(K, n), lam, relu=True).item()


# The graph ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", range(4, 10))
def test_the_gram_matrix_of_the_incidence_is_the_graph_that_joins_the_edges_that_share_a_vertex(r):
    T, graph = theory.unit_incidence(r), theory.triangular_graph(r)
    assert list(graph) == sorted(graph)
    share = torch.tensor([[float(bool(set(a) & set(b))) for a in graph] for b in graph], dtype=torch.float64)
    assert np.array_equal(nx.to_numpy_array(graph), share - torch.eye(len(graph)))
    torch.testing.assert_close((r - 1) * T.T @ T, share + torch.eye(len(share)), atol=1e-14, rtol=0)
    torch.testing.assert_close(T.norm(dim=1), torch.ones(r, dtype=torch.float64), atol=1e-14, rtol=0)


# Matrices and closed forms --------------------------------------------------------------------------------------------


@quick
@given(st.booleans(), st.integers(2, 12), layers, samples, strengths, seeds, st.booleans())
def test_the_objective_of_the_graph_solution_and_of_collapse_is_its_closed_form(graph, K, L, n, strength, seed, widen):
    size, loss, matrices = (K, theory.dnc_loss, theory.dnc_solution)
    if graph:
        size, loss, matrices = max(4, K - 3), theory.srg_loss, theory.srg_solution
        K = math.comb(size, 2)
    L -= not graph  # collapse has one layer or more
    lam = decays(K, L, n, strength, seed)
    widths = np.random.default_rng(seed).integers(K, 3 * K, L).tolist() if widen else None
    assert evaluate(matrices(size, L, lam, n, widths), K, lam, n) == pytest.approx(loss(size, L, lam, n), rel=1e-12)


@quick
@given(st.integers(6, 34), layers, samples, strengths, seeds, st.sampled_from([1, 2]))
def test_the_objective_of_both_constructions_is_their_closed_form(K, L, n, strength, seed, construction):
    lam = decays(K, L, n, strength, seed)
    solution = theory.general_srg_solution(K, L, lam, n, construction)
    expected = theory.general_srg_loss(K, L, lam, n, construction)
    assert evaluate(solution, K, lam, n) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("r, L", [(r, L) for r in (4, 5, 7) for L in (3, 4, 5)])
def test_the_matrices_are_what_definition_9_asks_for(r, L):
    K = r * (r - 1) // 2
    lam = decays(K, L, 2, 0.6, r + L)
    H1, Ws = theory.srg_solution(r, L, lam, 2, d=2 * K + 1)
    levels, T = activations(H1, Ws, relu=True), theory.unit_incidence(r)
    assert torch.equal(H1[:, ::2], H1[:, 1::2])
    for H in levels[1:-1]:
        rows = H[:, ::2]
        A = rows @ torch.linalg.pinv(T)
        torch.testing.assert_close(A @ T, rows)
        assert ((A.abs() > 1e-9 * A.abs().max()).sum(1) == 1).all() and (A > -1e-12).all()
        torch.testing.assert_close(A.T @ A, (A**2).sum() / r * torch.eye(r, dtype=A.dtype))
    before = (Ws[-2] @ levels[-2])[:, ::2]
    values = (before / before.abs().amax(1, keepdim=True)).round(decimals=9)
    assert ((values == -1).sum(1) == 1).all() and ((values == 1).sum(1) == math.comb(r - 2, 2)).all()
    assert torch.linalg.matrix_rank(before) == (3 if r == 4 else r)


# Best within its family -----------------------------------------------------------------------------------------------


@few
@given(st.sampled_from([4, 5, 6]), st.sampled_from([2, 3, 4, 5]), samples, strengths, seeds)
def test_no_other_scales_give_a_graph_solution_a_lower_objective(r, L, n, strength, seed):
    K, rng = r * (r - 1) // 2, np.random.default_rng(seed)
    lam = decays(K, L, n, strength, seed)
    loss = theory.srg_loss(r, L, lam, n)
    T, Y = theory.unit_incidence(r).numpy(), np.eye(K)
    P = np.where(T.T > 0, -1.0, 1.0) @ T  # Definition 9: a row for every class
    P /= np.linalg.norm(P, axis=1, keepdims=True)

    def objective(logs):
        """(1) at M_l = exp(logs) T, with every factor the best one for its input and output."""
        scales = np.exp(logs)
        levels = [s * T for s in scales[:-1]] + [scales[-1] * P]
        value = math.sqrt(n * lam[0] * lam[1]) * np.linalg.norm(levels[0], "nuc")
        for below, above, decay in zip(levels, levels[1:], lam[2:-1], strict=False):
            value += decay / 2 * (np.linalg.lstsq(below.T, above.T, rcond=None)[0] ** 2).sum()
        M = np.maximum(levels[-1], 0)
        stacked = np.vstack([M.T, math.sqrt(K * lam[-1]) * np.eye(K)])
        W = np.linalg.lstsq(stacked, np.vstack([Y, np.zeros((K, K))]), rcond=None)[0].T
        return value + ((W @ M - Y) ** 2).sum() / (2 * K) + lam[-1] / 2 * (W**2).sum()

    ends = [minimize(objective, rng.uniform(-1, 3, L - 1), options={"gtol": 1e-8}).fun for _ in range(4)]
    assert min(ends) > loss - 1e-9
    assert loss == 0.5 or min(ends) < loss + 1e-5


@few
@given(st.integers(7, 20), st.sampled_from([3, 4]), strengths, seeds)
def test_construction_1_is_stationary_in_the_scales_of_its_blocks(K, L, strength, seed):
    lam = decays(K, L, 1, strength, seed)
    (H1, Ws), r = theory.general_srg_solution(K, L, lam, 1), (1 + math.isqrt(1 + 8 * K)) // 2
    for own in (0.0, 1.0):  # which block is scaled
        logs = torch.zeros(L, dtype=torch.float64, requires_grad=True)
        scaled = []
        for part, cut, log in zip((H1, *Ws[:-1]), [r * (r - 1) // 2] + [r] * (L - 1), logs, strict=True):
            first = (torch.arange(part.shape[1]) < cut).to(torch.float64)
            scaled.append(part * torch.where(first == own, log.exp(), 1.0))
        loss = objective(scaled[0], [*scaled[1:], Ws[-1]], labels(K, 1), lam, relu=True)
        assert torch.autograd.grad(loss, logs)[0].abs().max() < 1e-12


# Strong decay, extremes, speed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("L", [2, 3, 4, 6])
def test_strong_decay_leaves_the_zero_solution(L):
    assert theory.srg_loss(5, L, 1.0, 2) == theory.dnc_loss(10, L, 1.0, 2) == 0.5
    for H, Ws in (theory.srg_solution(5, L, 1.0, 2), theory.dnc_solution(10, L, 1.0, 2)):
        assert not any(part.any() for part in (H, *Ws))
    for construction in (1, 2):
        assert theory.general_srg_loss(12, L, 1.0, 2, construction) == 0.5
        assert evaluate(theory.general_srg_solution(12, L, 1.0, 2, construction), 12, 1.0, 2) == pytest.approx(0.5)


@quick
@given(st.integers(2, 12), st.integers(1, 6), samples, st.floats(0.05, 3), seeds)
def test_decays_have_the_strength_that_was_asked_for_and_collapse_is_zero_from_one_on(K, L, n, strength, seed):
    lam = theory.random_decays(np.random.default_rng(seed), K, L, n, strength)
    assert n * math.prod(lam) == pytest.approx(strength * (L - 1) ** (L - 1) / L ** (2 * L) / K ** (L + 1), rel=1e-12)
    loss = theory.dnc_loss(K, L, lam, n)
    assert loss == pytest.approx(theory.dnc_loss(K, L, theory.even_decay(K, L, strength), 1), rel=1e-12)
    if abs(strength - 1) > 1e-6:
        assert (loss < 0.5) == (strength < 1)


@pytest.mark.parametrize("lam", [1e-300, 1e-30, 1e30, 1e300])
@pytest.mark.parametrize("L", [2, 3, 12])
def test_extreme_decays_neither_overflow_nor_underflow(L, lam):
    losses = [theory.srg_loss(1000, L, lam, 1), theory.dnc_loss(6, L, lam, 1)]
    tried = [1] if lam in (1e-300, 1e300) else [1, 2]  # at these two, construction 2 overflows
    losses += [theory.general_srg_loss(400_000, L, lam, 2, construction) for construction in tried]
    for loss in losses:
        assert 0 < loss <= 0.5
        assert (loss == 0.5) == (lam > 1)


def test_the_incidence_of_any_sets_has_as_many_rows_as_asked_for():
    sets = [(0, 3), (1,), (0, 1, 2)]
    expected = torch.tensor([[float(v in edge) for edge in sets] for v in range(6)], dtype=torch.float64)
    assert torch.equal(theory.incidence(sets), expected[:4])
    assert torch.equal(theory.incidence(iter(sets), 6), expected)
    assert torch.equal(theory.incidence(sets, 2), expected[:2])
