"""What inductor would choose by timing: the library's kernel of a product or another, and what is
fused with it.

With `max_autotune` a product has several kernels: the library's, Triton templates with tiles of
several sizes, sums over parts of K. Inductor times them, tries the fastest template with what
follows fused into it, and keeps whichever took least (torch/_inductor/select_algorithm.py, and
`speedup_by_fusion` in scheduler.py). All of that is inductor's own here, but that predicted times
answer in place of measured ones.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import torch
from msgspec import structs

from torchtally.chips import Chip
from torchtally.torch_private import without_dispatch_modes
from torchtally.trace import Call, FusedKernel, Part, Tile
from torchtally.virtual.compiling.flex import on_gpu
from torchtally.virtual.compiling.kernels import (
    LoweredGraph,
    bytes_moved_by,
    fused_kernel,
    lower,
    tile_in,
)
from torchtally.virtual.compiling.origins import origin_of
from torchtally.virtual.description import describe
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.stand_ins import StandIn, instead_of

MILLI = 1e-3
"""Inductor compares milliseconds."""

LIBRARYS = {"mm": "mm", "addmm": "addmm", "bias_addmm": "addmm", "bmm": "bmm", "baddbmm": "baddbmm"}
"""The library's kernels whose time is predicted here, by inductor's names, and their operators. Of
other products, as of `_scaled_mm`, and of convolutions the library's is taken: it won all ten
products in float8 on an H100 (pytorch/helion pull request 3006), and all eight convolutions of a
model on a V100 (benchmarks/published_templates.py)."""

WRITTEN = {(2, 2): "mm", (3, 2): "addmm", (2, 3): "bmm", (3, 3): "baddbmm"}
"""Operators that templates are written for, by (operands, dimensions of the result)."""
TEMPLATES = ("triton_mm", "triton_bmm")
"""How inductor begins the names of their templates."""
SUMS = "decompose_k"
"""How it begins the name of a choice that adds products of parts of K."""
PARTS = re.compile(r"\bk_split=(\d+)")

ASSUMED = 'mode="max-autotune": assumed that {} is faster than {} for {}'
VIEWS = frozenset(("aten.view", "aten.t", "aten.permute", "aten.expand", "aten.unsqueeze"))


@dataclass(slots=True)
class Contest:
    """One product's choices, in seconds of the fastest of each kind."""

    library: str = ""
    library_s: float = inf
    templates: int = 0
    template_s: float = inf
    sums_s: float = inf
    fused_s: float = inf
    """Of the template that was tried with what follows it."""
    apart_s: float = inf
    """Of the fastest, and then of what follows it by itself."""

    @property
    def best_s(self) -> float:
        return min(self.library_s, self.template_s, self.sums_s)


class TimedNodes(NamedTuple):
    """Stands for the module of a kernel that inductor would time."""

    nodes: Sequence[Any]
    tile: Tile | None


