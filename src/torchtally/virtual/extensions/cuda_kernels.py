"""CUDA C++ kernels that the script compiles at run time: `torch.cuda._compile_kernel`."""

import re
from contextlib import nullcontext
from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.extensions.launches import launch
from torchtally.virtual.stand_ins import StandIn

NAMESPACE = "cuda"
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
POINTER = re.compile(r"\*|\[\s*\]")
NAME = re.compile(r"(\w+)\s*(?:\[\s*\])?\s*$")
NOT_FOUND = "the source has no __global__ function {name!r} (nvrtc: lowered name not found)"


class CompiledKernel:
    """What it launches reads what its pointers to constants point to, and reads and writes what
    other pointers do.
    """

    def __init__(self, mode: VirtualDispatch, source: str, name: str) -> None:
        match = re.search(
            rf"__global__[^;{{(]*(?:__\w+__\s*\([^)]*\)[^;{{(]*)?\b{re.escape(name)}\s*\(([^)]*)\)",
            COMMENTS.sub(" ", source),
        )
        if match is None:
            raise RuntimeError(NOT_FOUND.format(name=name))
        self.mode, self.name = mode, name
        parameters = [each.strip() for each in match[1].split(",") if each.strip()]
        self.parameters = tuple(own[1] for each in parameters if (own := NAME.search(each)))
        pointers = {
            own: each
            for own, each in zip(self.parameters, parameters, strict=True)
            if POINTER.search(each)
        }
        self.read = frozenset(pointers)
        self.written = frozenset(
            own for own, each in pointers.items() if not re.search(r"\bconst\b[^*]*\*", each)
        )

    def __call__(
        self,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        args: Any = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        arguments = dict(zip(self.parameters, args or (), strict=True))
        name = f"{NAMESPACE}.{self.name}"
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            launch(self.mode, name, arguments, read=self.read, written=self.written)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None: ...


def stand_ins(mode: VirtualDispatch) -> list[StandIn]:
    def compile_kernel(kernel_source: str, kernel_name: str, *args: Any, **options: Any) -> Any:
        return CompiledKernel(mode, kernel_source, kernel_name)

    return [StandIn(*private.COMPILE_KERNEL, compile_kernel)]
