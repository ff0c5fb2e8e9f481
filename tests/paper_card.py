"""A card of paper, for tests where there is no GPU: what code for one gets wrong shows on it, but not how fast it is.

Graphs: within `installed()`, :mod:`lib.training.cuda_graphs` finds the card in place of `torch.cuda`. While it records, PyTorch's
operations are noted down, and what they write into older tensors is taken back; a replay carries them out, into the
same memory as before. Whatever a step does besides, in Python or in numpy, is not repeated, as on a card; reading a
number back, and whatever else a card would have to be waited for, is an error in a recording.

A device: within `Device()`, tensors moved to `CUDA` say that they lie there. The processor computes with them, and
refuses what a card would refuse: tensors on two devices in one operation, and numpy. It also refuses to draw random
numbers there, and counts how often the card is waited for. Only the thread that has entered it knows of the card.
"""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lib.training import cuda_graphs

aten = torch.ops.aten
#: Operations that read numbers back from a card, or copy them to it from memory that is not pinned.
WAITS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.lift_fresh.default,
    aten.masked_select.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
    aten.bincount.default, aten.repeat_interleave.Tensor,
}  # fmt: skip


def _waits(func, args):
    """Whether a card is waited for; an index by a mask is as long as the mask has true entries."""
    if func not in (aten.index.Tensor, aten.index_put_.default):
        return func in WAITS
    masks = any(torch.is_tensor(index) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return masks and (func is aten.index.Tensor or args[2].numel() > 1)  # one number is filled in without looking


class Waits(TorchDispatchMode):
    """Notes the operations for which a card would be waited for."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _waits(func, args):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def _written(func, args, kwargs):
    """The tensors among the arguments that an operation writes to."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    arguments = [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [named[a.name] for a in arguments if torch.is_tensor(named.get(a.name))]


def _is_view(func):
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


class _Recorder(TorchDispatchMode):
    def __init__(self, operations):
        super().__init__()
        self.operations, self.before = operations, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert not _waits(func, args), f"{func} in a recorded step"
        self.before += [(tensor, tensor.clone()) for tensor in _written(func, args, kwargs)]
        made = func(*args, **kwargs)
        if not _is_view(func):
            self.operations.append((func, args, kwargs, made))
        return made


class PaperCard:
    """How many recordings and replays there were."""

    def __init__(self):
        self.recordings = self.replays = 0
        self.recording = False

    def graph(card):
        class Graph:
            def __init__(self):
                self.operations = []

            @torch.no_grad()
            def replay(self):
                assert not card.recording, "a replay while a graph is being recorded"
                card.replays += 1
                for func, args, kwargs, made in self.operations:
                    again = func(*args, **kwargs)
                    if not _written(func, args, kwargs):
                        pairs = zip(made, again, strict=True) if isinstance(made, tuple) else [(made, again)]
                        for old, new in pairs:
                            if torch.is_tensor(old):
                                old.copy_(new)

        return Graph

    @contextlib.contextmanager
    def record(self, graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local" and cuda_graphs._RECORDING.locked() and not self.recording
        self.recording, self.recordings = True, self.recordings + 1
        try:
            with _Recorder(graph.operations) as recorder:
                yield
            for tensor, before in reversed(recorder.before):
                tensor.copy_(before)
        finally:
            self.recording = False


class _Stream:
    """Work on it may begin once it has waited for the other one."""

    def __init__(self, device=None):
        self.waited = False

    def wait_stream(self, other):
        self.waited = True


@contextlib.contextmanager
def installed():
    """The card in place of `torch.cuda`, as far as :mod:`lib.training.cuda_graphs` uses it."""
    card, current = PaperCard(), _Stream()

    @contextlib.contextmanager
    def stream(side):
        assert side.waited, "the side stream waits for the work before it"
        yield
        current.waited = False

    @contextlib.contextmanager
    def record(graph, stream, capture_error_mode):
        assert current.waited, "the work after the warm-up waits for it"
        with card.record(graph, stream, capture_error_mode):
            yield

    with pytest.MonkeyPatch.context() as patch:
        replaced = {"CUDAGraph": card.graph(), "Stream": _Stream, "graph": record, "stream": stream}
        for name, value in (replaced | {"current_stream": lambda device: current}).items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(cuda_graphs, "_OWN", threading.local())
        yield card


@contextlib.contextmanager
def recording(module):
    """Within it, what `module` records is recorded although it lies on a processor; yields the card."""
    with installed() as card, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "recorded", lambda step, device, *args, **kw: cuda_graphs.recorded(step, "cuda", *args, **kw))
        yield card


# ------------------------------------------------------------------------------------------------------------ a device

CUDA = torch.device("cuda", 0)
_DRAWS = ("rand", "normal", "uniform", "bernoulli", "multinomial", "exponential", "poisson")
_ONTO_THE_FIRST = {aten.copy_.default, aten.index.Tensor, aten.index_put_.default}  # may take others from elsewhere


class _OnCard(torch.Tensor):
    """A tensor that says it lies on the card, round one that does not. Torch's own code takes it for a plain one."""

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    def __repr__(self, **_):
        return f"on the card: {self.detach().inner}"

    def __format__(self, specification):
        return format(self.item() if self.ndim == 0 else repr(self), specification)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs, tensor = dict(kwargs or {}), args[0] if args else None
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            raise TypeError("a tensor on the card is no numpy array")
        if func is torch.Tensor.tolist:
            Device.active.waits.append("tolist")
            return tensor.detach().inner.tolist()
        if func is torch.Tensor.new_tensor:
            return torch.tensor(*args[1:], **({"dtype": tensor.dtype} | kwargs)).to(CUDA)
        if func is torch.Tensor.cpu:
            return _ToProcessor.apply(tensor)
        if func in (torch.Tensor.to, torch.Tensor.type_as):
            return _to(tensor, args[1:], kwargs)
        Device.active.inside += 1
        try:
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs)
        finally:
            Device.active.inside -= 1

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} of a tensor on the card, outside of Device()")


