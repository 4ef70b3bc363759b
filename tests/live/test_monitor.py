"""`torchtally.monitor` in loops that train: on the host, and on a simulated GPU."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtally
from tests.builders import TraceBuilder, mm_call
from tests.live.loops import GPU, gpt2, predicted, rows
from torchtally.errors import TraceFileError, UsageError
from torchtally.live.monitor import Monitor
from torchtally.timing.calibration import library

Logged = list[tuple[int, dict[str, Any]]]


def train(monitor: Monitor, model: Any, optimizer: Any, steps: int, micro_batches: int = 1) -> None:
    ids = torch.stack([row["input_ids"] for row in rows(4)])
    for _ in range(steps):
        for _ in range(micro_batches):
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()


@pytest.mark.thorough(
    "test_the_trainers_first_batch_is_predicted, which accumulates two", cases=("2",)
)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_model_is_predicted_as_its_summary(micro_batches: int) -> None:
    """By the first batch, in a child: the same figures as one call on the model gives."""
    model = gpt2()
    optimizer = grouped(model.parameters(), model)
    with torchtally.monitor(model, optimizer, gpu=GPU, micro_batches=micro_batches) as monitor:
        train(monitor, model, optimizer, 2, micro_batches)
    prediction = monitor.prediction
    assert prediction is not None
    ids = torch.stack([row["input_ids"] for row in rows(4)])
    summary = torchtally.summary(
        model, gpu=GPU, precision="as-is", named_inputs={"input_ids": ids, "labels": ids},
        optimizer=lambda copies: grouped(copies, model),
    )  # fmt: skip
    assert prediction.chip == GPU
    if micro_batches == 1:
        assert prediction.step_s == pytest.approx(summary.step_s)
        assert prediction.peak_bytes == summary.peak_bytes
    else:
        assert prediction.step_s > summary.step_s
    assert prediction.time_error == 0.042


def grouped(parameters: Any, model: Any) -> torch.optim.Optimizer:
    """AdamW that decays matrices alone: without decay a group has one kernel less."""
    groups: dict[float, list[Any]] = {0.1: [], 0.0: []}
    for parameter, like in zip(parameters, model.parameters(), strict=True):
        groups[0.1 if like.ndim > 1 else 0.0].append(parameter)
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay} for decay, params in groups.items()], lr=1e-3
    )


def test_nothing_of_the_training_changes() -> None:
    """The same weights to the bit, with and without."""

    def trained(is_monitored: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        monitor = torchtally.monitor(*((model, optimizer) if is_monitored else ()), gpu=GPU)
        train(monitor, model, optimizer, 5)
        monitor.cancel()
        return [parameter.detach() for parameter in model.parameters()]

    pairs = zip(trained(True), trained(False), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_values_are_logged_every_few_steps(capsys: pytest.CaptureFixture[str]) -> None:
    logged: Logged = []
    model = gpt2()
    monitor = torchtally.monitor(log=lambda values, step: logged.append((step, values)), every=5)
    monitor.predict(predicted())
    train(monitor, model, torch.optim.SGD(model.parameters()), 11)
    assert [step for step, _ in logged] == [5, 10]
    assert logged[0][1]["tally/step_s"] > 0
    assert logged[0][1]["tally/step_s_predicted"] == 1e9
    assert "tally/peak_bytes" not in logged[0][1]  # the host's allocator counts nothing
    text = capsys.readouterr().err
    assert text.count("peak memory not measured, predicted 1.00 MiB") == 2  # the step; the warning
    assert text.count("warning: steps take less time than predicted, by more than 10.0 %") == 1


def test_a_tracker_that_fails_ends_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def log(values: Any, step: int) -> None:
        seen.append(step)
        raise ConnectionError("no network")

    other: list[int] = []
    monitor = torchtally.monitor(log=[log, lambda values, step: other.append(step)], every=1)
    for _ in range(3):
        monitor.step()
    assert (seen, other) == ([1], [1, 2, 3])
    assert "dropped from step 1 on (ConnectionError: no network)" in capsys.readouterr().err


def test_the_loops_own_count(capsys: pytest.CaptureFixture[str]) -> None:
    logged: list[int] = []
    monitor = torchtally.monitor(log=lambda values, step: logged.append(step), every=10)
    for step in range(95, 121):
        monitor.step(step)
    assert logged == [100, 110, 120]


# On a simulated GPU -------------------------------------------------------------------------------


def train_on_gpu(log: Any, prediction: Any) -> Any:
    """A loop whose events and counts of memory the simulated GPU answers."""
    model = nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    monitor = torchtally.monitor(prediction, log=log, every=4)
    for _ in range(8):
        model(torch.randn(8192, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
    monitor.close()
    return monitor


def test_measured_on_a_simulated_gpu_a_step_is_as_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times by CUDA events and peaks by the allocator's counts: those of the trace of the run.

    There is no real GPU here: what is tested is which questions are asked, not a device.
    """
    logged: Logged = []
    file = tmp_path / "run.tally"
    torchtally.run(lambda: train_on_gpu(None, None), gpu=GPU).save(str(file))

    def again() -> None:
        train_on_gpu(lambda values, step: logged.append((step, values)), file)

    torchtally.run(again, gpu=GPU)
    values = dict(logged)[8]
    assert values["tally/step_s"] == pytest.approx(values["tally/step_s_predicted"], rel=0.01)
    assert values["tally/mfu_percent"] == pytest.approx(
        values["tally/mfu_percent_predicted"], rel=0.01
    )
    assert values["tally/peak_bytes"] == values["tally/peak_bytes_predicted"]
    assert values["tally/reserved_bytes"] == values["tally/reserved_bytes_predicted"]
    assert "warning" not in capsys.readouterr().err


