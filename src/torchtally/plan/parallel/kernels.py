"""What single kernels take on one chip: products by their shapes, all else by its bytes.

M, K, N: (M, K) @ (K, N).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from torchtally.chips import Chip
from torchtally.chips.dtypes import DTYPE_BYTES, NUMBERS_EACH
from torchtally.plan.activations.setting import Loss
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.closed_form import BytePerS, BytesEach, Count, Seconds, closed_form
from torchtally.plan.parallel.pace import BEST, Pace
from torchtally.plan.parallel.passes import MemoryPasses
from torchtally.plan.quantity import Quantity
from torchtally.plan.recipes import Recipe, Scaling
from torchtally.timing.constants import ALIGNMENT_BYTES, KERNEL_S, PLACES_PER_S, SCALED_BLOCKS_MS
from torchtally.timing.roofline.attention import Fused
from torchtally.timing.roofline.limits import bound_kernel, gap_s
from torchtally.timing.roofline.products import Product, epilogue_s, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, normalization_bytes_per_s
from torchtally.timing.roofline.strided import COPY_CASTS_PER_S, finding_s
from torchtally.units import Unit

CAST_BYTES = 3
"""Of an element, where float32 and 16 bits are converted: the mean of both."""

"""Major compute capabilities whose matrix unit takes operands of 8 bits in any order."""

IN_16_BITS = frozenset({Group.HEAD, Group.ROUTER})
"""Weights whose products are not cast to 8 bits. "FP8 computation exclusively to the linear layers
within the Transformer block" (NVIDIA-NeMo/Megatron-Bridge @067f987, docs/performance-guide.md);
torchtitan and llm-foundry leave out the head as well."""


ROOFLINE = "torchtally.timing.roofline: published rates of this chip, or estimates"


class PassTimes(NamedTuple):
    """Seconds forward and backward, and the kernels that are launched for them."""

    forward: Quantity
    backward: Quantity
    forward_launches: int
    backward_launches: int


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """One chip with one recipe: what single kernels take on it, at a pace."""

    chip: Chip
    recipe: Recipe
    pace: Pace = BEST
    fused: Fused | None = None
    """Whose attention kernel runs; None: PyTorch's choice."""
    loss: Loss | None = None
    """None: the implementation's usual one."""
    is_frozen: bool = False
    """Weights have no gradients."""
    times: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    """Of products and passes asked for before: attention's recur however experts are split."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.pace.passes * bandwidth_bytes_per_s(self.chip)

    @property
    def kernel_s(self) -> float:
        """Seconds of a kernel at least, with what passes before it."""
        return KERNEL_S + (gap_s(self.chip) if self.pace.has_gaps else 0.0)

    @property
    def quantised_orders(self) -> int:
        """Orders in which a quantised operand is written: data-center Blackwell multiplies it in
        any (Transformer Engine, `nvte_is_non_tn_fp8_gemm_supported`), but blocks lie along the sum.
        Gradients of weights alone take the second.
        """
        if self.is_frozen:
            return 1
        return 1 if self.chip.sm.has_tcgen05 and not self.recipe.scaling.has_blocks else 2

    def products(self, matrix: Weight, rows: int, name: str = "") -> tuple[Quantity, ...]:
        """Products through a matrix or several: forward, its input's gradient, its own."""
        is_cast = matrix.group not in IN_16_BITS
        dtype = self.recipe.products if is_cast else self.recipe.uncast_products
        key = (name or matrix.name, matrix.shape, rows, dtype)
        if key not in self.times:
            self.times[key] = tuple(self._products(*key))
        products: tuple[Quantity, ...] = self.times[key]
        return products

    def _products(
        self, name: str, shape: tuple[int, ...], rows: int, dtype: str
    ) -> Iterator[Quantity]:
        *stacked, N, K = shape
        batch = stacked[0] if stacked else 1
        for kind, (m, n, k) in {
            "": (rows, N, K),
            ", gradient of the input": (rows, K, N),
            ", gradient of the weight": (N, K, rows),
        }.items():
            yield self.product(name + kind, batch, m, n, k, dtype, sums_rows=not kind)

    def product(
        self, name: str, batch: int, M: int, N: int, K: int, dtype: str, *, sums_rows: bool = False
    ) -> Quantity:
        """`sums_rows` as in `roofline.products.Product`."""
        size = DTYPE_BYTES.get(dtype, 4)
        result = self.recipe.activation_bytes
        given = self.recipe.cast_bytes if dtype in NUMBERS_EACH else size
        moved = batch * (given * (M * K + K * N) + result * M * N)
        memory_s = moved / self.bandwidth_bytes_per_s
        packed = NUMBERS_EACH.get(dtype, 1)
        alignment_bytes = gcd(ALIGNMENT_BYTES, N * size // packed, K * size // packed)
        product = Product(batch, M, N, K, dtype, size, alignment_bytes, sums_rows=sums_rows)
        compute_s, launches = product_s(product, self.chip, memory_s)
        if self.pace.has_gaps:  # else it is in the share, which is learnt of whole steps
            compute_s += epilogue_s(product, self.chip)
        if size == 1 and self.recipe.scaling is Scaling.BLOCKS:
            compute_s *= SCALED_BLOCKS_MS[0] / SCALED_BLOCKS_MS[1]
        kernel = bound_kernel(
            compute_s=compute_s / self.pace.products_of(self.chip),
            memory_s=memory_s,
            overhead_s=self.kernel_s * launches,
        )
        times = f"{batch} x " if batch > 1 else ""
        shapes = f"{times}({M}, {K}) @ ({K}, {N}) in {dtype}: {kernel.bound}-bound"
        return Quantity(name, kernel.seconds, Unit.SECONDS, source=ROOFLINE, note=shapes)

    def stream(self, name: str, count: int, moved: MemoryPasses) -> PassTimes:
        """Times of a pass over so many elements, forward and backward."""
        key = (name, count, moved)
        if key not in self.times:
            self.times[key] = self._stream(*key)
        stream: PassTimes = self.times[key]
        return stream

    def _stream(self, name: str, count: int, moved: MemoryPasses) -> PassTimes:
        rate = normalization_bytes_per_s if moved.is_normalization else bandwidth_bytes_per_s
        speed = self.pace.passes * rate(self.chip)
        place_s = finding_s(1, PLACES_PER_S, self.chip)
        cast_s = max(0.0, finding_s(1, COPY_CASTS_PER_S, self.chip) - CAST_BYTES / speed)
        there, back = (
            _stream_s(
                count, moved_bytes, speed, kernels, places * place_s + casts * cast_s, self.kernel_s
            )
            for moved_bytes, kernels, places, casts in (
                (moved.forward, moved.forward_kernels, moved.forward_places, moved.forward_casts),
                (
                    moved.backward,
                    moved.backward_kernels,
                    moved.backward_places,
                    moved.backward_casts,
                ),
            )
        )
        return PassTimes(
            there.with_name(name),
            back.with_name(f"{name}, backward"),
            moved.forward_kernels,
            moved.backward_kernels,
        )


@closed_form("pass over memory", Unit.SECONDS, ROOFLINE)
def _stream_s(
    elements: Count,
    bytes_each: BytesEach,
    bandwidth_bytes_per_s: BytePerS,
    kernels: Count,
    places_s: Seconds,
    kernel_s: Seconds = KERNEL_S,
) -> str:
    places = " + elements * places_s" if places_s else ""
    return f"elements * bytes_each / bandwidth_bytes_per_s{places} + kernels * kernel_s"


def word_of(quantity: Quantity) -> str:
    """A quantity's name as a word of a formula."""
    kept = "".join(char if char.isalnum() else "_" for char in quantity.name)
    return "_".join(filter(None, kept.split("_")))
