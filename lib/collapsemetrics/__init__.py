r"""How far representations have collapsed: class means, spreads around them, and the geometry of the means.

Features are rows: `H: (n_samples, d)` with labels `y: (n_samples,)` in `0..K-1`; class means and classifier weights
are `(K, d)`. Where a function says `...`, several runs may be given at once: features `(..., n_samples, d)` with one
`y` for all of them, means `(..., K, d)`; the result then has the shape `...` of the runs. Results follow the dtype and
the device of the input (half precision is computed in float32). Functions of float32 tensors multiply matrices as
`torch.set_float32_matmul_precision` says; what takes batches never rounds to TF32 or bfloat16.

A network's features do not fit in memory at once: :class:`ClassStatistics` takes them batch by batch, and
:func:`measure` collects every measure of any PyTorch model from one pass over its data, and :class:`Tracker` does so
again and again while the model trains.

PyTorch and NumPy are all that it imports; pictures import matplotlib when they are drawn.
"""

from .columns import COLUMNS  # noqa: I001
from .formulas import (
    alpha_req, cdnv, class_means, condition_number, dilation, directional_spread, duality, effective_rank,
    equiangularity, memorization, nc0, nc1, nc2_angles, nc2_etf, nc2_norms, nc2_of, nc3, nc4, nc5, numerical_rank,
    principal_singular_values, relative_spread, trace_ratio, uniformity,
)  # fmt: skip
from .network import cka, layers, measure
from .passes import PENULTIMATE
from .streaming import ClassStatistics
from .table import ClassMeans, Comparison, LayerShapes, Measures, compare
from .tracker import Tracker

__all__ = [
    "class_means", "relative_spread", "directional_spread", "equiangularity", "principal_singular_values", "nc1",
    "trace_ratio", "cdnv", "nc2_etf", "nc2_of", "nc2_norms", "nc2_angles", "uniformity", "nc3", "duality", "nc0", "nc4",
    "nc5", "dilation", "memorization", "numerical_rank", "condition_number", "effective_rank", "alpha_req", "cka",
    "ClassStatistics", "ClassMeans", "LayerShapes", "Measures", "Comparison", "compare", "measure", "layers", "Tracker",
    "COLUMNS", "PENULTIMATE",
]  # fmt: skip
