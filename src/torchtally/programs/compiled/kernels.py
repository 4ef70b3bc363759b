"""The kernels that a compiler makes of a run's nodes.

A loop is not written to memory but handed on into the loops that read it (inlined), unless
something must find it there: a library's call, a later run, or several readers of what is long.
Loops over the same elements then become one kernel where they share operands, those with most bytes
in common first. The names and thresholds are inductor's (torch/_inductor/config.py, ir.py,
scheduler.py).
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from torchtally.programs.compiled.decomposition import KernelForm
from torchtally.programs.compiled.flow import TABLE, Access, DataFlow, FlowNode, Value, limited_to

READS_OF_REUSED, READS_ACCUMULATED, OPERATORS_OF_REUSED = 4, 8, 30
"""`realize_reads_threshold`, `realize_acc_reads_threshold`, `realize_opcount_threshold`."""
MIXED_ELEMENTS, MIXED_ROWS, MIXED_COLUMNS, MIXED_READS = 5 << 20, 4096, 16 << 10, 10
"""Sums of rows and of columns of the same elements are one kernel from so many elements and rows
on, up to so many columns; more joins them up to so many operands (`MixOrderReduction`)."""


class LoopRange(NamedTuple):
    """What a loop goes over."""

    points: int
    """Elements."""
    results: int
    """Sums that they are added up in; as many as elements without one."""
    is_columns: bool = False


@dataclass(eq=False, slots=True)
class DerivedKernel:
    """One launch: loops over the same elements, or a call of a library."""

    order: int
    work: KernelForm
    nodes: list[FlowNode]
    """Those that are inlined among them."""
    accesses: list[Access]
    writes: list[Value]
    loops: set[LoopRange]
    """Those of its sums; without any, that of its elements."""
    operations: Counter[str]
    after: set["DerivedKernel"] = field(default_factory=set)

    @property
    def is_fusible(self) -> bool:
        return self.work is not KernelForm.LIBRARY

    @property
    def is_sum(self) -> bool:
        return self.work is KernelForm.REDUCTION

    @property
    def is_mixed(self) -> bool:
        """Sums of rows and of columns."""
        return len(self.loops) > 1

    @property
    def loop(self) -> LoopRange:
        """The loop, of sums that of the rows."""
        return min(self.loops, key=lambda loop: loop.is_columns)

    @property
    def reads(self) -> dict[Value, list[Access]]:
        """Operands from memory."""
        own, reads = set(self.writes), dict[Value, list[Access]]()
        for access in self.accesses:
            if access.value not in own:
                reads.setdefault(access.value, []).append(access)
        return reads


@dataclass(slots=True)
class InlinedLoop:
    """A value that is not in memory: what computes it."""

    nodes: list[FlowNode]
    accesses: list[Access]
    loads: frozenset[tuple[Value, tuple[int, ...]]]
    """What an element of it reads: a value, and by which parts of values on the way."""
    operations: Counter[str]
    """Of an element. What is inlined for two operands is computed for each."""


def kernels_of(
    flow: DataFlow,
    nodes: Sequence[FlowNode],
    wanted: Iterable[Value],
    given: Iterable[Value] = (),
    own: Iterable[FlowNode] | None = None,
) -> list[DerivedKernel]:
    """Kernels that compute the wanted values, in an order in which they can run.

    `given` values are in memory already; `own` nodes are of this run, others are made again in it
    when they are needed.
    """
    there = frozenset(given)
    needed = nodes_for(nodes, wanted, there, own)
    lowered = LoopLowering(frozenset(needed), frozenset(wanted), there).kernels(needed)
    return in_order(Fusion(flow, lowered).fused())


def nodes_for(
    nodes: Sequence[FlowNode],
    wanted: Iterable[Value],
    given: frozenset[Value] = frozenset(),
    own: Iterable[FlowNode] | None = None,
) -> list[FlowNode]:
    """The nodes that the wanted values depend on, and those that change what is outside."""
    values, needed = set(wanted), list[FlowNode]()
    running = None if own is None else frozenset(own)
    for node in reversed(nodes):
        is_kept = node.is_kept or is_result(node)
        if (is_kept and (running is None or node in running)) or not values.isdisjoint(node.writes):
            needed.append(node)
            values |= {access.value for access in node.reads} - given
    return needed[::-1]


def is_result(node: FlowNode) -> bool:
    """A library's call that nothing of the region reads, but that ran: a gradient."""
    return node.work is KernelForm.LIBRARY and not any(value.users for value in node.writes)


