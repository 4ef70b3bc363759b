"""Time and memory of a piece of work, and the table they are shown in."""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

TALLY = str(Path(sys.executable).with_name("tally"))

RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Spent:
    """What one piece of work took. CPU time is user and system, of all its threads."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int = 0
    """Of a process of its own; 0 where the work shared one."""


def spent_on(
    command: Sequence[str], *, cwd: Path | None = None, stdout: IO[str] | None = None
) -> Spent:
    """A command in a process of its own, which must succeed; its output is thrown away, or written
    to a file.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=stdout or subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    stderr = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{stderr}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Spent(wall_s, cpu_s, usage.ru_maxrss * RSS_UNIT_BYTES)


class Stopwatch:
    """`with Stopwatch() as watch: ...; watch.spent`: work inside this process."""

    spent: Spent

    def __enter__(self) -> "Stopwatch":
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        cpu_s = time.process_time() - self._cpu_s
        self.spent = Spent(time.perf_counter() - self._wall_s, cpu_s)


def middle(runs: Iterable[Spent]) -> Spent:
    """The median of each figure; of memory the most."""
    kept = list(runs)
    return Spent(
        wall_s=median(run.wall_s for run in kept),
        cpu_s=median(run.cpu_s for run in kept),
        peak_rss_bytes=max(run.peak_rss_bytes for run in kept),
    )


def interleaved(work: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, list[Any]]:
    """Every piece of work so many times, in turn: a busy minute then hits all of them."""
    samples: dict[str, list[Any]] = {name: [] for name in work}
    for _ in range(repetitions):
        for name, do in work.items():
            samples[name].append(do())
    return samples


def machine() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "platform": sys.platform,
        "cores": str(os.cpu_count()),
        "date": time.strftime("%Y-%m-%d"),
    }


def peak_rss_bytes() -> int:
    """Of this process, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    options = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="repetitions (default 3)"
    )
    options.add_argument("--json", metavar="FILE", help="write the figures here, too")
    return options


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: the first column to the left, figures to the right."""
    lines = [header, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    print(f"\n{title}")
    for line in lines:
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        print(("  " + "  ".join((first, *rest))).rstrip(), flush=True)


def write(path: str | None, document: dict[str, Any]) -> None:
    if path is not None:
        Path(path).write_text(json.dumps({"machine": machine(), **document}, indent=1) + "\n")


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB" if value < 10e6 else f"{value / 1e6:.0f} MB"


def against(value: float, limit: float) -> str:
    """A target and whether it is met."""
    return "met" if value <= limit else "missed"
