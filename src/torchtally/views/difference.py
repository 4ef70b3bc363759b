"""What changed between two runs: by line, module, operator, phase, and category of memory.

Lines are those of two states of a script: they are aligned by their text, file by file, as `diff`
does, so that a line that moved is the same line. Every table's changes sum to the whole's.
"""

import posixpath
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple, TypeVar

from torchtally.ledger import Ledger, Path, Total
from torchtally.ledger.total import Line
from torchtally.table import Cell, Column, LinePlace, Table
from torchtally.units import Unit
from torchtally.views.lines import root_of, short_path
from torchtally.views.peak import title_of
from torchtally.views.summary import reserved_bytes_of

ABSENT = Total()
"""Of what one of the runs does not have."""


Key = TypeVar("Key", bound=Hashable)


class Changed(NamedTuple):
    """One row: the same thing in both runs."""

    label: tuple[Cell, ...]
    before: Total
    after: Total


QUANTITIES = (
    Column("seconds_change", "time", Unit.SECONDS),
    Column("seconds_before", "before", Unit.SECONDS, rank=2),
    Column("seconds_after", "after", Unit.SECONDS, rank=2),
    Column("flops_change", "FLOPs", Unit.FLOPS),
    Column("bytes_saved_change", "saved", Unit.BYTES),
    Column("bytes_change", "moved", Unit.BYTES, rank=1),
    Column("count_change", "ops", Unit.COUNT, rank=3),
)
BEFORE, AFTER, BOTH = "before", "after", "both"
LINE = (
    Column("line", "line", Unit.LINE),
    Column("source", "source", Unit.TEXT),
    Column("present", "in", Unit.WORD, rank=4),
)
MODULE = (Column("module", "module", Unit.PLACE), Column("class", "class", Unit.TEXT))


def whole(before: Ledger, after: Ledger) -> Table:
    """Both runs, and what the second has more."""
    columns = (
        Column("state", "run", Unit.NAME),
        Column("step_s", "step", Unit.SECONDS),
        Column("flops", "FLOPs", Unit.FLOPS),
        Column("bytes_moved", "moved", Unit.BYTES),
        Column("peak_allocated_bytes", "allocated", Unit.BYTES),
        Column("peak_reserved_bytes", "reserved", Unit.BYTES),
    )
    rows = [quantities_of(ledger) for ledger in (before, after)]
    change = tuple(
        None if old is None or new is None else new - old for old, new in zip(*rows, strict=True)
    )
    chips = [ledger.trace.chip for ledger in (before, after)]
    return Table(
        title="Before and after: " + " and ".join(dict.fromkeys(chips)),
        columns=columns,
        rows=tuple(
            (name, *row)
            for name, row in zip((BEFORE, AFTER, "change"), (*rows, change), strict=True)
        ),
    )


def quantities_of(ledger: Ledger) -> tuple[int | float | None, ...]:
    step_s = ledger.total.seconds if ledger.is_timed else None
    total, memory = ledger.total, ledger.memory
    return step_s, total.flops, total.bytes, memory.peak_bytes, reserved_bytes_of(ledger)


def by_lines(before: Ledger, after: Ledger) -> Table:
    return table(
        "By line, aligned by its text",
        LINE,
        align(before.by_line(), after.by_line()),
        before,
        after,
    )


Sums = Mapping[Line | None, Total]


