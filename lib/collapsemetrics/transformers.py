r"""Measures of collapse while the `Trainer` of `transformers` trains a network."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from transformers import TrainerCallback

from .passes import Layers, Loader
from .tracker import Tracker, of_trainer

_ROWS = "collapse of representations"  # where the state of a trainer keeps the rows


class CollapseCallback(TrainerCallback):
    """Measures a model before training and after each epoch of it, and logs the numbers::

        trainer = Trainer(model, arguments, train_dataset=data)
        callback = CollapseCallback(layers=["bert.encoder.layer.5", "penultimate"], log=trainer.log)
        trainer.add_callback(callback)
        trainer.train()
        callback.tracker.plot()

    An epoch is the number of epochs that the model has been trained for, 0 before training; an epoch that training does
    not finish counts in full. The numbers have names like `nc1/penultimate`. A checkpoint keeps the rows, in the state
    of the trainer, and training that is resumed goes on with them; so a trainer takes only one such callback. Training
    itself is unchanged to the last bit.

    Parameters
    ----------
    loader
        As in :func:`~collapsemetrics.measure`; by default the training loader of the trainer.
    layers
        As in :class:`~collapsemetrics.Tracker`.
    log
        A function to call with the numbers: `trainer.log` writes them to `trainer.state.log_history` and sends them to
        the reporters, which a callback cannot reach by itself. Without it only the log history gets them.
    options
        What else :class:`~collapsemetrics.Tracker` takes: `every`, and what :func:`~collapsemetrics.measure` takes.
        If the trainer has several processes, `group` is by default all of them: each reads its share of the samples,
        and some samples are read twice where the shares are made equal.

    Attributes
    ----------
    tracker
        The :class:`~collapsemetrics.Tracker` of the latest training run, None before the first.

    Raises
    ------
    ValueError
        When training begins, as :class:`~collapsemetrics.Tracker`, and for a loader without a length, which may never
        end, unless `batches` says how many to read; at each measurement, as :func:`~collapsemetrics.measure`.
    """

    def __init__(self, loader: Loader | None = None, layers: Layers = None, *, log: Callable | None = None, **options):
        self.loader, self.layers, self.log, self.options = loader, layers, log, options
        self.tracker: Tracker | None = None

    def on_train_begin(self, args, state, control, model=None, train_dataloader=None, **kwargs):
        """Measure the model before training, unless a checkpoint brought the rows of this epoch."""
        epoch = int(state.epoch)
        loader = train_dataloader if self.loader is None else self.loader
        self.tracker = of_trainer(model, loader, self.layers, args.world_size, self.options)
        rows = [row for row in state.stateful_callbacks.get(_ROWS, []) if row["epoch"] <= epoch]
        self.tracker.rows = state.stateful_callbacks[_ROWS] = rows  # every checkpoint saves them
        if all(row["epoch"] < epoch for row in rows):
            self._measure(state, epoch)

    def on_epoch_end(self, args, state, control, **kwargs):
        """Measure the model after an epoch."""
        self._measure(state, ceil(state.epoch))

    def _measure(self, state, epoch: int):
        numbers = self.tracker(epoch)
        if numbers and self.log is not None:
            self.log(numbers)
        elif numbers:
            state.log_history.append(numbers | {"epoch": state.epoch, "step": state.global_step})
