"""What kernels of a compiled graph do: read from inductor's scheduler as it writes the program."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from msgspec import structs
from torch.fx.node import map_arg

from torchtally import torch_private as private
from torchtally.trace import Call, FusedKernel, Operations, Part, Tile
from torchtally.virtual.compiling.flex import FLEX, FlexNode, on_gpu
from torchtally.virtual.compiling.origins import Origin, operator_name, origin_of
from torchtally.virtual.compiling.sizes import Values, plain
from torchtally.virtual.description import describe
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import Invocation, tensors_in

KINDS = {
    "triton_poi": "pointwise",
    "triton_red": "reduction",
    "triton_per": "persistent reduction",
    "triton_tem": "template",
    "triton_for": "foreach",
}
"""By how inductor begins a kernel's name."""


NO_VALUES: Values = {}


@dataclass(slots=True)
class LoweredNode:
    """What the scheduler makes one launch, or one call of a library, of."""

    origins: tuple[Origin, ...]
    """Of a fused kernel, of each part; else of the operator alone."""
    parts: tuple[Part, ...] = ()
    nodes: tuple[tuple[Any, ...], ...] = ()
    """Of a graph with open sizes, for each part: the graph's nodes."""
    flex: FlexNode | None = None
    """Of an attention with a block mask."""
    operations: Operations = ()

    def work_with(self, values: Values, times: float, mode: VirtualDispatch) -> "KernelWork":
        """Work with other sizes than those it was compiled with, and so many times the bytes."""
        parts = tuple(
            Part(
                part.operator,
                tuple(filter(None, (call_of(node, mode, values) for node in nodes))),
                round(part.bytes_read * times),
                round(part.bytes_written * times),
            )
            for part, nodes in zip(self.parts, self.nodes, strict=True)
        )
        return KernelWork(
            parts, tuple((name, round(count * times)) for name, count in self.operations)
        )

    @property
    def work(self) -> "KernelWork":
        """Work with the sizes that it was compiled with."""
        return KernelWork(self.parts, self.operations)

    def of(self, origin: Origin) -> "LoweredNode":
        """The same, all of it for one operator."""
        parts = tuple(structs.replace(part, operator=origin.operator) for part in self.parts)
        return replace(self, origins=(origin,) * max(1, len(self.origins)), parts=parts)

    @property
    def main(self) -> Origin | None:
        return self.origins[0] if self.origins else None


class KernelWork(NamedTuple):
    """What a fused kernel does."""

    parts: tuple[Part, ...]
    operations: Operations


@dataclass(slots=True)
class LoweredGraph:
    """A graph as inductor schedules it."""

    is_backward: bool
    called: frozenset[Any] = frozenset()
    """Nodes that are calls of libraries. What prepares their operands has them among its origins,
    and computes nothing of theirs."""
    symbols: tuple[str, ...] = ()
    """Sizes that are left open, by the names that the program has for them."""
    nodes: list[LoweredNode] = field(default_factory=list)
    written: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By kernel: the names of its arguments, in order."""


@dataclass(slots=True)
class Share:
    """What an operator has of a kernel."""

    calls: list[Call] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0


def kind_of(kernel: str) -> str:
    return next((kind for start, kind in KINDS.items() if kernel.startswith(start)), "other")


def lower(
    node: Any, graph: Any, own: LoweredGraph, mode: VirtualDispatch, private_compiler: Any
) -> LoweredNode:
    """A scheduler's node: the work of each operator that is in it."""
    if isinstance(node, private_compiler.ExternNode):
        origin = node.node.get_origin_node() or last_of(node.node.get_origins())
        return LoweredNode((origin_of(origin),) if origin is not None else ())
    shares: dict[Any, Share] = {}
    flex: FlexNode | None = None
    is_template = node.is_template()
    for origin in operators_of(node, own.called):
        if is_template and operator_name(origin.target) in FLEX:
            flex = FlexNode(origin)
            call: Call | None = flex.call(flex.counts_without_values())
        else:
            call = call_of(origin, mode)
        share = shares.setdefault(origin, Share())
        share.calls += [] if call is None else [call]
        share.nodes.append(origin)
    reads, writes = bytes_moved_by(node)
    if is_template and flex is None:
        reads, writes = bytes_of_template(node, reads, writes, private_compiler)
    inner = [each for each in node.get_nodes() if each.node is not None]
    for name, count in reads.items():
        reader = reader_of(name, inner, graph)
        if reader is not None:
            shares.setdefault(reader, Share()).bytes_read += int(count)
    for name, count in writes.items():
        writer = writer_of(name, inner, graph)
        if writer is not None:
            shares.setdefault(writer, Share()).bytes_written += int(count)
    by_origin: dict[Origin, Share] = {}
    for origin, share in shares.items():
        total = by_origin.setdefault(origin_of(origin), Share())
        total.calls += share.calls
        total.nodes += share.nodes
        total.bytes_read += share.bytes_read
        total.bytes_written += share.bytes_written
    ordered = sorted(
        by_origin.items(), key=lambda pair: -(pair[1].bytes_read + pair[1].bytes_written)
    )
    return LoweredNode(
        tuple(origin for origin, _ in ordered),
        tuple(
            Part(origin.operator, tuple(share.calls), share.bytes_read, share.bytes_written)
            for origin, share in ordered
        ),
        tuple(tuple(share.nodes) for _, share in ordered) if own.symbols else (),
        flex,
        operations_of(node, private_compiler),
    )


