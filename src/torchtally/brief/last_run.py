"""The figures of the last brief run of each script, kept in the user's cache folder.

A file is of one script on one kind of GPU; its name is a digest of both, so that a change of the
script's arguments or text finds it. It has totals by line instead of the trace: some kilobytes,
read in no time.
"""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from torchtally.files.atomic import write_atomically
from torchtally.files.user_cache import cache_folder, make_room
from torchtally.ledger import Ledger, Line, Total
from torchtally.views.summary import reserved_bytes_of

FOLDER = "last_runs"
MOST_BYTES = 8 << 20
"""Of the folder, some thousand runs: files that were written longest ago make room."""
MOST_LINES = 2000
"""Of a run, those that cost most."""
FORMAT = 1


class LineFigures(msgspec.Struct, frozen=True, array_like=True):
    """A line of code, and what it costs in the reported period."""

    file: str
    line: int
    text: str
    is_own: bool
    seconds: float
    flops: int
    bytes_saved: int


class LastRun(msgspec.Struct, frozen=True, tag="torchtally-last-run", tag_field="kind"):
    """What is compared with the next run."""

    format: int
    saved_s: float
    """Seconds since 1970."""
    command: str
    """The script with its arguments."""
    step_s: float | None
    peak_bytes: int
    reserved_bytes: int
    lines: tuple[LineFigures, ...]

    def sums(self) -> dict[Line | None, Total]:
        """Totals by line, as a ledger has them."""
        return {
            Line(each.file, each.line, each.text, each.is_own): Total(
                flops_forward=each.flops, bytes_saved=each.bytes_saved, seconds=each.seconds
            )
            for each in self.lines
        }


def last_run_place(script: str, gpus: str) -> Path:
    """The file of a script, by its absolute path or a module and its folder, on these GPUs."""
    digest = blake2b(f"{script}\0{gpus}".encode("utf-8", "surrogatepass"), digest_size=16)
    return cache_folder(FOLDER) / f"{digest.hexdigest()}.json"


def figures_of(ledger: Ledger, saved_s: float) -> LastRun:
    """The figures of a run that ended at a time, in seconds since 1970."""
    lines = sorted(by_line(ledger).items(), key=lambda item: _weight(item[1]), reverse=True)
    return LastRun(
        format=FORMAT,
        saved_s=saved_s,
        command=ledger.trace.script,
        step_s=ledger.step_s,
        peak_bytes=ledger.memory.peak_bytes,
        reserved_bytes=reserved_bytes_of(ledger),
        lines=tuple(
            LineFigures(*line, total.seconds, total.flops, total.bytes_saved)
            for line, total in lines[:MOST_LINES]
        ),
    )


def by_line(ledger: Ledger) -> Mapping[Line, Total]:
    """Totals by line of code, without what belongs to none."""
    return {line: total for line, total in ledger.by_line().items() if line is not None}


def _weight(total: Total) -> tuple[float, int]:
    return total.seconds, total.flops


def load(place: Path) -> LastRun | None:
    """The last run; None where there is none. A damaged file is none: the next run replaces it."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        run = msgspec.json.decode(place.read_bytes(), type=LastRun)
        return run if run.format == FORMAT else None
    return None


def keep(run: LastRun, place: Path) -> None:
    """Keep a run for the next one. A folder that cannot be written to is no error: the next run
    is compared with none.
    """
    with suppress(OSError, UnicodeEncodeError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(str(place), msgspec.json.encode(run))
        make_room(place, MOST_BYTES)
