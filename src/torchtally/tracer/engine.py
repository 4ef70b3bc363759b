"""Backward passes: where autograd's nodes come from, and what the engine's frame tells."""

from types import FrameType
from typing import Any

import torch

from torchtally import torch_private as private


class ForwardOrigins:
    """The operators of the forward pass that made autograd's nodes."""

    def __init__(self) -> None:
        self.differentiated: set[int] = set()
        """Ticks of operators whose nodes a backward pass has run."""
        self._made: dict[int, tuple[int, int | None]] = {}
        """Site and tick of the operator, by its node's sequence number."""

    def remember(self, site: int, tick: int | None) -> None:
        """Assign the latest autograd node to this site, unless an earlier operator made it.

        The dispatch mode runs below autograd, which makes the node before it calls the kernel
        (VariableType, tools/autograd/gen_variable_type.py): the counter is one ahead of it.
        """
        self._made.setdefault(private.next_sequence_number() - 1, (site, tick))

    def site(self, node: Any) -> int | None:
        """Site of the operator that made a node, which is being run; None where unknown."""
        origin = self._made.get(private.sequence_number(node))
        if origin is None:
            return None
        site, tick = origin
        if tick is not None:
            self.differentiated.add(tick)
        return site


def is_nested(engine: FrameType | None) -> bool:
    """A backward pass inside another: re-entrant checkpointing, whose leaves are activations."""
    frame = engine.f_back if engine is not None else None
    while frame is not None:
        if engine is not None and frame.f_code is engine.f_code:
            return True
        frame = frame.f_back
    return False


def builds_graph_anew(engine: FrameType) -> bool:
    """Whether Python code below the engine builds a graph: checkpointing other than torch's.

    With `create_graph` it is the engine that enables gradients, for the backward pass itself.
    """
    if not torch.is_grad_enabled():
        return False
    # (tensors, gradients, keep_graph, create_graph, ...) in torch/autograd/graph.py: the first is
    # `t_outputs`, the rest are `*args`.
    args = engine.f_locals.get("args", ())
    creates_graph = len(args) > 2 and bool(args[2])
    return not creates_graph
