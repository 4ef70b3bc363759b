"""Power lost at any time of a save, on a disk that forgets all that was not flushed."""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.train.checkpoints.disk_model import Call, Disk, Node, Recorder
from tests.train.checkpoints.saving import check_contents, described, tensors_of, whole
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.storage import write
from torchtally.errors import CheckpointError

DRAWS = int(os.environ.get("TALLY_EXAMPLES", "1"))
ELEMENTS = 20


class Story:
    """Saves of steps 1 to 3 in a run's folder that is new, of which the last two are kept."""

    def __init__(self, here: Path) -> None:
        home = here / "home"
        home.mkdir()
        recorder = Recorder(home)
        self.done: dict[int, int] = {}
        """The newest step that was reported as saved after so many calls."""
        checkpoints = Checkpoints(home / "runs" / "run")
        with recorder.recording():
            for step in (1, 2, 3):
                tensors = tensors_of(step, ELEMENTS)
                write(tensors, tensors, checkpoints, described(step))
                self.done[len(recorder.calls)] = step
                checkpoints.prune(2, None)
        self.before: dict[int, Node] = recorder.before
        self.calls: Sequence[Call] = recorder.calls


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


def failures(
    story: Story,
    calls: Sequence[Call | None],
    here: Path,
    *,
    first: int = 0,
    check: Callable[[Path, int], Any] = whole,
) -> Iterator[str]:
    """What is wrong on the disks that each beginning of the calls may leave; None is left out.

    Only those of more than `first` calls are looked at.
    """
    disk, newest = Disk(story.before), 0
    for number, call in enumerate(calls):
        if call is not None:
            disk.play(call)
        newest = story.done.get(number + 1, newest)
        if number < first:
            continue
        for keeps, seed in [(0.0, 0), (1.0, 0), *((0.5, draw) for draw in range(DRAWS))]:
            shutil.rmtree(here, ignore_errors=True)
            disk.lose_power(here, random.Random(f"{number} {seed}"), keeps)
            try:
                steps = steps_checked(here / "runs" / "run", check)
            except (CheckpointError, AssertionError) as error:
                yield f"call {number}, {call}: damaged: {str(error)[:200]}"
                continue
            if max(steps, default=0) not in (newest, newest + 1):
                yield f"call {number}, {call}: {newest} was saved, found {steps}"


def steps_checked(run: Path, check: Callable[[Path, int], Any]) -> list[int]:
    steps = Checkpoints(run).steps()
    for step in steps:
        check(run, step)
    return steps


def needed(story: Story) -> list[int]:
    """Numbers of the calls that flush something."""
    disk, flushes = Disk(story.before), []
    for number, call in enumerate(story.calls):
        if call.name == "fsync" and not disk.is_flushed(call.node):
            flushes.append(number)
        disk.play(call)
    return flushes


def test_a_whole_checkpoint_is_left_after_any_call(story: Story, tmp_path: Path) -> None:
    assert len(story.calls) > 60
    assert list(failures(story, story.calls, tmp_path / "disk", check=check_contents)) == []


@pytest.mark.thorough("test_a_whole_checkpoint_is_left_after_any_call, by the same model of a disk")
def test_no_flush_can_be_left_out(story: Story, tmp_path: Path) -> None:
    """Each that the first and the third save ask for: the second is as the third."""
    first, second = sorted(story.done)[:2]
    flushes = [number for number in needed(story) if number < first or number >= second]
    assert len(flushes) > 12
    for number in flushes:
        calls = [None if at == number else call for at, call in enumerate(story.calls)]
        failure = next(failures(story, calls, tmp_path / "disk", first=number), None)
        assert failure, (number, story.calls[number])


def test_the_model_is_of_this_machine(story: Story, tmp_path: Path) -> None:
    """With no power lost, what is there is what the calls made."""
    disk = Disk(story.before)
    for call in story.calls:
        disk.play(call)
    for node in disk.nodes.values():
        node.kept = node.now
        node.changes.clear()
    disk.lose_power(tmp_path / "disk", random.Random(0), 1.0)
    assert steps_checked(tmp_path / "disk" / "runs" / "run", check_contents) == [3, 2]
