"""Values of tensors within a compiled graph: those that follow from inputs whose values are known.

Of a graph only what somebody asks for is computed, on the host: the blocks of an attention's mask,
whole numbers that the graph hands out, and what is on the host anyway.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.compiling.sizes import number
from torchtally.virtual.storage import virtual_of

MOST_ELEMENTS = 1 << 24
"""Of a tensor on the way to a value, beyond which it is not computed: it would take seconds."""


class KnownPart:
    """Operators of a graph, to be computed with the values of its inputs where these are known."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._nodes = list(module.graph.nodes)
        self._inputs = [node for node in self._nodes if node.op == "placeholder"]
        results = self._nodes[-1].args[0]
        self._outputs = [
            (position, node)
            for position, node in enumerate(results if isinstance(results, (tuple, list)) else ())
            if isinstance(node, Node) and node.op == "call_function" and is_whole_on_gpu(node)
        ]
        self._sources: dict[Node, frozenset[Node] | None] = {}
        """Inputs that a node follows from; None where it cannot be computed."""

    def of_outputs(self, known: "KnownValues") -> list[tuple[int, torch.Tensor]]:
        """(position, value) of results that are whole numbers and known."""
        pairs = ((position, known.value(node)) for position, node in self._outputs)
        return [(position, value) for position, value in pairs if value is not None]

    def with_arguments(self, arguments: Sequence[Any]) -> "KnownValues":
        return KnownValues(self, dict(zip(self._inputs, map(known_argument, arguments))))  # noqa: B905

    def sources(self, node: Node) -> frozenset[Node] | None:
        if node not in self._sources:
            for each in self._nodes:
                if each not in self._sources:
                    self._sources[each] = self._sources_of(each)
                if each is node:
                    break
        return self._sources[node]

    def _sources_of(self, node: Node) -> frozenset[Node] | None:
        if node.op in ("placeholder", "get_attr"):
            return frozenset([node] if node.op == "placeholder" else [])
        if node.op != "call_function" or not is_computable(node):
            return None
        sources: frozenset[Node] = frozenset()
        for each in node.all_input_nodes:
            of_input = self._sources[each]
            if of_input is None:
                return None
            sources |= of_input
        return sources

    def attribute(self, node: Node) -> Any:
        return known_argument(getattr(self._module, str(node.target), None))


class KnownValues:
    """Values known in one run of the graph."""

    def __init__(self, part: KnownPart, known: dict[Node, Any]) -> None:
        self._part, self._known = part, known

    def value(self, node: Any) -> Any:
        """Value of a node, a real tensor on the host or a number; None where it is unknown."""
        if not isinstance(node, Node):
            return node
        if node not in self._known:
            sources = self._part.sources(node)
            is_known = sources is not None and all(
                self._known.get(each) is not None for each in sources
            )
            self._known[node] = self._compute(node) if is_known else None
        return self._known[node]

    def all_of(self, nodes: Iterable[Any]) -> list[Any] | None:
        values = [self.value(node) for node in nodes]
        return None if any(each is None for each in values) else values

    def _compute(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._part.attribute(node)
        if any(self.value(each) is None for each in node.all_input_nodes):
            return None
        target: Any = node.target
        args, kwargs = on_host(map_arg((node.args, node.kwargs), self.value))
        try:
            with torch.no_grad(), private.without_dispatch_modes():
                return target(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return None


def known_argument(argument: Any) -> Any:
    return values.real_of(argument) if isinstance(argument, torch.Tensor) else argument


def on_host(arguments: Any) -> Any:
    def on_cpu(leaf: Any) -> Any:
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    return private.tree_map(on_cpu, arguments)


def is_computable(node: Node) -> bool:
    """The dispatcher's operator, with no chance in it, on tensors of a bounded size."""
    target: Any = node.target
    tags = getattr(target, "tags", None)
    if not isinstance(target, private.OpOverload):
        return getattr(target, "__module__", None) in ("_operator", "operator")
    if torch.Tag.nondeterministic_seeded in (tags or ()) or private.schema(target).is_mutable:
        return False
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return all(
        prod(number(size, {}) for size in part.shape) <= MOST_ELEMENTS
        for part in parts
        if isinstance(part, torch.Tensor)
    )


def is_whole_on_gpu(node: Node) -> bool:
    """Token ids, positions, masks."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return False
    return not values.is_approximate(value.dtype)


def give(tensor: Any, value: torch.Tensor) -> None:
    """Keep the value of a tensor that the program has made, if there is room for it."""
    virtual = virtual_of(tensor) if isinstance(tensor, torch.Tensor) else None
    if virtual is None or tensor.shape != value.shape or tensor.storage_offset():
        return
    if values.keeps_value(tensor.dtype, virtual.requested_bytes):
        values.give_value(tensor, value)
