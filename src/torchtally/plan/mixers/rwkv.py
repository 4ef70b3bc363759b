"""RWKV-4's time mixing (Peng et al. 2023, arXiv 2305.13048, section 3.1): a mean of values over all
tokens, weighted by their keys and by a decay of each channel.

A: channels.  d: width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.activations.operators import TOKENS, products_saved, shifted_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import FLOAT32_BYTES, Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import closed_form
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.mixers.convolution import OUT
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

INNER = Region.INNER
ROWS = f"{TOKENS} * inner"
MIXED = {"mixer k": "key", "mixer v": "value", "mixer r": "receptance"}
"""Matrices that are each given a mix of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMixing(Recurrence):
    width: int
    inner: int

    @property
    def label(self) -> str:
        return f"RWKV-4, {self.inner} states of 3"

    @property
    def split(self) -> tuple[int, ...]:
        return (self.inner,)

    @property
    def modules(self) -> Mapping[str, str]:
        return MIXED | {OUT: "output"}

    @property
    def state(self) -> State:
        """Numerator, denominator and the largest exponent; the feed-forward's last token, too."""
        return State(0, 0, 3 * self.inner, shifted=2 * self.width)

    @property
    def accesses(self) -> int:
        """Three mixes of one input; keys, values and the mean; receptance and what it gates."""
        return 4 * self.width + 6 * self.inner

    def weights(self, d: int) -> Iterator[Weight]:
        group, A = Group.RECURRENCE, self.inner
        for name in MIXED:
            yield Weight(name, group, (A, d), uses=ONCE)
        yield Weight("mixes of the mixer", group, (1, 1, d), len(MIXED))
        yield Weight("mixer decay and bonus", group, (A,), 2)
        yield Weight(OUT, group, (d, A), uses=ONCE)

    def scan_flops(self, sequence: int) -> Quantity:
        return _weighted_mean_flops()

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        size, inner = at.inner_bytes, self.inner
        if not at.is_frozen:
            wide = FLOAT32_BYTES if at.is_fused else at.recipe.weight_bytes
            yield at.keep("decay", "inner", wide, INNER, "exp", inner=inner)
        yield from shifted_saved(at, "input of the mixer", given_bytes, tuple(MIXED))
        if at.is_fused:
            yield at.keep("keys", ROWS, size, INNER, "scan", inner=inner)
        else:
            yield from self._tokens_saved(at)
        yield at.keep("values", ROWS, size, INNER, "scan", inner=inner)
        yield at.keep("receptance and mean", f"2 * {ROWS}", size, INNER,
                       "sigmoid, and their product", inner=inner)  # fmt: skip
        yield from products_saved(
            at, "input of the mixer's output", ROWS, size, (OUT,), INNER, inner=inner
        )

    def _tokens_saved(self, at: Setting) -> Iterator[Saved]:
        """Saved tensors of transformers' loop, `rwkv_linear_attention_cpu`, in float32. The kernel
        that it takes on CUDA makes all of it again.
        """
        wide, inner = FLOAT32_BYTES, self.inner
        updates = "batch * (sequence - 1) * inner"  # what the last token leaves, nothing reads
        yield at.keep("states", f"3 * {ROWS}", wide, INNER, "both sums, maximum", inner=inner)
        yield at.keep("exponent, both weights, both sums", f"5 * {ROWS}", wide, INNER,
                       "a token's mean", inner=inner)  # fmt: skip
        yield at.keep(
            "exponent, both weights", f"3 * {updates}", wide, INNER, "a token's state", inner=inner
        )
        keys = ROWS if at.inner_bytes == FLOAT32_BYTES else updates  # else each a cast of its own
        yield at.keep("keys, float32", keys, wide, INNER, "maximum", inner=inner)


@closed_form(
    "RWKV-4's weighted mean",
    Unit.FLOPS_PER_TOKEN,
    "Peng et al. 2023, arXiv 2305.13048, table 1: of linear layers alone",
    "no product of matrices: made element by element",
)
def _weighted_mean_flops() -> str:
    return "0"
