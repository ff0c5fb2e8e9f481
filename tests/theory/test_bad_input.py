"""Parameters and matrices outside the range of a formula are refused by name before anything is computed."""

from itertools import combinations

import pytest
import torch

from lib.theory import extended_ufm, feature_collapse, graph_gram, halves, low_rank, structure
from lib.theory import memorization_dilation as md
from lib.theory import positive_features as positive

eye, ones = torch.eye(3), torch.ones(5, 2, 2)
pairs, B = low_rank.incidence(combinations(range(6), 2)), halves.rows(halves.half_signs(6))

WRONG = [
    ("K", extended_ufm.bias_free, (1, 2, 0.1, 0.1)),
    ("K sqrt.* below 1", extended_ufm.noisy_classifier_factor, (4, 0.5, 0.5, 0.1)),
    ("d", extended_ufm.orthogonal_frame, (2, 3)),
    ("K = 14348908.*14348907", feature_collapse.type1, (3, 1200, 15, 3**15 + 1, 0.1)),
    ("n_w = 1201.*n_c = 3", feature_collapse.type1, (3, 1201, 15, 1000, 0.1)),
    ("d", feature_collapse.type2, (3, 15, 1000, 2, 0.1)),
    ("K", feature_collapse.mean_field_type3, ([1.0], 2, 3, 9, 0.1)),
    ("d = 2.* at least 3", feature_collapse.equiangular, (4, 2)),
    ("d = 3.* at least 4", feature_collapse.equiangular, (4, 3, True)),
    ("means", graph_gram.is_graph_gram, (torch.zeros(2, 6, 6),)),
    ("means", graph_gram.is_graph_gram, (eye / 0,)),
    ("tol", structure.structure, (eye, 0.25)),
    ("r", halves.half_signs, (7,)),
    ("K", halves.loss, (5, 2, 0.01, 1)),
    ("k", halves.bound_factor, (10, 2, 1)),
    ("B T", halves.price, (eye.double(), -eye.double(), 2)),
    ("K", halves.solution, (pairs, B, 2, 0.01, 1, 14)),
    ("r", low_rank.srg_loss, (3, 3, 0.01, 1)),
    ("L", low_rank.srg_loss, (4, 1, 0.01, 1)),
    ("lam", low_rank.dnc_solution, (10, 3, (0.1, 0.1), 1)),
    ("K", low_rank.general_srg_loss, (5, 3, 0.1, 1)),
    ("construction", low_rank.general_srg_solution, (7, 3, 0.1, 1, 3)),
    ("d_2", low_rank.srg_solution, (5, 4, 0.01, 1, [10, 3, 10, 10])),
    ("d", low_rank.dnc_solution, (10, 4, 0.01, 1, [10, 10, 10])),
    ("level", low_rank.decay_at, (4, 3, 0.5)),
    ("alpha", md.model, (1e-3, 1e-3, [0.1, 1.0], 0.2, 1.0)),
    ("problem", md.embed, (md.model(1e-3, 1e-3, [0.0, 0.1], 0.1, 1.0), 2)),
    ("A", md.three_point, (0.9,)),
    ("r", md.corrupted_features, (md.model(1e-3, 1e-3, 0.1, 0.1, 1.0), -1.0)),
    ("alpha", positive.optimal_norms, (3, 2, 0.1, 0.1, 1.0)),
    ("M", positive.nc_configuration, (3, 2, 2, 0.1, 0.1)),
    ("H", positive.nc_distance, (eye, -eye, torch.arange(3))),
    ("W", positive.nc_distance, (ones, ones, torch.arange(2))),
    ("y", positive.nc_distance, (torch.ones(2, 2), torch.ones(2, 3), torch.tensor([0, 0, 1]))),
]


@pytest.mark.parametrize(("name", "formula", "arguments"), WRONG)
def test_what_is_out_of_range_is_named(name, formula, arguments):
    with pytest.raises(ValueError, match=rf"^(a )?{name}\b"):
        formula(*arguments)
