"""The data flow of a region: which operator makes each value, and which ones read it.

A value is what a storage holds between two operators that write to it. Views make none: who reads a
view reads its storage. An operator that a compiler decomposes is several nodes
(`decomposition.py`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil, isqrt, prod
from typing import NamedTuple

from msgspec.structs import replace

from torchtally.chips import chip
from torchtally.programs.compiled.decomposition import (
    GATHERS,
    KernelForm,
    LoweringStep,
    steps_of,
    work_of,
)
from torchtally.trace import Call, Op, TensorSpec, Trace
from torchtally.work import Kind, cost_of


@dataclass(eq=False, slots=True)
class Value:
    """A value of a region."""

    spec: TensorSpec
    """As it is written; of an input, as it is read first."""
    bytes: int
    storage: int = -1
    """The recorded storage that holds it; -1: of a decomposition, which records none."""
    maker: "FlowNode | None" = None
    """None: it comes from outside."""
    users: "list[FlowNode]" = field(default_factory=list)


class Access(NamedTuple):
    """One operand of a node."""

    value: Value
    spec: TensorSpec
    place: int
    """Of the operand, among all of the region."""


@dataclass(eq=False, slots=True)
class FlowNode:
    """One operator, or a step of its decomposition."""

    order: int
    op: Op
    call: Call
    """As recorded."""
    work: KernelForm
    points: int
    """Elements that it is computed for: of a reduction, those that it reads."""
    results: int
    """Elements of what it writes."""
    is_columns: bool = False
    """A reduction over what does not lie side by side."""
    is_main: bool = True
    """The step that the operator's arithmetic is counted with."""
    reads: list[Access] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)
    operations: tuple[tuple[str, int], ...] = ()
    """Of each element, those that take long (`Operations`)."""
    is_kept: bool = False
    """It writes to what comes from outside."""

    @property
    def is_fusible(self) -> bool:
        return self.work is not KernelForm.LIBRARY

    def bytes_written(self, value: Value) -> int:
        """Bytes to memory: of a table, as many elements as are put into it."""
        if self.work is KernelForm.SCATTER:
            return min(value.bytes, self.points * value.spec.itemsize_bytes)
        return value.bytes

    @property
    def is_random(self) -> bool:
        return any(name == "rand" for name, _ in self.operations)

    @property
    def is_backward(self) -> bool:
        return self.op.phase in BACKWARD_PHASES


THREAD_VALUES, BLOCK_COLUMNS, BLOCK_THREADS = 4, 128, 256
THREAD_LEAST, THREAD_MOST, CLOSE = 32, 512, 20
"""`reduction_split_factor` of torch/_inductor/choices.py."""


