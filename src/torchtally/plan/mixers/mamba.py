"""Mamba: selective state spaces (Gu and Dao 2023, arXiv 2312.00752).

I: channels.  N: state of each.  R: rank of the time steps.  k: kernel of the convolution.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.activations.operators import STREAM, TOKENS, products_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import FLOAT32_BYTES, Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import Count, closed_form
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.mixers.convolution import IN, OUT, convolution_saved, convolution_weights
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

INNER = Region.INNER
ROWS = f"{TOKENS} * inner"
CHECKPOINT = 2048
"""Tokens after which mamba_ssm's kernel keeps the state (csrc/selective_scan)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(Recurrence):
    inner: int
    state_size: int
    rank: int
    kernel: int
    has_bias: bool = False
    has_convolution_bias: bool = True
    has_norms: bool = False
    """Time steps, B and C are normed, with weights: Jamba's."""

    @property
    def label(self) -> str:
        return f"Mamba, {self.inner} states of {self.state_size}"

    @property
    def split(self) -> tuple[int, ...]:
        return (self.inner,)

    @property
    def modules(self) -> Mapping[str, str]:
        return {IN: "in_proj", "mixer parts": "x_proj", "mixer steps": "dt_proj", OUT: "out_proj"}

    @property
    def has_bound_output(self) -> bool:
        return not self.has_norms

    @property
    def state(self) -> State:
        return State(self.inner, self.kernel, self.inner * self.state_size)

    @property
    def accesses(self) -> int:
        return 7 * self.inner + 2 * self.state_size

    @property
    def parts(self) -> int:
        """Numbers of one token's time step, B and C."""
        return self.rank + 2 * self.state_size

    def weights(self, d: int) -> Iterator[Weight]:
        group, inner = Group.RECURRENCE, self.inner
        yield Weight(IN, group, (2 * inner, d), uses=ONCE)
        if self.has_bias:
            yield Weight("mixer in bias", group, (2 * inner,))
        yield from convolution_weights(inner, self.kernel, self.has_convolution_bias)
        yield Weight("mixer parts", group, (self.parts, inner), uses=ONCE)
        yield Weight("mixer steps", group, (inner, self.rank), uses=ONCE)
        yield Weight("mixer steps bias", group, (inner,))
        yield Weight("mixer A", group, (inner, self.state_size))
        yield Weight("mixer D", group, (inner,))
        if self.has_norms:
            yield Weight("mixer norm", Group.NORMS, (self.rank,))
            yield Weight("mixer norm", Group.NORMS, (self.state_size,), 2)
        yield Weight(OUT, group, (d, inner), uses=ONCE)
        if self.has_bias:
            yield Weight("mixer out bias", group, (d,))

    def scan_flops(self, sequence: int) -> Quantity:
        return _selective_scan_flops(self.inner, self.kernel, self.state_size)

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        size, inner = at.inner_bytes, self.inner
        yield from products_saved(at, "input of the mixer", STREAM, given_bytes, (IN,))
        yield at.keep("projected", f"2 * {ROWS}", size, INNER, "convolution and gate", inner=inner)
        yield at.keep("time steps, B and C", f"{TOKENS} * parts", size, INNER, "their products",
                       parts=self.parts)  # fmt: skip
        if at.is_fused:
            # mamba_ssm's mamba_inner_fn makes the convolution and the time steps again.
            yield at.keep("result of the scan", ROWS, size, INNER, "its gate", inner=inner)
            yield at.keep(
                "states", f"2 * batch * ceil(sequence / {CHECKPOINT}) * inner * state",
                FLOAT32_BYTES, INNER, "scan", inner=inner, state=self.state_size,
            )  # fmt: skip
            return
        yield from convolution_saved(at, inner, self.kernel)
        yield at.keep("input of time steps, B and C", ROWS, size, INNER, "their weight's gradient",
                       inner=inner)  # fmt: skip
        yield at.keep(
            "steps, and softplus of them", f"2 * {ROWS}", size, INNER, "softplus, A, B", inner=inner
        )
        yield from self._states_saved(at)
        yield at.keep("result", ROWS, FLOAT32_BYTES, INNER, "times its gate", inner=inner)
        yield at.keep("activated gate", ROWS, size, INNER, "its product", inner=inner)
        yield from products_saved(
            at, "input of the mixer's output", ROWS, size, (OUT,), INNER, inner=inner
        )

    def _states_saved(self, at: Setting) -> Iterator[Saved]:
        """Transformers' loop keeps every token's state, which kernels make again."""
        states, wide = f"{ROWS} * state", FLOAT32_BYTES
        sizes = {"inner": self.inner, "state": self.state_size}
        yield at.keep(
            "discrete A, discrete B, state", f"3 * {states}", wide, INNER, "scan", **sizes
        )
        yield at.keep("inputs, float32", ROWS, wide, INNER, "times B", inner=self.inner)
        if at.inner_bytes < FLOAT32_BYTES:
            yield at.keep("state, cast", states, at.inner_bytes, INNER, "product with C", **sizes)
            yield at.keep("inputs", ROWS, at.inner_bytes, INNER, "times D", inner=self.inner)


@closed_form(
    "Mamba's scan",
    Unit.FLOPS_PER_TOKEN,
    "Gu and Dao 2023, arXiv 2312.00752, algorithm 2",
    "the product with C; the state itself is updated element by element",
)
def _selective_scan_flops(inner: Count, kernel: Count, state_size: Count) -> str:
    return "2 * inner * kernel + 2 * inner * state_size"
