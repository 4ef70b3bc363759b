"""What inductor's program runs with: memory of the virtual GPU, kernels that are recorded."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from torchtally.torch_private import without_dispatch_modes
from torchtally.trace import Part, Tile
from torchtally.virtual.compiling.flex import ESTIMATED_MASK, NUMBERS, UNKNOWN_MASK, FlexNode
from torchtally.virtual.compiling.host import HostPart
from torchtally.virtual.compiling.kernels import (
    KernelWork,
    LoweredGraph,
    LoweredNode,
    fused_kernel,
    kind_of,
    tile_in,
)
from torchtally.virtual.compiling.known import KnownPart, give
from torchtally.virtual.depth import as_meta
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.extensions.handed_on import HandedOn
from torchtally.virtual.extensions.launches import launch
from torchtally.virtual.extensions.triton_kernels import NAMESPACE as USERS
from torchtally.virtual.facts import is_any_trained, mark_trained
from torchtally.virtual.storage import make_virtual, virtual_of

MARK = "launched_by"
"""The function that the program calls before what a node of the scheduler has become."""

IMPORTS = (
    "from torch._inductor.select_algorithm import extern_kernels",
    "from torch._C import _cuda_getCurrentRawStream as get_raw_stream",
    "from torch._inductor.async_compile import AsyncCompile",
)
"""Lines of the program, for which it is given something else."""
WRITTEN = ("out_ptr", "in_out_ptr")
"""How inductor begins the names of arguments that a kernel writes to."""
BROUGHT = "@triton_heuristics.user_autotune("
"""How inductor decorates a kernel that the script brings."""
SIGNATURE = re.compile(r"^def \w+\((?P<arguments>[^)]*)\):", re.MULTILINE)


class Program:
    """One compiled graph: its source, run on virtual tensors."""

    def __init__(
        self,
        source: str,
        constants: dict[str, Any],
        graph: LoweredGraph,
        parts: tuple[HostPart, KnownPart],
        mode: VirtualDispatch,
        extern_kernels: Any,
    ) -> None:
        """`extern_kernels` are inductor's."""
        self.graph, self.mode = graph, mode
        self.host, self.known_part = parts
        self.known = self.known_part.with_arguments(())
        """Of the run that goes on."""
        self.node = -1
        """Of the scheduler, that runs now."""
        self.sizes: tuple[int, ...] = ()
        """Of the graph's symbols."""
        self._first: dict[int, tuple[tuple[int, ...], int]] = {}
        """By node: the sizes that it was compiled with, and the bytes of its operands then."""
        self._work: dict[tuple[int, tuple[int, ...]], KernelWork] = {}
        self._attended: dict[tuple[int, tuple[int, ...]], tuple[Part, ...]] = {}
        """By the id of an attention's parts, and the pairs that are attended to."""
        for line in IMPORTS:
            source = source.replace(line, "")
        module = ModuleType("torchtally_compiled")
        namespace = module.__dict__
        namespace |= {
            **constants,
            MARK: self.begin,
            "extern_kernels": ExternKernels(extern_kernels),
            "AsyncCompile": lambda: Kernels(self),
            "get_raw_stream": lambda device: 0,
            "__file__": "<compiled>",
        }
        exec(compile(source, "<compiled>", "exec"), namespace)
        namespace |= {
            "assert_size_stride": ignore,
            "assert_alignment": ignore,
            "copy_if_misaligned": lambda tensor: tensor,
            "empty_strided_cuda": self.empty_strided,
            "empty_strided_cpu": zeros_on_host,
            "empty_strided_cpu_pinned": zeros_on_host,  # pinned by the CUDA driver
        }
        self._call: Callable[..., Any] = namespace["call"]
        self.runner: Any = namespace.get("runner")
        """Of a program in parts, each of which may be a CUDA graph."""

    def begin(self, node: int, *sizes: int) -> None:
        self.node, self.sizes = node, sizes or self.sizes
        self.mode.observer.compiled(self.graph, node)

    def call(self, args: Any) -> Any:
        """Run it: AOTAutograd hands it a list, which it empties."""
        before = self.node
        inputs = [argument for argument in args if isinstance(argument, torch.Tensor)]
        is_trained = is_any_trained(inputs, map(virtual_of, inputs))
        del inputs
        self.known = known = self.known_part.with_arguments(args)
        of_host = self.host.compute(known)
        whole_numbers = self.known_part.of_outputs(known)
        try:
            with torch.no_grad():
                outputs = self._call(args)
            self.host.put(of_host, outputs)
            for position, value in whole_numbers:
                give(outputs[position], value)
            if is_trained and not self.graph.is_backward:
                mark_trained(each for each in outputs if isinstance(each, torch.Tensor))
            return outputs
        finally:
            self.node = before
            self.mode.observer.compiled(None, -1)

    def empty_strided(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """Inductor's own, which the dispatcher does not see (torch/csrc/dynamo/guards.cpp)."""
        with without_dispatch_modes(), as_meta():
            tensor = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        make_virtual(tensor, self.mode.gpus[self.mode.current_device])
        return tensor

    def work_of(self, node: LoweredNode, tensors: Sequence[torch.Tensor]) -> KernelWork:
        """Work of the kernel that runs now: of the sizes that it runs with, where a graph has
        any.
        """
        if not self.graph.symbols or not node.parts:
            return node.work
        key = self.node, self.sizes
        work = self._work.get(key)
        if work is None:
            own = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            sizes, first = self._first.setdefault(self.node, (self.sizes, own))
            values = dict(zip(self.graph.symbols, self.sizes, strict=True))
            work = node.work
            if sizes != self.sizes:
                work = node.work_with(values, own / first if first else 1.0, self.mode)
            self._work[key] = work
        return work

    def parts_attended(
        self, flex: FlexNode, parts: tuple[Part, ...], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[Part, ...]:
        """Parts with what the mask of this run leaves."""
        counts = flex.counts(self.known, tensors.get(NUMBERS))
        if not counts.attended:
            self.mode.observer.note(UNKNOWN_MASK)
        elif counts.is_estimate:
            self.mode.observer.note(ESTIMATED_MASK)
        key = id(parts), (*counts.attended, counts.computed or -1)
        if key not in self._attended:
            self._attended[key] = flex.parts_with(parts, counts)
        return self._attended[key]

    def launch(
        self,
        name: str,
        arguments: tuple[str, ...],
        values: tuple[Any, ...],
        tile: Tile | None = None,
    ) -> None:
        """A kernel runs."""
        node = self.graph.nodes[self.node]
        tensors = [
            (argument, value)
            for argument, value in zip(arguments, values, strict=False)
            if isinstance(value, torch.Tensor)
        ]
        work = self.work_of(node, [tensor for _, tensor in tensors])
        if node.flex is not None:
            parts = self.parts_attended(node.flex, work.parts, dict(tensors))
            work = work._replace(parts=parts)
        kernel = fused_kernel(name, work, tile)
        written = [tensor for argument, tensor in tensors if argument.startswith(WRITTEN)]
        observer, capture = self.mode.observer, self.mode.capture
        if capture is None:
            observer.kernel_launched(name, kernel, tensors)
        else:
            capture.add_kernel(observer.kernel_captured(name, kernel, tensors), written)
        for virtual in map(virtual_of, written):
            if virtual is not None:
                virtual.forget()


def zeros_on_host(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    with without_dispatch_modes():
        return torch.empty_strided(size, stride, dtype=dtype).zero_()


def ignore(*args: Any, **kwargs: Any) -> None:
    """Ignores what a real run checks."""


class TritonKernel:
    """A Triton kernel that is not compiled."""

    def __init__(self, program: Program, name: str, source: str) -> None:
        match = SIGNATURE.search(source)
        written = match["arguments"] if match is not None else ""
        self.arguments = tuple(part.partition(":")[0].strip() for part in written.split(","))
        self.program, self.name = program, name
        self.tile = tile_in(source) if kind_of(name) == "template" else None
        is_brought = BROUGHT in source
        self.brought = HandedOn(name, source) if is_brought else None
        """By the script, not written by inductor."""

    def run(self, *args: Any, stream: Any = None, **kwargs: Any) -> None:
        if self.brought is None:
            self.program.launch(self.name, self.arguments, args, self.tile)
            return
        arguments = dict(zip(self.arguments, args, strict=False)) | self.brought.constants
        accesses = self.brought.accesses
        launch(
            self.program.mode,
            f"{USERS}.{self.name}",
            arguments,
            read=accesses.read,
            written=accesses.written,
            constants=self.brought.constants,
        )


class Kernels:
    """Stands for `AsyncCompile`."""

    process_pool = SimpleNamespace(cache_clear=lambda: None)

    def __init__(self, program: Program) -> None:
        self._program = program

    def triton(self, name: str, source: str, device_str: str = "cuda") -> TritonKernel:
        return TritonKernel(self._program, name, source)

    def cpp_pybinding(self, argument_types: list[str], source: str) -> Callable[..., None]:
        return ignore

    def wait(self, scope: dict[str, Any]) -> None: ...


class ExternKernels:
    """Inductor's calls of libraries: ATen's operators, on virtual tensors; or functions of its own
    that call them (`bias_addmm`, `conv1x1_via_mm`), which `max-autotune` may choose.
    """

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # A product with a result of another dtype is the operator's, too ("bmm_dtype").
        name = name.removesuffix("_dtype")
        operator: Callable[..., Any] = (
            getattr(torch, name, None)
            or getattr(self._native, name, None)
            or getattr(torch.ops.aten, name)
        )
        return operator

    @staticmethod
    def _mm_plus_mm(a: Any, b: Any, c: Any, d: Any, out: Any) -> Any:
        """One operator of inductor's, of two products (torch/csrc/inductor/inductor_ops.cpp)."""
        return torch.mm(a, b, out=out).addmm_(c, d)