class KernelChoices:
    """Choices for all products of a session."""

    def __init__(self, mode: VirtualDispatch, chip: Chip, compiler: Any) -> None:
        self.mode, self.chip, self.compiler = mode, chip, compiler
        self._contests: dict[str, Contest] = {}
        """By what is multiplied."""

    def stand_ins(self) -> list[StandIn]:
        compiler = self.compiler
        return [
            instead_of(compiler.CHOICES, classmethod(self.time_choices())),
            instead_of(compiler.BENCHMARK_INPUTS, lambda *args, **options: None),
            instead_of(compiler.PRECOMPILE, lambda *args, **options: dict),
            instead_of(compiler.COMPILE_NODES, self.write_nodes()),
            instead_of(compiler.BENCHMARK_MODULE, self.time_module()),
            instead_of(compiler.BENCHMARK_NODES, self.time_nodes()),
            instead_of(compiler.SPLIT_SIZE, staticmethod(first_size)),
        ]

    # What inductor asks -------------------------------------------------------------------------

    def time_choices(self) -> Any:
        """Stands for `benchmark_choices`: milliseconds of each."""

        def benchmark_choices(cls: Any, choices: Iterable[Any], *rest: Any, **named: Any) -> Any:
            choices = list(choices)
            with without_dispatch_modes():
                times = {choice: self.choice_s(choice) for choice in choices}
            if min(times.values()) == inf:
                # No rule here for any, as for attention's: inductor's first.
                return dict.fromkeys(choices, 0.0)
            self._contests[sizes_of(choices[0].input_nodes)] = self.contest_of(times)
            return {choice: seconds / MILLI for choice, seconds in times.items()}

        return benchmark_choices

    def write_nodes(self) -> Any:
        """Stands for `compile_kernel`: the source alone, which says whether it can be written."""

        def compile_kernel(scheduler: Any, nodes: Any, hint_override: Any = None) -> Any:
            source = scheduler.generate_kernel_code_from_nodes(
                nodes, benchmark_kernel=False, hint_override=hint_override
            )
            return None, TimedNodes(nodes, tile_in(source))

        return compile_kernel

    def time_module(self) -> Any:
        """Stands for `benchmark_codegened_module`, of a template with what is fused."""

        def benchmark_codegened_module(scheduler: Any, module: Any, device: Any) -> Any:
            seconds = self.nodes_s(scheduler, module.nodes, module.tile)
            following = [each for each in module.nodes if not each.is_template()]
            template = next((each for each in module.nodes if each.is_template()), None)
            if template is not None and following:
                contest = self._contests.get(sizes_of(template.node.inputs), Contest())
                contest.fused_s = seconds
                contest.apart_s = contest.best_s + self.nodes_s(scheduler, following, None)
            return seconds / MILLI, ""

        return benchmark_codegened_module

    def time_nodes(self) -> Any:
        """Stands for `benchmark_fused_nodes`."""

        def benchmark_fused_nodes(scheduler: Any, nodes: Any) -> Any:
            return self.nodes_s(scheduler, nodes, None) / MILLI, ""

        return benchmark_fused_nodes

    # Times --------------------------------------------------------------------------------------

    def choice_s(self, choice: Any) -> float:
        """Infinite for one that would not run, which inductor leaves out."""
        call = self.call_of(choice)
        if call is None:
            return 0.0 if self.is_library(choice) else inf
        if self.is_library(choice):
            return self.mode.kernel_s(call)
        if choice.name.startswith(SUMS):
            return self.sums_s(choice, call)
        tile = tile_in(choice.description)
        if tile is None or not self.fits(tile, call):
            return inf
        read, written = bytes_of(call)
        part = Part(call.name, (call,), read, written)
        return self.kernel_s(FusedKernel("template", (part,), (), tile))

    def kernel_s(self, kernel: FusedKernel) -> float:
        return self.mode.kernel_s(Call("inductor.triton", "", (), (), fused=kernel))

    def is_library(self, choice: Any) -> bool:
        return isinstance(choice, self.compiler.EXTERN_CHOICE)

    def fits(self, tile: Tile, call: Call) -> bool:
        """Whether it fits into the shared memory that a block may have: Triton refuses others, and
        inductor leaves them out.
        """
        if not self.chip.is_cuda:
            return True
        step_bytes = (tile.rows + tile.columns) * tile.depth * call.inputs[-1].itemsize_bytes
        limit = self.chip.sm.shared_kib * 1024
        return tile.stages * step_bytes <= limit

    def sums_s(self, choice: Any, call: Call) -> float:
        """A batched product of K's parts in float32, and a kernel that adds them."""
        match = PARTS.search(choice.description)
        if match is None:
            return inf
        parts = int(match[1])
        left, right = (self.tensor_of(node) for node in choice.input_nodes[-2:])
        (M, K), N = left.shape, right.shape[1]
        batched = self.described(
            "bmm",
            left.view(M, parts, K // parts).transpose(0, 1),
            right.reshape(parts, K // parts, N),
            result=torch.empty(parts, M, N, dtype=torch.float32, device="meta"),
        )
        _, written = bytes_of(call)
        added = Part("aten.sum", (), batched.outputs[0].bytes, written)
        return self.mode.kernel_s(batched) + self.kernel_s(FusedKernel("reduction", (added,)))

    def nodes_s(self, scheduler: Any, nodes: Sequence[Any], tile: Tile | None) -> float:
        """Seconds of one kernel that computes all of these nodes of the scheduler."""
        graph = self.compiler.lowered_graph()
        own = LoweredGraph(bool(graph.is_backward), called=self.compiler.called_operators(graph))
        with without_dispatch_modes():
            node = self.compiler.fused_node(scheduler, nodes)
            work = lower(node, graph, own, self.mode, self.compiler).work
        kernel = fused_kernel("triton_poi" if tile is None else "triton_tem", work, tile)
        return 0.0 if kernel is None else self.kernel_s(kernel)

    # Calls --------------------------------------------------------------------------------------

    def call_of(self, choice: Any) -> Call | None:
        """The product as an operator of ATen; None of one that is not known here."""
        name = self.operator_of(choice)
        if name is None:
            return None
        operands = [self.tensor_of(node) for node in choice.input_nodes]
        if name == "addmm" and operands[0].dim() == 2 and not operands[0].stride(0):
            # A bias, which inductor repeats for each row.
            operands[0] = operands[0][0]
        return self.described(name, *operands, result=self.tensor_of(choice))

    def operator_of(self, choice: Any) -> str | None:
        if self.is_library(choice):
            return LIBRARYS.get(choice.name)
        if not choice.name.startswith((*TEMPLATES, SUMS)):
            return None
        return WRITTEN.get((len(choice.input_nodes), len(choice.layout.size)))

    def described(self, name: str, *operands: torch.Tensor, result: torch.Tensor) -> Call:
        operator = getattr(torch.ops.aten, name).default
        call = describe(Invocation(self.mode.operator(operator), operands, {}), [result])
        return structs.replace(
            call, inputs=tuple(map(on_gpu, call.inputs)), outputs=tuple(map(on_gpu, call.outputs))
        )

    def tensor_of(self, node: Any) -> torch.Tensor:
        """Tensor of a buffer of inductor's, or of the result of a choice, on no device."""
        layout = node.layout if hasattr(node, "layout") else node.get_layout()
        size, stride = (
            [self.compiler.number(each) for each in part] for part in (layout.size, layout.stride)
        )
        return torch.empty_strided(size, stride, dtype=layout.dtype, device="meta")

    # What the report says -------------------------------------------------------------------------

    def contest_of(self, times: dict[Any, float]) -> Contest:
        contest = Contest()
        for choice, seconds in times.items():
            if self.is_library(choice):
                if seconds < contest.library_s:
                    contest.library, contest.library_s = choice.name, seconds
            elif choice.name.startswith(SUMS):
                contest.sums_s = min(contest.sums_s, seconds)
            else:
                contest.templates += 1
                contest.template_s = min(contest.template_s, seconds)
        return contest

    def tell(self, node: Any) -> None:
        """Say what has become of a product, where there was a choice."""
        template = node.get_template_node() if node.is_template() else None
        inputs = getattr(template or node.node, "inputs", None) or ()
        contest = self._contests.get(sizes_of(inputs)) if len(inputs) > 1 else None
        if contest is None or not contest.library:
            return
        library = f"{contest.library} of the library"
        if template is not None:
            remark = self.remark_of_template(node, template, contest, library)
        elif self.compiler.is_subgraph(node):
            text = ASSUMED.format("adding products of parts of K", library, sizes_of(inputs))
            remark = text + in_microseconds(contest.sums_s, contest.library_s)
        elif contest.templates:
            others = f"{contest.templates} template{'s' * (contest.templates > 1)} of inductor"
            text = ASSUMED.format(library, others, sizes_of(inputs))
            remark = text + in_microseconds(contest.library_s, contest.template_s)
            times = in_microseconds(contest.apart_s, contest.fused_s).removeprefix(": ")
            remark += f"; with what follows {times} fused" if times else ""
        else:
            return
        self.mode.observer.note(remark)

    def remark_of_template(self, node: Any, template: Any, contest: Contest, library: str) -> str:
        following = operators_behind(node)
        fused = f" with {following} behind it" if following else ""
        text = ASSUMED.format(f"a template of inductor{fused}", library, sizes_of(template.inputs))
        if not following:
            return text + in_microseconds(contest.template_s, contest.library_s)
        text += in_microseconds(contest.fused_s, contest.apart_s)
        if template.get_name() in bytes_moved_by(node)[1]:
            return text
        saved_bytes = self.compiler.bytes_of_buffer(template)
        return f"{text}; its result, {saved_bytes:,} bytes, is not in memory"


def first_size(time: Any, size: int, *rest: Any, **named: Any) -> int:
    """First size of a reduction's parts: the one that inductor has by the number of
    multiprocessors, which is no question of the library or a template.
    """
    return size


def operators_behind(node: Any) -> str:
    """What a template has fused: "aten.add, aten.gelu"."""
    nodes = (each.node.get_origin_node() for each in node.get_nodes() if not each.is_template())
    names = {origin_of(each).operator for each in nodes if each is not None}
    return ", ".join(sorted(names - VIEWS or names))


def in_microseconds(chosen_s: float, other_s: float) -> str:
    """Times as ": 92.0 us beside 98.1"; nothing where no rule here knows them."""
    if not 0 < chosen_s < inf or other_s == inf:
        return ""
    return f": {chosen_s * 1e6:,.1f} us beside {other_s * 1e6:,.1f}"


def sizes_of(nodes: Sequence[Any]) -> str:
    """Sizes as "8192x1024 by 1024x4096": without what addmm adds, and without a convolution's
    bias.
    """
    sizes = [node.maybe_get_size() or () for node in nodes if hasattr(node, "maybe_get_size")]
    if len(sizes) > 2:
        sizes = sizes[:2] if len(sizes[-1]) == 1 else sizes[-2:]
    return " by ".join("x".join(map(str, size)) for size in sizes)


def bytes_of(call: Call) -> tuple[int, int]:
    """(read, written), each operand and the result once."""
    return sum(spec.bytes for spec in call.inputs), sum(spec.bytes for spec in call.outputs)
