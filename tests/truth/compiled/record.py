"""One case on this side, written down: the CUDA build's, or the virtual GPU's.

python -m tests.truth.compiled.record CASE OUT.json real|virtual
"""

import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch

from tests.truth.compiled.cases import CASES, STEPS, Compiler


class Record:
    """What both sides write down."""

    def __init__(self) -> None:
        self.graphs: list[dict[str, Any]] = []
        self.launches: list[list[Any]] = []
        self.marks: list[list[Any]] = []
        self.breaks: list[str] = []

    def launched(self, name: str, values: Any) -> None:
        operands = [
            [list(value.shape), list(value.stride()), str(value.dtype).removeprefix("torch.")]
            for value in values
            if isinstance(value, torch.Tensor)
        ]
        memory = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        self.launches.append([name, operands, *memory])

    def watch_scheduler(self) -> None:
        """Write down the rows of every graph that inductor schedules."""
        from torch._inductor.graph import GraphLowering

        native = GraphLowering.codegen

        def codegen(graph: Any) -> Any:
            result = native(graph)
            self.graphs.append({"backward": bool(graph.is_backward), "rows": rows_of(graph)})
            return result

        GraphLowering.codegen = codegen

    def watch_breaks(self) -> None:
        from torch._dynamo import symbolic_convert

        native = symbolic_convert.InstructionTranslatorBase.log_graph_break

        def log(translator: Any, options: Any, *rest: Any, **named: Any) -> Any:
            errors = [each for each in (*rest, *named.values()) if isinstance(each, Exception)]
            if not any(getattr(error, "logged", False) for error in errors):
                self.breaks.append(translator.f_code.co_name)
            return native(translator, options, *rest, **named)

        symbolic_convert.InstructionTranslatorBase.log_graph_break = log

    def run(self, name: str, compiler: Compiler) -> None:
        """Python collects garbage between steps alone: else at another moment on each side."""
        step = CASES[name].make(compiler)
        gc.disable()
        for number in range(STEPS):
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            first = len(self.launches)
            for part in step():
                self.marks.append(
                    [number, part, torch.cuda.memory_allocated(),
                     torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(),
                     torch.cuda.max_memory_reserved(), len(self.launches) - first]
                )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__.split("+")[0], "graphs": self.graphs, "marks": self.marks,
            "launches": self.launches, "breaks": self.breaks,
        }  # fmt: skip


def rows_of(graph: Any) -> list[list[Any]]:
    """The scheduler's nodes: kind, library call, operators fused, bytes read and written."""
    from torch._inductor import ir
    from torch._inductor import scheduler as scheduling

    rows = []
    for node in graph.scheduler.nodes:
        is_extern = isinstance(node, scheduling.ExternKernelSchedulerNode)
        if isinstance(node, scheduling.NopKernelSchedulerNode) or (
            is_extern and isinstance(node.node, ir.MultiOutput)
        ):
            continue
        library = None
        if is_extern:
            overload = str(getattr(node.node, "op_overload", ""))
            library = getattr(node.node, "python_kernel_name", None) or overload
        sizes = node.get_read_write_buffers_sizes_impl
        counts = [sizes(include_reads=reads, include_writes=not reads) for reads in (True, False)]
        rows.append([type(node).__name__, library, len(node.get_nodes()), *map(int, counts)])
    return rows


class Library:
    """Inductor's calls of libraries, written down."""

    def __init__(self, native: Any, record: Record) -> None:
        self.native, self.record = native, record

    def __getattr__(self, name: str) -> Any:
        native = getattr(self.native, name)

        def call(*values: Any, **named: Any) -> Any:
            result = native(*values, **named)
            self.record.launched(name, (*values, *named.values()))
            return result

        return call


def on_real(name: str, record: Record) -> None:
    """On a CUDA build. Kernels are not compiled: the stand-in would run none of them."""
    import torch._inductor.async_compile as async_compile
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import torch._inductor.fx_passes.pad_mm as pad_mm
    from torch._inductor.graph import GraphLowering
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnHost(TorchDispatchMode):
        """Constants are folded by reading them back, and the stand-in's memory is all zeros."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            def host(value: Any) -> Any:
                is_gpu = isinstance(value, torch.device) and value.type == "cuda"
                return torch.device("cpu") if is_gpu else value

            return func(*map(host, args), **{k: host(v) for k, v in (kwargs or {}).items()})

    folder = joint_graph.UniformValueConstantFolder
    native_deduce = folder._deduce_value
    native_module = GraphLowering.compile_to_module

    def deduce(self: Any, node: Any) -> Any:
        with OnHost():
            return native_deduce(self, node)

    def kernel(self: Any, kernel_name: str, source: str, device_str: str = "cuda") -> Any:
        return SimpleNamespace(
            run=lambda *values, stream=None, **named: record.launched(kernel_name, values)
        )

    def compile_to_module(self: Any) -> Any:
        module = native_module(self)
        scopes = [getattr(module, "__dict__", {})]
        scopes.append(getattr(getattr(module.call, "__func__", module.call), "__globals__", {}))
        for scope in scopes:
            library = scope.get("extern_kernels")
            if library is not None and not isinstance(library, Library):
                scope["extern_kernels"] = Library(library, record)
        return module

    pad_mm.get_cached_should_pad = lambda key: False  # a benchmark would decide, and allocate
    folder._deduce_value = deduce
    async_compile.AsyncCompile.triton = kernel
    async_compile.AsyncCompile.wait = lambda self, scope: None
    GraphLowering.compile_to_module = compile_to_module
    record.watch_scheduler()
    record.watch_breaks()
    record.run(name, torch.compile)


def on_virtual(name: str, record: Record) -> None:
    """On the virtual GPU, whose own compiling is watched from outside."""
    import torchtally
    from torchtally.virtual.compiling import wrapper

    native_launch, native_library = wrapper.Program.launch, wrapper.ExternKernels

    def launch(self: Any, kernel_name: str, arguments: Any, values: Any) -> None:
        record.launched(kernel_name, values)
        native_launch(self, kernel_name, arguments, values)

    wrapper.Program.launch = launch  # type: ignore[method-assign]
    wrapper.ExternKernels = lambda: Library(native_library(), record)  # type: ignore[misc,assignment]
    try:
        with torchtally.virtual_gpu(CASES[name].chip, memory_is_limited=False):
            watched: list[bool] = []

            def compiler(model: Any) -> Any:
                compiled = torch.compile(model)
                if not watched:
                    record.watch_scheduler()
                    record.watch_breaks()
                    watched.append(True)
                return compiled

            record.run(name, compiler)
    finally:
        wrapper.Program.launch = native_launch  # type: ignore[method-assign]
        wrapper.ExternKernels = native_library  # type: ignore[misc]


def main() -> None:
    name, out, side = sys.argv[1:4]
    record = Record()
    (on_virtual if side == "virtual" else on_real)(name, record)
    Path(out).write_text(json.dumps(record.facts()), encoding="utf-8")


if __name__ == "__main__":
    main()