@dataclass(slots=True)
class LoopLowering:
    """Nodes as loops that are inlined or in memory."""

    needed: frozenset[FlowNode]
    wanted: frozenset[Value]
    given: frozenset[Value]
    loops: dict[Value, InlinedLoop] = field(default_factory=dict)
    """Of the values that are not in memory."""
    made: list[DerivedKernel] = field(default_factory=list)

    def kernels(self, nodes: Sequence[FlowNode]) -> list[DerivedKernel]:
        for node in nodes:
            if node.work is KernelForm.LIBRARY:
                self.realize(access.value for access in node.reads)
                self.made.append(kernel_of(node, library_call(node), node.writes))
                continue
            loop = self.inlined(node)
            if node.work is KernelForm.SCATTER:
                self.realize(a.value for a in node.reads if a.spec.argument == TABLE)
                loop = self.inlined(node)
            if node.work is not KernelForm.POINTWISE:
                self.made.append(kernel_of(node, loop, node.writes))
                continue
            self.loops |= dict.fromkeys((v for v in node.writes if v not in self.given), loop)
            is_long = node.is_random or self.is_long(node, loop)
            self.realize(value for value in node.writes if is_long or value in self.wanted)
        return self.made

    def inlined(self, node: FlowNode) -> InlinedLoop:
        """A node with all that computes its operands on the way."""
        nodes: dict[FlowNode, None] = {}
        accesses: dict[Access, None] = {}
        loads: set[tuple[Value, tuple[int, ...]]] = set()
        operations = Counter(dict(node.operations))
        for access in node.reads:
            loop = self.loops.get(access.value)
            is_part = access.spec.elements < access.value.spec.elements
            part = (access.place,) if is_part else ()
            if loop is None:
                accesses[access] = None
                loads.add((access.value, part))
            else:
                nodes |= dict.fromkeys(loop.nodes)
                accesses |= dict.fromkeys(
                    limited_to(a, access.spec.elements) if is_part else a for a in loop.accesses
                )
                operations += loop.operations
                loads |= {(value, path + part) for value, path in loop.loads}
        return InlinedLoop([*nodes, node], list(accesses), frozenset(loads), operations)

    def is_long(self, node: FlowNode, loop: InlinedLoop) -> bool:
        users = {user for value in node.writes for user in value.users if user in self.needed}
        if len(users) > 1 and (
            len(loop.loads) > READS_OF_REUSED or len(loop.nodes) > OPERATORS_OF_REUSED
        ):
            return True
        return len(loop.loads) > READS_ACCUMULATED

    def realize(self, values: Iterable[Value]) -> None:
        """Write values to memory. Loops that have inlined them already keep them inlined."""
        for value in values:
            loop = self.loops.pop(value, None)
            if loop is not None:
                assert value.maker is not None
                self.made.append(kernel_of(value.maker, loop, [value]))


def library_call(node: FlowNode) -> InlinedLoop:
    return InlinedLoop([node], node.reads, frozenset(), Counter())


def kernel_of(node: FlowNode, loop: InlinedLoop, writes: Iterable[Value]) -> DerivedKernel:
    return DerivedKernel(
        node.order,
        node.work,
        list(loop.nodes),
        list(loop.accesses),
        list(writes),
        {LoopRange(node.points, node.results, node.is_columns)},
        Counter({name: times * node.points for name, times in loop.operations.items()}),
    )


@dataclass(slots=True)
class Fusion:
    """Kernels that become one."""

    flow: DataFlow
    kernels: list[DerivedKernel]

    def fused(self) -> list[DerivedKernel]:
        """Each pair that shares bytes, the pair with most first, until none is left."""
        self.find_dependencies()
        while self.pass_over():
            pass
        return self.kernels

    def find_dependencies(self) -> None:
        """What each kernel runs behind."""
        makers = {value: kernel for kernel in self.kernels for value in kernel.writes}
        for kernel in self.kernels:
            kernel.after = {makers[value] for value in kernel.reads if value in makers}
        # What a call changes in place was read before.
        for kernel in self.kernels:
            changed = {
                value.storage for node in kernel.nodes if node.is_kept for value in node.writes
            }
            if changed:
                for other in self.kernels:
                    if (
                        other is not kernel
                        and other.order < kernel.order
                        and any(value.storage in changed for value in other.reads)
                    ):
                        kernel.after.add(other)

    def pass_over(self) -> bool:
        """Whether anything was fused."""
        users: dict[Value, list[DerivedKernel]] = {}
        for kernel in self.kernels:
            if kernel.is_fusible:
                for value in (*kernel.reads, *kernel.writes):
                    users.setdefault(value, []).append(kernel)
        shared: dict[tuple[DerivedKernel, DerivedKernel], int] = {}
        for value, of_value in users.items():
            for pair in combinations(of_value, 2):
                shared[pair] = shared.get(pair, 0) + value.bytes
        ordered = sorted(shared, key=lambda pair: score(pair[0], pair[1], shared[pair]))
        merged: dict[DerivedKernel, DerivedKernel] = {}
        for pair in ordered:
            first, second = (root(kernel, merged) for kernel in pair)
            if first is second or not can_fuse(first, second):
                continue
            if self.depends(first, second) or self.depends(second, first):
                continue
            self.fuse(first, second)
            merged[second] = first
        return bool(merged)

    def depends(self, kernel: DerivedKernel, other: DerivedKernel) -> bool:
        """Whether a kernel waits for another by way of a third."""
        waiting = [each for each in kernel.after if each is not other]
        seen = set(waiting)
        while waiting:
            each = waiting.pop()
            if each is other:
                return True
            for before in each.after:
                if before not in seen:
                    seen.add(before)
                    waiting.append(before)
        return False

    def fuse(self, kernel: DerivedKernel, other: DerivedKernel) -> None:
        """Both as the first of them."""
        if kernel.is_sum == other.is_sum:
            kernel.loops |= other.loops
        elif other.is_sum:
            kernel.loops, kernel.work = other.loops, other.work
        kernel.order = min(kernel.order, other.order)
        kernel.nodes = list(dict.fromkeys([*kernel.nodes, *other.nodes]))
        kernel.accesses = list(dict.fromkeys([*kernel.accesses, *other.accesses]))
        kernel.writes += other.writes
        kernel.operations += other.operations
        kernel.after = (kernel.after | other.after) - {kernel, other}
        self.kernels.remove(other)
        for each in self.kernels:
            if other in each.after:
                each.after.discard(other)
                if each is not kernel:
                    each.after.add(kernel)


