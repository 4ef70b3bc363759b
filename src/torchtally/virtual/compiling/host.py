"""What a compiled graph computes on the host: counters, learning rates, sizes.

Inductor writes C++ for it, which is not built here: the operators of the graph run one by one, on
real tensors, and the program's host kernels do nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from torchtally.torch_private import without_dispatch_modes
from torchtally.virtual.compiling.known import KnownValues

COPY = torch.ops.aten.copy_.default
"""How a functional graph ends that writes to its inputs."""


class HostResults(NamedTuple):
    """Results of one run that are on the host."""

    outputs: list[tuple[int, torch.Tensor]]
    """By position."""
    written: list[tuple[torch.Tensor, torch.Tensor]]
    """(input, its new value)."""


class HostPart:
    """The results of a graph that are on the host. What depends on a value of the GPU that is not
    known stays zero.
    """

    def __init__(self, module: GraphModule) -> None:
        nodes = list(module.graph.nodes)
        results = nodes[-1].args[0]
        self._outputs = [
            (position, node)
            for position, node in enumerate(results if isinstance(results, (tuple, list)) else ())
            if is_tensor_on_host(node) and node.op == "call_function"
        ]
        self._writes = [
            (node.args[0], node.args[1])
            for node in nodes
            if node.target is COPY and is_tensor_on_host(node.args[0])
        ]

    def compute(self, known: KnownValues) -> HostResults:
        """The host's results, from the arguments that a program is called with."""
        outputs = ((position, known.value(node)) for position, node in self._outputs)
        writes = ((known.value(target), known.value(value)) for target, value in self._writes)
        return HostResults(
            [(position, value) for position, value in outputs if value is not None],
            # A value may be another input, that is written to as well.
            [(target, value.clone()) for target, value in writes if value is not None],
        )

    def put(self, results: HostResults, outputs: Sequence[Any]) -> None:
        """Give the program's results, and the inputs that it writes to, their values."""
        with torch.no_grad(), without_dispatch_modes():
            for position, value in results.outputs:
                outputs[position].copy_(value)
            for tensor, value in results.written:
                tensor.copy_(value)


def is_tensor_on_host(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"
