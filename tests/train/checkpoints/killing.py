"""Kills processes that save, and judges what each kill leaves behind.

Beside the way that torchtally saves there are two that do not endure, so that the judge is seen to
find what it looks for.
"""

import multiprocessing
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from tests.train.checkpoints.saving import (
    KEEP_LAST,
    check_all_whole,
    names,
    save,
    taken,
    tensors_of,
)
from tests.train.forked import forked
from torchtally.checkpoints.folder import NAMED, Checkpoints
from torchtally.errors import CheckpointError

ELEMENTS = 20_000
TIME_LIMIT_S = 60.0
"""Against hangs alone."""
CALLS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")
"""All by which a save changes a folder."""


class Corrupt(Exception):  # noqa: N818
    """What has the name of a checkpoint is none."""


@dataclass(frozen=True)
class Way:
    """How a checkpoint is saved, and what is there afterwards."""

    save: Callable[[Path, int], None]
    newest: Callable[[Path], int | None]
    """The step of the newest whole one. Raises Corrupt."""


# torchtally's ------------------------------------------------------------------------------------


def _save(run: Path, step: int) -> None:
    save(run, step, ELEMENTS)


def _newest(run: Path) -> int | None:
    try:
        steps = check_all_whole(run)
    except (CheckpointError, AssertionError) as error:
        raise Corrupt(str(error)) from error
    states, said = taken(run)
    assert states == (steps[0] if steps else None)
    assert said == []
    return states


# One file, overwritten in place; and a whole folder, when the former one is deleted ---------------


def _overwrite(run: Path, step: int) -> None:
    np.full(2**20, step).tofile(run / "checkpoint")


def _delete_and_rename(run: Path, step: int) -> None:
    new, own = run / "new", run / "checkpoint"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for name in "abcdefgh":
        with open(new / name, "wb") as file:
            file.write(np.full(2**14, step).tobytes())
            file.flush()
            os.fsync(file.fileno())
    if own.exists():
        shutil.rmtree(own)
    os.rename(new, own)


def _newest_naive(run: Path) -> int | None:
    own = run / "checkpoint"
    if not own.exists():
        return None
    files = sorted(own.iterdir()) if own.is_dir() else [own]
    expected = 8 * 2**14 if own.is_dir() else 2**20
    numbers = np.concatenate([np.empty(0, int), *(np.fromfile(file, int) for file in files)])
    if len(numbers) != expected or (numbers != numbers[0]).any():
        raise Corrupt(f"{len(numbers)} numbers")
    return int(numbers[0])


WAYS = {
    "torchtally": Way(_save, _newest),
    "overwriting": Way(_overwrite, _newest_naive),
    "deleting first": Way(_delete_and_rename, _newest_naive),
}


# Children ----------------------------------------------------------------------------------------


def child(function: Callable[..., Any], *args: Any) -> tuple[BaseProcess, Connection]:
    """A process with torch loaded that runs `function(*args, to_answer)`, and ends with us."""
    answer, to_answer = multiprocessing.Pipe(duplex=False)
    process = forked().Process(target=function, args=(*args, to_answer), daemon=True)
    process.start()
    to_answer.close()
    return process, answer


