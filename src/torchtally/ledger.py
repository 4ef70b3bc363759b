"""The account of a trace: what each operator costs, and the totals of one training step.

Costs are those of the *steady-state step*: the last training step that the run completed (the
first one also allocates optimizer state), or the whole run when it completed none. Memory is that
of the whole run, since a peak may come before or after that step. Time is predicted, by a roofline
of the chip that the run was traced for or of any other; without one there is none.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import fsum, isclose
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

from torchtally.convention import Attention, conventional
from torchtally.cost import Cost, Kind, cost_of
from torchtally.errors import UsageError
from torchtally.memory import Category, Memory, replay
from torchtally.record import Call, Frame, Op, Phase, Trace
from torchtally.record.columns import collection_paused, records
from torchtally.record.storage import allocated_bytes
from torchtally.roofline import Bound, Kernel, Roofline
from torchtally.schedule import Clock, Price, Slot, priced

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator and what it costs."""

    op: Op
    kind: Kind
    cost: Cost
    bytes_allocated: int
    """Bytes of the storages born at this op, as the allocator rounds them."""
    bytes_saved: int
    """Those of them that a forward op made and a backward op reads.

    What a checkpointed region makes again in the backward pass is allocated, not saved: it does
    not have to be held from the forward pass on.
    """
    slot: Slot
    """Its part of the step's time. All zero in a ledger without a roofline."""


@dataclass(frozen=True, slots=True)
class Total:
    """What a group of operators costs together: a quantity that adds."""

    count: int = 0
    """Operators."""
    flops_forward: int = 0
    flops_backward: int = 0
    """Without recomputation, which stands beside it."""
    flops_recompute: int = 0
    flops_optimizer: int = 0
    flops_matmul: int = 0
    """The part of all four that products, attention and convolutions make up."""
    bytes_read: int = 0
    bytes_written: int = 0
    network_bytes: int = 0
    bytes_allocated: int = 0
    bytes_saved: int = 0
    views: int = 0
    """Operators of the forward pass that made a view: same storage, nothing moved."""
    copies: int = 0
    """Operators of the forward pass that made a copy of a tensor: a cast, a contiguous one."""
    seconds: float = 0.0
    """Of the step's time: kernels, and the device idle for want of them."""
    kernel_s: float = 0.0
    """Of these the device was at work."""

    @property
    def flops(self) -> int:
        return (
            self.flops_forward + self.flops_backward + self.flops_recompute + self.flops_optimizer
        )

    @property
    def bytes(self) -> int:
        """Bytes moved to and from the device's memory."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Self) -> "Total":
        return Total(
            *(getattr(self, it.name) + getattr(other, it.name) for it in fields(Total)),
        )


class Line(NamedTuple):
    """A line of source code, by which operators are grouped."""

    file: str
    line: int
    text: str
    is_own: bool


class Path(NamedTuple):
    """A module: its path in the model and its class. Both empty: outside any module."""

    module: str
    module_class: str


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An operator that no rule counts: its FLOPs and bytes are in no total."""

    op: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many operators of the step are counted, free (views, metadata) and neither."""

    counted: int
    free: int
    uncounted: tuple[Uncounted, ...]
    """Most frequent first."""

    @property
    def uncounted_ops(self) -> int:
        return sum(it.count for it in self.uncounted)


@dataclass(frozen=True, slots=True)
class Untimed:
    """An operator whose time the chip's numbers cannot tell: its time is in no total."""

    op: str
    count: int
    reason: str


