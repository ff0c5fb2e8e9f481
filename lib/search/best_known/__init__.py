r"""The lowest losses of the deep unconstrained features model that a search has found, kept as small files.

The problem is (1) of Súkeník et al. with one sample per class and one weight decay for all factors,

.. math::
    \frac1{2K}\|W_L\,\sigma(W_{L-1}\cdots\sigma(W_1 H_1)) - I_K\|_F^2
    + \frac\lambda2\Big(\|H_1\|_F^2 + \sum_{l=1}^L\|W_l\|_F^2\Big),

or the same with cross-entropy. This choice is no restriction for collapsed features: with n samples per class and
unequal decays they have, at their best scales, the loss of this problem at
:math:`\lambda^{L+1} = n\lambda_{H_1}\lambda_{W_1}\cdots\lambda_{W_L}`. A solution is the list of its factors
:math:`[H_1, W_1, \dots, W_L]`.

A reader can compare a solution with the stored one::

    python -m lib.search.best_known check mine.npz
"""

from lib.search.best_known.descent import ROUNDS, descend, merged, search, symmetric_search
from lib.search.best_known.files import CLASSES, FOLDER, LAYERS, cells, efforts, load, save, stored
from lib.search.best_known.initial import balanced, initial_factors, perturbed, through, widened
from lib.search.best_known.problem import Solution, collapse_cross_entropy, describe, file_name, ranks, simplex_decay
from lib.theory.low_rank import decay_at

__all__ = (
    ["Solution", "decay_at", "simplex_decay", "collapse_cross_entropy", "file_name", "describe", "ranks"]
    + ["FOLDER", "CLASSES", "LAYERS", "load", "save", "stored", "cells", "efforts"]
    + ["initial_factors", "perturbed", "widened", "balanced", "through"]
    + ["ROUNDS", "descend", "symmetric_search", "merged", "search"]
)
