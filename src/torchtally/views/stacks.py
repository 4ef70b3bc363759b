"""A quantity by stack: the module within its modules, the line, and the operator.

Every stack's amounts are whole (ns, FLOPs, bytes), and all of a quantity sum to the ledger's total.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from torchtally.errors import UsageError, did_you_mean
from torchtally.ledger import Entry, Ledger, Line
from torchtally.ledger.total import Path
from torchtally.trace import Phase
from torchtally.units import Unit
from torchtally.views.holdings import holdings, owner_of
from torchtally.views.lines import NO_LINE
from torchtally.views.moments import moment_at
from torchtally.views.peak import title_of

NS = 1_000_000_000
NUMBER = re.compile(r"((?:^|: |\.))\d+(?=\.|:|$)")
"""A number that is a part of a module's path, or of a parameter's."""


class LevelKind(StrEnum):
    """What a level of a stack is."""

    MODULE = "module"
    LINE = "line"
    OPERATOR = "operator"


class Level(NamedTuple):
    """A module, line or operator within the one before it."""

    kind: LevelKind
    name: str
    """Unique among those it stands beside: "blocks.3.up: Linear", "train.py:51  x = self.up(x)"."""
    file: str = ""
    line: int = 0
    phase: Phase | None = None
    """Of an operator that ran."""

    def without_numbers(self) -> "Level":
        """The same for all modules whose paths differ in numbers alone: "blocks.*.up: Linear"."""
        if self.kind is LevelKind.LINE:
            return self
        return self._replace(name=NUMBER.sub(r"\1*", self.name))


class StackAmount(NamedTuple):
    """What one operator adds to its stack, or one storage; the outermost level first."""

    levels: tuple[Level, ...]
    amount: int


@dataclass(frozen=True, slots=True)
class StackTotals:
    """A quantity of a period, in the order in which it came about."""

    title: str
    """As "Time": what is told."""
    period: str
    """Of which part of the run, or at which moment."""
    unit: Unit
    """Of amounts; `SECONDS` are in ns."""
    rows: tuple[StackAmount, ...]
    """Neighbours of one stack are one row; none is 0."""
    missing: str = ""
    """A sentence on what is in no stack; "" where nothing is."""

    @property
    def total(self) -> int:
        return sum(row.amount for row in self.rows)

    def merge(self) -> dict[tuple[Level, ...], int]:
        """Each stack once, in order of first appearance."""
        sums: dict[tuple[Level, ...], int] = {}
        for levels, amount in self.rows:
            sums[levels] = sums.get(levels, 0) + amount
        return sums


def stacks(ledger: Ledger, quantity: str) -> StackTotals:
    """A quantity of the ledger's reported period, or at its peak, by stack.

    Raises UsageError for a quantity that is not in QUANTITIES, and for times of a ledger without.
    """
    if quantity not in QUANTITIES:
        raise UsageError(f"Unknown quantity {quantity!r}. {did_you_mean(quantity, QUANTITIES)}")
    return QUANTITIES[quantity](ledger)


# Quantities --------------------------------------------------------------------------------------


def time_stacks(ledger: Ledger) -> StackTotals:
    """The step's seconds, each operator's kernels and the device's idle time before them."""
    if not ledger.is_timed:
        raise UsageError(
            f"{ledger.trace.chip or ledger.trace.script}: times are unknown, so there are no "
            "stacks of time. Name a chip of known speed: --gpu H100-SXM."
        )
    seconds = [ledger.slot(entry).seconds for entry in ledger.reported]
    untimed = sum(each.count for each in ledger.untimed)
    missing = f"{untimed} operators have no time and are in no stack." if untimed else ""
    return _of_operators(ledger, "Time", Unit.SECONDS, whole_ns(seconds), missing)


def flops_stacks(ledger: Ledger) -> StackTotals:
    """A multiply and an add are two."""
    amounts = [entry.cost.flops for entry in ledger.reported]
    return _of_operators(ledger, "FLOPs", Unit.FLOPS, amounts, _uncounted_operators(ledger))


def moved_stacks(ledger: Ledger) -> StackTotals:
    """Read from and written to the device's memory."""
    amounts = [entry.cost.bytes for entry in ledger.reported]
    return _of_operators(ledger, "Bytes moved", Unit.BYTES, amounts, _uncounted_operators(ledger))


def saved_stacks(ledger: Ledger) -> StackTotals:
    """Allocated by the forward pass and read by the backward pass."""
    amounts = [entry.bytes_saved for entry in ledger.reported]
    return _of_operators(ledger, "Bytes saved for the backward pass", Unit.BYTES, amounts)


