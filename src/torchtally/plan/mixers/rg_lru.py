"""The real-gated linear recurrent unit of Griffin and RecurrentGemma (De et al. 2024, arXiv
2402.19427, section 2.4).

w: width of the recurrence.  h: blocks of its gates.  k: kernel of the convolution.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.plan.activations.operators import STREAM, TOKENS, products_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.mixers.convolution import OUT, convolution_flops, convolution_weights
from torchtally.plan.quantity import Quantity

GIVEN = ("mixer y", "mixer x")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedUnit(Recurrence):
    width: int
    blocks: int
    kernel: int

    @property
    def label(self) -> str:
        return f"RG-LRU, a state of {self.width}"

    @property
    def split(self) -> tuple[int, ...]:
        return (self.blocks,)

    @property
    def state(self) -> State:
        return State(self.width, self.kernel, self.width)

    @property
    def moved(self) -> int:
        return 8 * self.width

    def weights(self, d: int) -> Iterator[Weight]:
        group, w, each = Group.RECURRENCE, self.width, self.width // self.blocks
        for name in GIVEN:
            yield Weight(name, group, (w, d), uses=ONCE)
            yield Weight(f"{name} bias", group, (w,))
        yield from convolution_weights(w, self.kernel, has_bias=True)
        yield Weight("mixer gates", group, (self.blocks, each, each), 2, ONCE)
        yield Weight("mixer gates' bias", group, (self.blocks, each), 2)
        yield Weight("mixer decay", group, (w,))
        yield Weight(OUT, group, (d, w), uses=ONCE)
        yield Weight("mixer out bias", group, (d,))

    def scan_flops(self, sequence: int) -> Quantity:
        return convolution_flops(self.width, self.kernel)

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        if not at.is_fused:
            raise UsageError(
                "Activations of RG-LRU in transformers' own modules, a loop over tokens, are not "
                "known in closed form.\nTake --kernels fused, or count them with tally run."
            )
        yield from products_saved(at, "input of the mixer", STREAM, given_bytes, GIVEN)
        # Gate, input and result of the convolution, both gates' inputs, result of the recurrence.
        yield at.keep(
            "gate, convolution, gates, result", f"6 * {TOKENS} * inner", at.inner_bytes,
            Region.INNER, "scan", inner=self.width,
        )  # fmt: skip
        yield from products_saved(
            at, "input of the mixer's output", f"{TOKENS} * inner", at.inner_bytes, (OUT,),
            Region.INNER, inner=self.width,
        )  # fmt: skip