class ConservationError(AssertionError):
    """A ledger whose parts do not sum to its total. The message lists every law that is broken."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of one run. Immutable; every view of it sums to `total`."""

    trace: Trace
    attention: Attention
    entries: tuple[Entry, ...]
    """Every operator of the run, in order."""
    steady: tuple[Entry, ...]
    """Those of the steady-state step."""
    total: Total
    """Of the steady-state step."""
    coverage: Coverage
    """Of the steady-state step."""
    memory: Memory
    """Of the whole run."""
    roofline: Roofline | None = None
    """What the times are predicted by; None: there are none."""
    untimed: tuple[Untimed, ...] = ()
    """Of the steady-state step, most frequent first."""
    begun_s: float = 0.0
    """When the steady-state step began and ended, from the beginning of the trace."""
    ended_s: float = 0.0
    prices: "Mapping[int, Priced]" = field(default_factory=dict, repr=False, compare=False)
    """What each distinct call costs, by its identity."""

    @property
    def step_s(self) -> float | None:
        """Predicted seconds of the steady-state step; None without a roofline."""
        return None if self.roofline is None else self.total.seconds

    @property
    def period(self) -> str:
        """What the totals are totals of, in words."""
        steps = len(self.trace.step_ends)
        if not steps:
            return "the whole run (no training step was completed)"
        return f"steady-state step {steps}" if steps > 1 else "step 1 (with all before it)"

    def sums(self, key: Callable[[Entry], Key]) -> dict[Key, Total]:
        """The steady-state step's totals, grouped, first seen first. They sum to `total`."""
        return sums(self.steady, key)

    def by_line(self) -> dict[Line | None, Total]:
        """By the innermost line of the user's own code."""
        return self.sums(once_per_site(line_of))

    def by_library_line(self) -> dict[Line | None, Total]:
        """By the innermost line, whoever wrote it."""
        return self.sums(once_per_site(library_line_of))

    def by_module(self) -> dict[Path, Total]:
        """By module, each one's own operators alone."""
        return self.sums(once_per_site(module_of))

    def by_op(self) -> dict[str, Total]:
        return self.sums(op_of)

    def by_kind(self) -> dict[Kind, Total]:
        return self.sums(kind_of)

    def by_phase(self) -> dict[Phase, Total]:
        return self.sums(phase_of)

    def by_bound(self) -> dict[Bound, Total]:
        """By what limits an operator: compute, memory, network, overhead."""
        return self.sums(bound_of)

    def check(self) -> None:
        """Raise ConservationError unless every grouping sums to the total and memory adds up."""
        broken = [
            *_sums_broken(self),
            *_coverage_broken(self),
            *_time_broken(self),
            *self.memory.laws_broken(),
        ]
        if broken:
            raise ConservationError("\n".join(broken))


def account(
    trace: Trace, *, convention: Attention = Attention.FULL, roofline: Roofline | None = None
) -> Ledger:
    """The ledger of a trace: exact FLOPs and bytes by the rules in `cost/`, time by a roofline.

    `convention` says whether causal attention counts in full. An operator without a rule, or whose
    rule cannot make sense of the call, is uncounted and listed in `coverage`; one whose time the
    roofline cannot tell is listed in `untimed`.
    """
    with collection_paused():
        memory = replay(trace)
        prices = _price(trace.ops, convention, roofline)
        found = [prices[id(op.call)] for op in trace.ops]
        allocated, saved = _allocations(trace, memory)
        slots = _slots(trace, found, roofline)
        entries = tuple(
            records(
                Entry,
                trace.ops,
                [it.kind for it in found],
                [it.cost for it in found],
                [allocated.get(op.clock, 0) for op in trace.ops],
                [saved.get(op.clock, 0) for op in trace.ops],
                slots,
            )
        )
        first, end = _steady_places(trace)
        steady = entries[first:end]
        begun_s = fsum(it.seconds for it in slots[:first])
        ended_s = fsum(it.seconds for it in slots[:end])
        return Ledger(
            trace=trace,
            attention=convention,
            entries=entries,
            steady=steady,
            total=_total(steady, ended_s - begun_s),
            coverage=_coverage(steady, prices),
            memory=memory,
            roofline=roofline,
            untimed=_untimed(steady, prices),
            begun_s=begun_s,
            ended_s=ended_s,
            prices=prices,
        )


class Priced(NamedTuple):
    """What one call costs, and the reasons for what is not known of it."""

    kind: Kind
    cost: Cost
    """Under the ledger's convention."""
    failure: str
    time: Price
    time_failure: str
    exact: Cost
    """Under none: what a causal mask leaves out of a kernel does not depend on how we count."""