def operations_of(node: Any, private_compiler: Any) -> Operations:
    """Operations of all its elements. What one operator computes and another looks up on the way,
    as the angles of rotary embeddings, is computed anew for each element of what is written.
    """
    counts: Counter[str] = Counter()
    for part in node.get_nodes():
        of_element = private_compiler.operations_of_element(part)
        if of_element:
            sizes = chain.from_iterable(part.get_ranges())
            elements = prod(map(private_compiler.number, sizes))
            counts.update({name: times * elements for name, times in of_element.items()})
    return tuple(sorted(counts.items()))


def bytes_moved_by(node: Any) -> tuple[dict[str, int], dict[str, int]]:
    """(read, written) of each buffer; of a table that is looked up or added to by rows, the rows
    that the kernel asks for, where inductor counts the whole of it.
    """
    reads = bytes_of_buffers(node, include_reads=True, include_writes=False)
    writes = bytes_of_buffers(node, include_reads=False, include_writes=True)
    rows_read: dict[str, int] = {}
    rows_written: dict[str, int] = {}
    for part in node.get_nodes():
        read = bytes_of_buffers(part, include_reads=True, include_writes=False)
        written = bytes_of_buffers(part, include_reads=False, include_writes=True)
        for name in filter(reads.__contains__, indirect(part.read_writes.reads)):
            rows_read[name] = max(rows_read.get(name, 0), read.get(name, 0))
        for name in filter(writes.__contains__, indirect(part.read_writes.writes)):
            rows_written[name] = max(rows_written.get(name, 0), written.get(name, 0))
            # It is another name of the table, which the addition reads.
            rows_read |= dict.fromkeys(tables_written_by(part), rows_written[name])
    return at_most(reads, rows_read), at_most(writes, rows_written)


def bytes_of_template(
    node: Any, reads: dict[str, int], writes: dict[str, int], private_compiler: Any
) -> tuple[dict[str, int], dict[str, int]]:
    """Operands of a product are read whole, and what is fused behind it finds its result on the
    tile. Inductor counts as many elements of each operand as the result has, and a result that is
    in memory as read again.
    """
    for part in node.get_nodes():
        if not part.is_template():
            continue
        for dependency in part.read_writes.reads:
            buffer = private_compiler.buffer_of(dependency.name)
            if dependency.name in reads and buffer is not None:
                reads[dependency.name] = private_compiler.bytes_of_buffer(buffer)
    made = {name for part in node.get_nodes() for name in part.get_buffer_names()}
    return {name: count for name, count in reads.items() if name not in made}, writes


def indirect(dependencies: Iterable[Any]) -> Iterator[str]:
    """Buffers whose elements are found by numbers from another one. An order alone (`WeakDep`: a
    buffer that is written in place) reads nothing, and has no index that could be looked at.
    """
    for dependency in dependencies:
        if hasattr(dependency, "is_indirect") and dependency.is_indirect():
            yield dependency.name


def tables_written_by(node: Any) -> Iterator[str]:
    for output in node.get_outputs():
        yield from output.get_mutations()


def at_most(counts: dict[str, int], limits: dict[str, int]) -> dict[str, int]:
    return {name: min(count, limits.get(name, count)) for name, count in counts.items()}


def bytes_of_buffers(node: Any, **accesses: bool) -> dict[str, int]:
    """Bytes by inductor's own count, but whole where that ends at 1e9 elements.

    Of several fused nodes inductor counts the whole of every buffer that they read or write: their
    number of elements is assumed to be 1e9 (`BaseSchedulerNode.get_read_write_buffer_accesses`,
    torch/_inductor/scheduler.py), and logits of 64 x 1024 tokens have three times as many. Of a
    single node it counts the elements that it accesses.
    """
    counts: dict[str, int] = node.get_read_write_buffer_accesses(**accesses)
    parts = node.get_nodes()
    if len(parts) > 1:
        for part in parts:
            for name, count in part.get_read_write_buffer_accesses(**accesses).items():
                if name in counts:
                    counts[name] = max(counts[name], count)
    return counts


