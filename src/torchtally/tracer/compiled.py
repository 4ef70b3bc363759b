"""Sites of what a compiler wrote: lines and modules of the script, found again."""

import linecache
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.trace import Call, Frame, FusedKernel, Phase
from torchtally.tracer.modules import OUTSIDE, Modules, Place
from torchtally.tracer.source import Code, classify_path
from torchtally.virtual.compiling.kernels import LoweredGraph, LoweredNode
from torchtally.virtual.compiling.origins import Origin
from torchtally.virtual.description import spec
from torchtally.virtual.storage import virtual_of

NAMESPACE = "inductor"
"""Of the names of kernels that the compiler wrote."""
HOST_NUMBER = -1


class Launched(NamedTuple):
    """A node of a graph that is running."""

    graph: LoweredGraph
    node: LoweredNode


class Run(NamedTuple):
    """One run of a compiled program."""

    root: Place
    """The module that it was compiled for."""
    now: Place
    """The module that it runs for: another of the same class, where it was compiled once for
    many."""


NO_RUN = Run(OUTSIDE, OUTSIDE)


class CompiledRuns:
    """Compiled programs that run: for which module, in which phase, made from which lines."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._launched: Launched | None = None
        self._start = 0
        """Tick at which the forward graph began that ran last."""
        self._ended: dict[int, tuple[int, int, Run]] = {}
        """First tick, end and module of a forward graph, by its autograd node's number."""
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._roots: dict[int, Place] = {}
        """By the graph's id: the module that ran when it was first launched."""
        self._runs: dict[int, Run] = {}
        """By the graph's id: the module that it runs for."""

    @property
    def is_running(self) -> bool:
        return self._launched is not None

    @property
    def graph(self) -> LoweredGraph:
        return self._running.graph

    @property
    def node(self) -> LoweredNode:
        return self._running.node

    @property
    def _running(self) -> Launched:
        assert self._launched is not None
        return self._launched

    def begin(self, graph: LoweredGraph | None, node: int, tick: int) -> range:
        """A node of a graph runs from now on; None: none. Returns the ticks of the operators that
        a backward graph differentiates, as it begins.
        """
        if graph is None:
            self._launched = None
            return range(0)
        is_new = self._launched is None or self._launched.graph is not graph
        self._launched = Launched(graph, graph.nodes[node])
        return self._begin_graph(graph, tick) if is_new else range(0)

    def _begin_graph(self, graph: LoweredGraph, tick: int) -> range:
        if not graph.is_backward:
            place = self._modules.place
            self._runs[id(graph)] = Run(self._roots.setdefault(id(graph), place), place)
            self._start = tick
            return range(0)
        return self._forward_ticks(graph)

    def _forward_ticks(self, graph: LoweredGraph) -> range:
        """Ticks of the forward graph of a backward one that runs."""
        autograd_node = private.current_autograd_node()
        if autograd_node is None:
            return range(0)
        number = private.sequence_number(autograd_node)
        first, end, run = self._ended.get(number, (0, 0, NO_RUN))
        self._runs[id(graph)] = run
        return range(first, end)

    def begin_replay(self, graph: LoweredGraph, tick: int, launches: int) -> range:
        """A CUDA graph runs what it captured of a graph. Returns ticks as `begin` does."""
        if graph.is_backward:
            return self._forward_ticks(graph)
        number = private.next_sequence_number() - 1
        start, _, run = self._ended.get(number, (tick, 0, self._runs.get(id(graph), NO_RUN)))
        self._ended[number] = start, tick + launches, run
        return range(0)

    def phase(self, tick: int) -> Phase:
        graph, origin = self._running.graph, self.node.main
        if origin is not None and is_of_optimizer(origin):
            return Phase.OPTIMIZER
        if not graph.is_backward:
            number = private.next_sequence_number() - 1
            self._ended[number] = self._start, tick + 1, self._runs.get(id(graph), NO_RUN)
            return Phase.FORWARD if origin is None or origin.is_forward else Phase.BACKWARD
        recomputes = origin is not None and origin.is_forward and bool(origin.frames)
        return Phase.RECOMPUTE if recomputes else Phase.BACKWARD

    def place(self, origin: Origin) -> Place:
        """Path of a module that was compiled once for many, in the one that runs."""
        place = self._modules.with_id(origin.module_id)
        run = self._runs.get(id(self._running.graph), NO_RUN)
        if place is None:
            return run.now
        root, now = run.root.path, run.now.path
        if root == now or not (place.path + ".").startswith(root + "."):
            return place
        return Place((now + place.path[len(root) :]).lstrip("."), place.class_name)

    def frames(self, origin: Origin) -> tuple[Frame, ...]:
        return tuple(frame for each in origin.frames if (frame := self._frame(each)) is not None)

    def _frame(self, key: tuple[str, int, str]) -> Frame | None:
        frame = self._frames.get(key)
        if frame is None:
            file, line, function = key
            kind = classify_path(file)
            if kind not in (Code.OWN, Code.LIBRARY):
                return None
            text = linecache.getline(file, line).strip()
            frame = self._frames[key] = Frame(file, line, function, text, kind is Code.OWN)
        return frame


OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep


def is_of_optimizer(origin: Origin) -> bool:
    """An optimizer's step: torch's, or of a class derived from it (`profile_hook_step`)."""
    return any(file.startswith(OPTIMIZERS) for file, _, _ in origin.frames)


def call_of(name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, Tensor]]) -> Call:
    """A launch. What the kernel only writes are its results; inductor names arguments by that."""
    places: dict[int, int] = {}
    inputs = tuple(
        spec(tensor, argument, places, is_written=is_written(argument))
        for argument, tensor in operands
        if not is_result(argument)
    )
    outputs = tuple(
        spec(tensor, "", places) for argument, tensor in operands if is_result(argument)
    )
    return Call(
        name=f"{NAMESPACE}.{name}",
        overload="",
        inputs=inputs,
        outputs=outputs,
        is_mutating=any(spec.is_written for spec in inputs),
        fused=fused,
    )


def is_result(argument: str) -> bool:
    return argument.startswith("out_ptr")


def is_written(argument: str) -> bool:
    return argument.startswith("in_out_ptr")


def numbers(operands: Sequence[tuple[str, Tensor]], *, results: bool) -> tuple[int, ...]:
    """Numbers of the storages."""
    return tuple(
        HOST_NUMBER if (virtual := virtual_of(tensor)) is None else virtual.number
        for argument, tensor in operands
        if is_result(argument) is results
    )
