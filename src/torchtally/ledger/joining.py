"""A measured step beside a predicted one: which operator of one is which of the other.

Both ran the same program, perhaps under other releases of its libraries, so most operators agree in
order. They are joined as two texts are compared (difflib): phase by phase, first by operator and
shapes, then what is left between by operator alone.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby

import msgspec

from torchtally.ledger.accounting import since
from torchtally.ledger.ledger import Ledger
from torchtally.ledger.total import Entry
from torchtally.trace import Phase, Site, Trace

Key = Callable[[Entry], Hashable]
Pair = tuple[Entry, Entry]
"""(measured, predicted)"""


@dataclass(frozen=True, slots=True)
class Joined:
    """Operators of a measured and of a predicted period."""

    pairs: tuple[Pair, ...]
    only_real: tuple[Entry, ...]
    only_predicted: tuple[Entry, ...]

    @property
    def share(self) -> float:
        """Share of the measured operators that were found in the prediction."""
        whole = len(self.pairs) + len(self.only_real)
        return len(self.pairs) / whole if whole else 0.0


def join_ledgers(real: Ledger, predicted: Ledger) -> Joined:
    """Operators of the reported periods that compute something; views are left out."""
    pairs: list[Pair] = []
    by_phase = [
        {phase: list(parts) for phase, parts in computing(each)} for each in (real, predicted)
    ]
    ours, theirs = by_phase
    for phase in Phase:
        pairs += match_operators(ours.get(phase, []), theirs.get(phase, []))
    # A phase that only one of both tells (an update without an optimizer of torch's) is none.
    pairs += match_operators(
        *(left_over(phases, pairs, side) for side, phases in enumerate(by_phase))
    )
    joined_numbers = [{pair[side].number for pair in pairs} for side in (0, 1)]
    rest = [
        tuple(entry for parts in phases.values() for entry in parts if entry.number not in numbers)
        for phases, numbers in zip(by_phase, joined_numbers, strict=True)
    ]
    return Joined(tuple(pairs), *rest)


def beside(real: Ledger, predicted: Ledger) -> tuple[Ledger, Joined]:
    """The prediction of what was measured, and how both are joined. Of a simulated run without
    training steps that is what follows its first operator that both ran: before it are the model's
    construction and its way to the device.
    """
    join = join_ledgers(real, predicted)
    if predicted.reported_period.steps or not join.pairs:
        return predicted, join
    first = min(theirs.op.clock for _, theirs in join.pairs)
    kept = tuple(entry for entry in join.only_predicted if entry.op.clock >= first)
    return since(predicted, first), replace(join, only_predicted=kept)


def computing(ledger: Ledger) -> Iterator[tuple[Phase, Iterator[Entry]]]:
    entries = [
        entry
        for entry in ledger.kernels(ledger.reported)
        if not entry.kind.is_free and (not ledger.is_measured or ledger.slot(entry).kernel_s > 0)
    ]
    order = list(Phase)
    entries.sort(key=lambda entry: order.index(entry.op.phase))
    return groupby(entries, key=lambda entry: entry.op.phase)


def left_over(
    phases: Mapping[Phase, Sequence[Entry]], pairs: Sequence[Pair], side: int
) -> list[Entry]:
    """Entries left over, in the order in which they ran."""
    known = {pair[side].number for pair in pairs}
    rest = [entry for parts in phases.values() for entry in parts if entry.number not in known]
    return sorted(rest, key=lambda entry: entry.number)


def match_operators(real: Sequence[Entry], predicted: Sequence[Entry]) -> Iterator[Pair]:
    """Pairs of two sequences, both in order."""
    for ours, theirs, is_equal in align(real, predicted, with_shapes):
        if is_equal:
            yield from zip(ours, theirs, strict=True)
            continue
        for left, right, is_same in align(ours, theirs, name_alone):
            if is_same:
                yield from zip(left, right, strict=True)


def with_shapes(entry: Entry) -> Hashable:
    return name_alone(entry), tuple(spec.shape for spec in entry.call.inputs if spec.shape)


def name_alone(entry: Entry) -> Hashable:
    """Name, in place or not: that differs between releases, and costs the same."""
    return entry.call.name.removesuffix("_")


def align(
    real: Sequence[Entry], predicted: Sequence[Entry], key: Key
) -> Iterator[tuple[Sequence[Entry], Sequence[Entry], bool]]:
    """Stretches of both, and whether they are equal."""
    matcher = SequenceMatcher(None, [*map(key, real)], [*map(key, predicted)], autojunk=False)
    for tag, first, end, other_first, other_end in matcher.get_opcodes():
        yield real[first:end], predicted[other_first:other_end], tag == "equal"


def with_lines_of(trace: Trace, pairs: Sequence[Pair]) -> Trace:
    """The measured trace with the places of the operators that it was joined with: their exact
    lines and modules, which a profiler does not record. The others keep their own.
    """
    sites: dict[Site, int] = {}
    numbers = [sites.setdefault(site, len(sites)) for site in trace.sites]
    places = [numbers[op.site] for op in trace.ops]
    for measured, predicted in pairs:
        places[measured.number] = sites.setdefault(predicted.site, len(sites))
    ops = tuple(
        msgspec.structs.replace(op, site=place) for op, place in zip(trace.ops, places, strict=True)
    )
    facts = (
        None if trace.measured is None else msgspec.structs.replace(trace.measured, has_lines=True)
    )
    return msgspec.structs.replace(trace, sites=tuple(sites), ops=ops, measured=facts)
