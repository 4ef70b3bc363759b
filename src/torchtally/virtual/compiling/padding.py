"""Whether inductor pads a product of odd sizes, which it measures: predicted times decide here.

Tensor cores are fed 16 bytes at a time, and a product whose rows begin elsewhere is slower.
Inductor times it against one of padded operands with the copies that these take, and pads where
that is faster (torch/_inductor/fx_passes/pad_mm.py). What it decides moves the peak of a model with
an odd vocabulary by gigabytes: the padded result is copied out again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from msgspec import structs

from torchtally.torch_private import without_dispatch_modes
from torchtally.trace import Call
from torchtally.virtual.compiling.flex import on_gpu
from torchtally.virtual.compiling.sizes import plain
from torchtally.virtual.description import describe
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.stand_ins import StandIn, instead_of

MARGIN = 1.1
"""By which a padded product must be faster (pad_mm.py, is_padded_faster)."""

HOW = "inductor measures it; --what-if {} tries the other"


def is_faster(as_it_is_s: float, padded_s: float) -> bool:
    """Inductor's rule."""
    return as_it_is_s > MARGIN * padded_s


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A product that inductor would measure, in place of the key of its cache."""

    match: Any
    left: torch.Tensor
    right: torch.Tensor
    operator: Any
    added: torch.Tensor | None
    """The first operand of `addmm`."""


class Padding(NamedTuple):
    """What padding does to a product."""

    as_it_is: Call
    copies: tuple[Call, ...]
    """Of operands, as far as those who compute them cannot write them padded."""
    padded: Call

    @property
    def copied_bytes(self) -> int:
        return sum(
            spec.itemsize_bytes * prod(spec.shape) for copy in self.copies for spec in copy.outputs
        )


class PaddingChoice:
    """Padding of all products of a session."""

    def __init__(self, mode: VirtualDispatch, compiler: Any) -> None:
        self.mode, self.compiler = mode, compiler

    def stand_ins(self) -> list[StandIn]:
        return [
            instead_of(self.compiler.PADDING_KEY, question),
            instead_of(self.compiler.CACHED_PADDING, self.decide),
        ]

    def decide(self, question: Question) -> bool:
        with without_dispatch_modes():
            padding = self.padding_of(question)
        kernel_s = self.mode.kernel_s
        padded_s = sum(map(kernel_s, (*padding.copies, padding.padded)))
        is_padded = is_faster(kernel_s(padding.as_it_is), padded_s)
        self.mode.observer.note(remark(padding, is_padded=is_padded))
        return is_padded

    def padding_of(self, question: Question) -> Padding:
        left, right = (plain(each, {}) for each in (question.left, question.right))
        padded = self.pad(left), self.pad(right)
        operands = zip((left, right), padded, ("mat1", "mat2"), strict=True)
        copies = tuple(
            self.call_of(
                torch.ops.aten.constant_pad_nd.default, (before, ends(before, after)), after
            )
            for before, after, name in operands
            if before.shape != after.shape
            and not self.compiler.is_made_padded(question.match, name)
        )
        return Padding(self.product(question, left, right), copies, self.product(question, *padded))

    def pad(self, operand: torch.Tensor) -> torch.Tensor:
        *batch, rows, columns = operand.shape
        alignment = self.compiler.alignment(operand)
        sizes = (size + self.compiler.padding(size, alignment) for size in (rows, columns))
        return torch.empty(*batch, *sizes, dtype=operand.dtype, device="meta")

    def product(self, question: Question, left: torch.Tensor, right: torch.Tensor) -> Call:
        shape = (*left.shape[:-1], right.shape[-1])
        result = torch.empty(shape, dtype=left.dtype, device="meta")
        operands: tuple[torch.Tensor, ...] = (left, right)
        if question.added is not None:
            operands = (torch.empty(shape[-1:], dtype=left.dtype, device="meta"), left, right)
        return self.call_of(question.operator.default, operands, result)

    def call_of(self, operator: Any, arguments: tuple[Any, ...], result: torch.Tensor) -> Call:
        call = describe(Invocation(self.mode.operator(operator), arguments, {}), [result])
        return structs.replace(
            call, inputs=tuple(map(on_gpu, call.inputs)), outputs=tuple(map(on_gpu, call.outputs))
        )


def question(
    match: Any,
    left: Any,
    right: Any,
    operator: Any,
    added: Any = None,
    is_base_time_key: bool = False,
) -> Question:
    """Stands for `should_pad_bench_key`."""
    return Question(match, left, right, operator, added)


def ends(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """`constant_pad_nd`'s argument: (begin, end) of the last dimension, then of the one before."""
    more = [large - small for small, large in zip(before.shape, after.shape, strict=True)]
    return list(both_ends(more))


def both_ends(more: list[int]) -> Iterator[int]:
    for end in reversed(more):
        yield 0
        yield end


def remark(padding: Padding, *, is_padded: bool) -> str:
    sizes = " by ".join("x".join(map(str, spec.shape)) for spec in padding.as_it_is.inputs[-2:])
    result = "x".join(map(str, padding.padded.outputs[0].shape))
    product = f"torch.compile: assumed that the product of {sizes} is faster"
    if is_padded:
        copies = f"with copies of {padding.copied_bytes:,} bytes"
        return f"{product} padded to {result}, {copies} ({HOW.format('pad=off')})"
    return f"{product} as it is than padded to {result} ({HOW.format('pad')})"