def _price(ops: Iterable[Op], attention: Attention, roofline: Roofline | None) -> dict[int, Priced]:
    """Kind, cost and time of each distinct call, by its identity: ops share calls."""
    calls = {id(op.call): op.call for op in ops}
    return {key: _price_of(call, attention, roofline) for key, call in calls.items()}


def _price_of(call: Call, attention: Attention, roofline: Roofline | None) -> Priced:
    try:
        kind, cost = cost_of(call)
    except Exception as error:  # one unforeseen call must not cost the user the whole report
        failure = f"its rule failed: {type(error).__name__}: {error}"
        return Priced(Kind.UNCOUNTED, Cost(), failure, _free(Kind.UNCOUNTED), failure, Cost())
    time, failure = _time_of(call, kind, cost, roofline)
    return Priced(kind, conventional(cost, call, kind, attention), "", time, failure, cost)


def _time_of(call: Call, kind: Kind, cost: Cost, roofline: Roofline | None) -> tuple[Price, str]:
    """(its time, why that is not known)."""
    if roofline is None or kind.is_free:
        return _free(kind), ""
    try:
        return priced(call, kind, cost, roofline), ""
    except UsageError as error:
        return _free(kind), str(error)
    except Exception as error:  # a call whose shapes no model foresaw
        return _free(kind), f"its time: {type(error).__name__}: {error}"


def retimed(ledger: Ledger, roofline: Roofline) -> Ledger:
    """The same ledger with the times of another chip: nothing else depends on it."""
    calls = {id(it.op.call): it.op.call for it in ledger.entries}
    prices = {}
    for key, it in ledger.prices.items():
        time, failure = _time_of(calls[key], it.kind, it.exact, roofline)
        prices[key] = it._replace(time=time, time_failure=it.failure or failure)
    with collection_paused():
        slots = _slots(ledger.trace, [prices[id(op.call)] for op in ledger.trace.ops], roofline)
        entries = tuple(
            records(
                Entry,
                *([getattr(it, f.name) for it in ledger.entries] for f in fields(Entry)[:-1]),
                slots,
            )
        )
    first, end = _steady_places(ledger.trace)
    steady = entries[first:end]
    begun_s = fsum(it.seconds for it in slots[:first])
    ended_s = fsum(it.seconds for it in slots[:end])
    return replace(
        ledger,
        entries=entries,
        steady=steady,
        total=replace(
            ledger.total,
            seconds=ended_s - begun_s,
            kernel_s=fsum(it.slot.kernel_s for it in steady),
        ),
        roofline=roofline,
        untimed=_untimed(steady, prices),
        begun_s=begun_s,
        ended_s=ended_s,
        prices=prices,
    )


def _free(kind: Kind) -> Price:
    return Price(Kernel(0.0, Bound.OVERHEAD), kind, 0)


NO_SLOT = Slot(0.0, 0.0, Bound.OVERHEAD, False)


def _slots(trace: Trace, prices: Sequence[Priced], roofline: Roofline | None) -> list[Slot]:
    """When each operator runs."""
    if roofline is None:
        return [NO_SLOT] * len(prices)
    times = [it.time for it in prices]
    return Clock(roofline).run(trace.ops, times, trace.waits, trace.step_ends)


def _untimed(entries: Sequence[Entry], prices: Mapping[int, Priced]) -> tuple[Untimed, ...]:
    """Those without a rule have no time either, and are listed as uncounted already."""
    missing = Counter(
        (it.op.call.name, reason)
        for it in entries
        if (reason := prices[id(it.op.call)].time_failure) and it.kind is not Kind.UNCOUNTED
    )
    return tuple(Untimed(op, count, reason) for (op, reason), count in missing.most_common())


