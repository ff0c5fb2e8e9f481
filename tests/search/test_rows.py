"""L-BFGS on the rows of a matrix, and the parameters that a row holds."""

import torch

from lib.search.rows import join, lbfgs_rows, split


def test_every_row_descends_its_own_quadratic():
    scales, random = torch.logspace(-2, 2, 12).double(), torch.Generator().manual_seed(0)
    centre = torch.randn(20, 12, generator=random, dtype=torch.float64)
    centre[:, 5] = 0  # where the descent starts: a row goes on while any of its slopes is left
    data = scales * (1 + torch.arange(20).double()[:, None])

    def function(x, data, centre):
        return (data * (x - centre) ** 2).sum(1) / 2, data * (x - centre)

    found = lbfgs_rows(function, torch.zeros(20, 12).double(), [data, centre], 200, 1e-10)
    torch.testing.assert_close(found, centre, rtol=0, atol=1e-7)


def test_a_kink_or_a_nan_in_one_row_leaves_the_others_as_they_are():
    def function(x, kind):
        square, kink = (x - 1).square().sum(1), x.abs().sum(1)
        value = torch.where(kind == 0, square, torch.where(kind == 1, kink, x.sum(1) * float("nan")))
        return value, torch.where(kind[:, None] == 0, 2 * (x - 1), x.sign())

    x, kind = torch.full((3, 4), 0.3, dtype=torch.float64), torch.tensor([0, 1, 2])
    found = lbfgs_rows(function, x, [kind], 100)
    torch.testing.assert_close(found[0], torch.ones(4).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(found[0], lbfgs_rows(function, x[:1], [kind[:1]], 100)[0], rtol=0, atol=0)
    assert found[1].abs().max() < 0.3 and torch.equal(found[2], x[2])


def test_parameters_come_back_as_they_were_joined():
    parts = [torch.rand(5, 2, 3), torch.rand(5, 4), torch.rand(5, 1, 1)]
    back = split(join(parts), [part.shape[1:] for part in parts])
    assert all(torch.equal(a, b) for a, b in zip(parts, back, strict=True))
