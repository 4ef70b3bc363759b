"""Inductor's lowering of a graph, up to the program it writes; what would ask a GPU, answered."""

from types import SimpleNamespace
from typing import Any

import torch

from torchtally.virtual.compiling.choices import KernelChoices
from torchtally.virtual.compiling.events import COMPILED, COMPILED_BACKWARD
from torchtally.virtual.compiling.host import HostPart
from torchtally.virtual.compiling.kernels import LoweredGraph, lower
from torchtally.virtual.compiling.known import KnownPart
from torchtally.virtual.compiling.origins import Origin
from torchtally.virtual.compiling.wrapper import MARK, Program
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn, instead_of

META, GPU = torch.device("meta"), torch.device("cuda", 0)


class Lowering:
    """Lowering of all graphs of a session."""

    def __init__(self, mode: VirtualDispatch, compiler: Any, choices: KernelChoices) -> None:
        self.mode, self.compiler, self.choices = mode, compiler, choices
        self._replaced: Origin | None = None
        """The product that a graph within the graph stands for."""
        self._graphs: dict[int, LoweredGraph] = {}
        """Those that are being written, by inductor's."""

    def stand_ins(self) -> list[StandIn]:
        compiler = self.compiler
        lazy_inits = [
            StandIn(name.owner, name.name, on_host(getattr(*name))) for name in compiler.LAZY_INITS
        ]
        return [
            *lazy_inits,
            instead_of(compiler.JOINT_GRAPH_PASSES, self.joint_passes()),
            StandIn(compiler.GraphLowering, "__init__", self.init()),
            StandIn(compiler.GraphLowering, "compile_to_module", self.compile_to_module()),
            instead_of(compiler.ENTER_NODE, self.enter_node()),
            instead_of(compiler.BENCHMARK, lambda benchmarker, *args, **options: 1.0),
            *(instead_of(name, lambda: "") for name in compiler.PROGRAMS_ASKED),
            instead_of(compiler.CPP_COMPILER, lambda: "g++"),
            instead_of(compiler.PROFILE_KEY, lambda: None),
        ]

    def joint_passes(self) -> Any:
        native = getattr(*self.compiler.JOINT_GRAPH_PASSES)

        def passes(module: Any, *args: Any, **options: Any) -> Any:
            put_on_gpu(module)
            return native(module, *args, **options)

        return passes

    def init(self) -> Any:
        native = self.compiler.GraphLowering.__init__

        def init(graph: Any, *args: Any, **options: Any) -> None:
            # The graph of a choice of max-autotune, by its name (codegen/subgraph.py).
            put_on_gpu(args[0] if args else options["gm"])
            native(graph, *args, **options)

        return init

    def enter_node(self) -> Any:
        """Called with each node of the scheduler before it is written."""
        native = getattr(*self.compiler.ENTER_NODE)

        def enter(scheduler: Any, node: Any) -> None:
            native(scheduler, node)
            if isinstance(node, self.compiler.NopNode):
                return
            written = self.compiler.lowered_graph()
            graph = self.compiler.root_of(written)
            own = self._graphs.get(id(graph))
            if own is None:
                symbols = self.compiler.symbols_of(graph)
                called = self.compiler.called_operators(graph)
                is_whole_backward = self.compiler.is_of_compiled_autograd()
                if is_whole_backward:
                    self.mode.observer.note(COMPILED_BACKWARD)
                is_backward = bool(graph.is_backward) or is_whole_backward
                own = LoweredGraph(is_backward, symbols=symbols, called=called)
                self._graphs[id(graph)] = own
            # A graph within the graph is a function of its own, and knows no symbols.
            symbols = own.symbols if written is graph else ()
            self.compiler.writer().writeline(
                f"{MARK}({', '.join((str(len(own.nodes)), *symbols))})"
            )
            lowered = lower(node, written, own, self.mode, self.compiler)
            if written is not graph and self._replaced is not None:
                lowered = lowered.of(self._replaced)
            own.nodes.append(lowered)
            self.choices.tell(node)
            if self.compiler.is_subgraph(node):
                self._replaced = lowered.main

        return enter

    def compile_to_module(self) -> Any:
        def compile_to_module(graph: Any) -> Any:
            code, _ = graph.codegen()
            self.mode.observer.note(COMPILED)
            own = self._graphs.pop(id(graph), None) or LoweredGraph(bool(graph.is_backward))
            parts = HostPart(graph.module), KnownPart(graph.module)
            program = Program(
                code.value, graph.constants, own, parts, self.mode, self.compiler.EXTERN_KERNELS
            )
            return SimpleNamespace(call=program.call, runner=program.runner, __file__="<compiled>")

        return compile_to_module


def on_host(native: Any) -> Any:
    """Patterns are traced with tensors of the host: their devices are not part of them."""

    def init(input_device: Any = None, *args: Any, **options: Any) -> Any:
        # Once in a process, which may have compiled before, and will after: torch asks by device.
        if not native.cache_info().currsize:
            devices = () if input_device is None else (torch.device("cpu"),)
            native(*devices, *args, **options)

    return init


def put_on_gpu(module: Any) -> None:
    """Factories that C++ called with the options of a virtual tensor name the device "meta"."""

    def on_gpu(argument: Any) -> Any:
        return GPU if isinstance(argument, torch.device) and argument == META else argument

    for node in module.graph.nodes:
        if node.op == "call_function":
            node.args = tuple(map(on_gpu, node.args))
            node.kwargs = {name: on_gpu(argument) for name, argument in node.kwargs.items()}
