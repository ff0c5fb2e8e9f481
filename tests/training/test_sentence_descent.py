"""The SGD of the sentence task against plain steps."""

import numpy as np
import pytest
import torch

from lib.data.sentences import sentence_task
from lib.models.sentences import empirical_risk
from lib.training import sentence_descent
from lib.training.sentence_descent import SentenceSGD, sentence_sgd
from without_gpu import Waits, recording

networks = pytest.mark.parametrize("normalize", [False, True])


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def order():
    return torch.Generator().manual_seed(5)


def problem(n_spl):
    """Five classes of `n_spl` sentences, in which words repeat, and weights."""
    x, y = sentence_task(2, 6, 3, K=5, frequencies="zipf", seed=1).sample(n_spl, seed=2)
    return normal(3, 6, 4), normal(4, 5, 3, 4), x, y


def plain_sgd(W, U, x, y, schedule, generator):
    """Weights after each step of `torch.optim.SGD`, with its weight decay, on autograd's gradients of the data term."""
    lam, learning_rate, batch_size, steps, normalize = schedule
    W, U = W.clone().requires_grad_(), U.clone().requires_grad_()
    groups = [{"params": [U], "weight_decay": lam}, {"params": [W], "weight_decay": 0.0 if normalize else lam}]
    optimiser, path = torch.optim.SGD(groups, lr=learning_rate), []
    while True:
        for batch in torch.randperm(len(x), generator=generator).split(batch_size):
            optimiser.zero_grad()
            empirical_risk(W, U, x[batch], y[batch], 0.0, normalize).backward()
            optimiser.step()
            path.append((W.detach().clone(), U.detach().clone()))
            if len(path) == steps:
                return path


@networks
@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize("n_spl, batch_size", [(3, 4), (3, 1), (2, 5), (3, 100)])
def test_sgd_is_plain_sgd(normalize, lam, n_spl, batch_size):
    """Five epochs; words repeat in a batch, and the last batch may be incomplete."""
    W, U, x, y = problem(n_spl)
    assert max(len(row) - len(row.unique()) for row in x) > 0
    schedule, found = SentenceSGD(lam, 0.3, batch_size, 5 * -(-len(x) // batch_size) - 1, normalize), []
    orders = order(), order()
    path = plain_sgd(W, U, x, y, schedule, orders[0])
    sentence_sgd(W, U, x, y, schedule, orders[1], lambda step: found.append((step, W.clone(), U.clone())))
    assert [step for step, *_ in found] == list(range(1, schedule.steps + 1))
    for (_, *after), expected in zip(found, path, strict=True):
        torch.testing.assert_close(tuple(after), expected, atol=1e-10, rtol=0)
    assert torch.equal(*(generator.get_state() for generator in orders)), "as many orders are drawn as are used"


@networks
@pytest.mark.parametrize("batch_size", [1, 4, 15])
@pytest.mark.parametrize("every", [1, 13, 40])
def test_recorded_sgd_takes_the_same_steps(normalize, batch_size, every):
    """To the last bit, with no wait in a step; what happens between recordings, too, is where it belongs."""
    ends, seen = [], []

    def run():
        (W, U, x, y), numbers = problem(3), []
        sentence_sgd(W, U, x, y, SentenceSGD(0.05, 0.3, batch_size, 77, normalize), order(), numbers.append, every)
        ends.append((W, U)), seen.append(numbers)

    run()
    with recording(sentence_descent) as card:
        run()
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])
    assert seen[0] == seen[1] == list(range(every, 78, every))
    assert card.recordings == (every >= 12 and 15 // batch_size >= 12)


@networks
def test_sgd_waits_for_nothing_when_nobody_looks(normalize):
    W, U, x, y = problem(3)
    with Waits() as noted:
        sentence_sgd(W, U, x, y, SentenceSGD(0.05, 0.3, 4, 50, normalize), order())
    assert noted.found == []