def operators_of(node: Any, called: frozenset[Any]) -> Iterator[Any]:
    """The operators that the kernel computes, each once; not those that are called."""
    seen: set[Any] = set(called)
    for each in node.get_nodes():
        if each.node is None:
            continue
        for origin in origins_of(each):
            if origin.op == "call_function" and origin not in seen:
                seen.add(origin)
                yield origin


def origins_of(node: Any) -> Iterable[Any]:
    """Origins; of a template of a product that alone: it has what makes its operands among its
    origins, as a call of the library has, and computes none of that.
    """
    origins: Iterable[Any] = node.node.get_origins()
    own = node.node.get_origin_node() if node.is_template() else None
    if own is None or any(operator_name(each.target) in FLEX for each in origins):
        return origins
    return (own,)


def call_of(node: Any, mode: VirtualDispatch, values: Values = NO_VALUES) -> Call | None:
    """The operator as if it ran by itself; None of what is none of the dispatcher's."""
    if not isinstance(node.target, private.OpOverload):
        return None

    def value_of(argument: Any) -> Any:
        return plain(argument.meta.get("val"), values)

    args, kwargs = (map_arg(each, value_of) for each in (node.args, node.kwargs))
    invocation = Invocation(mode.operator(node.target), args, kwargs)
    call = describe(invocation, tensors_in(value_of(node)))
    return structs.replace(
        call, inputs=tuple(map(on_gpu, call.inputs)), outputs=tuple(map(on_gpu, call.outputs))
    )


def last_of(origins: Iterable[Any]) -> Any:
    """Nodes of one graph compare by their places in it."""
    return max((node for node in origins if node.op == "call_function"), default=None)


def producer(name: str, graph: Any) -> Any:
    """The graph's node that a buffer holds the result of."""
    buffer = graph.name_to_buffer.get(name)
    origin = buffer.get_origin_node() if buffer is not None else None
    if origin is not None:
        return origin
    return next((node for node in graph.graph.nodes if node.name == name), None)


def reader_of(name: str, inner: list[Any], graph: Any) -> Any:
    """The operator of a kernel that reads a buffer from memory."""
    source = producer(name, graph)
    for each in inner:
        if all(dep.name != name for dep in each.read_writes.reads):
            continue
        origins = each.node.get_origins()
        for origin in origins:
            if source is not None and source in origin.all_input_nodes:
                return past_views(origin, origins)
        return each.node.get_origin_node() or last_of(origins)
    return last_of(origin for each in inner for origin in each.node.get_origins())


def past_views(node: Any, origins: Any) -> Any:
    """The operator that reads a view, for the view."""
    seen = {node}
    while is_view(node):
        following = [user for user in node.users if user in origins and user not in seen]
        if not following:
            return node
        node = following[0]
        seen.add(node)
    return node


def is_view(node: Any) -> bool:
    return isinstance(node.target, private.OpOverload) and any(
        argument.alias_info is not None for argument in private.schema(node.target).arguments
    )


def writer_of(name: str, inner: list[Any], graph: Any) -> Any:
    buffer = graph.name_to_buffer.get(name)
    origin = buffer.get_origin_node() if buffer is not None else None
    if origin is not None and origin.op == "call_function":
        return origin
    for each in inner:
        if any(dep.name == name for dep in each.read_writes.writes):
            return each.node.get_origin_node() or last_of(each.node.get_origins())
    return last_of(origin for each in inner for origin in each.node.get_origins())


def fused_kernel(name: str, work: KernelWork, tile: Tile | None = None) -> FusedKernel | None:
    """None for a kernel that the script brings, of which the compiler knows the pointers alone."""
    if not work.parts:
        return None
    return FusedKernel(kind_of(name), work.parts, work.operations, tile)


SETTING = re.compile(
    r"\b(BLOCK_M|BLOCK_N|BLOCK_K|num_stages|num_warps)(?:\s*:\s*tl\.constexpr)?\s*=\s*(\d+)"
)
"""Of a template, as its kernel's source has it, and as inductor describes a choice."""


def tile_in(text: str) -> Tile | None:
    """Tile of a template of a product; None of any other kernel."""
    found = {name: int(value) for name, value in SETTING.findall(text)}
    if len(found) < 5:
        return None
    rows, columns, depth = (found[f"BLOCK_{dimension}"] for dimension in "MNK")
    return Tile(rows, columns, depth, found["num_stages"], found["num_warps"])
