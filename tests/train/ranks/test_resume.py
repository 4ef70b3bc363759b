"""Trainings that are stopped, killed and resumed on some ranks, and go on with other numbers.

Losses on another number of ranks are the same to rounding, on the same number to the bit.
"""

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.train.ranks.processes import RankDied, on_ranks
from tests.train.training import TINY, Witness, language
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.ranks import join_ranks
from torchtally.checkpoints.signals import Signals
from torchtally.errors import CheckpointError
from torchtally.train.config import TrainConfig
from torchtally.train.logs.log import Log, NoLog, RunHeader
from torchtally.train.logs.together import logs
from torchtally.train.loop import train
from torchtally.train.resuming import resume
from torchtally.train.trainer import trainer_of

STEPS = 6
ROUNDING = 2e-5
"""Of a loss in float32, relative: sums are added up in another order."""
Losses = list[tuple[int, float]]


@dataclass
class Disturbed(Witness):
    """Signals or kills one rank after a step."""

    signals: Signals | None = None
    rank: int = -1
    step: int = -1
    number: int = 0

    def on_step(self, step: int, record: Any) -> None:
        if step == self.step and int(os.environ["RANK"]) == self.rank:
            if self.number == signal.SIGKILL:
                os.kill(os.getpid(), self.number)
            assert self.signals is not None
            self.signals.hear(self.number)


@dataclass
class Ended:
    """On one rank."""

    losses: Losses
    stopped_by: int
    notes: list[str]


def run(config: TrainConfig, rank: int = -1, step: int = -1, number: int = 0) -> Ended:
    """The rest of a training on the ranks of which this process is one; one of them disturbed."""
    with join_ranks("cpu") as own:
        trainer = trainer_of(config, own)
        checkpoints = Checkpoints(config.log.folder)
        witness = Disturbed(rank=rank, step=step, number=number)
        witness.signals = Signals(witness.on_note)
        resumed = resume(trainer, checkpoints, witness.on_note)
        header = RunHeader(config=config.document())
        resumed_at = 0 if resumed is None else resumed + 1
        log: AbstractContextManager[Log] = nullcontext(NoLog())
        if own.is_first:
            log = logs(config.log.folder, header, resumed_at=resumed_at, say=witness.on_note)
        with log as opened:
            history = train(
                trainer, opened, witness,
                checkpoints=checkpoints, resumed=resumed, signals=witness.signals,
            )  # fmt: skip
        return Ended(history.training, history.stopped_by, witness.notes)


def config_of(folder: Path, strategy: str = "ddp", **changes: Any) -> TrainConfig:
    folder.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "steps": STEPS,
        "micro_batch": 1,
        "parallel": {"strategy": strategy},
        "checkpoint": {"every": 2},
        "evaluation": {"every": 3, "batches": 1},
    }
    return language(folder, **(values | changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """On one rank, undisturbed."""
    losses: Losses = on_ranks(run, 1, config_of(tmp_path_factory.mktemp("whole")))[0].losses
    return losses


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((1, "ddp"), (2, "ddp")),
        ((4, "ddp"), (2, "fsdp")),
        ((4, "fsdp"), (1, "ddp")),
        ((2, "fsdp"), (4, "fsdp")),
    ],
)
def test_another_number_of_ranks_goes_on(
    first: tuple[int, str], then: tuple[int, str], tmp_path: Path, whole: Losses
) -> None:
    before = on_ranks(run, first[0], config_of(tmp_path, first[1]), first[0] - 1, 3, signal.SIGTERM)
    # One rank alone was told, and all stopped after the same step.
    assert {on_rank.stopped_by for on_rank in before} == {signal.SIGTERM}
    assert {len(on_rank.losses) for on_rank in before} == {3}
    after = on_ranks(run, then[0], config_of(tmp_path, then[1]))
    losses = before[0].losses + after[0].losses
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    for (_, loss), (_, expected) in zip(losses, whole, strict=True):
        assert loss == pytest.approx(expected, rel=ROUNDING)
    assert all(on_rank.losses == after[0].losses for on_rank in after)
    assert any(f"saved by {first[0]} ranks" in note for note in after[0].notes)


@pytest.mark.one_case_in(2)
@pytest.mark.thorough("test_another_number_of_ranks_goes_on")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_same_number_of_ranks_goes_on_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    """With dropout, of which each rank draws its own; the second rank is killed."""
    dropped = {"model": {**TINY, "dropout": 0.2}}
    undisturbed = on_ranks(run, 2, config_of(tmp_path / "whole", strategy, **dropped))
    config = config_of(tmp_path / "killed", strategy, **dropped)
    with pytest.raises((RankDied, RuntimeError)):
        on_ranks(run, 2, config, 1, 5, signal.SIGKILL)
    after = on_ranks(run, 2, config)
    for rank in range(2):
        kept = len(after[rank].losses)
        assert STEPS - 4 <= kept <= STEPS - 2
        assert after[rank].losses == undisturbed[rank].losses[-kept:]


@pytest.mark.thorough("checkpoints/test_damage.py, of one rank")
def test_a_checkpoint_damaged_on_any_rank_is_refused_by_all(tmp_path: Path) -> None:
    config = config_of(tmp_path, "fsdp", checkpoint={"every": 3})
    on_ranks(run, 2, config)
    folder = Checkpoints(config.log.folder).path
    for file in folder.glob("step-00000006/optimizer-0000?.safetensors"):
        content = bytearray(file.read_bytes())
        content[-5] ^= 4
        file.write_bytes(content)
        break
    again = on_ranks(run, 2, config)
    assert {len(on_rank.losses) for on_rank in again} == {3}
    assert "are damaged" in again[0].notes[0]


def test_a_rank_that_cannot_write_ends_all_with_its_error(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with pytest.raises(CheckpointError, match="No space left on device"):
        on_ranks(run_without_space, 2, config)
    assert Checkpoints(config.log.folder).steps() == []


def run_without_space(config: TrainConfig) -> Ended:
    """The second rank's disk is full."""
    from torchtally.checkpoints import disk

    if os.environ["RANK"] == "1":

        def full(handle: int, part: Any) -> None:
            raise OSError(28, "No space left on device")

        disk._write_all = full
    return run(config)
