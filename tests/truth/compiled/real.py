"""A case on PyTorch's CUDA build, over the stand-in for the driver."""

from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.async_compile as async_compile
import torch._inductor.fx_passes.joint_graph as joint_graph
import torch._inductor.fx_passes.pad_mm as pad_mm
import torch._inductor.runtime.triton_heuristics as heuristics
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode

from tests.truth.compiled.cases import Case
from tests.truth.compiled.record import Record


def record(case: Case, record: Record, *, is_cold: bool) -> None:
    fold_on_host()
    watch_programs(record)
    if is_cold:
        watch_compiled_kernels(record)
        pad_mm._skip_do_bench_times = case.pads
    else:
        compile_no_kernels(record)
        # Asked before a benchmark is run: what an earlier one has said.
        pad_mm.get_cached_should_pad = lambda key: case.pads
        record.tie_choices()
    record.watch_scheduler()
    record.watch_dynamo()
    record.run(case, torch.compile)


class OnHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def host(value: Any) -> Any:
            is_gpu = isinstance(value, torch.device) and value.type == "cuda"
            return torch.device("cpu") if is_gpu else value

        return func(*map(host, args), **{k: host(v) for k, v in (kwargs or {}).items()})


def fold_on_host() -> None:
    """Constants are folded by reading them back, and the stand-in's memory is all zeros."""
    folder = joint_graph.UniformValueConstantFolder
    native = folder._deduce_value

    def deduce(self: Any, node: Any) -> Any:
        with OnHost():
            return native(self, node)

    folder._deduce_value = deduce


def watch_programs(record: Record) -> None:
    native = GraphLowering.compile_to_module

    def compile_to_module(graph: Any) -> Any:
        module = native(graph)
        record.watch_program(module.call)
        return module

    GraphLowering.compile_to_module = compile_to_module


def compile_no_kernels(record: Record) -> None:
    """The stand-in would run none of them, and so none is timed."""

    def kernel(self: Any, kernel_name: str, source: str, device_str: str = "cuda") -> Any:
        def run(*values: Any, stream: Any = None, **named: Any) -> None:
            record.launched(kernel_name, values)

        return SimpleNamespace(run=run)

    async_compile.AsyncCompile.triton = kernel
    async_compile.AsyncCompile.wait = lambda self, scope: None


ONLY_TIMED = "Placeholder"
"""How inductor begins the name of a kernel that it writes to see whether it is faster."""


def watch_compiled_kernels(record: Record) -> None:
    native = heuristics.CachingAutotuner.run

    def run(self: Any, *values: Any, **named: Any) -> Any:
        result = native(self, *values, **named)
        name = self.inductor_meta.get("kernel_name", self.fn.__name__)
        if not name.startswith(ONLY_TIMED):
            record.launched(name, values)
        return result

    heuristics.CachingAutotuner.run = run
