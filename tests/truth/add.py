r"""Add a published or measured training to this repository's truth, and see ours beside it.

    python -m tests.truth.add --source URL --step-s 1.92 [--memory-gib 76.8] -- \
        llama-3.1-8b --gpus 8xH100-SXM --sequence 8192 --layout "dp 8, zero-3, mb 2x1"

What stands behind `--` is what one types after `tally plan`, so that the row says what was run and
needs no code. It is appended to `tests/truth/added.csv` (`Added` is its schema: one column a field)
unless it is there, and docs/accuracy.md lists it. Without arguments, all rows are shown.

No constant is ever fitted to these rows.
"""

import argparse
import csv
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime
from pathlib import Path

from torchtally.cli import parsed, plan
from torchtally.cli.plan_request import resolved
from torchtally.errors import TallyError, UsageError
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.questions.own_layout import layout_of
from torchtally.plan.questions.workload import workload_of

FILE = Path(__file__).with_name("added.csv")
USUAL_MFU = 0.4


def is_above_zero(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Added:
    """A row: each field is a column of the file."""

    source: str
    """Where it was published, or by whom it was measured."""
    as_of: str
    """The day, as 2026-11-29."""
    command: str
    """As one types it after `tally plan`."""
    step_s: str
    """Seconds of an optimizer step; "" where only memory is known."""
    memory_gib: str
    """Of the fullest chip, as nvidia-smi shows it; "" where it is not known."""

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise UsageError("--source: say where the figure was published, or who measured it.")
        try:
            date.fromisoformat(self.as_of)
        except ValueError:
            raise UsageError(f"--as-of {self.as_of!r}: give a day, as 2026-11-29.") from None
        if not (self.step_s or self.memory_gib):
            raise UsageError("Nothing to compare: give --step-s, --memory-gib or both.")
        for option, text in (("--step-s", self.step_s), ("--memory-gib", self.memory_gib)):
            if text and not is_above_zero(text):
                raise UsageError(f"{option} {text}: expected a number above zero.")


@dataclass(frozen=True, slots=True)
class Beside:
    """What is predicted for a row."""

    step_s: float
    best_s: float
    slow_s: float
    memory_gib: float
    ideal_s: float
    """The model's FLOPs at the data sheet's peak."""


def predicted(row: Added) -> Beside:
    """Raises UsageError where `tally plan` does not take the command, or it has no layout."""
    request = resolved(plan.asked_of(parsed(["plan", *shlex.split(row.command)])))
    if request.layout is None or request.cluster is None:
        raise UsageError("The command needs chips and a layout: --gpus 8xH100-SXM --layout 'dp 8'.")
    workload = workload_of(request)[0]
    step = Pricing(workload).step(layout_of(request, workload))
    return Beside(
        step.seconds.value,
        step.best.value,
        step.slow.value,
        step.memory.total.value / 2**30,
        step.mfu.value * step.seconds.value,
    )


def added(file: Path = FILE) -> list[Added]:
    """All rows; none of a file that is not there yet."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [Added(**line) for line in csv.DictReader(lines)]


def append(row: Added, file: Path = FILE) -> bool:
    """Add the row, unless one of the same command, source and figures is there."""
    known = added(file)
    is_new = all(asdict(row) | {"as_of": ""} != asdict(each) | {"as_of": ""} for each in known)
    if is_new:
        has_head = file.exists()
        with file.open("a", newline="", encoding="utf-8") as lines:
            names = [field.name for field in fields(Added)]
            writer = csv.DictWriter(lines, names, lineterminator="\n")
            if not has_head:
                writer.writeheader()
            writer.writerow(asdict(row))
    return is_new


COLUMNS = ("command", "step", "ours", "range", "MFU 0.4", "peak", "ours", "source")


def table(rows: Sequence[Added]) -> str:
    """In Markdown: figures, and ours over them."""
    lines = [COLUMNS, (":--", *("--:",) * (len(COLUMNS) - 2), ":--")]
    for row in rows:
        beside = predicted(row)
        cells = ["", "", "", ""]
        if row.step_s:
            step_s = float(row.step_s)
            is_in_range = beside.best_s <= step_s <= beside.slow_s
            cells = [
                f"{step_s:.4g} s",
                f"{beside.step_s / step_s:.2f}",
                "in" if is_in_range else "out",
                f"{beside.ideal_s / USUAL_MFU / step_s:.2f}",
            ]
        peak = ["", ""]
        if row.memory_gib:
            gib = float(row.memory_gib)
            peak = [f"{gib:.4g} GiB", f"{beside.memory_gib / gib:.2f}"]
        lines.append((f"`{row.command}`", *cells, *peak, f"{row.source}, {row.as_of}"))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.add", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--source", default="", help="a URL, or who measured it on what")
    parser.add_argument("--as-of", default=f"{datetime.now(UTC):%Y-%m-%d}", metavar="DAY")
    parser.add_argument("--step-s", default="", metavar="SECONDS", help="of an optimizer step")
    parser.add_argument("--memory-gib", default="", metavar="GIB", help="of the fullest chip")
    parser.add_argument("--file", type=Path, default=FILE, help="another file of this form")
    parser.add_argument("command", nargs="*", help="what one types after `tally plan`")
    given = parser.parse_args(arguments)
    try:
        if not given.command:
            print(table(added(given.file)), end="")
            return 0
        row = Added(
            given.source, given.as_of, shlex.join(given.command), given.step_s, given.memory_gib
        )
        shown = table([row])
        is_new = append(row, given.file)
    except TallyError as problem:
        print(f"add: {problem}", file=sys.stderr)
        return 2
    print(shown, end="")
    print(f"{'Added to' if is_new else 'Already in'} {given.file}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