def test_the_script_that_makes_its_own_prediction(tmp_path: Path) -> None:
    """`tally run` of a script that compares itself with run.tally: the first time there is none."""
    logged: Logged = []
    file = tmp_path / "run.tally"

    def train_there() -> None:
        train_on_gpu(lambda values, step: logged.append((step, values)), file)

    torchtally.run(train_there, gpu=GPU).save(str(file))
    torchtally.run(train_there, gpu=GPU)
    assert ["tally/step_s_predicted" in values for _, values in logged] == [False] * 2 + [True] * 2
    assert all("tally/step_s" in values for _, values in logged)


@pytest.mark.thorough
def test_more_memory_than_predicted_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.tally"
    torchtally.run(lambda: train_on_gpu(None, None), gpu=GPU).save(str(file))

    def leaking() -> None:
        kept = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
        train_on_gpu(None, file)
        del kept

    torchtally.run(leaking, gpu=GPU)
    text = capsys.readouterr().err
    assert "warning: more memory is allocated than predicted, by more than 5.0 %" in text
    assert "Likely causes: tensors kept from step to step" in text


def test_a_model_on_a_simulated_gpu_is_measured_alone() -> None:
    def train_there() -> None:
        model = nn.Linear(8, 8, device="cuda")
        monitor = torchtally.monitor(model, "sgd")
        model(torch.zeros(4, 8, device="cuda")).sum().backward()
        monitor.step()
        monitor.close()
        assert monitor.prediction is None

    torchtally.run(train_there, gpu=GPU)


# What cannot be -----------------------------------------------------------------------------------


def unpredicted(capsys: pytest.CaptureFixture[str], model: Any, **options: Any) -> str:
    """What is said of a model that trains on without a prediction."""
    monitor = torchtally.monitor(model, "sgd", **options)
    model(torch.zeros(2, 4)).sum().backward()
    monitor.step()
    monitor.close()
    assert monitor.prediction is None
    return capsys.readouterr().err


def test_a_host_that_was_never_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(library, "processor_name", lambda: "a CPU that was never measured")
    text = unpredicted(capsys, nn.Linear(4, 4))
    assert "not predicted: the speed of CPU is unknown. Run `tally bench --device cpu`" in text


class Refusing(nn.Module):
    """Trains in its own process alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.pid = nn.Linear(4, 4), os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.pid:
            raise RuntimeError("not in a child")
        result: torch.Tensor = self.inner(x)
        return result


def test_a_model_that_fails_in_the_child(capsys: pytest.CaptureFixture[str]) -> None:
    text = unpredicted(capsys, Refusing(), gpu=GPU)
    assert "not predicted: RuntimeError: not in a child" in text
    assert "Give a prediction made before instead" in text


def test_a_system_without_a_fork(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtally.live.monitor.can_fork", lambda: False)
    assert "this system cannot fork" in unpredicted(capsys, nn.Linear(4, 4), gpu=GPU)


def test_a_first_call_without_gradients_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 4)
    monitor = torchtally.monitor(model, "sgd", gpu=GPU)
    with torch.no_grad():
        model(torch.zeros(64, 4))
    model.eval()
    model(torch.zeros(64, 4))
    assert monitor._call is None
    model.train()
    model(torch.zeros(2, 4)).sum().backward()
    assert monitor._call is not None
    monitor.cancel()


def test_arguments_that_mean_nothing(tmp_path: Path) -> None:
    for options in ({"every": 0}, {"micro_batches": 0}, {"tolerance": float("nan")}, {"log": 3}):
        with pytest.raises(UsageError, match=r"^monitor: "):
            torchtally.monitor(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"expected a trace .*, got int"):
        torchtally.monitor(3)  # type: ignore[arg-type]
    with pytest.raises(TraceFileError):
        torchtally.monitor(tmp_path / "nowhere.tally")


def test_predictions_of_objects() -> None:
    builder = TraceBuilder()
    builder.run(mm_call(2, 3, 4), (builder.allocate(24), builder.allocate(48)))
    builder.end_step()
    trace = builder.build(script="train.py")
    ledger = torchtally.account(trace, roofline=torchtally.roofline(GPU))
    by_trace, by_ledger = (torchtally.monitor(of).prediction for of in (trace, ledger))
    assert by_trace is not None
    assert by_ledger is not None
    assert by_trace.step_s == by_ledger.step_s == ledger.step_s
    assert torchtally.monitor(trace, gpu="RTX-4090").prediction.chip == "RTX-4090"  # type: ignore[union-attr]
