r"""Measures of collapse while a Lightning `Trainer` fits a network. Needs `lightning`, or `pytorch_lightning`."""

from __future__ import annotations

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from .passes import Layers, Loader
from .tracker import Tracker, of_trainer


class CollapseCallback(Callback):
    """Measures a LightningModule before training and after each epoch of it, and logs the numbers::

        callback = CollapseCallback(layers=["encoder", "penultimate"], every=5)
        trainer = Trainer(max_epochs=100, callbacks=[callback])
        trainer.fit(model, loader)
        callback.tracker.plot()

    An epoch is the number of epochs that the model has been trained for: 0 before training and 1 after the first, which
    Lightning counts as 0. Every logger of the trainer gets the numbers, under names like `nc1/penultimate`, and after
    an epoch `ModelCheckpoint` and `EarlyStopping` can monitor them; after an epoch that is not due the last numbers are
    logged again, and `EarlyStopping` counts them as no improvement. A checkpoint keeps the rows, and training that is
    resumed goes on with them. Training itself is unchanged to the last bit.

    The module's `forward` is run, on batches as the loader gives them, in the precision of its weights: hooks that
    change a batch for the training step do not apply, nor does a mixed precision.

    Parameters
    ----------
    loader
        As in :func:`~collapsemetrics.measure`; by default the whole training loader of the trainer. If the trainer has
        several of them, one has to be given.
    layers
        As in :class:`~collapsemetrics.Tracker`.
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

    def __init__(self, loader: Loader | None = None, layers: Layers = None, **options):
        self.loader, self.layers, self.options = loader, layers, options
        self.tracker: Tracker | None = None
        self._rows: list[dict] = []

    def setup(self, trainer, pl_module, stage):
        """Keep the rows if a trainer that has already trained goes on."""
        self._rows = self.tracker.rows if self.tracker and trainer.current_epoch else []

    def on_train_start(self, trainer, pl_module):
        """Measure the model before training, unless a checkpoint brought the rows of this epoch."""
        epoch = trainer.current_epoch
        self.tracker = of_trainer(pl_module, self._batches(trainer), self.layers, trainer.world_size, self.options)
        self.tracker.rows = rows = self._rows
        if all(row["epoch"] < epoch for row in rows):
            numbers = self.tracker(epoch)
            for logger in trainer.loggers if numbers else []:
                logger.log_metrics(numbers, step=trainer.global_step)  # before training no epoch collects them

    def on_train_epoch_end(self, trainer, pl_module):
        """Measure the model after an epoch, or else log the last numbers, for callbacks that look each time."""
        self.tracker.loader = self._batches(trainer)  # the trainer may have made a new one
        self.tracker(trainer.current_epoch + 1)
        pl_module.log_dict(self.tracker.numbers(), sync_dist=True)

    def state_dict(self):
        """The rows, for a checkpoint."""
        return {"rows": list(self.tracker.rows if self.tracker else self._rows)}

    def load_state_dict(self, state_dict):
        """Take the rows of a checkpoint."""
        self._rows = state_dict["rows"]

    def _batches(self, trainer):
        return trainer.train_dataloader if self.loader is None else self.loader
