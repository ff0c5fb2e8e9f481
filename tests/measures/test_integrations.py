"""The callbacks of two trainers, with the packages themselves."""

import csv
import importlib.util
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from collapsemetrics import measure
from lib.data.vision import torchvision  # noqa: F401  # which the packages import, beside any torch
from small_network import network, noisy_network, numbers, samples

L = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")

from collapsemetrics.lightning import CollapseCallback  # noqa: E402
from collapsemetrics.transformers import CollapseCallback as TransformersCallback  # noqa: E402

K, TWO = 3, {"devices": 2, "strategy": "ddp_fork"}
# the process that collects the results of several imports the class of each warning, beside its own torch
pytestmark = pytest.mark.filterwarnings("ignore")


class Noisy(Dataset):
    """Samples with noise that whoever reads them draws anew, as augmentation is."""

    def __init__(self, noise=0.1):
        (self.x, self.y), self.noise = samples(24), noise

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + self.noise * torch.randn(6), self.y[i]


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def epochs(rows):
    return [row["epoch"] for row in rows]


# Lightning ------------------------------------------------------------------------------------------------------------


class Network(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = noisy_network()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def trainer_of(folder, *callbacks, epochs=2, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    options = {"accelerator": "cpu", "enable_checkpointing": False, "logger": False} | quiet | options
    return L.Trainer(max_epochs=epochs, default_root_dir=folder, callbacks=list(callbacks), **options)


def loader_of(noise=0.0, **options):
    return DataLoader(Noisy(noise=noise), batch_size=8, shuffle=True, **options)


def fitted(folder, *callbacks, loader=None, **options):
    model, trainer = Network(), trainer_of(folder, *callbacks, **options)
    torch.manual_seed(1)
    trainer.fit(model, loader_of() if loader is None else loader, DataLoader(Noisy(), batch_size=8))
    return model, trainer


def test_lightning_trains_to_the_same_weights_with_and_without_the_callback(tmp_path):
    def loader():
        return loader_of(noise=0.1, generator=torch.Generator().manual_seed(3))

    callback, given = CollapseCallback(layers=["net.0", "penultimate"], nc4=True), loader()
    alone, _ = fitted(tmp_path, loader=loader())
    assert same(fitted(tmp_path, callback, loader=loader())[0], alone)
    assert same(fitted(tmp_path, CollapseCallback(given), loader=given)[0], alone)
    assert epochs(callback.tracker.rows) == [0, 0, 1, 1, 2, 2]


def test_lightning_rows_are_what_measure_finds(tmp_path):
    callback = CollapseCallback(test_loader=[samples(seed=1)], every=2)
    fitted(tmp_path, callback, epochs=3)
    before, after = callback.tracker.rows
    assert (before["epoch"], after["epoch"]) == (0, 2)
    (untrained,) = measure(Network(), loader_of(), test_loader=[samples(seed=1)])
    assert numbers(before) == pytest.approx({"epoch": 0} | numbers(untrained), rel=1e-4)
    callback = CollapseCallback([samples(seed=1)])
    model, _ = fitted(tmp_path, callback, epochs=1)
    assert callback.tracker.rows[-1] == {"epoch": 1} | measure(model, [samples(seed=1)])[0]


def test_lightning_logs_the_numbers_where_loggers_and_other_callbacks_look(tmp_path):
    logger, callback = L.loggers.CSVLogger(tmp_path), CollapseCallback(layers=["net.0", "penultimate"])
    saved = L.callbacks.ModelCheckpoint(tmp_path, "best", monitor="nc1/penultimate", mode="max")
    _, trainer = fitted(tmp_path, callback, saved, logger=logger, enable_checkpointing=True)
    with open(logger.experiment.metrics_file_path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["nc1/penultimate"]]
    assert [int(row["step"]) for row in rows] == [0, 2, 5]  # three steps in an epoch, the first of which is 0
    for layer in ("net.0", "penultimate"):
        logged = [float(row[f"nc1/{layer}"]) for row in rows]
        assert logged == pytest.approx(callback.tracker.curve("nc1", layer)[1], rel=1e-6)
    assert "nc3/penultimate" in rows[0] and "nc3/net.0" not in rows[0]
    assert saved.best_model_score.item() == pytest.approx(max(callback.tracker.curve("nc1")[1][1:]), rel=1e-6)


def test_lightning_goes_on_with_the_rows_of_a_checkpoint(tmp_path):
    saved = L.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    first, again = CollapseCallback(), CollapseCallback()
    fitted(tmp_path, first, saved, enable_checkpointing=True)
    resumed = trainer_of(tmp_path, again, epochs=3)
    resumed.fit(Network(), loader_of(), ckpt_path=tmp_path / "epoch=1.ckpt")
    assert epochs(again.tracker.rows) == [0, 1, 2, 3] and again.tracker.rows[:3] == first.tracker.rows
    resumed.fit_loop.max_epochs = 4  # without a checkpoint
    resumed.fit(again.tracker.model, loader_of())
    assert epochs(again.tracker.rows) == [0, 1, 2, 3, 4] and again.tracker.rows[:3] == first.tracker.rows
    trainer_of(tmp_path, again, epochs=1).fit(again.tracker.model, loader_of())  # another trainer begins anew
    assert epochs(again.tracker.rows) == [0, 1]


@pytest.mark.parametrize("precision, error", [("bf16-true", 0.1), ("16-true", 0.01), ("64-true", 1e-4)])
def test_lightning_measures_a_model_of_another_precision(tmp_path, precision, error):
    callback = CollapseCallback([samples()])
    model, _ = fitted(tmp_path, callback, epochs=1, precision=precision)
    (row,) = measure(model.float(), [samples()])
    assert epochs(callback.tracker.rows) == [0, 1]
    for name in ("nc1", "nc2_etf", "nc3", "cdnv"):
        assert callback.tracker.rows[-1][name] == pytest.approx(row[name], rel=error)


def test_lightning_stops_early_on_a_measure_that_is_not_due_each_time(tmp_path):
    logger, callback = L.loggers.CSVLogger(tmp_path), CollapseCallback(every=2)
    stopping = L.callbacks.EarlyStopping("nc1/penultimate", patience=20)
    fitted(tmp_path, callback, stopping, epochs=4, logger=logger)
    with open(logger.experiment.metrics_file_path, newline="") as file:
        logged = [float(row["nc1/penultimate"]) for row in csv.DictReader(file) if row["nc1/penultimate"]]
    before, second, fourth = callback.tracker.curve("nc1")[1]
    assert logged == pytest.approx([before, before, second, second, fourth], rel=1e-6)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield from Noisy(noise=0)


def test_a_stream_that_may_never_end_is_refused_before_training(tmp_path):
    stream = DataLoader(Endless(), batch_size=8)
    with pytest.raises(ValueError, match="no length and may never end: .* batches="):
        fitted(tmp_path, CollapseCallback(), loader=stream, limit_train_batches=2)
    with pytest.raises(ValueError, match="no length and may never end: .* batches="):
        trained(tmp_path, TransformersCallback(stream))
    callback = CollapseCallback(lambda: [samples()])
    fitted(tmp_path, callback, loader=stream, limit_train_batches=2)
    assert epochs(callback.tracker.rows) == [0, 1, 2]


def test_the_older_package_of_lightning_serves_alone(monkeypatch):
    older = pytest.importorskip("pytorch_lightning")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    specification = importlib.util.find_spec("collapsemetrics.lightning")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert issubclass(module.CollapseCallback, older.Callback)


def test_lightning_measures_the_shares_of_all_processes(tmp_path):
    loader = DataLoader(Noisy(noise=0), batch_size=6)
    model, trainer = fitted(tmp_path, CollapseCallback(), loader=loader, **TWO)
    (row,) = measure(model, loader)
    found = {name: trainer.callback_metrics[f"{name}/penultimate"].item() for name in ("nc1", "nc2_etf", "nc3")}
    assert found == pytest.approx({name: row[name] for name in found}, rel=1e-4)


def test_lightning_measures_the_model_of_the_first_process(tmp_path):
    """Without validation, which would give all processes its running statistics."""
    loader, trainer = (
        DataLoader(Noisy(noise=0), batch_size=6),
        trainer_of(tmp_path, CollapseCallback(), epochs=1, **TWO),
    )
    trainer.fit(model := Network(), loader)
    assert trainer.callback_metrics["nc1/penultimate"].item() == pytest.approx(
        measure(model, loader)[0]["nc1"], rel=1e-4
    )


# transformers ---------------------------------------------------------------------------------------------------------


def sentences():
    generator = torch.Generator().manual_seed(0)
    tokens, y, mask = torch.randint(1, 20, (24, 5), generator=generator), torch.arange(24) % K, torch.ones(5).long()
    tokens[:, 0] = y + 1
    return [{"input_ids": t, "attention_mask": mask, "labels": label} for t, label in zip(tokens, y, strict=True)]


def classifier():
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 8}
    config = transformers.BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, num_labels=K)
    return transformers.BertForSequenceClassification(config)