def _to(tensor, args, kwargs):
    """`Tensor.to` where the tensor, or the one that it shall be like, lies on the card."""
    where = kwargs.pop("device", None)
    if args and not isinstance(args[0], torch.dtype):
        where, *args = args
    kwargs = dict(zip(("dtype", "non_blocking", "copy"), args, strict=False)) | kwargs
    if isinstance(where, torch.Tensor):
        where, kwargs["dtype"] = where.device, where.dtype
    if where is not None and torch.device(where).type != tensor.device.type:
        tensor = _ToProcessor.apply(tensor) if tensor.is_cuda else tensor.to(CUDA)
    kwargs = {name: value for name, value in kwargs.items() if value is not None and name != "non_blocking"}
    return torch._C._disabled_torch_function_impl(torch.Tensor.to, (), (tensor,), kwargs) if kwargs else tensor


class _ToProcessor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        Device.active.waits.append("to the processor")
        return tensor.inner.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope.to(CUDA)


class _Numbered(TorchFunctionMode):
    """Gives "cuda" its number: torch would ask its CUDA part for it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.cuda:
            func, args, kwargs = torch.Tensor.to, (args[0], CUDA), {}
        return func(*map(self._numbered, args), **{name: self._numbered(a) for name, a in (kwargs or {}).items()})

    @staticmethod
    def _numbered(argument):
        return CUDA if isinstance(argument, str | torch.device) and str(argument) == "cuda" else argument


def _inner(arguments):
    return tree_map_only(_OnCard, lambda tensor: tensor.inner, arguments)


class Device(TorchDispatchMode):
    """Within it there is a card; `waits` lists the operations for which the processor waited for it.

    `draws`: whether random numbers may be drawn on it, as a network with dropout does.
    """

    active = None

    def __init__(self, draws=False):
        super().__init__()
        self.draws = draws
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE  # torch then does not look for a real card
        self.waits, self.inside = [], 0  # how deep in calls with a tensor on the card: what they make lies there too

    def __enter__(self):
        future, Device.active, self._numbers = torch.__future__, self, _Numbered()
        self._before = torch._C._only_lift_cpu_tensors(), future.get_swap_module_params_on_conversion()
        torch._C._set_only_lift_cpu_tensors(True)  # a tensor made from numbers begins on the processor
        future.set_swap_module_params_on_conversion(True)
        self._numbers.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._numbers.__exit__(*error)
        lifts, swaps = self._before
        torch._C._set_only_lift_cpu_tensors(lifts)
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        Device.active = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        here = [tensor for tensor in tensors if isinstance(tensor, _OnCard)]
        others = [tensor for tensor in tensors if not isinstance(tensor, _OnCard) and tensor.ndim]
        device = kwargs.get("device")
        asked = device is not None and torch.device(device).type == "cuda"
        to_card = isinstance(args[0], _OnCard) if func in _ONTO_THE_FIRST else bool(here) or asked
        to_card = to_card or not tensors and self.inside > 0
        if func is aten.is_pinned.default:
            return False
        if func is aten._pin_memory.default:
            return args[0]
        if here and others and func not in _ONTO_THE_FIRST:
            raise RuntimeError(f"{func}: tensors on two devices")
        if to_card and not self.draws and any(word in func._schema.name for word in _DRAWS):
            raise AssertionError(f"{func} draws random numbers on the card")
        moved = func is aten._to_copy.default and asked and not here or func in _ONTO_THE_FIRST and here and others
        if here and _waits(func, args) or moved and not kwargs.get("non_blocking"):
            self.waits.append(str(func))
        back = {id(tensor.inner): tensor for tensor in here}  # what is written in place is returned itself
        made = func(*_inner(args), **_inner(kwargs | ({} if device is None else {"device": torch.device("cpu")})))
        if not to_card:
            return made
        return tree_map_only(
            torch.Tensor, lambda tensor: back[id(tensor)] if id(tensor) in back else _OnCard(tensor), made
        )
