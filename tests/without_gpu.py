"""What a GPU would trip over, shown without one: waits for its numbers, and steps that cannot be recorded.

Neither a GPU's arithmetic nor its speed, and no CUDA graph: those are tested where there is a card.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
#: Operations that read numbers back from a card, or copy them to it from memory that is not pinned.
WAITING = "_local_scalar_dense nonzero equal lift_fresh masked_select _unique2 unique_dim unique_consecutive bincount"
WAITS = {getattr(aten, name).default for name in WAITING.split()} | {aten.repeat_interleave.Tensor}


class Waits(TorchDispatchMode):
    """Notes the operations within it, and in `found` those for which a card would be waited for."""

    def __init__(self):
        super().__init__()
        self.found, self.operations = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = func in (aten.index.Tensor, aten.index_put_.default) and any(
            torch.is_tensor(index) and index.dtype == torch.bool for index in args[1]
        )  # as long as the mask has true entries; only to fill in one number nobody has to look
        if func in WAITS or masks and (func is aten.index.Tensor or args[2].numel() > 1):
            self.found.append(str(func))
        made = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, made))
        return made

    @torch.no_grad()
    def replay(self):
        """The same operations in the same memory, and nothing that Python or numpy did besides."""
        for func, args, kwargs, made in self.operations:
            for old, new in zip(tree_leaves(made), tree_leaves(func(*args, **kwargs)), strict=True):
                if torch.is_tensor(old) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextlib.contextmanager
def recording(module):
    """Within it, what `module` gives to `recorded` is noted and repeated as on a card; counts both."""
    card = SimpleNamespace(recordings=0, replays=0)

    def recorded(step, device, unroll=10):
        noted = Waits()

        def advance(steps):
            if not noted.operations and steps >= 2 + unroll:
                for _ in range(2):
                    step()
                with noted:
                    for _ in range(unroll):
                        step()
                assert not noted.found, f"{noted.found} in a recorded step"
                card.recordings, card.replays, steps = card.recordings + 1, card.replays + 1, steps - 2 - unroll
            if noted.operations:
                for _ in range(steps // unroll):
                    noted.replay()
                card.replays, steps = card.replays + steps // unroll, steps % unroll
            for _ in range(steps):
                step()

        return advance

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "recorded", recorded)
        yield card