def hugging(folder, *callbacks, epochs=2, **options):
    options = {"save_strategy": "no", "per_device_train_batch_size": 8, "learning_rate": 0.01} | options
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(folder, num_train_epochs=epochs, **quiet, **options)
    trainer = transformers.Trainer(classifier(), arguments, train_dataset=sentences(), callbacks=list(callbacks))
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def trained(*arguments, resume=None, **options):
    trainer = hugging(*arguments, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_transformers_trains_to_the_same_weights_with_and_without_the_callback(tmp_path):
    callback = TransformersCallback(layers=["bert.encoder.layer.0", "penultimate"], nc4=True)
    model = trained(tmp_path, callback).model
    assert same(model, trained(tmp_path).model)
    assert epochs(callback.tracker.rows) == [0, 0, 1, 1, 2, 2]


def test_transformers_rows_are_what_measure_finds_and_lie_in_the_log_history(tmp_path):
    batches = [transformers.default_data_collator(sentences())]
    callback = TransformersCallback(batches, every=2)
    trainer = trained(tmp_path, callback)
    before, after = callback.tracker.rows
    assert before == {"epoch": 0} | measure(classifier(), batches)[0]
    assert after == {"epoch": 2} | measure(trainer.model, batches)[0]
    logged = [log for log in trainer.state.log_history if "nc1/penultimate" in log]
    found = [(log["epoch"], log["step"], log["nc3/penultimate"]) for log in logged]
    assert found == [(0, 0, before["nc3"]), (2, 6, after["nc3"])]


def test_transformers_reports_the_numbers_through_the_log_of_the_trainer(tmp_path):
    trainer = hugging(tmp_path)
    callback = TransformersCallback(log=trainer.log)
    trainer.add_callback(callback)
    trainer.train()
    logged = [log["nc1/penultimate"] for log in trainer.state.log_history if "nc1/penultimate" in log]
    assert logged == callback.tracker.curve("nc1")[1]


def test_transformers_goes_on_with_the_rows_of_a_checkpoint(tmp_path):
    first, again = TransformersCallback(), TransformersCallback()
    trained(tmp_path, first, epochs=3, save_strategy="epoch")
    trained(tmp_path, again, epochs=3, resume=tmp_path / "checkpoint-6")
    assert epochs(again.tracker.rows) == [0, 1, 2, 3] and again.tracker.rows[:3] == first.tracker.rows[:3]
    assert numbers(again.tracker.rows[3]) == pytest.approx(numbers(first.tracker.rows[3]), rel=1e-4)
    trained(tmp_path, first, max_steps=4, save_strategy="epoch")
    assert epochs(first.tracker.rows) == [0, 1, 2]  # the second epoch not to its end
    trained(tmp_path, again, epochs=2, resume=tmp_path / "checkpoint-4")
    assert epochs(again.tracker.rows) == [0, 1, 2] and again.tracker.rows[:2] == first.tracker.rows[:2]


# accelerate -----------------------------------------------------------------------------------------------------------


def test_accelerate_keeps_weights_elsewhere_and_the_head_is_given():
    model, (x, y) = network(), samples()
    expected, head = measure(model, [(x, y)])[0], [value.clone() for value in model[2].parameters()]
    offloaded = pytest.importorskip("accelerate").cpu_offload(model, torch.device("cpu"))
    for options, refused in (({}, "meta device"), ({"device": "cpu"}, "head '2' has no weight .*head=.W, b.")):
        with pytest.raises(ValueError, match=refused):
            measure(offloaded, [(x, y)], **options)
    (row,) = measure(offloaded, [(x, y)], "1", device="cpu", head=head)
    assert numbers(row) == numbers(expected)
