"""Shapes of class means are what their names say, stacks reproduce them, and prices are least prices."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collapsemetrics import nc2_etf, nc2_of
from lib.models.unconstrained import activations
from lib.search import geometries
from lib.theory import low_rank

SHAPES = {
    "simplex": geometries.simplex(10),
    "frame": geometries.frame(10),
    "between": geometries.between(10, 0.4),
    "pairs": geometries.pairs(10),
    "graph": geometries.graph(5),
    "edges": geometries.edges(5),
    "centred edges": geometries.centred_edges(5),
    "pentagons": geometries.pentagons(10),
}


def rotated(means, seed):
    """The same figure with its classes renamed, scaled and turned into more dimensions."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(means) + 2, len(means), generator=generator, dtype=means.dtype))[0]
    return 3 * basis @ means[:, torch.randperm(means.shape[1], generator=generator)]


def test_the_ends_of_the_family_in_between_are_a_simplex_and_an_orthogonal_frame():
    assert nc2_etf(geometries.between(7, 0.0).means.mT) < 1e-12
    assert nc2_of(geometries.between(7, 1.0).means.mT) < 1e-12
    assert nc2_of(geometries.between(7, 0.5).means.mT) > 0.01


@pytest.mark.parametrize("r", [4, 5, 6, 7])
def test_centred_edges_have_two_cosines_and_one_dimension_less_than_vertices(r):
    means = geometries.centred_edges(r).means
    directions = torch.nn.functional.normalize(means, dim=0)
    found = (directions.mT @ directions)[~torch.eye(means.shape[1], dtype=torch.bool)]
    stated = torch.tensor([(r - 4) / (2 * (r - 2)), -2 / (r - 2)], dtype=torch.float64)
    assert (found[:, None] - stated).abs().amin(1).max() < 1e-12
    assert torch.linalg.matrix_rank(means) == r - 1


@pytest.mark.parametrize("r", [4, 5, 6])
def test_the_graph_is_the_last_level_of_the_solution_that_theory_builds(r):
    H, Ws = low_rank.srg_solution(r, 3, 1e-3, 1)
    level = activations(H, Ws, relu=True)[-1]
    assert geometries.difference(level, geometries.graph(r).means) < 1e-10


def test_pentagons_have_five_zero_singular_values_before_the_relu_and_none_after_it():
    shape = geometries.pentagons(10)
    values = torch.linalg.svdvals(shape.rows @ shape.hidden)
    assert int((values < 1e-12).sum()) == 4  # two for each of two pentagons
    assert torch.linalg.svdvals(shape.means).min() > 0.1


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("L", [1, 2, 3, 5])
def test_the_last_level_of_a_linear_stack_is_the_shape_and_its_factors_are_balanced(name, L):
    H, *Ws = geometries.stack(SHAPES[name], L, relu=False)
    last = activations(H, [*Ws, H.mT])[-1]
    scale = (last * SHAPES[name].means).sum() / SHAPES[name].means.square().sum()
    torch.testing.assert_close(last, scale * SHAPES[name].means, rtol=0, atol=1e-10)
    norms = torch.stack([q.norm() for q in (H, *Ws)])
    assert (norms / norms[0] - 1).abs().max() < 1e-10


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.nonnegative])
@pytest.mark.parametrize("L", [2, 3, 4])
def test_the_last_level_of_a_stack_with_relus_is_the_shape_on_rays(name, L):
    lengths = torch.tensor([1.0, 0.5], dtype=torch.float64)
    H, *Ws = geometries.stack(SHAPES[name], L, True, lengths)
    last = activations(H, [*Ws, H.mT], relu=True)[-1].unflatten(1, (10, 2))
    torch.testing.assert_close(last[..., 1], last[..., 0] / 2, rtol=0, atol=1e-10)
    assert geometries.difference(last[..., 0], SHAPES[name].means) < 1e-8


@pytest.mark.parametrize("name", SHAPES)
def test_a_figure_is_recognised_in_any_position_and_no_other_is(name):
    turned = rotated(SHAPES[name].means, seed=3)
    for other, shape in SHAPES.items():
        found = geometries.difference(turned, shape.means)
        assert found < 1e-12 if other == name else math.isinf(found)
    assert math.isinf(geometries.difference(turned * torch.tensor([1.0] * 9 + [2.0]), turned))  # another length


def test_singular_values_that_are_zero_cost_nothing():
    assert geometries.linear_price(geometries.simplex(10).means, [1e-3] * 6) == pytest.approx(27e-3, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), factors=st.integers(2, 4))
def test_balanced_factors_pay_the_linear_price_and_no_others_less(seed, factors):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(factors)]
    decays = torch.randn(factors, generator=generator, dtype=torch.float64).exp().tolist()
    Z, mean = torch.linalg.multi_dot(parts), math.prod(decays) ** (1 / factors)
    balanced = [(mean / lam) ** 0.5 * torch.diag(torch.linalg.svdvals(Z) ** (1 / factors)) for lam in decays]
    price = geometries.linear_price(Z, decays)

    def paid(those):
        return sum(lam / 2 * q.square().sum().item() for lam, q in zip(decays, those, strict=True))

    assert paid(balanced) == pytest.approx(price, rel=1e-12) and paid(parts) >= price * (1 - 1e-12)


IMPOSSIBLE = [
    ("K", lambda: geometries.pairs(5)),
    ("K", lambda: geometries.pentagons(7)),
    ("lengths", lambda: geometries.stack(SHAPES["frame"], 1, False, torch.zeros(2))),
    ("negative", lambda: geometries.stack(SHAPES["simplex"], 2, relu=True)),
]


@pytest.mark.parametrize(("name", "call"), IMPOSSIBLE)
def test_what_cannot_be_is_refused(name, call):
    with pytest.raises(ValueError, match=name):
        call()
