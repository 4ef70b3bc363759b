"""Measure every case on this machine's GPU, and write what was seen to one file.

    python -m tests.truth.collect                          all cases, to tests/truth/corpus/
    python -m tests.truth.collect --only 'gpt2-*'          some of them
    python -m tests.truth.collect --only vit --output it.json
    python -m tests.truth.collect --resume                 what an earlier run left undone
    python -m tests.truth.collect --no-times               memory alone, in half the time
    python -m tests.truth.collect --list                   the cases, and nothing is run
    python -m tests.truth.collect --device cpu             proves the collector without a GPU

Needs torch and this repository, nothing installed; some ten minutes on one GPU. Each case runs in
a process of its own: three steps whose memory is measured, and then more that are timed, singly, in
a row and under the profiler. What ran out of memory has no times, nor has a stand-in any. The file
is whole after every case, so an interrupted run keeps what it has. On the host the cases are scaled
down, and no memory is measured: those figures are null.

Exit status: 0 when every case was measured (out of memory is a measurement), 1 when one failed, 2
when nothing could be measured, 130 when interrupted.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.truth.cases import CASES, Case
from tests.truth.measure import Json, Measurement

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "tests" / "truth" / "corpus"
FORMAT = 1
TIMEOUT_S = 240
"""For one case; the slowest takes a fraction of it."""

KINDS = ("gpu", "stand-in", "cpu")
"""A real GPU; the CUDA build on a stand-in for the driver, which computes nothing; the host."""


class CaseError(Exception):
    """A case ended without a measurement; the message says how."""


@dataclass(frozen=True)
class Entry:
    """One case of a corpus."""

    name: str
    settings: Json
    """All that the case was, so that one changed since is noticed."""
    measurement: Measurement | None
    """None where it failed."""
    error: str | None = None

    def to_json(self) -> Json:
        return asdict(self) | {"measurement": self.measurement and self.measurement.to_json()}

    @staticmethod
    def from_json(document: Json) -> "Entry":
        """Raises TypeError or KeyError for what is no entry."""
        known = document["measurement"]
        return Entry(**(document | {"measurement": known and Measurement.from_json(known)}))


@dataclass
class Corpus:
    """What was measured on one machine."""

    kind: str
    about: Json
    """The machine and its software, as `measure.about` gives them."""
    is_small: bool = False
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    """When it was begun, in UTC."""
    entries: list[Entry] = field(default_factory=list)

    @property
    def device(self) -> str:
        return str(self.about["device"])

    def head(self) -> Json:
        memory = None if self.kind != "cpu" else "unknown on the host: all of its figures are null"
        return {
            "format": FORMAT,
            "kind": self.kind,
            "is_small": self.is_small,
            "date": self.date,
            "memory": memory or "bytes, as torch.cuda says",
            "about": self.about,
        }

    def text(self) -> str:
        """JSON, a line for each case."""
        head = json.dumps(self.head(), indent=1).removesuffix("\n}")
        lines = ",\n".join(json.dumps(entry.to_json()) for entry in self.entries)
        return f'{head},\n "cases": [\n{lines}\n ]\n}}\n'

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}-", delete=False, encoding="utf-8"
        ) as stream:
            try:
                stream.write(self.text())
                stream.flush()
                os.fsync(stream.fileno())
                os.chmod(stream.name, 0o644)
                os.replace(stream.name, path)
            except BaseException:
                os.unlink(stream.name)
                raise


def read_corpus(path: Path) -> Corpus:
    """Raises ValueError for what is no corpus, or one of another format."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
        if loaded["format"] != FORMAT:
            raise ValueError(f"its format is {loaded['format']}, not {FORMAT}")
        if loaded["kind"] not in KINDS:
            raise ValueError(f"its kind is {loaded['kind']!r}, none of {', '.join(KINDS)}")
        entries = [Entry.from_json(case) for case in loaded["cases"]]
        if loaded["kind"] == "stand-in" and any(map(timed, entries)):
            raise ValueError("it has times, and a stand-in computes nothing that takes any")
        return Corpus(loaded["kind"], loaded["about"], loaded["is_small"], loaded["date"], entries)
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{path} is not a corpus that can be read: {problem}") from problem


def timed(entry: Entry) -> bool:
    return entry.measurement is not None and entry.measurement.times is not None


def settings(case: Case) -> Json:
    """All that a case is, in JSON's types."""
    plain = asdict(case) | {"family": type(case.model).__name__}
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


# Running the cases ----------------------------------------------------------------------------

