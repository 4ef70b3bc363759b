"""One case on this side, written down: the CUDA build's, or the virtual GPU's.

python -m tests.truth.compiled.record CASE OUT.json real|cold|virtual
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch

from tests.truth.compiled.cases import Case, case_of

SIDES = {"real": "real", "cold": "real", "virtual": "virtual"}
"""Which module records it. Cold is the CUDA build with nothing cached: kernels are compiled, and
timed before they run. The other two find all of that done, as a second run of a script does.
"""


class Record:
    """What both sides write down."""

    def __init__(self) -> None:
        self.graphs: list[dict[str, Any]] = []
        self.launches: list[list[Any]] = []
        self.marks: list[list[Any]] = []
        self.pools: list[list[list[int]]] = []
        self.breaks: list[list[str]] = []
        self.recompiles: list[list[str]] = []
        self._kernels: dict[str, str] = {}
        """Names of kernels by those of the scheduler's nodes, of the graph being written."""

    def launched(self, name: str, values: Any) -> None:
        """A kernel or a library's function has run on these operands."""
        operands = [
            [list(value.shape), list(value.stride()), str(value.dtype).removeprefix("torch.")]
            for value in values
            if isinstance(value, torch.Tensor)
        ]
        memory = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        self.launches.append([name, operands, *memory])

    def watch_scheduler(self) -> None:
        """Write down the rows of every graph that inductor schedules."""
        from torch._inductor.codegen.triton import TritonScheduling
        from torch._inductor.graph import GraphLowering

        native_define, native_codegen = TritonScheduling.define_kernel, GraphLowering.codegen

        def define(scheduling: Any, source: str, nodes: Any, kernel: Any) -> Any:
            name = native_define(scheduling, source, nodes, kernel)
            for node in nodes:
                if hasattr(node, "get_name"):
                    self._kernels[node.get_name()] = name
            return name

        def codegen(graph: Any) -> Any:
            self._kernels.clear()
            result = native_codegen(graph)
            rows = rows_of(graph, self._kernels)
            self.graphs.append({"backward": bool(graph.is_backward), "rows": rows})
            return result

        TritonScheduling.define_kernel = define
        GraphLowering.codegen = codegen

    def tie_choices(self) -> None:
        """Of a product's kernels, and of what is fused with one: each takes 1 ms, as by the
        stand-in's events. Nothing is compiled or run for that.
        """
        from torch._inductor.scheduler import Scheduler
        from torch._inductor.select_algorithm import AlgorithmSelectorCache

        def compile_kernel(scheduler: Any, nodes: Any, hint_override: Any = None) -> Any:
            # What cannot be written raises here, and is not fused.
            scheduler.generate_kernel_code_from_nodes(nodes, benchmark_kernel=False)
            return None, None

        owner: Any = AlgorithmSelectorCache
        owner.make_precompile_fn = lambda *args, **options: dict
        owner.get_inputs = lambda *args, **options: None
        owner.benchmark_choices = lambda choices, *rest, **named: dict.fromkeys(choices, 1.0)
        Scheduler.compile_kernel = compile_kernel
        Scheduler.benchmark_codegened_module = lambda *args: (1.0, "")
        Scheduler.benchmark_fused_nodes = lambda *args: (1.0, "")

    def watch_dynamo(self) -> None:
        """Write down where graphs end, a line by its text, and what is compiled again."""
        from torch._dynamo import convert_frame, symbolic_convert

        owner = symbolic_convert.InstructionTranslatorBase
        native_log = owner.log_graph_break
        native_reasons = convert_frame.get_and_maybe_log_recompilation_reasons

        def log(translator: Any, options: Any, reason: str, exc: Any) -> Any:
            if not exc.logged:
                stack = getattr(exc, "real_stack", None)
                stack = stack or torch._guards.TracingContext.extract_stack()
                place = [stack[-1].name, (stack[-1].line or "").strip()] if stack else ["", ""]
                self.breaks.append([first_line(str(exc)), *place])
            return native_log(translator, options, reason=reason, exc=exc)

        def reasons(entries: Any, frame: Any, *rest: Any, **options: Any) -> Any:
            reasons = native_reasons(entries, frame, *rest, **options)
            if not options.get("skip_logging"):
                # "0/0: L['x'].size()[0] == 8  # ...": graph, what no longer holds, where that is.
                said = [first_line(each).partition("  #")[0].rstrip() for each in reasons]
                self.recompiles.append([frame.f_code.co_name, *said])
            return reasons

        owner.log_graph_break = log
        convert_frame.get_and_maybe_log_recompilation_reasons = reasons

    def watch_program(self, call: Any) -> None:
        """Write down a compiled graph's calls of libraries and operators: `call` is its entry."""
        scope = getattr(call, "__func__", call).__globals__
        if isinstance(scope["torch"], Namespace):
            return
        for name in ("torch", "extern_kernels"):
            if name in scope:
                scope[name] = Namespace(scope[name], "" if name == "torch" else name, self.launched)
        for name, value in list(scope.items()):
            if isinstance(value, torch._ops._OpNamespace):
                scope[name] = Namespace(value, value.name, self.launched)

    def run(self, case: Case, compiler: Callable[..., Any]) -> None:
        """Python collects garbage between steps alone: else at another moment on each side."""
        step = case.make(lambda model: compiler(model, **case.options))
        gc.disable()
        for number in range(case.steps):
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            first = len(self.launches)
            for part in step():
                self.marks.append(
                    [number, part, torch.cuda.memory_allocated(),
                     torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(),
                     torch.cuda.max_memory_reserved(), len(self.launches) - first]
                )  # fmt: skip
            self.pools.append(private_pools())

    def facts(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__.split("+")[0], "graphs": self.graphs, "marks": self.marks,
            "launches": self.launches, "breaks": self.breaks, "recompiles": self.recompiles,
            "pools": self.pools,
        }  # fmt: skip


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].strip()