def align(old: Sums, new: Sums) -> list[Changed]:
    """Changes by the texts of each file's lines, in order."""
    nowhere = Changed(("(no line)", "", BOTH), old.get(None, ABSENT), new.get(None, ABSENT))
    rows = [nowhere]
    files = [by_file(*pair) for pair in zip((old, new), roots_of(old, new), strict=True)]
    for name in dict.fromkeys([*files[0], *files[1]]):
        first, second = (each.get(name, []) for each in files)
        matcher = SequenceMatcher(None, texts(first), texts(second), autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal":
                rows += [
                    Changed((at(name, line), line.text, BOTH), old[former], new[line])
                    for former, line in zip(first[a:b], second[c:d], strict=True)
                ]
                continue
            rows += [
                Changed((at(name, line, " (before)"), line.text, BEFORE), old[line], ABSENT)
                for line in first[a:b]
            ]
            rows += [
                Changed((at(name, line), line.text, AFTER), ABSENT, new[line])
                for line in second[c:d]
            ]
    return rows


def roots_of(old: Sums, new: Sums) -> tuple[str, str]:
    """The user's directory in each run; the outer one where one lies in the other."""
    roots = root_of(old), root_of(new)
    if not all(roots):
        return roots
    outer = posixpath.commonpath(roots)
    return (outer, outer) if outer in roots else roots


def at(name: str, line: Line, remark: str = "") -> LinePlace:
    return LinePlace(f"{name}:{line.line}{remark}", line.file, line.line)


def by_file(lines: Iterable[Line | None], root: str) -> dict[str, list[Line]]:
    """Lines in order, under the names that a reader knows the files by."""
    files: dict[str, list[Line]] = {}
    for line in lines:
        if line is not None:
            files.setdefault(short_path(line.file, root), []).append(line)
    return {name: sorted(each, key=lambda line: line.line) for name, each in files.items()}


def texts(lines: Sequence[Line]) -> list[str]:
    return [line.text for line in lines]


def by_modules(before: Ledger, after: Ledger) -> Table:
    def label(path: Path) -> tuple[Cell, ...]:
        return (path.module or "(outside any module)", path.module_class)

    rows = join(before.by_module(), after.by_module(), label)
    return table("By module", MODULE, rows, before, after)


def by_operators(before: Ledger, after: Ledger) -> Table:
    column = (Column("operator", "operator", Unit.TEXT),)
    rows = join(before.by_op(), after.by_op(), lambda name: (name,))
    return table("By operator", column, rows, before, after)


def by_phases(before: Ledger, after: Ledger) -> Table:
    column = (Column("phase", "phase", Unit.NAME),)
    rows = join(before.by_phase(), after.by_phase(), lambda phase: (str(phase),))
    return table("By phase", column, rows, before, after)


def join(
    old: Mapping[Key, Total], new: Mapping[Key, Total], label: Callable[[Key], tuple[Cell, ...]]
) -> list[Changed]:
    return [
        Changed(label(key), old.get(key, ABSENT), new.get(key, ABSENT))
        for key in dict.fromkeys([*old, *new])
    ]


def table(
    title: str, labels: tuple[Column, ...], rows: Sequence[Changed], before: Ledger, after: Ledger
) -> Table:
    """The largest change of time first, or of FLOPs where no time is known."""
    is_timed = before.is_timed and after.is_timed
    cells = [(*changes(row, is_timed=is_timed), *row.label) for row in rows]
    changed = [row for row in cells if any(row[place] for place in CHANGES)]
    changed.sort(key=lambda row: [-abs(row[place] or 0) for place in CHANGES])  # type: ignore[arg-type]
    alike = len(cells) - len(changed)
    totals = changes(Changed((), before.total, after.total), is_timed=is_timed)
    return Table(
        title=title,
        columns=(*QUANTITIES, *labels),
        rows=tuple(changed),
        totals=(*totals, *[None] * len(labels)),
        note=f"{alike} more are alike." if alike else "",
    )


CHANGES = (0, 3, 4, 5, 6)
"""Places of the columns that are differences."""


def changes(row: Changed, *, is_timed: bool) -> tuple[int | float | None, ...]:
    before, after = row.before, row.after
    times = (after.seconds - before.seconds, before.seconds, after.seconds)
    return (
        *(times if is_timed else (None, None, None)),
        after.flops - before.flops,
        after.bytes_saved - before.bytes_saved,
        after.bytes - before.bytes,
        after.count - before.count,
    )


def by_categories(before: Ledger, after: Ledger) -> Table:
    """Memory at the peak of either run."""
    old, new = dict(before.memory.at_peak), dict(after.memory.at_peak)
    rows = [
        (new.get(key, 0) - old.get(key, 0), old.get(key, 0), new.get(key, 0), title_of(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) or new.get(key)
    ]
    sums = [sum(column) for column in zip(*(row[:3] for row in rows), strict=True)] or [0, 0, 0]
    rows.sort(key=lambda row: -abs(row[0]))
    return Table(
        title="Memory at the peak, by category",
        columns=(
            Column("bytes_change", "change", Unit.BYTES),
            Column("bytes_before", "before", Unit.BYTES),
            Column("bytes_after", "after", Unit.BYTES),
            Column("category", "category", Unit.NAME),
        ),
        rows=tuple(rows),
        totals=(*sums, None),
    )


DIFFERENCES: dict[str, Callable[[Ledger, Ledger], Table]] = {
    "line": by_lines,
    "module": by_modules,
    "op": by_operators,
    "phase": by_phases,
    "category": by_categories,
}
"""By the name that `--by` has."""
