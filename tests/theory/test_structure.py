"""The structure of class means, told from means that were built from a graph, turned, and shuffled."""

from itertools import combinations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.theory.structure import structure


def edges_of(graph):
    """Class means (K, d): one row for every edge, 1 at its two vertices."""
    return torch.tensor(nx.incidence_matrix(graph).T.toarray(), dtype=torch.float64)


def disguised(means, seed):
    """The same means in more dimensions, turned, in another order and unit."""
    generator = torch.Generator().manual_seed(seed)
    K, d = means.shape
    frame = torch.linalg.qr(torch.randn(d + 3, d + 3, generator=generator, dtype=torch.float64))[0]
    order = torch.randperm(K, generator=generator)
    return 0.37 * torch.nn.functional.pad(means, (0, 3))[order] @ frame


GRAPHS = {
    "SRG": [nx.complete_graph(r) for r in (4, 5, 6, 7)],
    "square graph": [nx.cycle_graph(4)],
    "DNC": [nx.Graph([(2 * k, 2 * k + 1) for k in range(K)]) for K in (2, 3, 10)],
    "line graph of the cycle of 5": [nx.cycle_graph(5)],
    "line graph of K(2,3)": [nx.complete_bipartite_graph(2, 3)],
    "line graph of K(3,3)": [nx.complete_bipartite_graph(3, 3)],
    "line graph of a graph with degrees 3,3,3,3,3,3": [nx.circular_ladder_graph(3)],
    "line graph of a graph with degrees 3,2,2,1": [nx.Graph([(0, 1), (1, 2), (2, 0), (0, 3)])],
    "line graph of the complete graph on 2 and the complete graph on 4": [
        nx.disjoint_union(nx.complete_graph(4), nx.path_graph(2))
    ],
    "line graph of K(1,2) and the cycle of 5": [nx.disjoint_union(nx.cycle_graph(5), nx.path_graph(3))],
}
CASES = [(name, graph) for name, graphs in GRAPHS.items() for graph in graphs]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.integers(0, 10**6))
def test_a_graph_is_recognised_in_any_order_and_any_frame_and_beside_noise_below_the_tolerance(case, seed):
    name, graph = case
    means = disguised(edges_of(graph), seed)
    noise = torch.randn(means.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    noise /= noise.norm(dim=-1, keepdim=True)
    scale = means.norm(dim=-1).mean()
    assert structure(means) == structure(means + 0.01 * scale * noise) == name


@pytest.mark.parametrize(
    ("means", "weights", "name"),
    [
        (edges_of(nx.complete_bipartite_graph(2, 3)), [1.12, 1.12, 1, 1, 1], "line graph of K(2,3)"),
        (edges_of(nx.complete_graph(4)), [1.12, 1.12, 1, 1], "sets: 6 of 2, over 4"),
        (torch.eye(3), [1, 1, 2], "sets: 3 of 1, over 3"),
    ],
)
def test_units_may_have_different_weights_but_not_in_the_papers_solutions(means, weights, name):
    assert structure(means * torch.tensor(weights)) == name


def test_other_equal_cosines_a_simplex_a_claw_zero_and_noise_are_no_graph():
    claw = torch.eye(4, dtype=torch.float64)
    claw[0, 1:] = claw[1:, 0] = 0.5  # one class beside three others: no line graph contains it
    noise = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    for means in (torch.eye(6) + 0.1, torch.eye(6) - 1 / 6, torch.linalg.cholesky(claw), torch.zeros(4, 3), noise):
        assert structure(means) == "other"


def test_as_many_neighbours_in_another_order_are_not_the_triangular_graph():
    chang = nx.line_graph(nx.complete_graph(8))  # T_8, switched: the same parameters, (28, 12, 6, 4)
    nodes = sorted(chang)
    inside = {(0, 1), (2, 3), (4, 5), (6, 7)}
    for u in inside:
        for v in set(nodes) - inside:
            (chang.remove_edge if chang.has_edge(u, v) else chang.add_edge)(u, v)
    assert set(dict(chang.degree()).values()) == {12}
    gram = torch.eye(28, dtype=torch.float64) + torch.tensor(nx.to_numpy_array(chang)) / 2
    values, vectors = torch.linalg.eigh(gram)  # -2 is the least eigenvalue of the graph, so that it is a Gram matrix
    assert values.min() > -1e-12
    assert structure(vectors * values.clamp(min=0).sqrt()) == "other"


def subsets_of(vertices, *sizes):
    sets = [set(subset) for size in sizes for subset in combinations(range(vertices), size)]
    return torch.tensor([[float(v in one) for v in range(vertices)] for one in sets], dtype=torch.float64)


def test_classes_may_be_sets_of_several_sizes_of_any_norm_with_each_vertex_on_several_units():
    for means, name in (
        (subsets_of(5, 1, 3), "sets: 5 of 1, 10 of 3, over 5"),
        (subsets_of(3, 1, 3), "sets: 3 of 1, 1 of 3, over 3"),
        (subsets_of(2, 1, 2), "sets: 2 of 1, 1 of 2, over 2"),
    ):
        generator = torch.Generator().manual_seed(0)
        norms = 0.8 + 0.4 * torch.rand(len(means), 1, generator=generator).double()
        assert structure(means) == structure(norms * means) == name
        assert structure(torch.nn.functional.pad(norms * torch.cat([means, means], 1), (0, 4))) == name
        assert structure(-means) == "other"
        stray = torch.zeros(len(means), 1, dtype=torch.float64)
        stray[0] = 0.2  # a unit that belongs to no vertex
        assert structure(torch.cat([means, means, stray], 1)) == name
