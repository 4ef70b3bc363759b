"""What a compiled graph computes on the host: counters, learning rates, sizes.

Inductor writes C++ for it, which is not built here: the operators of the graph run one by one, on
real tensors, and the program's host kernels do nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchtally.torch_private import without_dispatch_modes

COPY = torch.ops.aten.copy_.default
"""How a functional graph ends that writes to its inputs."""


class HostResults(NamedTuple):
    """Of one run."""

    outputs: list[tuple[int, torch.Tensor]]
    """By position."""
    written: list[tuple[torch.Tensor, torch.Tensor]]
    """(input, its new value)."""


NOTHING = HostResults([], [])


class HostPart:
    """The operators of a graph whose operands and results are all on the host."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        nodes = list(module.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        known = known_nodes(nodes)
        results = nodes[-1].args[0]
        self._outputs = [
            (position, node)
            for position, node in enumerate(results if isinstance(results, (tuple, list)) else ())
            if node in known and node.op != "placeholder" and is_tensor_on_host(node)
        ]
        self._writes = [
            (node.args[0], node.args[1])
            for node in nodes
            if node.target is COPY and node.args[0] in self._inputs and node.args[1] in known
        ]
        needed = needed_for([node for _, node in (*self._outputs, *self._writes)])
        self._needed = [node for node in nodes if node in needed]

    def compute(self, arguments: Sequence[Any]) -> HostResults:
        """The host's results, from the arguments that a program is called with."""
        if not self._needed:
            return NOTHING
        known: dict[Node, Any] = dict(zip(self._inputs, arguments, strict=True))
        with torch.no_grad(), without_dispatch_modes():
            for node in self._needed:
                if node.op == "get_attr":
                    known[node] = getattr(self._module, str(node.target))
                elif node.op != "placeholder":
                    known[node] = result_of(node, known)
            return HostResults(
                [(position, known[node]) for position, node in self._outputs],
                # A value may be another input, that is written to as well.
                [(known[node], known[value].clone()) for node, value in self._writes],
            )

    def put(self, values: HostResults, outputs: Sequence[Any]) -> None:
        """Give the program's results, and the inputs that it writes to, their values."""
        with torch.no_grad(), without_dispatch_modes():
            for position, value in values.outputs:
                outputs[position].copy_(value)
            for tensor, value in values.written:
                tensor.copy_(value)


def result_of(node: Node, known: dict[Node, Any]) -> Any:
    target: Any = node.target
    return target(*map_arg(node.args, known.__getitem__), **map_arg(node.kwargs, known.__getitem__))


def known_nodes(nodes: Sequence[Node]) -> set[Node]:
    """Those that the host can compute. What depends on a value of the GPU is not among them."""
    known: set[Node] = set()
    for node in nodes:
        is_source = node.op in ("placeholder", "get_attr") and is_on_host(node)
        is_result = node.op == "call_function" and node.target is not COPY
        if is_source or (
            is_result and is_on_host(node) and all(each in known for each in node.all_input_nodes)
        ):
            known.add(node)
    return known


def is_on_host(node: Node) -> bool:
    """Its value is no tensor, or one of the host; or several of these."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return all(tensor.device.type == "cpu" for tensor in tensors)


def is_tensor_on_host(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and is_on_host(node)


def needed_for(results: list[Node]) -> set[Node]:
    needed: set[Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed
