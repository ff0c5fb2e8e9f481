r"""What the heavy computations of the book must do: operations, bytes, and the time below which no machine does it.

Operations are the floating-point operations of matrix products and convolutions, a multiplication with the addition
that follows it counting two. Bytes are the compulsory traffic of a step, what has to be read or written at least once
however well it is programmed: parameters and the state of the optimiser are read and written; samples are read;
activations that the backward pass needs are written on the way forward and read on the way back. What stays in a cache
between two uses, and all passes over memory that a better program would save, are left out; so are single numbers for
each channel or class, as of batch normalisation, and what is computed in order to be looked at.

The formulas are for one step, and a computation of many is a multiple of it: :class:`Work` is added, and multiplied by
numbers. :func:`rates` measures what a machine does at best, :func:`floor` puts the two together.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib.runs import devices
from lib.training.cuda_graphs import rounding_to_tf32

_WORD = 8  # bytes of an index or a label


class Work(NamedTuple):
    """Floating-point operations of products, and bytes of compulsory traffic; sums and multiples are work again.

    >>> 3 * Work(operations=10, bytes=4) + Work(1, 2)
    Work(operations=31, bytes=14)
    """

    operations: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Work:
        return Work(times * self.operations, times * self.bytes)

    __rmul__ = __mul__


class Rates(NamedTuple):
    """What a machine does at best.

    Attributes
    ----------
    name
        Of the device.
    matrix
        Operations per second in a product of large matrices, by kind of number: "float64", "float32", "tf32",
        "bfloat16".
    bandwidth
        Bytes per second, read and written, of a large copy.
    """

    name: str
    matrix: dict[str, float]
    bandwidth: float


class Floor(NamedTuple):
    """The least time in seconds, and what decides it: "operations" or "bytes"."""

    seconds: float
    bound: str


#: Published, not measured: the data sheet of the NVIDIA H200 (SXM), dense products. The number for float32 is that of
#: the plain units; its TF32 and bfloat16 come from the matrix units, as does its float64.
H200_PUBLISHED = Rates(
    "NVIDIA H200, published", {"float64": 67e12, "float32": 67e12, "tf32": 495e12, "bfloat16": 989e12}, 4.8e12
)


def floor(work: Work, rates: Rates, dtype: str) -> Floor:
    r"""The least time for that much work on that machine.

    .. math:: \max\Big(\frac{\text{operations}}{\text{matrix rate}}, \frac{\text{bytes}}{\text{bandwidth}}\Big)

    `dtype` is the kind of number in the products. ValueError for one without a rate.

    >>> floor(Work(operations=8e12, bytes=1e9), Rates("a machine", {"float32": 4e12}, 1e9), "float32")
    Floor(seconds=2.0, bound='operations')
    """
    if dtype not in rates.matrix:
        raise ValueError(f"dtype {dtype!r}: {rates.name} has rates for {', '.join(rates.matrix)}")
    computing, moving = work.operations / rates.matrix[dtype], work.bytes / rates.bandwidth
    return Floor(max(computing, moving), "operations" if computing >= moving else "bytes")


# -------------------------------------------------------------------------------------------------------- the formulas


def sentence_step(n_w: int, L: int, K: int, d: int, batch: int, itemsize: int = 4) -> Work:
    r"""A step of :func:`lib.training.sentences.sentence_sgd`: three products of the size of the linear layer.

    .. math:: \text{operations} = 6\,B L K d, \qquad
              \text{bytes} = 2 s (n_w d + K L d) + 2 s B (L d + K) + 8 B (L + 1)

    with :math:`B` = `batch` sentences and :math:`s` = `itemsize` bytes of a number: weights read and written; word
    vectors of the sentences and softmax outputs kept; words and labels.

    >>> sentence_step(n_w=1200, L=15, K=1000, d=100, batch=100).operations
    900000000
    """
    kept = batch * (L * d + K)
    return Work(6 * batch * L * K * d, 2 * itemsize * (n_w * d + K * L * d + kept) + _WORD * batch * (L + 1))


def risk_gradient(n_w: int, L: int, K: int, d: int, sentences: int, itemsize: int = 4) -> Work:
    r"""Value and gradient of the mean cross-entropy of N = `sentences`, by :class:`lib.models.sentences.SentenceSet`.

    Through the products of all words with all positions, or directly where these cost less (:math:`d (N - n_w) \le
    8 N`):

    .. math:: \text{operations} = 6 L K d \cdot (N \text{ directly, otherwise } n_w), \qquad
              \text{bytes} = 2 s (n_w d + K L d) + 8 N (L + 1) +
              \begin{cases} 0 & \text{directly} \\ 2 s K (L n_w + N) + 8 L (N + n_w) & \text{by products}\end{cases}

    Weights read and gradients written, words and labels; the products, and the softmax outputs, written and read; the
    sentences once more in the order of their words. That a product is read again for each sentence that has the word,
    L K additions each way, is no product and left out, though it is what takes most of the time with many sentences.

    >>> risk_gradient(n_w=1200, L=15, K=1000, d=100, sentences=5000).operations
    10800000000
    """
    direct = d * (sentences - n_w) <= 8 * sentences
    least = 2 * itemsize * (n_w * d + K * L * d) + _WORD * sentences * (L + 1)
    if direct:
        return Work(6 * sentences * L * K * d, least)
    kept = K * (L * n_w + sentences)
    return Work(6 * L * n_w * K * d, least + 2 * itemsize * kept + _WORD * L * (sentences + n_w))


def descent_step(runs: int, widths: Sequence[int], K: int, columns: int, itemsize: int = 8, bias: bool = False) -> Work:
    r"""A step of :func:`lib.training.unconstrained.gradient_descent` on R = `runs` unconstrained features models.

    .. math:: \text{operations} = 6 R C \sum_{l=1}^{L} d_l d_{l+1}, \qquad
              \text{bytes} = 2 s R \Big(\sum_l d_l d_{l+1} + d_1 C\Big) + 2 s R C \sum_{l=2}^{L+1} d_l + s K C

    `widths` are :math:`d_1, \dots, d_L`, of the features and of the hidden levels, and :math:`d_{L+1}` = K. C =
    `columns` stand for the samples: all of them; K + d where these are fewer and there is no ReLU; K where the samples
    of a class are equal. Weights and features are parameters, read and written; levels above the features and the
    residual are kept; targets are read. A `bias` adds two products with a row of ones, 4 R C K operations, and is read
    and written itself.

    >>> descent_step(runs=10, widths=[30, 30, 30, 30], K=10, columns=10).operations
    1800000
    """
    sizes = [*widths, K]
    weights = sum(a * b for a, b in zip(sizes, sizes[1:], strict=False))
    parameters = runs * (weights + widths[0] * columns + (K if bias else 0))
    kept = runs * columns * sum(sizes[1:])
    operations = runs * columns * (6 * weights + (4 * K if bias else 0))
    return Work(operations, itemsize * (2 * parameters + 2 * kept + K * columns))


def mlp_step(
    runs: int, inputs: int, M: int, K: int, width: int, depth: int, batch: int, itemsize: int = 4, bias: bool = True
) -> Work:
    r"""A step of :func:`lib.training.perceptrons.train` on R = `runs` networks of :func:`lib.models.networks.mlp`.

    .. math:: \text{operations} = R B \Big(6 \sum_{l=0}^{L} d_l d_{l+1} - 2 d_0 d_1\Big), \qquad
              \text{bytes} = 4 s R P + 2 s R B \Big(2 \sum_{l=1}^{L} d_l + K\Big) + R B (s d_0 + 8)

    with :math:`d_0` = `inputs`, `depth` - 1 times `width`, then M and K, and B = `batch`: forward, the gradient of the
    weights, and that of the activations, which the images do not need. P parameters and their momenta are read and
    written; in front of each batch normalisation and after its activation B numbers are kept for each unit, and the
    scores.

    >>> mlp_step(runs=1, inputs=784, M=2, K=2, width=2048, depth=9, batch=512).operations
    93495242752
    """
    sizes = [inputs, *[width] * (depth - 1), M, K]
    weights = sum(a * b for a, b in zip(sizes, sizes[1:], strict=False))
    hidden = sum(sizes[1:-1])
    parameters = weights + 3 * hidden + (K if bias else 0)
    operations = runs * batch * (6 * weights - 2 * sizes[0] * sizes[1])
    kept = runs * batch * (2 * hidden + K)
    data = runs * batch * (itemsize * inputs + _WORD)
    return Work(operations, 4 * itemsize * runs * parameters + 2 * itemsize * kept + data)


@torch.no_grad()
def network_step(model: nn.Module, shape: Sequence[int], kept_itemsize: int = 4) -> Work:
    r"""A step of SGD with momentum on a convolutional network: ResNet18, ResNet20 or VGG13 of `lib.models.networks`.

    .. math:: \text{operations} = \sum_{\text{layers}} (6 \text{ or, at the images, } 4) \cdot
              \text{outputs} \cdot \text{inputs of each}, \qquad
              \text{bytes} = 4 s P + 2 s' A + 4\,\text{pixels} + 8 B

    over convolutions and linear maps; an output of a convolution has (maps read) x (kernel size) inputs, those beyond
    the edge included. P parameters of s bytes and their momenta are read and written. A numbers are kept, of
    `kept_itemsize` = s' bytes (2 in bfloat16): what goes into convolutions, batch normalisations, max-poolings and
    linear maps, what comes out of a ReLU, each tensor once and without the images, and the scores. The images, `shape`
    = `(B, C, height, width)`, are read in float32.

    The sizes of the layers come from a pass through a copy of the network that has shapes and no numbers.

    >>> from lib.models.networks import resnet18
    >>> network_step(resnet18(K=10), (128, 3, 32, 32)).operations / 1e12  # of a batch
    0.426111664128
    """
    model = copy.deepcopy(model).to("meta")
    images = torch.empty(tuple(shape), device="meta")
    kept: dict[int, Tensor] = {}  # by storage, which a ReLU in place does not change
    operations, before = 0, None
    reads = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)

    def look(layer, inputs, output):
        nonlocal operations, before
        if not isinstance(before, nn.MaxPool2d) or not isinstance(layer, nn.AdaptiveAvgPool2d):
            kept[inputs[0].untyped_storage()._cdata] = inputs[0]
        before = layer
        if hasattr(layer, "weight") and layer.weight.ndim > 1:
            products = output.numel() * layer.weight[0].numel()
            operations += (4 if inputs[0] is images else 6) * products

    # the mean over positions needs nothing on the way back; what it reads is kept where a ReLU made it
    hooks = [layer.register_forward_hook(look) for layer in model.modules() if isinstance(layer, reads)]
    scores = model.train()(images)
    for hook in hooks:
        hook.remove()
    del kept[images.untyped_storage()._cdata]
    numbers = scores.numel() + sum(tensor.numel() for tensor in kept.values())
    state = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Work(operations, 4 * state + 2 * kept_itemsize * numbers + 4 * images.numel() + _WORD * len(images))


# ------------------------------------------------------------------------------------------------------------ measuring


def seconds(function: Callable[[], object], device: str | torch.device) -> float:
    """Time of one call, with what it left to do on a GPU.

    >>> seconds(lambda: time.sleep(0.01), "cpu") >= 0.01
    True
    """
    _wait(device)
    began = time.perf_counter()
    function()
    _wait(device)
    return time.perf_counter() - began


def seconds_per_step(section: Callable[[int], object], device: str | torch.device, least: float = 0.4) -> float:
    """Median time of a step over three calls of `section(steps)` that take at least `least` seconds each.

    What a call does once is part of it, and grows small against the steps. The first call is not counted.

    >>> 0.001 <= seconds_per_step(lambda steps: time.sleep(steps / 1000), "cpu", least=0.02)
    True
    """
    section(1)
    steps = 1
    while (found := seconds(partial(section, steps), device)) < least:
        steps = max(2 * steps, min(10 * steps, round(1.2 * steps * least / max(found, 1e-6))))
    return statistics.median([found, *(seconds(partial(section, steps), device) for _ in range(2))]) / steps


def parts(function: Callable[[], object]) -> dict[str, float]:
    """Seconds that one call spends, on a processor, in operations of PyTorch of three kinds, and between them.

    "products" are those of matrices, and convolutions; "normalisation" is batch normalisation where it is one
    operation; "passes" are all other operations; "between" them runs Python, slowed down by being watched. What numpy
    computes is between the operations, too.

    >>> A = torch.ones(300, 300)
    >>> found = parts(lambda: (A @ A).add_(1))
    >>> found["products"] > 0, found["normalisation"], found["passes"] > 0, found["between"] > 0
    (True, 0.0, True, True)
    """
    clock = _Clock()
    with clock:
        whole = seconds(function, "cpu")
    return clock.spent | {"between": whole - sum(clock.spent.values())}


class _Clock(TorchDispatchMode):
    """Adds up the seconds of all operations inside, by kind."""

    def __init__(self):
        super().__init__()
        self.spent = {"products": 0.0, "normalisation": 0.0, "passes": 0.0}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        product = "convolution" in name or name.rstrip("_") in ("mm", "bmm", "addmm", "baddbmm")
        kind = "products" if product else "normalisation" if "batch_norm" in name else "passes"
        self.spent[kind] += time.perf_counter() - began
        return result


def rates(device: str | torch.device = "cpu") -> Rates:
    """Measured rates: medians of five products of random matrices of a size that fills the device, and five copies.

    On a GPU also with float32 rounded to TF32, and in bfloat16. On a processor with as many threads as PyTorch has
    now; takes about two seconds on two cores.

    >>> machine = rates("cpu")
    >>> sorted(machine.matrix), machine.bandwidth > 1e8
    (['float32', 'float64'], True)
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    threads = torch.get_num_threads()
    name = devices.name(str(device)) + ("" if on_gpu else f", {threads} thread{'s' if threads > 1 else ''}")
    n, copied = (8192, 2**28) if on_gpu else (1024, 2**25)
    kinds = {"float64": torch.float64, "float32": torch.float32}
    kinds |= {"tf32": torch.float32, "bfloat16": torch.bfloat16} if on_gpu else {}
    generator = torch.Generator(device).manual_seed(0)
    matrix = {}
    for kind, dtype in kinds.items():
        A, B = (torch.randn(n, n, device=device, generator=generator).to(dtype) for _ in range(2))
        out = torch.empty_like(A)
        with rounding_to_tf32(kind == "tf32"):
            matrix[kind] = 2 * n**3 / _median(lambda A=A, B=B, out=out: torch.mm(A, B, out=out), device)
    source = torch.rand(copied, device=device, generator=generator)
    target = torch.empty_like(source)
    return Rates(name, matrix, 2 * source.nbytes / _median(lambda: target.copy_(source), device))


def _median(function: Callable[[], object], device: torch.device, repetitions: int = 5) -> float:
    function()
    return statistics.median(seconds(function, device) for _ in range(repetitions))


def _wait(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
