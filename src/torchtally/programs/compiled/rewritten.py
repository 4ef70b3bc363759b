"""A trace as it would be if its regions were compiled.

Operators outside of regions, and calls of libraries within them, stay as they were recorded; loops
become the kernels that a compiler would make of them. Storages live from the kernel that writes
them to the last one that reads them, and a kernel takes the memory of what it reads last for what
it writes, where both are as large.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from torchtally.errors import ProgramError
from torchtally.programs.compiled.decomposition import KernelForm
from torchtally.programs.compiled.flow import DataFlow, FlowNode, Value
from torchtally.programs.compiled.kernels import DerivedKernel
from torchtally.programs.compiled.regions import (
    RegionRun,
    Regions,
    Uses,
    compile_pair,
    pairs_of,
    runs_of,
    uses_of,
)
from torchtally.programs.compiled.updates import LONGEST_NAME, update_of, update_ranges
from torchtally.programs.placed import placed
from torchtally.trace import (
    Call,
    FusedKernel,
    Note,
    Op,
    Part,
    Phase,
    Role,
    Storage,
    TensorSpec,
    Trace,
)

PREFIX = "derived"
"""Namespace of kernels that were derived and not written by a compiler."""
DERIVED = "derived from the eager operators, without a compiler: kernels of "


def compiled(trace: Trace, regions: Regions) -> Trace:
    """The run with kernels as a compiler makes them of its regions.

    Raises ProgramError for a run on several streams.
    """
    if trace.stream_waits or any(op.stream for op in trace.ops):
        raise ProgramError(
            f"{trace.script}: runs on several streams, and compiled kernels are derived from those "
            "of one.\nTrace the compiled script itself: tally run."
        )
    uses = uses_of(trace)
    runs = runs_of(trace, regions.of)
    for forward, backward in pairs_of(trace, runs):
        compile_pair(trace, uses, forward, backward)
    updates = update_ranges(trace) if regions.fuses_updates else []
    written = placed(Rewriting(trace, runs, updates, uses).written())
    return replace(written, notes=(*trace.notes, Note(DERIVED + regions.name)))


@dataclass(slots=True)
class Rewriting:
    """A trace as it is written anew."""

    trace: Trace
    runs: Sequence[RegionRun]
    updates: Sequence[range]
    """Positions of optimizers' steps that are one kernel each."""
    uses: Uses
    """Of recorded storages that operators read or write; the others are scratch."""
    ops: list[Op] = field(default_factory=list)
    calls: dict[Call, int] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)
    """Of each new storage, the recorded one whose value it has in the end; -1: none."""
    number_of: dict[int, int] = field(default_factory=dict)
    """By recorded storage, the new one that has its value now."""
    held: dict[Value, int] = field(default_factory=dict)
    """By value of a region, the new storage that it is in."""
    ticks: dict[int, list[int]] = field(default_factory=dict)
    """By recorded tick, those of what the operator has become, in order."""
    last_use: dict[int, int] = field(default_factory=dict)
    births: dict[int, list[Storage]] = field(default_factory=dict)
    """By recorded tick."""

    def written(self) -> Trace:
        for storage in self.trace.storages:
            self.births.setdefault(storage.born, []).append(storage)
        position = 0
        for start, stop, run in self.rewritten_ranges():
            self.copy(position, start)
            if run is None:
                self.update(start, stop)
            else:
                self.write(run)
            position = stop
        self.copy(position, len(self.trace.ops))
        recorded, tick_from = self.trace, self.clock()
        self.die(tick_from)
        return replace(
            recorded,
            calls=tuple(self.calls),
            ops=tuple(self.ops),
            storages=tuple(self.storages),
            step_ends=tuple(map(tick_from, recorded.step_ends)),
            differentiated=tuple(
                sorted(
                    {new for tick in recorded.differentiated for new in self.ticks.get(tick, ())}
                )
            ),
            waits=tuple(sorted(set(map(tick_from, recorded.waits)))),
        )

    def rewritten_ranges(self) -> list[tuple[int, int, RegionRun | None]]:
        """Start, end and run of what is not copied; None: an optimizer's step."""
        ranges: list[tuple[int, int, RegionRun | None]] = [
            *((run.start, run.stop, run) for run in self.runs),
            *((each.start, each.stop, None) for each in self.updates),
        ]
        return sorted(ranges, key=lambda each: each[0])

    def clock(self) -> Callable[[int], int]:
        """A function from recorded ticks: the first new tick of what ran then, or next."""
        old = sorted(self.ticks)

        def tick_from(tick: int) -> int:
            place = bisect_left(old, tick)
            return self.ticks[old[place]][0] if place < len(old) else len(self.ops)

        return tick_from

    # Operators and calls of libraries, which stay.

    def copy(self, start: int, stop: int) -> None:
        for op in self.trace.ops[start:stop]:
            for storage in self.births.get(op.clock, ()):
                self.outer(storage.number)
            self.append(
                op,
                self.trace.calls[op.call],
                [self.outer(number) for number in op.inputs],
                [self.outer(number) for number in op.outputs],
                [op.clock],
            )

    def append(
        self, op: Op, call: Call, inputs: Sequence[int], outputs: Sequence[int],
        members: Iterable[int], parts: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        tick = len(self.ops)
        for member in members:
            self.ticks.setdefault(member, []).append(tick)
        self.last_use |= dict.fromkeys((*inputs, *outputs), tick)
        number = self.calls.setdefault(call, len(self.calls))
        self.ops.append(
            Op(
                tick, number, op.site, op.phase, tuple(inputs), tuple(outputs), op.stream,
                parts or op.parts,
            )
        )  # fmt: skip

    def outer(self, number: int) -> int:
        """The new number of a recorded storage."""
        if number >= 0 and number not in self.number_of:
            self.bear(self.trace.storages[number], number)
        return self.number_of.get(number, number)

    def bear(self, storage: Storage, recorded: int = -1) -> int:
        number = len(self.storages)
        self.storages.append(
            replace(storage, number=number, born=len(self.ops), died=None, spare_bytes=0)
        )
        self.recorded.append(recorded)
        if recorded >= 0:
            self.number_of[recorded] = number
        return number

    def die(self, tick_from: Callable[[int], int]) -> None:
        """Set the ends of all storages."""
        start_of = {stop: start for start, stop, _ in self.rewritten_ranges()}
        ends = sorted(start_of)
        ops = self.trace.ops

        def is_within_run(tick: int) -> bool:
            place = bisect_left(ends, tick)
            return place < len(ends) and start_of[ends[place]] < tick

        assert not ops or ops[-1].clock == len(ops) - 1, "ticks are positions"
        for number, recorded in enumerate(self.recorded):
            storage = self.storages[number]
            end = self.last_use.get(number, storage.born) + 1
            before = self.trace.storages[recorded] if recorded >= 0 else None
            if before is not None and before.died is None:
                continue
            if (
                before is not None
                and before.died is not None
                and not is_within_run(before.died)
                and before.died - before.born > 1
            ):
                end = max(end, tick_from(before.died))
            self.storages[number] = replace(storage, died=end)

    # Runs of regions.

    def write(self, run: RegionRun) -> None:
        last: dict[Value, DerivedKernel] = {}
        wanted = run.wanted
        for kernel in run.kernels:
            last |= dict.fromkeys(kernel.reads, kernel)
        for kernel in run.kernels:
            if kernel.work is KernelForm.LIBRARY:
                self.call(kernel.nodes[-1])
                continue
            written = [v for v in kernel.writes if v in last or v in wanted]
            dying = [
                value
                for value in kernel.reads
                if last[value] is kernel and self.is_own(value, run) and value not in wanted
            ]
            self.launch(kernel, run, written, dying)
        for number, value in run.leaving.items():
            self.number_of[number] = self.held[value]
            self.recorded[self.held[value]] = number

    def is_own(self, value: Value, run: RegionRun) -> bool:
        """A value whose memory the run may take when it has been read."""
        if value in run.donated:
            return True
        return value.maker is not None and value.maker.is_backward == run.is_backward

    def number(self, value: Value) -> int:
        """The storage that a value is in."""
        if value not in self.held:
            self.held[value] = self.outer(value.storage)
        return self.held[value]

    def call(self, node: FlowNode) -> None:
        """A call of a library, as it was recorded."""
        operands = iter(node.reads)
        inputs = [self.number(next(operands).value) if n >= 0 else n for n in node.op.inputs]
        changed = dict(zip(node.op.inputs, inputs, strict=True))
        for storage in self.births.get(node.op.clock, ()):
            if storage.number not in self.uses:
                self.outer(storage.number)
        for value in node.writes:
            if value.storage in changed:
                self.held[value] = changed[value.storage]
            else:
                storage = self.trace.storages[value.storage]
                changed[value.storage] = self.held[value] = self.bear(storage)
        outputs = [changed.get(number, number) for number in node.op.outputs]
        self.append(node.op, node.call, inputs, outputs, [node.op.clock])

    def launch(
        self, kernel: DerivedKernel, run: RegionRun, written: Sequence[Value], dying: list[Value]
    ) -> None:
        """A kernel of loops."""
        assert run.flow is not None
        reads = kernel.reads
        taken: dict[Value, Value] = {}
        for value in written:
            if self.role(value) is None:
                match = next((v for v in dying if v.bytes == value.bytes), None)
                if match is not None:
                    dying.remove(match)
                    taken[match] = value
        inputs = [self.number(value) for value in reads]
        for old, new in taken.items():
            self.held[new] = self.number(old)
        fresh = [value for value in written if value not in self.held]
        for value in fresh:
            self.held[value] = self.bear(self.storage(value))
        outputs = [self.held[value] for value in fresh]
        call, parts = described(kernel, run.flow, written, fresh, taken)
        nodes = {node.order: node for node in kernel.nodes}
        main = max(parts, key=lambda order: moved(parts[order]))
        phase = Phase.BACKWARD if run.is_backward else nodes[main].op.phase
        if all(node.op.phase is Phase.RECOMPUTE for node in kernel.nodes):
            phase = Phase.RECOMPUTE
        op = replace(nodes[main].op, phase=phase)
        members = [order for order, node in nodes.items() if node.is_backward == run.is_backward]
        sites = tuple(nodes[order].op.site for order in parts)
        self.append(op, call, inputs, outputs, members, sites)

    def update(self, start: int, stop: int) -> None:
        """A step of an optimizer, in one kernel."""
        ops = self.trace.ops[start:stop]
        update = update_of(self.trace, ops, {n: each[-1] for n, each in self.uses.items()})
        inputs = [self.outer(number) for number in update.inputs]
        outputs = [self.outer(number) for number in update.outputs]
        sites = tuple(op.site for op in ops if not self.trace.calls[op.call].is_view)
        members = [op.clock for op in ops]
        self.append(ops[0], update.call, inputs, outputs, members, sites)

    def role(self, value: Value) -> Role | None:
        return None if value.storage < 0 else self.trace.storages[value.storage].role

    def storage(self, value: Value) -> Storage:
        """What is allocated for a value."""
        if self.role(value) is not None:
            return self.trace.storages[value.storage]
        return Storage(0, value.spec.device, value.bytes, 0, None)


def moved(part: Part) -> int:
    return int(part.bytes_read) + int(part.bytes_written)


def described(
    kernel: DerivedKernel,
    flow: DataFlow,
    written: Sequence[Value],
    fresh: Sequence[Value],
    taken: dict[Value, Value],
) -> tuple[Call, dict[int, Part]]:
    """A kernel as a call, and its parts by the ticks of the operators that they are of."""
    numbers: dict[Value, int] = {}
    inputs: list[TensorSpec] = []
    read_by: dict[int, int] = {}
    for value, accesses in kernel.reads.items():
        n = numbers[value] = len(numbers)
        argument = f"in_out_ptr{n}" if value in taken else f"in_ptr{n}"
        largest = max(accesses, key=lambda access: access.spec.bytes).spec
        inputs.append(replace(largest, argument=argument, storage=n, is_written=value in taken))
        place = accesses[0].place
        reader = next(n for n in kernel.nodes if any(a.place == place for a in n.reads))
        count = flow.bytes_read(value, accesses)
        read_by[reader.order] = read_by.get(reader.order, 0) + count
    outputs = [
        replace(value.spec, argument="", storage=len(numbers) + n, is_written=False)
        for n, value in enumerate(fresh)
    ]
    parts: dict[int, Part] = {}
    for node in kernel.nodes:
        part = parts.get(node.order, Part(node.call.name, (), 0, 0))
        size = sum(node.bytes_written(value) for value in written if value.maker is node)
        parts[node.order] = Part(
            part.operator,
            (*part.calls, node.call) if node.is_main else part.calls,
            read_by.get(node.order, 0),
            part.bytes_written + size,
        )
    kind = "reduction" if kernel.work is KernelForm.REDUCTION else "pointwise"
    names = sorted({part.operator.partition(".")[2] for part in parts.values()})
    call = Call(
        f"{PREFIX}.{kind}_{'_'.join(names)}"[:LONGEST_NAME],
        "",
        tuple(inputs),
        tuple(outputs),
        is_mutating=bool(taken),
        fused=FusedKernel(kind, tuple(parts.values()), tuple(sorted(kernel.operations.items()))),
    )
    return call, parts
