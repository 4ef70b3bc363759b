"""Lightning attention: linear attention with a fixed decay for each head (Qin et al. 2024, arXiv
2401.04658), as MiniMax-01 has it (arXiv 2501.08313, section 2.2.1).

h, D: heads, head dim.  Q: block of tokens.  d: width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.activations.operators import STREAM, TOKENS, products_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import FLOAT32_BYTES, Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import Count, closed_form
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.mixers.convolution import OUT
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

INNER = Region.INNER
ROWS = f"{TOKENS} * inner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning(Recurrence):
    heads: int
    head_dim: int
    block: int

    @property
    def label(self) -> str:
        return f"lightning attention, {self.heads} states of {self.head_dim} x {self.head_dim}"

    @property
    def split(self) -> tuple[int, ...]:
        return (self.heads,)

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def modules(self) -> Mapping[str, str]:
        return {"mixer qkv": "qkv_proj", "mixer z": "output_gate", OUT: "out_proj"}

    @property
    def state(self) -> State:
        return State(0, 0, self.inner * self.head_dim, is_wide=False)

    @property
    def accesses(self) -> int:
        return 9 * self.inner

    def weights(self, d: int) -> Iterator[Weight]:
        group = Group.RECURRENCE
        yield Weight("mixer qkv", group, (3 * self.inner, d), uses=ONCE)
        yield Weight("mixer z", group, (self.inner, d), uses=ONCE)
        yield Weight("mixer norm", Group.NORMS, (self.inner,))
        yield Weight(OUT, group, (d, self.inner), uses=ONCE)

    def scan_flops(self, sequence: int) -> Quantity:
        return _lightning_flops(self.heads, self.head_dim, min(self.block, sequence))

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        size, inner, why = at.inner_bytes, self.inner, "products of blocks"
        given = ("mixer qkv", "mixer z")
        yield from products_saved(at, "input of the mixer", STREAM, given_bytes, given)
        yield at.keep("queries, keys, values", f"3 * {ROWS}", size, INNER, "silu", inner=inner)
        if at.is_fused:
            yield at.keep("activated", f"3 * {ROWS}", size, INNER, "scan", inner=inner)
            yield at.keep("result", ROWS, size, INNER, "norm", inner=inner)
        else:
            yield at.keep(
                "queries, keys, values in blocks", f"6 * {ROWS}", size, INNER, why, inner=inner
            )
            yield at.keep("scores", f"{TOKENS} * heads * block", size, INNER, why,
                           heads=self.heads, block=self.block)  # fmt: skip
            yield at.keep(
                "states of blocks", "batch * ceil(sequence / block) * inner * head_dim", size,
                INNER, why, inner=inner, head_dim=self.head_dim, block=self.block,
            )  # fmt: skip
            yield at.keep(
                "input of the mixer's norm", ROWS, FLOAT32_BYTES, INNER, "norm", inner=inner
            )
            if not at.is_frozen:
                yield at.keep("normed", ROWS, size, INNER, "times its weight", inner=inner)
        yield at.keep(
            "result and its gate", f"2 * {ROWS}", size, INNER, "their product", inner=inner
        )
        yield from products_saved(
            at, "input of the mixer's output", ROWS, size, (OUT,), INNER, inner=inner
        )


@closed_form("lightning attention", Unit.FLOPS_PER_TOKEN, "Qin et al. 2024, arXiv 2401.04658")
def _lightning_flops(heads: Count, head_dim: Count, block: Count) -> str:
    """Scores of a block and their product with values; the state's read and its update."""
    return "heads * (4 * block * head_dim + 4 * head_dim**2)"
