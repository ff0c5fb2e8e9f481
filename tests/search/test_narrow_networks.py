"""Networks made wider keep their scores, and a narrow search ends where a wide one does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.sentences import sentence_task
from lib.models.sentences import empirical_risk, scores
from lib.search.narrow_networks import fit_narrow, widen
from lib.search.sentence_minimisers import fit_sentences


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 6), st.integers(0, 5), st.booleans())
def test_a_wider_network_has_the_same_scores_and_with_layernorm_the_decay_of_one_in_proportion(
    seed, narrow, more, normalize
):
    generator = torch.Generator().manual_seed(seed)
    W, U = (torch.randn(*shape, narrow, generator=generator, dtype=torch.float64) for shape in ((5,), (4, 2)))
    x, y = torch.randint(5, (7, 2), generator=generator), torch.randint(4, (7,), generator=generator)
    U = U - U.mean(-1, keepdim=True)  # what decays to zero in h*, whose features have mean zero
    d, lam = narrow + more, 0.3
    wide = widen(W, U, d, normalize)
    assert wide[0].shape == (5, d) and wide[1].shape == (4, 2, d)
    torch.testing.assert_close(scores(*wide, x, normalize), scores(W, U, x, normalize))
    in_proportion = lam * narrow / d if normalize else lam
    torch.testing.assert_close(
        empirical_risk(*wide, x, y, lam, normalize), empirical_risk(W, U, x, y, in_proportion, normalize)
    )


def test_a_network_cannot_be_made_narrower():
    with pytest.raises(ValueError, match="d = 2"):
        widen(torch.ones(4, 3), torch.ones(2, 2, 3), 2)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_narrow_search_ends_at_the_risk_of_a_wide_one(normalize):
    x, y = sentence_task(3, 12, 3, K=7, frequencies="zipf", seed=3).sample(4, seed=0)
    wide = fit_sentences(x, y, 12, 12, 0.01, normalize, tolerance=1e-4)
    found = fit_narrow(x, y, 12, 12, 0.01, normalize, seed=1, tolerance=1e-4, narrow=8)
    risk = empirical_risk(found.W, found.U, x, y, 0.01, normalize).item()
    assert risk == pytest.approx(wide.record.value, abs=1e-4)
    assert found.record.value == pytest.approx(risk, abs=1e-6)
