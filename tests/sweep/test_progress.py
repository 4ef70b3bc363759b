"""What is said while a sweep goes on, and how the machine is shared out."""

import io
import json
from pathlib import Path

import pytest
import torch

from tests.sweep.sweeps import TEACHER, definition, result
from torchtally.sweep import devices
from torchtally.sweep.devices import share
from torchtally.sweep.progress import Going, SweepProgress, last_logged
from torchtally.sweep.results import Status
from torchtally.train.config import TrainConfig

LOSSES = ((1, 3.0), (10, 1.0))
POINTS = definition("seed=1,2,3").points


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def logged(folder: Path, step: int, loss: float | str) -> None:
    line = json.dumps({"step": step, "unix_s": 0, "train/loss": loss})
    with open(folder / "log.jsonl", "a") as file:
        file.write(f"{line}\n")


def test_the_last_step_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert last_logged(log) is None
    log.write_text('{"kind": "run"}\n')
    assert last_logged(log) is None
    logged(tmp_path, 3, 2.5)
    with open(log, "a") as file:
        file.write('{"step": 3, "eval/loss": 2}\n{"step": 4, "train/lo')
    assert last_logged(log) == (3, 2.5)
    log.write_text("x" * 100_000 + "\n[1]\n")
    assert last_logged(log) is None


def test_lines_for_a_log(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), Clock()
    progress = SweepProgress(stream, runs=4, kept=1, workers=2, clock=clock, width=200)
    logged(tmp_path, 5, 2.0)
    progress.going["seed=2"] = Going("seed=2", 10, tmp_path)
    progress.going["seed=3"] = Going("seed=3", 10, tmp_path / "none")
    progress.passing()
    assert stream.getvalue() == ""
    progress.end_run(result(POINTS[0], LOSSES))
    clock.now_s = 61.0
    progress.passing()
    progress.passing()
    progress.end_run(result(POINTS[1], (), Status.FAILED, message="x\nKeyError: '\x1b[31m'"))
    assert stream.getvalue().splitlines() == [
        "tally: 2/4 seed=1: ended, loss 1.000, 1.50 s",
        "tally: 2/4 runs done, 2 going, 1.12 s left: seed=2 step 5/10 loss 2.000; seed=3 starting",
        "tally: 3/4 seed=2: failed, 1.50 s",
        "tally:     KeyError: '[31m'",
    ]


def test_a_line_that_moves_stays_below_those_that_stay(tmp_path: Path) -> None:
    stream, clock = Terminal(), Clock()
    progress = SweepProgress(stream, runs=2, workers=1, clock=clock, width=50)
    progress.going["seed=2"] = Going("seed=2" + "x" * 100, 10, tmp_path)
    progress.passing()
    progress.passing()
    assert stream.getvalue().count("\r\x1b[K") == 1
    assert len(stream.getvalue().replace("\r\x1b[K", "")) == 49
    progress.end_run(result(POINTS[1], LOSSES, Status.DIVERGED))
    assert stream.getvalue().endswith(
        "\r\x1b[Ktally: 1/2 seed=2: diverged after step 10, loss 1.000, 1.50 s\n"
    )
    progress.close()


def test_nobody_listening_is_no_error() -> None:
    stream = io.StringIO()
    progress = SweepProgress(stream, runs=1, workers=1)
    stream.close()
    progress.say("something")
    assert stream.closed


# The machine --------------------------------------------------------------------------------------


def config(device: str = "cpu") -> TrainConfig:
    text = TEACHER.replace('device = "cpu"', f'device = "{device}"')
    sweep = definition("seed=1", toml=text)
    return sweep.train_config(sweep.points[0])


@pytest.mark.parametrize(
    ("workers", "threads", "environment", "expected"),
    [
        (None, None, {}, [8]),
        (None, None, {"OMP_NUM_THREADS": "2"}, [2, 2, 2, 2]),
        (None, 4, {"OMP_NUM_THREADS": "2"}, [4, 4]),
        (3, None, {}, [2, 2, 2]),
        (3, None, {"OMP_NUM_THREADS": "1"}, [1, 1, 1]),
        (16, None, {}, [1] * 5),
        (None, None, {"OMP_NUM_THREADS": "odd"}, [8]),
        (None, None, {"OMP_NUM_THREADS": "32"}, [32]),
    ],
)
def test_a_cpu_is_shared_out(
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
    threads: int | None,
    environment: dict[str, str],
    expected: list[int],
) -> None:
    monkeypatch.setattr(devices, "_cores", lambda: 8)
    shares = share(config(), workers=workers, threads=threads, runs=5, environment=environment)
    assert [int(environment["OMP_NUM_THREADS"]) for environment in shares] == expected
    assert not any("CUDA_VISIBLE_DEVICES" in environment for environment in shares)


@pytest.mark.parametrize(
    ("device", "workers", "environment", "expected"),
    [
        ("auto", None, {}, ["0", "1"]),
        ("cuda", None, {"CUDA_VISIBLE_DEVICES": "GPU-a, MIG-b"}, ["GPU-a", "MIG-b"]),
        ("cuda", 4, {}, ["0", "1", "0", "1"]),
        ("cuda", 1, {}, ["0"]),
        ("cuda:1", None, {}, [None]),
        ("cpu", 2, {}, [None, None]),
    ],
)
def test_gpus_are_shared_out(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    workers: int | None,
    environment: dict[str, str],
    expected: list[str | None],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    shares = share(config(device), workers=workers, threads=None, runs=9, environment=environment)
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in shares] == expected
