"""The precisions that a step can be summarised in: dtype of the weights, dtype of products."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from torchtally.errors import check_choice
from torchtally.plan.recipes import Recipe


@dataclass(frozen=True, slots=True)
class StepPrecision:
    """How a step computes."""

    effect: str
    weight_dtype: torch.dtype | None
    """None: weights stay as they are."""
    autocast_dtype: torch.dtype | None = None
    is_tf32: bool = False

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The context of the forward pass."""
        dtype = self.autocast_dtype
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            yield

    @contextmanager
    def products(self) -> Iterator[None]:
        """The context of the whole step, in which float32 products are TF32 or not."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.is_tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


AS_IS = "as-is"
PRECISIONS: Mapping[str, StepPrecision] = {
    "bf16": StepPrecision("float32 weights, autocast to bfloat16", torch.float32, torch.bfloat16),
    "fp16": StepPrecision(
        "float32 weights, autocast to float16, no loss scaling", torch.float32, torch.float16
    ),
    "fp32": StepPrecision("all in float32", torch.float32),
    "tf32": StepPrecision("float32 weights, products in TF32", torch.float32, is_tf32=True),
    "pure-bf16": StepPrecision("all in bfloat16", torch.bfloat16),
    AS_IS: StepPrecision("weights as they are", None),
}
"""By the names that `tally train` has for them."""


def step_precision(name: str) -> StepPrecision:
    """The precision of this name. Raises UsageError for any other."""
    check_choice("unknown precision", name, PRECISIONS)
    return PRECISIONS[name]


def precision_of(recipe: Recipe) -> StepPrecision | None:
    """How a plan's recipe computes; None where its products have a dtype of their own: fp8."""
    dtypes = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
    weights = dtypes[recipe.weights]
    if recipe.is_autocast:
        return StepPrecision(recipe.summary, weights, dtypes[recipe.products])
    if recipe.products == "tf32":
        return StepPrecision(recipe.summary, weights, is_tf32=True)
    return StepPrecision(recipe.summary, weights) if recipe.products == recipe.weights else None
