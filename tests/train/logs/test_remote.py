"""TensorBoard for real; wandb and trackio by stand-ins with their documented calls."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchtally.errors import UsageError
from torchtally.train.logs.jsonl import read_log
from torchtally.train.logs.log import RunHeader
from torchtally.train.logs.names import LOSS, STEP
from torchtally.train.logs.together import logs

HEADER = RunHeader(config={"seed": 1})
Calls = list[tuple[str, Any]]


class Run:
    """What wandb.init and trackio.init return, as far as it is used."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def define_metric(self, name: str, **options: object) -> None:
        self._calls.append(("define_metric", (name, options)))

    def log(self, values: dict[str, object], step: int | None = None) -> None:
        self._calls.append(("log", (values, step)))

    def finish(self) -> None:
        self._calls.append(("finish", None))


@pytest.fixture(params=["wandb", "trackio"])
def service(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def calls(service: str, monkeypatch: pytest.MonkeyPatch) -> Calls:
    met: Calls = []

    def init(**options: object) -> Run:
        print("chatter")
        met.append(("init", options))
        return Run(met)

    monkeypatch.setitem(sys.modules, service, SimpleNamespace(init=init))  # type: ignore[arg-type]
    return met


def test_a_run_is_begun_written_and_finished(
    service: str, calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logs(tmp_path / "r", HEADER, to=[service], project="p") as log:
        log.write(3, {LOSS: 2.0})
    (begun, options), *_ = calls
    assert begun == "init"
    assert options["project"] == "p"
    assert options["resume"] == "allow"
    assert options["config"]["config"] == {"seed": 1}
    assert ({LOSS: 2.0, STEP: 3}) in [call[1][0] for call in calls if call[0] == "log"]
    assert calls[-1][0] == "finish"
    assert capsys.readouterr().out == ""
    assert read_log(tmp_path / "r").series(LOSS) == ((3, 2.0),)


def test_a_resumed_run_is_the_same_one_and_another_is_not(
    service: str, calls: Calls, tmp_path: Path
) -> None:
    key = "id" if service == "wandb" else "name"
    for folder, resumed_at in (("a", None), ("a", 1), ("b", None)):
        with logs(tmp_path / folder, HEADER, to=[service], resumed_at=resumed_at):
            pass
    first, resumed, other = (call[1][key] for call in calls if call[0] == "init")
    assert first == resumed != other


def test_a_failure_is_reported_once_and_ends_nothing(
    service: str, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fail(*_: object, **__: object) -> None:
        tries.append(1)
        raise ConnectionError("no network\nat all")

    said: list[str] = []
    with logs(tmp_path, HEADER, to=[service], say=said.append) as log:
        monkeypatch.setattr(Run, "log", fail)
        monkeypatch.setattr(Run, "finish", fail)
        log.write(0, {LOSS: 2.0})
        log.write(1, {LOSS: 1.0})
        assert len(tries) == 1
    assert said == [
        f"{service} failed and is dropped from step 0 on (ConnectionError: no network at all)."
    ]
    assert len(read_log(tmp_path).records) == 2


def test_a_start_that_fails_is_an_error_and_leaves_the_folder_usable(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("not logged in")

    monkeypatch.setitem(sys.modules, service, SimpleNamespace(init=init))  # type: ignore[arg-type]
    with (
        pytest.raises(UsageError, match="RuntimeError: not logged in"),
        logs(tmp_path, HEADER, to=[service]),
    ):
        pass
    with logs(tmp_path, HEADER):
        pass


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_missing_package_is_named_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    match = rf"pip install .torchtally\[{name}\]"
    with pytest.raises(UsageError, match=match), logs(tmp_path, HEADER, to=[name]):
        pass


def test_an_unknown_log_is_an_error(tmp_path: Path) -> None:
    match = "tensorboard, wandb, trackio"
    with pytest.raises(UsageError, match=match), logs(tmp_path, HEADER, to=["tensorbored"]):
        pass


def test_everything_is_closed_when_the_training_raises(calls: Calls, service: str,
                                                       tmp_path: Path) -> None:  # fmt: skip
    with pytest.raises(KeyError), logs(tmp_path, HEADER, to=[service]):
        raise KeyError
    assert calls[-1][0] == "finish"
    with logs(tmp_path, HEADER, resumed_at=0):
        pass


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(scalar.step, scalar.value) for scalar in events.Scalars(name)]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    with logs(tmp_path, HEADER, to=["tensorboard"]) as log:
        log.write(0, {LOSS: 2.0, "sample": "text"})
        log.write(1, {LOSS: 1.5})
    assert scalars(tmp_path, LOSS) == [(0, 2.0), (1, 1.5)]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["tensors"]) == {"run/text_summary", "sample/text_summary"}


def test_tensorboard_hides_the_steps_that_are_done_again(tmp_path: Path) -> None:
    with logs(tmp_path, HEADER, to=["tensorboard"]) as log:
        for step in range(3):
            log.write(step, {LOSS: 4.0 - step})
    with logs(tmp_path, HEADER, to=["tensorboard"], resumed_at=1) as log:
        log.write(1, {LOSS: 2.5})
    assert scalars(tmp_path, LOSS) == [(0, 4.0), (1, 2.5)]