def answer_of(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns in a child, where it may spoil its process."""
    process, answer = child(_answering, function, args)
    try:
        assert answer.poll(TIME_LIMIT_S)
        is_result, value = answer.recv()
    finally:
        end(process, answer)
    assert is_result, value
    return value


def _answering(function: Callable[..., Any], args: Any, to_answer: Connection) -> None:
    try:
        to_answer.send((True, function(*args)))
    except BaseException:
        to_answer.send((False, traceback.format_exc()))


def end(process: BaseProcess, answer: Connection) -> list[str]:
    """Kills it; what it has said until then and was not heard yet."""
    process.kill()
    process.join()
    said = []
    with suppress(EOFError):
        while True:
            said.append(answer.recv_bytes().decode())
    answer.close()
    return said


def _saving(way: str, run: Path, to_answer: Connection) -> None:
    """Goes on from what is there, and saves one step after the other until it is killed."""
    kind = WAYS[way]
    with Checkpoints(run).lock():
        if way == "torchtally":
            Checkpoints(run).clean()
        for step in count(_first_step(way, run)):
            to_answer.send_bytes(f"begins {step}".encode())
            kind.save(run, step)
            to_answer.send_bytes(f"saved {step}".encode())


def _first_step(way: str, run: Path) -> int:
    """The next one, without another look at what was judged already."""
    if way == "torchtally":
        return (Checkpoints(run).steps() or [0])[0] + 1
    return (WAYS[way].newest(run) or 0) + 1


def _dying(way: str, run: Path, step: int, at_call: int, to_answer: Connection) -> None:
    """Saves this step, and is killed instead of making the so many-th of the calls."""
    calls = iter(range(at_call))

    def dying(native: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return native(*args, **options)

        return call

    native = {name: getattr(os, name) for name in CALLS}
    for name, function in native.items():
        setattr(os, name, dying(function))
    WAYS[way].save(run, step)
    for name, function in native.items():
        setattr(os, name, function)
    to_answer.send_bytes(f"saved {step}".encode())


# What kills leave --------------------------------------------------------------------------------


@dataclass
class Report:
    """What a number of kills did."""

    kills: int = 0
    during_a_save: int = 0
    corrupt: int = 0
    lost: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def phase(run: Path) -> str:
    """How far a save had come, by what is there."""
    present = names(run)
    hidden = [name for name in present if not NAMED.fullmatch(name)]
    if not hidden:
        return "renamed" if len(present) > KEEP_LAST else "nothing begun"
    if hidden[0].startswith(".old"):
        return "removing the oldest"
    files = sorted(path.name for path in (Checkpoints(run).path / hidden[0]).iterdir())
    if "manifest.json" in files:
        return "manifest"
    kinds = {name.partition("/")[0] for name in tensors_of(0)}
    return {0: "directory made", len(kinds): "all tensors"}.get(len(files), "some tensors")


def judge(way: str, run: Path, reported: int, report: Report) -> bool:
    """One kill more: is there a whole checkpoint that is not older than the last reported one?

    Where there is none the next child begins anew.
    """
    report.kills += 1
    if way == "torchtally":
        report.phases[phase(run)] += 1
    try:
        is_lost = (WAYS[way].newest(run) or 0) < reported
        report.lost += is_lost
    except Corrupt:
        is_lost = True
        report.corrupt += 1
    if is_lost:
        shutil.rmtree(run)
        run.mkdir()
    elif way == "torchtally" and report.kills % 2:  # else the next child does it
        Checkpoints(run).clean()
        assert all(map(NAMED.fullmatch, names(run)))
    return not is_lost


def killed_at_random(way: str, run: Path, kills: int, seed: int = 0) -> Report:
    """SIGKILL at random times of a child's first save, or of its second one."""
    draw, report, began_s = random.Random(seed), Report(), time.monotonic()
    save_s, reported = 0.0, 0
    while report.kills < kills:
        process, answer = child(_saving, way, run)
        said: list[str] = []
        try:
            said.append(_heard(answer))
            if not save_s or draw.random() < 0.3:
                began_save_s = time.monotonic()
                said.append(_heard(answer))
                save_s = time.monotonic() - began_save_s
            time.sleep(draw.uniform(0, 1.2 * save_s))
        finally:
            said += end(process, answer)
        report.during_a_save += said[-1].startswith("begins")
        for name in said:
            reported = int(name.split()[1]) if name.startswith("saved") else reported
        if not judge(way, run, reported, report):
            reported = 0
    report.seconds = time.monotonic() - began_s
    return report


def _heard(answer: Connection) -> str:
    assert answer.poll(TIME_LIMIT_S)
    return answer.recv_bytes().decode()


def killed_at_every_call(way: str, run: Path) -> Report:
    """SIGKILL before each call of a save that another one was before, as often as it has calls."""
    report, began_s, step = Report(), time.monotonic(), _first_step(way, run) - 1
    for number in count():
        if not step:
            step = 1
            WAYS[way].save(run, step)
        process, answer = child(_dying, way, run, step + 1, number)
        try:
            process.join(TIME_LIMIT_S)
            assert process.exitcode in (0, -signal.SIGKILL)
        finally:
            said = end(process, answer)
        if said:
            report.seconds = time.monotonic() - began_s
            return report
        step = _first_step(way, run) - 1 if judge(way, run, step, report) else 0
    raise AssertionError
