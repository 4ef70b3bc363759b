"""Which kernel a plan takes for attention, and which one the simulated GPU does."""

from dataclasses import replace
from typing import cast

import pytest
import torch

from tests.plan.parallel.builders import llama
from torchtally.chips import chip
from torchtally.plan.architecture.model import SelfAttention
from torchtally.plan.parallel.attention import kernel_of
from torchtally.plan.parallel.layout import Layout
from torchtally.timing.roofline.attention import Fused
from torchtally.virtual.attention import Query, choose

NAMES = {Fused.CUDNN: "cudnn", Fused.FLASH: "flash", Fused.EFFICIENT: "efficient"}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 128, 192, 224, 256, 320])
@pytest.mark.parametrize("name", ["H100-SXM", "B200", "A100-SXM", "RTX-4090", "RTX-5090"])
def test_a_plan_takes_the_kernel_that_runs(
    name: str, head_dim: int, dtype: str, is_masked: bool, dropout: float
) -> None:
    """In training, of heads that are not grouped: with a mask transformers repeats them."""
    plain = cast("SelfAttention", llama().kinds[0].attention)
    attention = replace(plain, head_dim=head_dim)
    planned = kernel_of(
        chip(name), dtype, attention, Layout(), is_masked=is_masked, is_dropped=dropout > 0
    )
    q, k, v = (
        torch.empty(1, 8, 128, head_dim, dtype=getattr(torch, dtype), device="meta")
        .requires_grad_() for _ in range(3)
    )  # fmt: skip
    mask = torch.empty(128, 128, dtype=q.dtype, device="meta") if is_masked else None
    chosen = choose(chip(name), Query(q, k, v, mask, dropout, not is_masked, enable_gqa=False))
    assert NAMES[planned] == chosen
