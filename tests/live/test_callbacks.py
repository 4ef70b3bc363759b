"""The Trainers of transformers and Lightning, and accelerate, with their own trackers, for real."""

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtally
from tests.builders import TraceBuilder, mm_call
from tests.live.loops import GPU, gpt2, rows

BOTH = {"tally/step_s", "tally/step_s_predicted", "tally/peak_bytes_predicted"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def trace(folder: Path) -> Path:
    """Of one product, whose storages take 512 bytes each."""
    builder, file = TraceBuilder(), folder / "run.tally"
    builder.run(mm_call(2, 3, 4), (builder.allocate(24), builder.allocate(48)))
    builder.end_step()
    builder.build(script="train.py").save(str(file))
    return file


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads of the event files below a folder: (step, value) by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read: dict[str, list[tuple[int, float]]] = {}
    for place in sorted({str(file.parent) for file in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(place)
        events.Reload()
        for tag in events.Tags()["scalars"]:
            read.setdefault(tag, []).extend((each.step, each.value) for each in events.Scalars(tag))
    return read


# The Trainer of transformers ----------------------------------------------------------------------


def trainer_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "events"))
    options: dict[str, Any] = {
        "output_dir": str(folder / "out"), "max_steps": 8, "per_device_train_batch_size": 2,
        "logging_steps": 4, "save_strategy": "no", "report_to": ["tensorboard"], "use_cpu": True,
        "disable_tqdm": True, **changes,
    }  # fmt: skip
    return Trainer(gpt2(), TrainingArguments(**options), train_dataset=rows(40))


def test_the_trainer_logs_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its history, and in the events of its own TensorBoard."""
    trainer = trainer_in(tmp_path, monkeypatch)
    torchtally.TallyCallback(trace(tmp_path)).attach(trainer)
    trainer.train()
    logs = [record for record in trainer.state.log_history if "loss" in record]
    assert [record["step"] for record in logs] == [4, 8]
    assert all(record.keys() >= BOTH for record in logs)
    assert "tally/step_s" not in trainer.state.log_history[-1]  # of the whole training
    logged = scalars(tmp_path / "events")
    for name in ("loss", *BOTH):
        assert [step for step, _ in logged[f"train/{name}"]] == [4, 8]
    assert logged["train/tally/peak_bytes_predicted"][0][1] == 3 * 512


def test_the_trainer_logs_numbers_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of steps 1, 4 and 8, as the optimizer inside accelerate's takes them."""
    trainer = trainer_in(tmp_path, monkeypatch, report_to=[])
    callback = torchtally.TallyCallback(trace(tmp_path), numbers_every=4).attach(trainer)
    trainer.train()
    logs = [record for record in trainer.state.log_history if "loss" in record]
    shares = [record["numbers/lost_update_share"] for record in logs]
    assert len(shares) == 2
    assert all(0 < share < 1 for share in shares)
    assert all(record["numbers/largest_gradient"] > 0 for record in logs)
    assert callback._watch is None  # its hooks are gone


def test_behind_the_trackers_only_the_history_has_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `callbacks=[...]` puts it, which is said."""
    trainer = trainer_in(tmp_path, monkeypatch)
    trainer.add_callback(torchtally.TallyCallback(trace(tmp_path)))
    trainer.train()
    assert trainer.state.log_history[0].keys() >= BOTH
    assert "train/tally/step_s" not in scalars(tmp_path / "events")
    assert "TallyCallback(...).attach(trainer)" in capsys.readouterr().err


def test_the_trainers_first_batch_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own optimizer and accumulation: as a summary of as many micro-batches."""
    trainer = trainer_in(tmp_path, monkeypatch, gradient_accumulation_steps=2, report_to=[])
    callback: Any = torchtally.TallyCallback(gpu=GPU).attach(trainer)
    kept: list[Any] = []
    begin = callback.on_train_begin

    def on_train_begin(*args: Any, **kwargs: Any) -> None:
        begin(*args, **kwargs)
        kept.append(callback._monitor)

    monkeypatch.setattr(callback, "on_train_begin", on_train_begin)
    trainer.train()
    prediction = kept[0].prediction
    assert prediction.chip == GPU
    assert prediction.file == "the first batch of GPT2LMHeadModel"
    assert prediction.peak_bytes > 0
    text = capsys.readouterr().err
    assert f"predicted for {GPU}, measured on CPU" in text
    assert "not predicted" not in text


def test_the_trainers_step_is_not_that_of_one_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight batches in four steps."""
    trainer = trainer_in(
        tmp_path, monkeypatch, max_steps=4, gradient_accumulation_steps=2, report_to=[],
        logging_steps=1,
    )  # fmt: skip
    torchtally.TallyCallback(trace(tmp_path)).attach(trainer)
    trainer.train()
    logs = [record for record in trainer.state.log_history if "loss" in record]
    # The first step has no beginning.
    assert ["tally/step_s" in record for record in logs] == [False, True, True, True]


# Lightning ----------------------------------------------------------------------------------------


def lightning_module(**attributes: Any) -> Any:
    import lightning.pytorch as lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Classifier()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def fit(folder: Path, callback: Any, module: Any, **changes: Any) -> Any:
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import TensorBoardLogger

    options: dict[str, Any] = {
        "max_steps": 8, "accelerator": "cpu", "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "log_every_n_steps": 4,
        "logger": TensorBoardLogger(str(folder / "events")), **changes,
    }  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.randn(64, 64), torch.randint(10, (64,)))
    trainer = lightning.Trainer(callbacks=[callback], **options)
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_both(tmp_path: Path) -> None:
    """Steps, not batches, in its own TensorBoard."""
    callback = torchtally.LightningTallyCallback(trace(tmp_path))
    fit(tmp_path, callback, lightning_module(), accumulate_grad_batches=2)
    logged = scalars(tmp_path / "events")
    for name in BOTH:
        assert [step for step, _ in logged[name]] == [4, 8]
    assert "loss" in logged


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_numbers_that_are_lost(tmp_path: Path) -> None:
    callback = torchtally.LightningTallyCallback(trace(tmp_path), numbers_every=4)
    fit(tmp_path, callback, lightning_module())
    logged = scalars(tmp_path)["numbers/lost_update_share"]
    assert [step for step, _ in logged] == [1, 4, 8]
    assert all(0 <= share <= 1 for _, share in logged)


@pytest.mark.filterwarnings("ignore")
def test_lightnings_training_step_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss included, as a summary of a model that returns it."""
    callback: Any = torchtally.LightningTallyCallback(gpu=GPU)
    kept: list[Any] = []
    begin = callback.on_train_start
    monkeypatch.setattr(
        callback, "on_train_start", lambda *args: (begin(*args), kept.append(callback._monitor))
    )
    module = lightning_module()
    fit(tmp_path, callback, module, logger=False)
    step = kept[0].prediction

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = module.net

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(x), y)

    summary = torchtally.summary(
        WithLoss(), torch.randn(2, 64), torch.randint(10, (2,)), gpu=GPU, precision="as-is"
    )
    assert step.step_s == pytest.approx(summary.step_s)
    assert step.peak_bytes == summary.peak_bytes
    assert "not predicted" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_optimizes_by_itself_is_measured_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class ByItself(type(lightning_module())):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            self.optimizers().step()

    module = ByItself()
    module.automatic_optimization = False
    fit(tmp_path, torchtally.LightningTallyCallback(gpu=GPU), module)
    assert "not predicted: the module optimizes by itself" in capsys.readouterr().err
    logged = scalars(tmp_path / "events")
    assert [step for step, _ in logged["tally/step_s"]] == [4, 8]
    assert "tally/step_s_predicted" not in logged