Runner = Callable[[Case], Measurement]
"""Raises CaseError where nothing was measured."""


COMMAND = ("-m", "tests.truth.measure")


class Processes:
    """Each case in a process of its own; the next one imports what it needs while a case runs."""

    def __init__(self) -> None:
        self.spare: subprocess.Popen[str] | None = None

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *COMMAND, "--spare"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
        )  # fmt: skip

    def answer(self, arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> Json:
        """What `python -m tests.truth.measure` prints. Raises CaseError when it prints nothing."""
        process = self.spare or self.start()
        self.spare = self.start()
        return answer_of(process, json.dumps(list(arguments)) + "\n", timeout_s)

    def close(self) -> None:
        if self.spare is not None:
            self.spare.communicate()


def in_process_of_its_own(
    device: str,
    answer: Callable[[Sequence[str], float], Json],
    timeout_s: float = TIMEOUT_S,
    *,
    with_times: bool = False,
) -> Runner:
    def run(case: Case) -> Measurement:
        small = ["--small"] if device == "cpu" else []
        arguments = [case.name, "--device", device, *small]
        if not with_times:
            return Measurement.from_json(answer(arguments, timeout_s))
        try:
            return Measurement.from_json(answer([*arguments, "--times"], timeout_s))
        except CaseError as problem:
            # A process that its timing killed is no reason to have no memory figures either.
            measurement = Measurement.from_json(answer(arguments, timeout_s))
            return (
                measurement
                if measurement.out_of_memory
                else replace(measurement, times_error=str(problem))
            )

    return run


def answer(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> Json:
    """What `python -m tests.truth.measure` prints. Raises CaseError when it prints nothing."""
    process = subprocess.Popen(
        [sys.executable, *COMMAND, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    return answer_of(process, None, timeout_s)


def answer_of(process: "subprocess.Popen[str]", told: str | None, timeout_s: float) -> Json:
    try:
        stdout, stderr = process.communicate(told, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise CaseError(f"took longer than {timeout_s:g} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode < 0:
        raise CaseError(f"killed by {signal.Signals(-process.returncode).name}")
    if process.returncode > 0:
        said = [line for line in stderr.splitlines() if line.strip()]
        raise CaseError((said or [f"ended with status {process.returncode}"])[-1][:500])
    try:
        return json.loads(stdout.splitlines()[-1])  # type: ignore[no-any-return]
    except (IndexError, ValueError):
        raise CaseError(f"printed no measurement: {stdout[-200:]!r}") from None


def collect(
    corpus: Corpus, cases: Sequence[Case], run: Runner, path: Path, say: Callable[[str], None]
) -> list[str]:
    """Measure these cases into the corpus and its file. Returns the names of those that failed."""
    failed = []
    for number, case in enumerate(cases, 1):
        start = time.perf_counter()
        try:
            measurement, error = run(case), None
        except CaseError as problem:
            measurement, error = None, str(problem)
            failed.append(case.name)
        actual = case.small() if corpus.is_small else case
        corpus.entries.append(Entry(case.name, settings(actual), measurement, error))
        corpus.write(path)
        outcome = f"FAILED: {error}" if measurement is None else seen(measurement)
        elapsed_s = time.perf_counter() - start
        say(f"[{number:2}/{len(cases)}] {case.name:{WIDTH}}  {outcome}  ({elapsed_s:.1f} s)")
    return failed


WIDTH = max(len(case.name) for case in CASES)


def seen(measurement: Measurement) -> str:
    """A measurement in a few words."""
    if measurement.out_of_memory:
        return f"out of memory in {measurement.stopped_in}"
    peak, reserved = measurement.peak_allocated_bytes, measurement.peak_reserved_bytes
    peaks = "peaks unknown" if peak is None else f"peak {gib(peak)}, reserved {gib(reserved)}"
    times, error = measurement.times, measurement.times_error
    step_s = measurement.steps[-1].seconds if times is None else times.median_step_s
    missing = "" if error is None else f"  TIMES INCOMPLETE: {error}"
    return f"{peaks}  {step_s:.3f} s/step{missing}"


def gib(number: int | None) -> str:
    return "unknown" if number is None else f"{number / 2**30:.2f} GiB"


# The command ----------------------------------------------------------------------------------


def chosen(pattern: str) -> list[Case]:
    """Cases whose name one of the patterns matches, or is part of."""
    patterns = pattern.split(",")
    return [
        case
        for case in CASES
        if any(fnmatchcase(case.name, part) or part in case.name for part in patterns)
    ]


def listed(cases: Sequence[Case]) -> str:
    rows = [
        (case.name, str(case.precision), str(case.optimizer), f"{case.accumulation}x{case.batch}",
         str(case.sequence or "images"))
        for case in cases
    ]  # fmt: skip
    rows.insert(0, ("case", "precision", "optimizer", "batch", "sequence"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def default_path(corpus: Corpus) -> Path:
    """Among the corpora for a GPU; in the current folder for what nothing is compared with."""
    name = re.sub(r"[^a-z0-9]+", "-", corpus.device.lower()).strip("-")
    version = str(corpus.about["torch"]).partition("+")[0]
    if corpus.kind == "cpu":
        return Path("truth-cpu.json")
    stand_in = "-stand-in" if corpus.kind == "stand-in" else ""
    return FOLDER / f"{name}-torch-{version}{stand_in}.json"


def resumed(new: Corpus, path: Path) -> Corpus:
    """What a file has already. Raises ValueError when it was measured on anything else."""
    if not path.exists():
        return new
    old = read_corpus(path)
    for name in ("kind", "is_small", "about"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            raise ValueError(
                f"{path} cannot be resumed: its {name} was {before}, and now is {now}.\n"
                "Give another --output, or leave --resume out and measure everything."
            )
    measured = [entry for entry in old.entries if entry.measurement is not None]
    return replace(old, entries=measured)


def parser() -> argparse.ArgumentParser:
    summary, _, details = (__doc__ or "").partition("\n\n")
    argument_parser = argparse.ArgumentParser(
        prog="python -m tests.truth.collect",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    argument_parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="default: cuda"
    )
    argument_parser.add_argument(
        "--only", default="*", metavar="PATTERN,...", help="part of a name, or with *, ?"
    )
    argument_parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: named after the device"
    )
    argument_parser.add_argument(
        "--resume", action="store_true", help="keep what the file has already"
    )
    argument_parser.add_argument("--no-times", action="store_true", help="measure memory alone")
    argument_parser.add_argument("--list", action="store_true", help="list the cases and stop")
    argument_parser.add_argument(
        "--kind", default="gpu", choices=KINDS[:2],
        help="stand-in: the driver is a stand-in that computes nothing, and the file says so",
    )  # fmt: skip
    return argument_parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    cases = chosen(given.only)
    if not cases:
        complain(f"no case is named like {given.only!r}; --list names all of them")
        return 2
    if given.list:
        print(listed(cases))
        return 0
    try:
        corpus, path = begin(given)
        return run_all(corpus, cases, path, given.device, with_times=not given.no_times)
    except (CaseError, OSError, ValueError) as problem:
        complain(str(problem))
        return 2
    except KeyboardInterrupt:
        complain("interrupted; --resume goes on from here")
        return 130


def complain(message: str) -> None:
    print(f"collect: {message}", file=sys.stderr)


def begin(given: Any) -> tuple[Corpus, Path]:
    """The corpus as it stands before the first case, and its file."""
    is_cpu = given.device == "cpu"
    try:
        about = answer(["--about", "--device", given.device])
    except CaseError as problem:
        hint = "" if is_cpu else "\nWithout a GPU, --device cpu proves that the collector works."
        raise CaseError(f"{given.device} cannot be asked: {problem}{hint}") from None
    corpus = Corpus("cpu" if is_cpu else given.kind, about, is_small=is_cpu)
    path = given.output or default_path(corpus)
    return resumed(corpus, path) if given.resume else corpus, path


def run_all(
    corpus: Corpus, cases: Sequence[Case], path: Path, device: str, *, with_times: bool = True
) -> int:
    start = time.perf_counter()
    done = {entry.name for entry in corpus.entries}
    left = [case for case in cases if case.name not in done]
    if device == "cpu":
        for case in left:
            if case.needs_gpu:
                complain(f"{case.name} is left out: the host lacks a kernel for it")
        left = [case for case in left if not case.needs_gpu]
    print(f"{corpus.device}, torch {corpus.about['torch']}: {len(left)} cases, to {path}")
    processes = Processes()
    with closing(processes):
        run = in_process_of_its_own(
            device, processes.answer, with_times=with_times and corpus.kind != "stand-in"
        )
        failed = collect(corpus, left, run, path, lambda line: print(line, flush=True))
    print(f"{len(left) - len(failed)} measured in {time.perf_counter() - start:.0f} s: {path}")
    if failed:
        complain(f"{len(failed)} failed: {', '.join(failed)}")
        complain(f"more of it: python -m tests.truth.measure {failed[0]} --device {device}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