def column_splits(rows: int, columns: int, multiprocessors: int, threads: int) -> int:
    """Parts that inductor sums so many rows in, where columns alone do not fill the chip."""
    lanes, least = multiprocessors * threads, THREAD_LEAST
    if rows * columns < THREAD_LEAST * lanes:
        size = least
    elif rows * columns < THREAD_MOST * lanes:
        blocks = ceil(lanes / BLOCK_THREADS / ceil(columns / BLOCK_COLUMNS))
        size = ceil(rows / (THREAD_VALUES * blocks))
        closest = min(divisors(rows), key=lambda divisor: abs(divisor - size))
        if abs(closest - size) < CLOSE:
            size = max(closest, least)
    else:
        size = THREAD_MOST
    return ceil(rows / (THREAD_VALUES * size))


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return [*small, *(number // n for n in small)]


def partial_sums(result: TensorSpec, splits: int) -> Value:
    spec = TensorSpec(
        "", (result.elements, splits), (1, result.elements), "float32", result.device, -1
    )
    return Value(spec, spec.bytes)


CAST = "aten._to_copy"
TABLES = frozenset({"weight", "self"})
"""Arguments of operators that look up what others point to."""
UNROLLED = 8
"""Fewer elements than these are summed without a loop (`unroll_reductions_threshold`)."""
TABLE = "self"
"""Argument of operators that write to what others point to."""


def limited_to(access: Access, elements: int) -> Access:
    """An operand of which at most so many elements are read."""
    if access.spec.elements <= elements:
        return access
    return access._replace(spec=replace(access.spec, shape=(elements,), stride=(1,)))


BACKWARD_PHASES = frozenset({"backward", "recompute"})


@dataclass(slots=True)
class DataFlow:
    """The nodes of one run of a region, forward and backward, in order."""

    trace: Trace
    nodes: list[FlowNode] = field(default_factory=list)
    latest: dict[int, Value] = field(default_factory=dict)
    """By recorded storage."""
    views: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = field(default_factory=dict)
    """How many views of a storage have a shape and strides."""
    casts: dict[tuple[Value, Call], Value] = field(default_factory=dict)
    """What has been cast already: the same cast twice is one (torch/_functorch/compile_utils.py,
    fx_graph_cse). Of other operators a trace has no floating-point arguments to compare."""
    _places: int = 0

    def add(self, ops: Iterable[Op]) -> list[FlowNode]:
        """Nodes of these operators."""
        first = len(self.nodes)
        for op in ops:
            call = self.trace.calls[op.call]
            kind, _ = cost_of(call)
            if call.is_view:
                self.count_views(op, call)
            elif not kind.is_free:
                self.nodes += self.nodes_of(op, call, kind)
        return self.nodes[first:]

    def count_views(self, op: Op, call: Call) -> None:
        for spec, storage in zip(call.outputs, op.outputs, strict=True):
            key = storage, spec.shape, spec.stride
            self.views[key] = self.views.get(key, 0) + 1

    def nodes_of(self, op: Op, call: Call, kind: Kind) -> Iterator[FlowNode]:
        operands = [
            self.access(spec, storage)
            for spec, storage in zip(call.inputs, op.inputs, strict=True)
            if storage >= 0
        ]
        written = {a.value for a in operands if a.spec.is_written}
        work = work_of(call, kind)
        is_kept = any(value.maker is None and self.is_lasting(value) for value in written)
        is_partial = any(a.spec.is_written and a.spec.bytes < a.value.bytes for a in operands)
        if is_kept or is_partial or not all(s.is_on_device for s in (*call.inputs, *call.outputs)):
            work = KernelForm.LIBRARY
        is_cast = call.name == CAST and work is KernelForm.POINTWISE
        made = self.casts.get((operands[0].value, call)) if is_cast else None
        if made is not None:
            self.latest[op.outputs[0]] = made
            return
        results = self.results(op, call)
        if is_cast:
            self.casts[operands[0].value, call] = results[0]
        if work is KernelForm.LIBRARY:
            yield self.node(op, call, LoweringStep(work), operands, results, is_kept=is_kept)
            return
        unread = {"copy_", "fill_", "zero_"}
        is_overwritten = call.name.partition(".")[2] in unread
        if call.plain_name in GATHERS:
            operands = [self.gathered(access, call, results) for access in operands]
        yield from self.steps(
            op,
            call,
            work,
            [a for a in operands if not (is_overwritten and a.spec.is_written)],
            results,
        )

    def steps(
        self, op: Op, call: Call, work: KernelForm, operands: list[Access], results: list[Value]
    ) -> Iterator[FlowNode]:
        """An operator as the steps that a compiler makes of it."""
        inner: dict[str, Value] = {}
        for step in steps_of(call, work):
            read = [a for a in operands if step.reads is None or a.spec.argument in step.reads]
            read += [self.read(inner[name], inner[name].spec) for name in step.takes]
            writes = [results[n] for n in step.writes if n < len(results)]
            inner |= {str(n): results[n] for n in step.writes if n < len(results)}
            for name, spec in step.makes:
                inner[name] = Value(spec, prod(spec.shape) * spec.itemsize_bytes)
                writes.append(inner[name])
            if step.is_columns and (splits := self.splits(read, writes)) > 1:
                partial = partial_sums(writes[0].spec, splits)
                first = self.node(op, call, step, read, [partial])
                first.results = writes[0].spec.elements
                yield first
                step = LoweringStep(KernelForm.REDUCTION, is_main=False)
                read = [self.read(partial, partial.spec)]
            yield self.node(op, call, step, read, writes)

    def splits(self, reads: list[Access], writes: list[Value]) -> int:
        """Parts of a sum of columns, which are added up by a second kernel."""
        results = max((value.spec.elements for value in writes), default=0)
        points = max((access.spec.elements for access in reads), default=0)
        device = chip(self.trace.chip)
        if not results or not device.is_cuda or device.multiprocessors is None:
            return 1
        return column_splits(points // results, results, device.multiprocessors, device.sm.threads)

    def node(
        self, op: Op, call: Call, step: LoweringStep, reads: list[Access], writes: list[Value], *,
        is_kept: bool = False,
    ) -> FlowNode:  # fmt: skip
        made = max((value.spec.elements for value in writes), default=0)
        read = max((access.spec.elements for access in reads), default=0)
        work = step.work
        if work is KernelForm.REDUCTION and max(read, made) < UNROLLED * made:
            work = KernelForm.POINTWISE
        points = max(read, made) if work is KernelForm.REDUCTION else made
        if work is KernelForm.SCATTER:
            points = max((a.spec.elements for a in reads if a.spec.argument != TABLE), default=made)
            reads = [limited_to(a, points) if a.spec.argument == TABLE else a for a in reads]
        node = FlowNode(
            op.clock, op, call, work, points, made, step.is_columns, step.is_main, reads, writes,
            step.operations, is_kept,
        )  # fmt: skip
        for access in reads:
            if node not in access.value.users[-1:]:
                access.value.users.append(node)
        for value in writes:
            value.maker = node
        return node

    def gathered(self, access: Access, call: Call, results: list[Value]) -> Access:
        """The operand; of a table that is looked up, what the indices point to."""
        if access.spec.argument not in TABLES:
            return access
        rows = call.tensor("target") if "nll_loss" in call.name else results[0].spec
        return limited_to(access, rows.elements)

    def is_lasting(self, value: Value) -> bool:
        """Whether it is the script's own, a parameter or a gradient: writing to it shows."""
        return self.trace.storages[value.storage].role is not None

    def access(self, spec: TensorSpec, storage: int) -> Access:
        value = self.latest.get(storage)
        if value is None:
            value = Value(spec, self.trace.storages[storage].requested_bytes, storage)
            self.latest[storage] = value
        return self.read(value, spec)

    def read(self, value: Value, spec: TensorSpec) -> Access:
        self._places += 1
        return Access(value, spec, self._places)

    def results(self, op: Op, call: Call) -> list[Value]:
        """The values that an operator writes: its results, and what it changes in place."""
        pairs = [*zip(call.outputs, op.outputs, strict=True)]
        pairs += [
            (spec, storage)
            for spec, storage in zip(call.inputs, op.inputs, strict=True)
            if spec.is_written
        ]
        made: dict[int, Value] = {}
        for spec, storage in pairs:
            if storage < 0 or storage in made:
                continue
            made[storage] = self.latest[storage] = Value(
                spec, self.trace.storages[storage].requested_bytes, storage
            )
        return list(made.values())

    def bytes_read(self, value: Value, accesses: Iterable[Access]) -> int:
        """Bytes of a value that operands of one kernel read: of views alike, each once."""
        readers: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Access]] = {}
        for access in accesses:
            readers.setdefault((access.spec.shape, access.spec.stride), []).append(access)
        most = 0
        for (shape, stride), alike in readers.items():
            times = min(len(alike), self.views.get((value.storage, shape, stride), len(alike)))
            most = max(most, times * alike[0].spec.bytes)
        return min(value.bytes, most)
