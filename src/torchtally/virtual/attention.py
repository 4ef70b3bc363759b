"""Which attention kernel the target would choose, by PyTorch's own rules for CUDA.

The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (torch 2.13, the CUDA
13 wheels with cuDNN 9.15 or newer): a priority order, and for each backend the conditions under
which it can be used. The user's choices (`torch.nn.attention.sdpa_kernel`, `torch.backends.cuda`)
are read from torch itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda as cuda_backends

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.torch_private import releases
from torchtally.virtual.stand_ins import StandIn


class Backend(StrEnum):
    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Query:
    """The arguments of one `scaled_dot_product_attention`; tensors (B, H, S, D)."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool

    @property
    def needs_grad(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)

    @property
    def is_dense_4d(self) -> bool:
        return all(t.dim() == 4 for t in (self.query, self.key, self.value))

    @property
    def heads_match(self) -> bool:
        """Same batch everywhere; same heads, or with GQA query heads a multiple of the others."""
        query, key, value = self.query.shape, self.key.shape, self.value.shape
        if not query[0] == key[0] == value[0]:
            return False
        if not self.enable_gqa:
            return query[1] == key[1] == value[1]
        return key[1] == value[1] and query[1] % key[1] == 0

    @property
    def heads_are_equal(self) -> bool:
        """Same batch and same heads everywhere: a kernel without grouped-query support."""
        query, key, value = self.query.shape, self.key.shape, self.value.shape
        return query[:2] == key[:2] == value[:2]

    @property
    def has_tokens(self) -> bool:
        return self.query.shape[2] != 0 and self.key.shape[2] != 0

    def last_strides_are_one(self, *, ignoring_singletons: bool) -> bool:
        tensors = [self.query, self.key, self.value]
        if self.mask is not None:
            tensors.append(self.mask)
        return all(t.stride(-1) == 1 or (ignoring_singletons and t.shape[-1] == 1) for t in tensors)


def choose(chip: Chip, call: Query) -> Backend:
    """The backend CUDA would run. Raises PyTorch's RuntimeError where none is usable."""
    for backend in priority(chip):
        if CAN_USE[backend](chip, call):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


CONTEXT_BACKENDS = {0: Backend.MATH, 1: Backend.FLASH, 2: Backend.EFFICIENT, 3: Backend.CUDNN}
"""`torch.nn.attention.SDPBackend`'s numbers."""

DEFAULT_ORDER = (Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN)
HOPPER_ORDER = (Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH)


def priority(chip: Chip) -> tuple[Backend, ...]:
    """The order in which backends are tried; cuDNN is first on Hopper and data-center Blackwell."""
    numbers = private.sdp_priority_order()
    order = tuple(CONTEXT_BACKENDS[n] for n in numbers if n in CONTEXT_BACKENDS)
    if order == DEFAULT_ORDER and chip.sm.prefers_cudnn_attention:
        return HOPPER_ORDER
    return order


def can_use_flash(chip: Chip, call: Query) -> bool:
    head = call.query.shape[-1]
    return (
        cuda_backends.flash_sdp_enabled()
        and chip.sm.has_flash_attention
        and call.is_dense_4d
        and call.mask is None
        and call.query.dtype in HALVES
        and head == call.key.shape[-1] == call.value.shape[-1]
        and head <= 256
        and trains_large_heads(chip, call)
        and (not call.is_causal or call.query.shape[2] == call.key.shape[2])
        and call.heads_match
        and call.has_tokens
        and call.last_strides_are_one(ignoring_singletons=True)
    )


def trains_large_heads(chip: Chip, call: Query) -> bool:
    """Flash's backward lacks shared memory for some large heads outside data-center chips."""
    if not call.needs_grad or chip.sm.trains_large_heads:
        return True
    head = call.query.shape[-1]
    return head <= 192 or (call.dropout == 0.0 and head > 224)


def can_use_efficient(chip: Chip, call: Query) -> bool:
    dtypes = (
        (torch.float32, *HALVES) if chip.sm.has_flash_attention else (torch.float32, torch.float16)
    )
    head = call.query.shape[-1]
    alignment = gemm_alignment(chip, call.query.dtype)
    return (
        cuda_backends.mem_efficient_sdp_enabled()
        and chip.sm.has_efficient_attention
        and call.is_dense_4d
        and call.query.dtype in dtypes
        and head == call.key.shape[-1]
        and head % alignment == 0
        and call.value.shape[-1] % alignment == 0
        and head > 0
        and call.heads_are_equal
        and call.has_tokens
        and call.last_strides_are_one(ignoring_singletons=False)
    )


def gemm_alignment(chip: Chip, dtype: torch.dtype) -> int:
    """Elements a CUTLASS operand's rows must be a multiple of."""
    is_half, is_modern = dtype in HALVES, chip.sm.has_flash_attention
    alignment = 4 if is_modern else 1
    uses_tensor_cores = is_modern or (chip.sm.has_tensor_cores and is_half)
    return max(alignment, 8 if is_half else 4) if uses_tensor_cores else alignment


def can_use_cudnn(chip: Chip, call: Query) -> bool:
    key, value = call.key.shape, call.value.shape
    heads = (call.query.shape[-1], value[-1])
    limit = 192 if heads == (192, 128) and chip.sm.prefers_cudnn_attention else 128
    return (
        cuda_backends.cudnn_sdp_enabled()
        and not chip.gcn_architecture  # MIOpen has none (native/transformers/cuda/sdp_utils.cpp)
        and chip.sm.has_flash_attention
        and call.is_dense_4d
        and call.query.dtype in HALVES
        and not torch.are_deterministic_algorithms_enabled()
        # It computes no gradient of a mask (native/transformers/cuda/sdp_utils.cpp).
        and not (call.mask is not None and call.mask.requires_grad)
        and ((call.dropout * 16).is_integer() or not releases.HERE.has_cudnn_drop_sixteenths)
        and all(head <= limit and head % 8 == 0 for head in heads)
        and key[2] != 1
        and (call.dropout == 0.0 or call.query.shape[2] != 1)
        and call.heads_match
        and call.has_tokens
        and call.last_strides_are_one(ignoring_singletons=True)
    )


CAN_USE: dict[Backend, Callable[[Chip, Query], bool]] = {
    Backend.CUDNN: can_use_cudnn,
    Backend.FLASH: can_use_flash,
    Backend.EFFICIENT: can_use_efficient,
    Backend.MATH: lambda chip, call: cuda_backends.math_sdp_enabled(),
}


def stand_ins(chip: Chip) -> list[StandIn]:
    """Answers to those who ask torch which kernels can run: nested tensors, and scripts."""
    answers = {
        "can_use_flash_attention": can_use_flash,
        "can_use_efficient_attention": can_use_efficient,
        "can_use_cudnn_attention": can_use_cudnn,
    }
    owners = (cuda_backends, private.jagged_attention())
    return [
        StandIn(owner, name, answer_for(chip, can_use))
        for owner in owners
        for name, can_use in answers.items()
    ]


def answer_for(chip: Chip, can_use: Callable[[Chip, Query], bool]) -> Callable[..., bool]:
    """Answer in the form that torch calls: with its own `SDPAParams`."""

    def answer(params: Any, debug: bool = False) -> bool:
        return can_use(
            chip,
            Query(
                params.query, params.key, params.value, params.attn_mask, params.dropout,
                params.is_causal, params.enable_gqa,
            ),
        )  # fmt: skip

    return answer