def root(kernel: DerivedKernel, merged: dict[DerivedKernel, DerivedKernel]) -> DerivedKernel:
    while kernel in merged:
        kernel = merged[kernel]
    return kernel


def score(
    kernel: DerivedKernel, other: DerivedKernel, shared_bytes: int
) -> tuple[bool, int, int, int]:
    """Sort key of pairs: sums with sums and loops with loops first, then by what they share. Of
    sums of rows and columns inductor counts elements in place of bytes.
    """
    shared = kernel.loop.points if is_mix(kernel, other) else shared_bytes
    return kernel.is_sum != other.is_sum, -shared, kernel.order, other.order


def can_fuse(kernel: DerivedKernel, other: DerivedKernel) -> bool:
    """Whether both go over the same elements in the same order."""
    if (kernel.is_mixed or other.is_mixed) and len({*kernel.reads, *other.reads}) > MIXED_READS:
        return False
    if kernel.is_sum and other.is_sum:
        return not kernel.loops.isdisjoint(other.loops) or is_mix(kernel, other)
    if not kernel.is_sum and not other.is_sum:
        return kernel.loop.points == other.loop.points
    sums, elements = (kernel, other) if kernel.is_sum else (other, kernel)
    if sums.loop.is_columns:
        return elements.loop.points == sums.loop.results
    return elements.loop.points in (sums.loop.points, sums.loop.results)


def is_mix(kernel: DerivedKernel, other: DerivedKernel) -> bool:
    """Sums of rows and of columns of the same elements, which do not wait for each other."""
    if not kernel.is_sum or not other.is_sum or kernel.is_mixed or other.is_mixed:
        return False
    if kernel.loop.is_columns == other.loop.is_columns or {kernel, other} & (
        kernel.after | other.after
    ):
        return False
    rows, columns = (other, kernel) if kernel.loop.is_columns else (kernel, other)
    points, width = rows.loop.points, columns.loop.results
    if points != columns.loop.points or rows.loop.results * width != points:
        return False
    of_columns = columns.reads
    return (
        any(value.spec.elements == points for value in rows.reads if value in of_columns)
        and points >= MIXED_ELEMENTS
        and rows.loop.results >= max(MIXED_ROWS, 2 * width)
        and width <= MIXED_COLUMNS
    )


def in_order(kernels: Iterable[DerivedKernel]) -> list[DerivedKernel]:
    """Each behind what it waits for, and else as the operators ran."""
    left = {kernel: set(kernel.after) for kernel in kernels}
    behind: dict[DerivedKernel, list[DerivedKernel]] = {}
    for kernel, after in left.items():
        for each in after:
            behind.setdefault(each, []).append(kernel)
    numbers = {kernel: n for n, kernel in enumerate(left)}
    ready = [(kernel.order, numbers[kernel], kernel) for kernel in left if not left[kernel]]
    heapq.heapify(ready)
    ordered: list[DerivedKernel] = []
    while ready:
        *_, kernel = heapq.heappop(ready)
        ordered.append(kernel)
        for each in behind.get(kernel, ()):
            left[each].discard(kernel)
            if not left[each]:
                heapq.heappush(ready, (each.order, numbers[each], each))
    assert len(ordered) == len(left), "kernels wait for each other"
    return ordered