def _allocations(trace: Trace, memory: Memory) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes born at each tick; and those of them saved from forward to backward."""
    phase, activation = Phase.FORWARD, Category.ACTIVATIONS
    forward = {op.clock for op in trace.ops if op.phase is phase}
    allocated: dict[int, int] = {}
    saved: dict[int, int] = {}
    for storage, category in zip(memory.storages, memory.categories, strict=True):
        born = storage.born
        held = allocated_bytes(storage.requested_bytes) + storage.spare_bytes
        allocated[born] = allocated.get(born, 0) + held
        if category is activation and born in forward:
            saved[born] = saved.get(born, 0) + held
    return allocated, saved


def _steady_places(trace: Trace) -> tuple[int, int]:
    """Places [first, end) of the steady-state step's operators."""
    clock = attrgetter("clock")
    first, end = trace.steady_step
    return bisect_left(trace.ops, first, key=clock), bisect_left(trace.ops, end, key=clock)


def _total(entries: Sequence[Entry], seconds: float) -> Total:
    """The total by another road than `sums`: cost times count for each distinct call and phase.

    Its time is what has passed between the step's beginning and its end.
    """
    times = Counter((id(it.op.call), it.op.phase) for it in entries)
    prices = {id(it.op.call): (it.kind, it.cost) for it in entries}
    total = Total(
        count=len(entries),
        bytes_allocated=sum(it.bytes_allocated for it in entries),
        bytes_saved=sum(it.bytes_saved for it in entries),
    )
    for (key, phase), count in times.items():
        kind, cost = prices[key]
        total += _of(cost * count, kind, phase)
    return replace(
        total,
        views=sum(1 for it in entries if is_view(it)),
        copies=sum(1 for it in entries if is_copy(it)),
        seconds=seconds,
        kernel_s=fsum(it.slot.kernel_s for it in entries),
    )


def is_view(entry: Entry) -> bool:
    """A view made in the forward pass."""
    return entry.kind is _VIEW and entry.op.phase is _FORWARD


def is_copy(entry: Entry) -> bool:
    """A copy made in the forward pass, of something: zeros made from nothing are not."""
    return entry.kind is _COPY and entry.op.phase is _FORWARD and bool(entry.op.call.inputs)


def _of(cost: Cost, kind: Kind, phase: Phase) -> Total:
    """A cost alone as a total: no operator, nothing allocated."""
    return Total(
        flops_forward=cost.flops if phase is Phase.FORWARD else 0,
        flops_backward=cost.flops if phase is Phase.BACKWARD else 0,
        flops_recompute=cost.flops if phase is Phase.RECOMPUTE else 0,
        flops_optimizer=cost.flops if phase is Phase.OPTIMIZER else 0,
        flops_matmul=cost.flops if kind.is_matmul else 0,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        network_bytes=cost.network_bytes,
    )


def _coverage(entries: Iterable[Entry], prices: dict[int, Priced]) -> Coverage:
    kinds = Counter(it.kind for it in entries)
    missing: Counter[tuple[str, str]] = Counter(
        (it.op.call.name, prices[id(it.op.call)].failure or "no rule")
        for it in entries
        if it.kind is Kind.UNCOUNTED
    )
    free = sum(count for kind, count in kinds.items() if kind.is_free)
    return Coverage(
        counted=kinds.total() - free - missing.total(),
        free=free,
        uncounted=tuple(
            Uncounted(op, count, reason) for (op, reason), count in missing.most_common()
        ),
    )


# Groups ----------------------------------------------------------------------------------------


def line_of(entry: Entry) -> Line | None:
    """The innermost line of the user's own code, else the innermost known."""
    return _line(entry.op.site.line)


def library_line_of(entry: Entry) -> Line | None:
    """The innermost line known, whoever wrote it."""
    frames = entry.op.site.frames
    return _line(frames[0] if frames else None)


def _line(frame: Frame | None) -> Line | None:
    return None if frame is None else Line(frame.file, frame.line, frame.text, frame.is_own)


def module_of(entry: Entry) -> Path:
    return Path(entry.op.site.module, entry.op.site.module_class)


def once_per_site(key: Callable[[Entry], Key]) -> Callable[[Entry], Key]:
    """The same key, computed once for all entries that share a site: for keys of the site alone."""
    known: dict[int, Key] = {}

    def of(entry: Entry) -> Key:
        site = id(entry.op.site)
        if site not in known:
            known[site] = key(entry)
        return known[site]

    return of


def op_of(entry: Entry) -> str:
    return entry.op.call.name