def private_pools() -> list[list[int]]:
    """Segments, reserved and allocated bytes of each pool of CUDA graphs, in their order."""
    pools: dict[tuple[int, int], list[int]] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if pool != (0, 0):
            totals = pools.setdefault(pool, [0, 0, 0])
            totals[0] += 1
            totals[1] += segment["total_size"]
            totals[2] += segment["allocated_size"]
    return [pools[pool] for pool in sorted(pools)]


def rows_of(graph: Any, kernels: dict[str, str]) -> list[list[Any]]:
    """The scheduler's nodes: kind, kernel or library call, nodes fused, bytes read and written,
    FLOPs of products as inductor counts them, operators.
    """
    from torch._inductor import ir
    from torch._inductor import scheduler as scheduling

    rows = []
    for node in graph.scheduler.nodes:
        is_extern = isinstance(node, scheduling.ExternKernelSchedulerNode)
        if isinstance(node, scheduling.NopKernelSchedulerNode) or (
            is_extern and isinstance(node.node, ir.MultiOutput)
        ):
            continue
        parts = node.get_nodes()
        if is_extern:
            overload = str(getattr(node.node, "op_overload", ""))
            names = [getattr(node.node, "python_kernel_name", None) or overload]
        else:
            names = [kernels[part.get_name()] for part in parts if part.get_name() in kernels]
        sizes = node.get_read_write_buffers_sizes_impl
        counts = [sizes(include_reads=reads, include_writes=not reads) for reads in (True, False)]
        flops = sum(part.estimate_flops() or 0 for part in parts)
        origins = {
            str(origin.target)
            for part in parts
            if part.node is not None
            for origin in part.node.get_origins()
        }
        name = ", ".join(dict.fromkeys(names))
        rows.append(
            [type(node).__name__, name, len(parts), *map(int, counts), int(flops), sorted(origins)]
        )
    return rows


class Namespace:
    """A part of `torch` whose operators, and functions of libraries, are written down if called."""

    def __init__(self, native: Any, path: str, launched: Callable[[str, Any], None]) -> None:
        self._native, self._path, self._launched = native, path, launched

    def __getattr__(self, name: str) -> Any:
        native = getattr(self._native, name)
        path = f"{self._path}.{name}".lstrip(".")
        is_operator = isinstance(native, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
        if is_operator or self._path == "extern_kernels":

            def call(*values: Any, **named: Any) -> Any:
                result = native(*values, **named)
                self._launched(path, (*values, *named.values()))
                return result

            return call
        holds_operators = torch._ops._Ops | torch._ops._OpNamespace | torch._ops.OpOverloadPacket
        if isinstance(native, holds_operators):
            path = "" if isinstance(native, torch._ops._Ops) else path
            return Namespace(native, path, self._launched)
        return native

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._native(*values, **named)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    native = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, native)


def main() -> None:
    name, out, side = sys.argv[1:4]
    record = Record()
    recorder = import_module(f"tests.truth.compiled.{SIDES[side]}")
    recorder.record(case_of(name), record, is_cold=side == "cold")
    Path(out).write_text(json.dumps(record.facts()), encoding="utf-8")


if __name__ == "__main__":
    main()
