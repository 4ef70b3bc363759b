"""Real signals to real trainings: in a step, in an evaluation, while saving, and before the first.

Each training is held up where the signal is to meet it, and says through a pipe that it is there.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.forked import forked
from tests.train.training import Witness, language
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.signals import EXIT_CODE, SAME_S, Signals, listen
from torchtally.train.config import TrainConfig
from torchtally.train.logs.jsonl import read_log
from torchtally.train.logs.log import RunHeader
from torchtally.train.logs.together import logs
from torchtally.train.loop import train
from torchtally.train.resuming import resume
from torchtally.train.trainer import Trainer, trainer_of

STEPS = 6
HELD_S = 60.0
"""A training is held up for longer than any test waits."""
TIME_LIMIT_S = 60.0


class Held:
    """Holds the training up at one place until the parent lets it go on, and never again."""

    def __init__(self, place: str, pipe: Connection) -> None:
        self.place, self._pipe = place, pipe

    def here(self, place: str) -> None:
        if place == self.place:
            self.place = ""
            self._pipe.send(place)
            self._pipe.poll(HELD_S)


def training(config: TrainConfig, place: str, pipe: Connection) -> None:
    """The process: what `tally train --resume` does, held up at a place."""
    torch.set_num_threads(1)
    held = Held(place, pipe)
    witness = Witness()
    with listen(witness.on_note) as signals:
        held.here("before")
        trainer = trainer_of(config)
        hold(trainer, held)
        checkpoints = Checkpoints(config.log.folder)
        resumed = resume(trainer, checkpoints, witness.on_note)
        resumed_at = 0 if resumed is None else resumed + 1
        header = RunHeader(config=config.document())
        commit = checkpoints.commit

        def held_commit(new: str, manifest: Manifest) -> Path:
            held.here("saving")
            return commit(new, manifest)

        checkpoints.commit = held_commit  # type: ignore[method-assign]
        with logs(config.log.folder, header, resumed_at=resumed_at, say=witness.on_note) as log:
            witness.on_step = lambda *_: None  # type: ignore[method-assign]
            history = train(
                trainer, log, witness, checkpoints=checkpoints, resumed=resumed, signals=signals
            )
    sys.exit(EXIT_CODE + history.stopped_by if history.stopped_by else 0)


def hold(trainer: Trainer, held: Held) -> None:
    step, validation, steps = trainer.step, trainer.task.validation, iter(range(1, 100))
    is_resumed = Checkpoints(trainer.config.log.folder).steps()
    before = iter([] if is_resumed else ["evaluation before any step"])

    def held_step(batch: Any) -> Any:
        held.here(f"step {next(steps)}")
        return step(batch)

    def held_validation(device: torch.device) -> Iterator[Any]:
        rows = list(validation(device))
        held.here(next(before, "evaluation"))
        yield from rows

    trainer.step = held_step  # type: ignore[method-assign]
    trainer.task.validation = held_validation  # type: ignore[method-assign]


@contextmanager
def started(config: TrainConfig, place: str) -> Iterator[tuple[BaseProcess, Connection]]:
    """A training that is held up at the place now."""
    ours, theirs = multiprocessing.Pipe()
    process = forked().Process(target=training, args=(config, place, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(TIME_LIMIT_S)
        assert ours.recv() == place
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


def finish(config: TrainConfig) -> None:
    """The rest of a training, undisturbed."""
    with started(config, "before") as (process, pipe):
        pipe.send("go on")
        process.join(TIME_LIMIT_S)
        assert process.exitcode == 0


def send(process: BaseProcess, number: int) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def config_of(folder: Path, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "steps": STEPS,
        "evaluation": {"every": 2, "batches": 2},
        "checkpoint": {"every": 3},
    }
    return language(folder, **(values | changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """The losses of a run that nobody disturbs."""
    config = config_of(tmp_path_factory.mktemp("whole"))
    finish(config)
    return list(read_log(config.log.folder).series("train/loss"))


PLACES = {
    "step 1": 1,  # the first step is the warm-up: it makes the optimizer's state
    "step 4": 4,
    "evaluation": 2,
    "saving": 3,
}
"""Where the signal comes, and the step that is saved then."""


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("place", PLACES)
def test_stopped_it_saves_and_can_go_on(
    place: str, number: int, tmp_path: Path, whole: list[tuple[int, float]]
) -> None:
    config = config_of(tmp_path)
    with started(config, place) as (process, pipe):
        send(process, number)
        time.sleep(0.1)
        pipe.send("go on")
        process.join(TIME_LIMIT_S)
        assert process.exitcode == 128 + number
    checkpoints = Checkpoints(config.log.folder)
    # While one is saved the training goes on, and the step at which it stops is saved, too.
    last = STEPS if place == "saving" else PLACES[place]
    assert PLACES[place] <= checkpoints.steps()[0] <= last
    finish(config)
    log = read_log(config.log.folder)
    assert list(log.series("train/loss")) == whole
    assert [step for step, _ in log.series("eval/loss")] == [0, 2, 4, 6]


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("place", ["step 4", "evaluation", "saving"])
def test_a_second_signal_ends_it_at_once(place: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, checkpoint={"every": 1} if place != "saving" else {"every": 3})
    with started(config, place) as (process, _):
        send(process, signal.SIGTERM)
        time.sleep(0.3)
        send(process, signal.SIGTERM)  # within a second: the same one
        time.sleep(SAME_S)
        assert process.exitcode is None
        send(process, signal.SIGINT)
        process.join(TIME_LIMIT_S / 2)  # it is held up for longer than that
        assert process.exitcode == 130
    checkpoints = Checkpoints(config.log.folder)
    for step in checkpoints.steps():
        checkpoints.check(checkpoints.manifest(step))


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("place", ["step 2", "evaluation", "saving"])
def test_sigusr1_saves_and_goes_on(
    place: str, tmp_path: Path, whole: list[tuple[int, float]]
) -> None:
    every = 3 if place == "saving" else 6
    config = config_of(tmp_path, checkpoint={"every": every, "keep_last": 9})
    with started(config, place) as (process, pipe):
        send(process, signal.SIGUSR1)
        time.sleep(0.1)
        pipe.send("go on")
        process.join(TIME_LIMIT_S)
        assert process.exitcode == 0
    assert list(read_log(config.log.folder).series("train/loss")) == whole
    steps = Checkpoints(config.log.folder).steps()
    asked = {"step 2": 2, "evaluation": 3, "saving": 3}[place]
    assert steps[0] == STEPS
    assert steps[-1] == asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_the_first_step_there_is_nothing_to_save(number: int, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with started(config, "before") as (process, _):
        send(process, number)
        process.join(TIME_LIMIT_S / 2)
        assert process.exitcode == 128 + number
    assert Checkpoints(config.log.folder).steps() == []


def test_what_the_terminal_and_torchrun_both_send_is_one_signal() -> None:
    said: list[str] = []
    with listen(said.append) as signals:
        signals.is_training = True
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        deadline_s = time.monotonic() + TIME_LIMIT_S
        while not said and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert signals.stop == signal.SIGINT
    assert len(said) == 1
    assert SAME_S >= 1


def test_afterwards_signals_are_what_they_were() -> None:
    before = {
        signum: signal.getsignal(signum)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    }
    with listen(lambda text: None):
        assert all(signal.getsignal(signum) != handler for signum, handler in before.items())
    assert {getsignal: signal.getsignal(getsignal) for getsignal in before} == before


def test_under_nohup_a_hang_up_stays_ignored() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listen(lambda text: None) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            deadline_s = time.monotonic() + TIME_LIMIT_S
            while not signals.take_save_request() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert signals.stop == 0
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_request_to_save_is_taken_once() -> None:
    signals = Signals(lambda text: None)
    assert not signals.take_save_request()
    signals.hear(signal.SIGUSR1)
    assert signals.take_save_request()
    assert not signals.take_save_request()