def phase_of(entry: Entry) -> Phase:
    return entry.op.phase


def kind_of(entry: Entry) -> Kind:
    return entry.kind


def bound_of(entry: Entry) -> Bound:
    return entry.slot.bound


def sums(entries: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, Total]:
    """Totals of the groups that `key` makes, in order of first appearance."""
    groups: dict[Key, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return {group: _sum(members) for group, members in groups.items()}


def _sum(entries: Iterable[Entry]) -> Total:
    """One pass over the entries: a view of a large trace takes hundreds of thousands."""
    forward = backward = recompute = optimizer = matmul = count = views = copies = 0
    read = written = network = allocated = saved = 0
    seconds = kernel_s = 0.0
    for entry in entries:
        cost, phase = entry.cost, entry.op.phase
        count += 1
        if phase is _FORWARD:
            forward += cost.flops
            if entry.kind is _VIEW:
                views += 1
            elif entry.kind is _COPY and entry.op.call.inputs:
                copies += 1
        elif phase is _BACKWARD:
            backward += cost.flops
        elif phase is _RECOMPUTE:
            recompute += cost.flops
        else:
            optimizer += cost.flops
        if id(entry.kind) in _MATMUL_IDS:
            matmul += cost.flops
        read += cost.bytes_read
        written += cost.bytes_written
        network += cost.network_bytes
        allocated += entry.bytes_allocated
        saved += entry.bytes_saved
        seconds += entry.slot.seconds
        kernel_s += entry.slot.kernel_s
    return Total(
        count=count,
        flops_forward=forward,
        flops_backward=backward,
        flops_recompute=recompute,
        flops_optimizer=optimizer,
        flops_matmul=matmul,
        bytes_read=read,
        bytes_written=written,
        network_bytes=network,
        bytes_allocated=allocated,
        bytes_saved=saved,
        views=views,
        copies=copies,
        seconds=seconds,
        kernel_s=kernel_s,
    )


# Enum members are looked up and hashed by slow roads; these are not.
_FORWARD, _BACKWARD, _RECOMPUTE = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE
_VIEW, _COPY = Kind.VIEW, Kind.COPY
_MATMUL_IDS = frozenset(id(kind) for kind in Kind if kind.is_matmul)


# Laws ------------------------------------------------------------------------------------------

GROUPINGS: dict[str, Callable[[Ledger], Mapping[Any, Total]]] = {
    "line": Ledger.by_line,
    "library-line": Ledger.by_library_line,
    "module": Ledger.by_module,
    "op": Ledger.by_op,
    "kind": Ledger.by_kind,
    "phase": Ledger.by_phase,
    "bound": Ledger.by_bound,
}
"""Every way a view groups the entries of a step."""


def _sums_broken(ledger: Ledger) -> Iterator[str]:
    for name, grouped in GROUPINGS.items():
        total = sum(grouped(ledger).values(), start=Total())
        for quantity in fields(Total):
            parts, whole = getattr(total, quantity.name), getattr(ledger.total, quantity.name)
            is_time = isinstance(whole, float)
            if not (isclose(parts, whole, rel_tol=1e-9, abs_tol=1e-12) if is_time
                    else parts == whole):  # fmt: skip
                yield f"{quantity.name} by {name} sum to {parts}, not to the total {whole}"


def _time_broken(ledger: Ledger) -> Iterator[str]:
    """No operator takes less than its kernel, and none less than nothing."""
    for it in ledger.entries:
        slot = it.slot
        if not 0 <= slot.kernel_s <= slot.seconds * (1 + 1e-9):
            name = it.op.call.name
            yield f"{name} at {it.op.clock} takes {slot.seconds} s, its kernel {slot.kernel_s} s"


def _coverage_broken(ledger: Ledger) -> Iterator[str]:
    coverage = ledger.coverage
    known = coverage.counted + coverage.free + coverage.uncounted_ops
    if known != ledger.total.count:
        yield f"{known} operators are counted, free or uncounted, not all {ledger.total.count}"
    if ledger.total.bytes_saved > ledger.total.bytes_allocated:
        yield "more bytes are saved than were allocated"
