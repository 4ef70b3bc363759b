"""Recipes of mixed precision, a row of `recipes.toml` each: dtypes of weights, gradients, state."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from torchtally.chips import Chip
from torchtally.chips.dtypes import DTYPE_BYTES, NUMBERS_EACH
from torchtally.errors import UsageError, did_you_mean

TABLE = Path(__file__).with_name("recipes.toml")


class Scaling(StrEnum):
    """Origin of the scale of numbers that are cast to 8 or 4 bits."""

    DELAYED = "delayed"
    """The largest ones that their tensor had in steps before."""
    CURRENT = "current"
    """Their tensor's largest number, which is looked for first."""
    BLOCKS = "blocks"
    """The largest of 32 in a row, and for other products of 32 in a column."""
    TWO_LEVELS = "two levels"
    """Their tensor's largest number, looked for first, and the largest of 16 in a row or column."""

    @property
    def looks_first(self) -> bool:
        """A pass finds the tensor's largest number before the cast."""
        return self in (Scaling.CURRENT, Scaling.TWO_LEVELS)

    @property
    def has_blocks(self) -> bool:
        return self in (Scaling.BLOCKS, Scaling.TWO_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to train in mixed precision, or in one. Formats by torch's names."""

    name: str
    summary: str
    weights: str
    """The dtype of the parameters that the model holds."""
    gradients: str
    master: str | None = None
    """The dtype of a second copy that the optimizer updates; None: it updates the weights."""
    state: str = "float32"
    """The dtype of optimizer state whose size does not come with the optimizer."""
    products: str
    """The dtype of the operands of products: whose peak counts."""
    activations: str
    """The dtype in which most of what is kept for the backward pass is kept."""
    is_autocast: bool = False
    """`torch.autocast` casts the operands of products, and keeps casts of weights until the end of
    the forward pass."""
    flat_gradients: tuple[str, ...] = ()
    """Dtypes of further copies of all gradients that a chip holds, shared with nobody."""
    scaling: Scaling = Scaling.DELAYED
    """Of operands in 8 or 4 bits."""
    has_8_bit_weights: bool = False
    """Weights are held and gathered in 8 bits alone (Megatron-LM's --fp8-param-gather): in the two
    orders that products take, as many bytes as one copy in 16 bits, and no casts beside them."""
    step_gradients: str | None = None
    """Dtype of a copy that the optimizer is given, of the chip's share of the weights."""
    source: str = ""

    @property
    def flat_gradient_bytes(self) -> int:
        return sum(DTYPE_BYTES[dtype] for dtype in self.flat_gradients)

    @property
    def step_gradient_bytes(self) -> int:
        return 0 if self.step_gradients is None else DTYPE_BYTES[self.step_gradients]

    @property
    def weight_bytes(self) -> int:
        return DTYPE_BYTES[self.weights]

    @property
    def gradient_bytes(self) -> int:
        return DTYPE_BYTES[self.gradients]

    @property
    def master_bytes(self) -> int:
        return 0 if self.master is None else DTYPE_BYTES[self.master]

    @property
    def state_bytes(self) -> int:
        return DTYPE_BYTES[self.state]

    @property
    def activation_bytes(self) -> int:
        return DTYPE_BYTES[self.activations]

    @property
    def is_quantised(self) -> bool:
        """Operands of products are cast to 8 or 4 bits for them."""
        return DTYPE_BYTES.get(self.products) == 1

    def on(self, chip: Chip) -> "Recipe":
        """The same with the 8-bit format that the chip multiplies: CDNA3's have no negative zero
        (`torch.float8_e4m3fnuz`).
        """
        other = {"float8_e4m3fn": "float8_e4m3fnuz"}.get(self.products)
        is_other = self.products not in chip.peaks and other in chip.peaks
        return replace(self, products=other) if other and is_other else self

    @property
    def is_in_8_bits(self) -> bool:
        return self.is_quantised and self.products not in NUMBERS_EACH

    @property
    def cast_bytes(self) -> float:
        """Bytes of an operand's number in those, with a scale of 8 bits for 16 of 4 bits."""
        return 1.0 if self.is_in_8_bits else (4 + 8 / 16) / 8

    @property
    def uncast_products(self) -> str:
        """The dtype of products whose operands stay as they are."""
        return self.activations if self.is_quantised else self.products


RECIPES: Mapping[str, Recipe] = {
    row["name"]: msgspec.convert(row, Recipe)
    for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["recipe"]
}


def recipe(name: str) -> Recipe:
    """The recipe of this name. Raises UsageError for any other."""
    if (recipe := RECIPES.get(name.lower())) is None:
        raise UsageError(f"Unknown recipe {name!r}. {did_you_mean(name, RECIPES)}")
    return recipe