def peak_stacks(ledger: Ledger) -> StackTotals:
    """Held at the peak of the run; parameters by the module that owns them."""
    owner, modules = owner_of(ledger), ModuleLevels(ledger)
    tick = ledger.memory.peak_tick
    rows = []
    for holding in sorted(holdings(ledger, tick), key=lambda each: each.storage.number):
        path, entry = owner(holding), holding.entry
        made_by = holding.storage.name or ("" if entry is None else entry.operator)
        leaf = Level(LevelKind.OPERATOR, f"{title_of(holding.category)}: {made_by}".rstrip(": "))
        levels = (*modules.of(path), line_level(holding.line), leaf)
        rows.append(StackAmount(levels, holding.storage.bytes))
    moment = moment_at(ledger, tick)
    period = "the peak" if moment is None else f"the peak, in {moment}"
    return StackTotals("Memory held", period, Unit.BYTES, tuple(join(rows)))


QUANTITIES: dict[str, Callable[[Ledger], StackTotals]] = {
    "time": time_stacks,
    "flops": flops_stacks,
    "bytes": moved_stacks,
    "saved": saved_stacks,
    "memory": peak_stacks,
}
"""By the name that `tally export --of` takes."""


def whole_ns(seconds: Iterable[float]) -> list[int]:
    """Rounded so that every sum from the first on is its own nearest nanosecond."""
    amounts, at_s, at_ns = [], 0.0, 0
    for each in seconds:
        at_s += each
        amounts.append(round(at_s * NS) - at_ns)
        at_ns += amounts[-1]
    return amounts


def _uncounted_operators(ledger: Ledger) -> str:
    count = ledger.coverage.uncounted_ops
    return f"{count} operators without a rule are in no stack." if count else ""


# Levels ------------------------------------------------------------------------------------------


def _of_operators(
    ledger: Ledger, title: str, unit: Unit, amounts: Iterable[int], missing: str = ""
) -> StackTotals:
    modules = ModuleLevels(ledger)
    known: dict[tuple[int, str, int], tuple[Level, ...]] = {}

    def levels(entry: Entry) -> tuple[Level, ...]:
        # By identity: hashing a site or an enum runs Python code, once for every operator.
        key = (id(entry.site), entry.operator, id(entry.op.phase))
        if key not in known:
            path = Path(entry.site.module, entry.site.module_class)
            known[key] = (*modules.of(path), line_level(entry.line), operator_level(entry))
        return known[key]

    pairs = zip(ledger.reported, amounts, strict=True)
    rows = join(StackAmount(levels(entry), amount) for entry, amount in pairs)
    return StackTotals(title, ledger.period, unit, tuple(rows), missing)


def join(rows: Iterable[StackAmount]) -> Iterator[StackAmount]:
    """Neighbours of one stack as one row, without those of nothing."""
    last: StackAmount | None = None
    for row in rows:
        if not row.amount:
            continue
        if last is not None and last.levels == row.levels:
            last = StackAmount(row.levels, last.amount + row.amount)
            continue
        if last is not None:
            yield last
        last = row
    if last is not None:
        yield last


class ModuleLevels:
    """The modules around a module, from the model on."""

    def __init__(self, ledger: Ledger) -> None:
        self._class_of: dict[str, str] = {}
        roots = set()
        for site in ledger.trace.sites:
            if site.module_class:
                self._class_of.setdefault(site.module, site.module_class)
                roots |= {site.module_class} if not site.module else set()
        self._is_one_model = len(roots) == 1
        self._levels: dict[Path, tuple[Level, ...]] = {}

    def of(self, path: Path) -> tuple[Level, ...]:
        if path not in self._levels:
            self._levels[path] = tuple(self._around(path))
        return self._levels[path]

    def _around(self, path: Path) -> Iterator[Level]:
        if not path.module:
            yield Level(LevelKind.MODULE, path.module_class or "(outside any module)")
            return
        if self._is_one_model:
            yield Level(LevelKind.MODULE, self._class_of[""])
        parts = path.module.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            kind = path.module_class if count == len(parts) else self._class_of.get(name, "")
            yield Level(LevelKind.MODULE, f"{name}: {kind}" if kind else name)


def line_level(line: Line | None) -> Level:
    if line is None:
        return Level(LevelKind.LINE, str(NO_LINE[0]))
    place = f"{posixpath.basename(line.file)}:{line.line}"
    return Level(LevelKind.LINE, f"{place}  {line.text}".rstrip(), line.file, line.line)


def operator_level(entry: Entry) -> Level:
    phase = entry.op.phase
    return Level(LevelKind.OPERATOR, f"{entry.operator} ({phase})", phase=phase)
