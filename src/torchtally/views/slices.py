"""What one operator does on its stream, as slices of a track."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torchtally.ledger import Entry, Ledger
from torchtally.table import Cell
from torchtally.timing.moments import Occupation
from torchtally.timing.ranks import Span
from torchtally.trace import Trace
from torchtally.views.collectives import transfer_of
from torchtally.views.lines import root_of, short_path
from torchtally.work import Kind

Details = Callable[[Sequence[Entry]], Mapping[str, Cell]]


class Slice(NamedTuple):
    """Something that takes time, between two nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    details: Mapping[str, Cell] = {}


class Stretch(NamedTuple):
    """One operator on its stream, or those of one name that are launched together."""

    entries: list[Entry]
    start_ns: int
    met_ns: int
    """When all ranks have come."""
    end_ns: int

    @property
    def name(self) -> str:
        """The operator's; of several, how many."""
        names = {entry.call.name for entry in self.entries}
        return names.pop() if len(names) == 1 else f"{len(self.entries)} operators"

    def slices(self, details: Details) -> Iterator[Slice]:
        """The operator last; what it waits for other ranks before it."""
        if self.met_ns > self.start_ns:
            yield Slice(str(Occupation.WAITING), self.start_ns, self.met_ns)
        yield Slice(self.name, self.met_ns, self.end_ns, details(self.entries))

    def and_also(self, other: "Stretch") -> "Stretch":
        return Stretch(
            [*self.entries, *other.entries],
            min(self.start_ns, other.start_ns),
            min(self.met_ns, other.met_ns),
            max(self.end_ns, other.end_ns),
        )


def stretches(
    trace: Trace, reported: Iterable[Entry], spans: Sequence[Span], begins_s: float
) -> list[Stretch]:
    """Stretches of all that take time, by their beginning, in nanoseconds since `begins_s`."""
    firsts = [batch.first for batch in trace.coalesced]
    by_key: dict[object, Stretch] = {}
    for entry in reported:
        span = spans[entry.number]
        if span.end_s <= span.start_s:
            continue
        start_s, end_s = span.start_s - begins_s, span.end_s - begins_s
        stretch = Stretch(
            [entry], *(round(at * 1e9) for at in (start_s, start_s + span.waiting_s, end_s))
        )
        place = bisect_right(firsts, entry.op.clock) - 1
        key: object = entry.number
        if place >= 0 and entry.op.clock < trace.coalesced[place].end:
            key = place, entry.op.stream, entry.call.name
        by_key[key] = by_key[key].and_also(stretch) if key in by_key else stretch
    return sorted(by_key.values(), key=lambda stretch: (stretch.start_ns, stretch.end_ns))


def fold(ordered: Iterable[Stretch]) -> Iterator[Stretch]:
    """Those that follow one another and are of one line and phase, together; collectives stay."""
    last: Stretch | None = None
    for stretch in ordered:
        if last is not None and place_of(last) == place_of(stretch) is not None:
            last = last.and_also(stretch)
            continue
        if last is not None:
            yield last
        last = stretch
    if last is not None:
        yield last


def place_of(stretch: Stretch) -> tuple[object, ...] | None:
    """What it shares with those that it is folded with; None where it stays by itself."""
    entry = stretch.entries[0]
    if entry.kind is Kind.COMMUNICATION:
        return None
    return entry.line, entry.site.module, str(entry.op.phase)


def in_lanes(ordered: Iterable[Stretch]) -> list[list[Stretch]]:
    """Each after the one before it in its lane. A stream has one lane, unless it sends and
    receives at once.
    """
    lanes: list[list[Stretch]] = []
    for stretch in ordered:
        for lane in lanes:
            if lane[-1].end_ns <= stretch.start_ns:
                lane.append(stretch)
                break
        else:
            lanes.append([stretch])
    return lanes


def details_of(ledger: Ledger, reported: Iterable[Entry]) -> Details:
    """Details of operators: where they belong and what they cost; of a collective, its group and
    its speed.
    """
    root = root_of(entry.line for entry in reported)
    groups = ledger.trace.groups

    def details(entries: Sequence[Entry]) -> dict[str, Cell]:
        first = entries[0]
        line, site = first.line, first.site
        cells: dict[str, Cell] = {
            "line": "" if line is None else f"{short_path(line.file, root)}:{line.line}",
            "source": "" if line is None else line.text,
            "module": site.module,
            "module_class": site.module_class,
            "phase": str(first.op.phase),
            "bound": str(ledger.slot(first).bound),
            "flops": sum(entry.cost.flops for entry in entries),
            "bytes_moved": sum(entry.cost.bytes for entry in entries),
        }
        if len(entries) > 1 and first.kind is not Kind.COMMUNICATION:
            cells["operators"] = len(entries)
        if first.kind is Kind.COMMUNICATION:
            number, transfer = first.call.literal("group"), transfer_of(ledger, first)
            group = groups[number] if isinstance(number, int) and number < len(groups) else None
            cells |= {
                "calls": len(entries),
                "group": "" if group is None else group.description,
                "ranks": None if group is None else len(group.ranks),
                "payload_bytes": sum(entry.cost.network_bytes for entry in entries),
                "exposed_s": sum(ledger.slot(entry).exposed_s for entry in entries),
                "bus_bytes_per_s": None if transfer is None else transfer.bus_bytes_per_s,
                "algorithm": "" if transfer is None else transfer.way,
            }
        return {name: cell for name, cell in cells.items() if cell not in ("", None)}

    return details