# accelerate ---------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_accelerate_logs_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `accelerator.log`; its optimizer is predicted as the one that it wraps."""
    from accelerate import Accelerator

    accelerator: Any = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("events")
    model: Any = gpt2()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    monitors = [
        torchtally.monitor(model, optimizer, gpu=GPU),
        torchtally.monitor(trace(tmp_path), log=accelerator.log, every=2),
    ]
    ids = torch.stack([row["input_ids"] for row in rows(4)])
    for _ in range(4):
        accelerator.backward(model(input_ids=ids, labels=ids).loss)
        optimizer.step()
        optimizer.zero_grad()
        for monitor in monitors:
            monitor.step()
    for monitor in monitors:
        monitor.close()
    accelerator.end_training()
    logged = scalars(tmp_path)
    for name in BOTH:
        assert [step for step, _ in logged[name]] == [2, 4]
    assert monitors[0].prediction is not None
    assert "not predicted" not in capsys.readouterr().err


# Trackers -----------------------------------------------------------------------------------------


def log_steps(log: Any, folder: Path) -> None:
    monitor = torchtally.monitor(trace(folder), log=log, every=2)
    for _ in range(4):
        monitor.step()


def test_a_summary_writer_gets_both(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "events")) as writer:
        log_steps(writer, tmp_path)
    logged = scalars(tmp_path / "events")
    assert all([step for step, _ in logged[name]] == [2, 4] for name in BOTH)


def records_of(file: Path) -> Iterator[bytes]:
    """Those of a .wandb file, which is a log of LevelDB: blocks of 32 KiB behind 7 bytes, and in
    them chunks of (checksum, length, type), of which types 1 and 4 end a record.
    """
    content, record = file.read_bytes(), b""
    place = 7
    while place + 7 <= len(content):
        left = -place % 32768
        if 0 < left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def test_wandb_gets_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network; what it has kept is read back."""
    wandb: Any = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="test")
    log_steps(run.log, tmp_path)
    run.finish()
    (file,) = tmp_path.rglob("*.wandb")
    logged = [Record.FromString(record).history for record in records_of(file)]
    names = {
        history.step.num: {item.key or "/".join(item.nested_key) for item in history.item}
        for history in logged
        if history.item
    }
    assert names[2] >= BOTH
    assert names[4] >= BOTH


def test_trackio_gets_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into its local database."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio: Any = pytest.importorskip("trackio")
    trackio.init(project="test", name="run")
    log_steps(trackio.log, tmp_path)
    trackio.finish()
    (file,) = (tmp_path / "trackio").glob("test*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    metrics_at = {step: set(json.loads(metrics)) for step, metrics in rows}
    assert metrics_at[2] >= BOTH
    assert metrics_at[4] >= BOTH
