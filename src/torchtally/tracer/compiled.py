"""Where what a compiler wrote belongs: lines and modules of the script, found again."""

import linecache
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from torchtally.trace import Call, Frame, FusedKernel
from torchtally.tracer.modules import OUTSIDE, Modules, Place
from torchtally.tracer.source import Code, classify_path
from torchtally.virtual.compiling.kernels import LoweredGraph, LoweredNode
from torchtally.virtual.compiling.origins import Origin
from torchtally.virtual.description import spec
from torchtally.virtual.storage import virtual_of

NAMESPACE = "inductor"
"""Of the names of kernels that the compiler wrote."""
USERS = "triton"
"""Of those that the script brings."""
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


class OriginSites:
    """Places of origins: of a module that was compiled once for many, in the one that runs."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._roots: dict[int, Place] = {}
        """By the graph's id: the module that ran when it was first launched."""
        self._runs: dict[int, Run] = {}
        """By the graph's id: the module that it runs for."""

    def begin(self, graph: LoweredGraph) -> Run:
        """A graph of the forward pass runs for the module that is running."""
        place = self._modules.place
        run = Run(self._roots.setdefault(id(graph), place), place)
        self._runs[id(graph)] = run
        return run

    def resume(self, graph: LoweredGraph, run: Run) -> None:
        """Its graph of the backward pass runs for the same module."""
        self._runs[id(graph)] = run

    def place(self, graph: LoweredGraph, origin: Origin) -> Place:
        place = self._modules.with_id(origin.module_id)
        run = self._runs.get(id(graph), NO_RUN)
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
        name=f"{NAMESPACE if fused is not None else USERS}.{name}",
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
    """Of the storages."""
    return tuple(
        HOST_NUMBER if (virtual := virtual_of(tensor)) is None else virtual.number
        for argument, tensor in operands
        if is_result(argument) is results
    )
