"""The graph is recognised by its Gram matrix alone: with any three values, in any order and any frame."""

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.theory.graph_gram import is_graph_gram
from lib.theory.low_rank import srg_solution, triangular_graph


def disguised(gram, seed, noise=0.0):
    """Class means with this Gram matrix, in another order, turned, in another unit, with noise of relative size."""
    generator = torch.Generator().manual_seed(seed)
    K = len(gram)
    values, vectors = torch.linalg.eigh(gram)
    means = vectors * values.clamp(min=0).sqrt()
    means = means + noise * torch.randn(K, K, generator=generator, dtype=torch.float64)
    frame = torch.linalg.qr(torch.randn(K, K, generator=generator, dtype=torch.float64))[0]
    return 0.37 * means[torch.randperm(K, generator=generator)] @ frame


def pattern(r, b, c):
    """I + bG + c(J - I - G), made positive semi-definite by the diagonal and scaled to a diagonal of 1."""
    G = torch.from_numpy(nx.to_numpy_array(triangular_graph(r)))
    eye = torch.eye(len(G), dtype=torch.float64)
    gram = b * G + c * (1 - eye - G)
    gram = gram + (1e-9 - torch.linalg.eigvalsh(gram)[0]).clamp(min=0) * eye
    return gram / gram[0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 6), st.floats(-1, 1).filter(bool), st.floats(-1, 1), st.integers(0, 10**6))
def test_any_three_values_are_recognised_unless_two_of_them_are_close(r, b, c, seed):
    gram = pattern(r, b, c)
    apart = (gram[0, 1] - gram[0, -1]).abs().item()  # (0, 1) meets (0, 2) and not the last edge
    if abs(apart - 0.1) > 1e-6:
        assert is_graph_gram(disguised(gram, seed)) == (apart > 0.1)


@pytest.mark.parametrize("r", [4, 5, 6])
def test_every_layer_of_the_graph_solution_is_recognised_but_an_orthogonal_frame(r):
    M, Ws = srg_solution(r, 4, 0.002, 1)
    for W in Ws[:-1]:
        before = W @ M
        M = before.clamp(min=0)
        for means in (before.mT, M.mT):
            frame = r == 4 and W is Ws[-2] and means is not before.mT and torch.linalg.matrix_rank(means) == 6
            assert is_graph_gram(means) == (not frame)


def test_another_pattern_another_graph_much_noise_and_another_number_of_classes_are_refused():
    gram = pattern(5, 0.5, 0.0)
    swapped = gram.clone()
    joined, apart = (0, 1), (0, 9)
    for (i, j), value in ((joined, gram[apart]), (apart, gram[joined])):
        swapped[i, j] = swapped[j, i] = value
    assert is_graph_gram(disguised(gram, 1, noise=0.003))
    assert not is_graph_gram(disguised(gram, 1, noise=0.3)) and not is_graph_gram(disguised(swapped, 3))
    for other in (torch.eye(10), torch.eye(10) - 0.1, torch.eye(9), torch.zeros(10, 10)):
        assert not is_graph_gram(other.double())
