"""Counts of a gradient and an update on the device that they are on, without waiting for it."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchtally.number_formats import FORMATS, FloatLayout

FP16, E5M2, BF16 = (FORMATS[name].layout for name in ("fp16", "fp8_e5m2", "bf16"))
assert isinstance(BF16, FloatLayout)
GRADIENT_COUNTS = 6
UPDATE_COUNTS = 2


def own_part(tensor: Tensor) -> Tensor:
    """The elements that this rank has, without autograd."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradient_counts(gradient: Tensor, loss_scale: float) -> Tensor:
    """Numbers, inf and NaN, the largest magnitude, under- and overflows in fp16 with the loss
    scale, underflows in e5m2 with a scale of its own; as float64.
    """
    magnitudes = own_part(gradient).float().abs()
    is_number = magnitudes.isfinite() & (magnitudes > 0)
    largest = torch.where(is_number, magnitudes, 0.0).max() if magnitudes.numel() else (
        magnitudes.new_zeros(()))  # fmt: skip
    # Of two as near, zero is even: half of the smallest number is zero, too.
    least = float(FP16.smallest_subnormal) / 2 / loss_scale  # type: ignore[arg-type]
    most = (float(FP16.largest) + 16) / loss_scale  # halfway to the number that would follow
    counts = (
        is_number.sum(),
        (~magnitudes.isfinite()).sum(),
        largest,
        (is_number & (magnitudes <= least)).sum(),
        (magnitudes >= most).sum(),
        (is_number & (magnitudes <= _scaled_least(largest))).sum(),
    )
    return torch.stack([count.double() for count in counts])


def _scaled_least(largest: Tensor) -> Tensor:
    """Half of e5m2's smallest number under the largest power of two that leaves this in range."""
    mantissa, exponent = torch.frexp(largest)
    top, top_exponent = torch.frexp(torch.tensor(float(E5M2.largest)))
    power = int(top_exponent) - exponent - (mantissa > float(top)).int()
    half = torch.full_like(largest, float(E5M2.smallest_subnormal) / 2)  # type: ignore[arg-type]
    return torch.ldexp(half, -power)


def update_counts(before: Tensor, after: Tensor, gradient: Tensor) -> Tensor:
    """Updates, and those that bf16 weights lose; as float64.

    Weights in float32 say what the update is: it is lost where it is below half the step from the
    weight to bf16's next number. Weights of 16 bits do not: an element with a gradient that stays
    as it is has lost its update.
    """
    if after.dtype is torch.float32:
        changes = (after - before.float()).abs()
        is_update = changes > 0
        lost = is_update & (changes < half_steps(before.float()))
    else:
        is_update = (own_part(gradient) != 0) | (after != before)
        lost = is_update & (after == before)
    return torch.stack([is_update.sum().double(), lost.sum().double()])


def half_steps(weights: Tensor) -> Tensor:
    """Half of the step from each weight to the next larger number of bf16."""
    assert isinstance(BF16, FloatLayout)
    exponents = (torch.frexp(weights)[1] - 1).clamp(min=BF16.least_exponent)
    exponents = torch.where(weights == 0, BF16.least_exponent, exponents)  # frexp says 0
    return torch.ldexp(torch.ones_like(weights), exponents - BF16.mantissa_bits - 1)
