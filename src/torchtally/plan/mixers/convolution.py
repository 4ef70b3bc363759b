"""The short causal convolution of each channel by itself that stands before most scans, and the one
that is a mixer alone: LFM2's (Liquid AI 2025, arXiv 2511.23404, section 2).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.activations.operators import STREAM, TOKENS, products_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import Count, closed_form
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

IN, OUT = "mixer in", "mixer out"


def convolution_weights(channels: int, kernel: int, has_bias: bool) -> Iterator[Weight]:
    yield Weight("convolution", Group.RECURRENCE, (channels, 1, kernel))
    if has_bias:
        yield Weight("convolution bias", Group.RECURRENCE, (channels,))


def convolution_saved(at: Setting, channels: int, kernel: int) -> Iterator[Saved]:
    """Its result, as long as the sequence and the padding before it: what silu is given."""
    yield at.keep(
        "convolved", "batch * (sequence + kernel - 1) * channels", at.inner_bytes, Region.INNER,
        "silu", channels=channels, kernel=kernel,
    )  # fmt: skip


@closed_form("convolution", Unit.FLOPS_PER_TOKEN)
def convolution_flops(channels: Count, kernel: Count) -> str:
    return "2 * channels * kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Recurrence):
    """Gated before and after, and no recurrence."""

    width: int
    kernel: int
    has_bias: bool = False

    @property
    def label(self) -> str:
        return f"convolution of {self.kernel} tokens"

    @property
    def split(self) -> tuple[int, ...]:
        return (self.width,)

    @property
    def modules(self) -> Mapping[str, str]:
        return {IN: "in_proj", OUT: "out_proj"}

    @property
    def is_beside_out_proj(self) -> bool:
        return True

    @property
    def state(self) -> State:
        return State(self.width, self.kernel, 0)

    @property
    def accesses(self) -> int:
        return 4 * self.width

    def weights(self, d: int) -> Iterator[Weight]:
        group = Group.RECURRENCE
        yield Weight(IN, group, (3 * self.width, d), uses=ONCE)
        if self.has_bias:
            yield Weight("mixer in bias", group, (3 * self.width,))
        yield from convolution_weights(self.width, self.kernel, self.has_bias)
        yield Weight(OUT, group, (d, self.width), uses=ONCE)
        if self.has_bias:
            yield Weight("mixer out bias", group, (d,))

    def scan_flops(self, sequence: int) -> Quantity:
        return convolution_flops(self.width, self.kernel)

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        size, sizes = at.inner_bytes, {"channels": self.width}
        yield from products_saved(at, "input of the mixer", STREAM, given_bytes, (IN,))
        yield at.keep(
            "B, C and x", f"3 * {TOKENS} * channels", size, Region.INNER, "both gates", **sizes
        )
        if not at.is_fused:
            yield at.keep(
                "B * x", f"{TOKENS} * channels", size, Region.INNER, "convolution", **sizes
            )
        yield from convolution_saved(at, self.width, self.kernel)
        yield from products_saved(
            at, "input of the mixer's output", f"{TOKENS} * channels", size, (OUT,), Region.INNER,
            channels=self.width,
        )  # fmt: skip
