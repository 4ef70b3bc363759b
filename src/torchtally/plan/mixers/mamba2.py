"""Mamba 2: state-space duality (Dao and Gu 2024, arXiv 2405.21060).

h, P: heads, head dim.  g, N: groups, state.  k: kernel of the convolution.  Q: chunk.  d: width.
C: channels of the convolution, h P + 2 g N.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.activations.operators import TOKENS, products_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import FLOAT32_BYTES, Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import Count, closed_form
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.mixers.convolution import convolution_saved, convolution_weights
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

SSD = "Dao and Gu 2024, arXiv 2405.21060, section 6 and listing 1"
IN, OUT = "mixer in", "mixer out"
CHUNKED = "batch * ceil(sequence / chunk) * chunk"
"""Tokens, the last chunk filled up."""
INNER = Region.INNER


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(Recurrence):
    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    chunk: int
    has_bias: bool = False
    has_convolution_bias: bool = True
    has_norm: bool = True
    """What comes out is normed with its gate."""
    is_bound: bool = False
    """Transformers gives its kernel the output's matrix: in Mamba 2 itself and Falcon-H1."""

    @property
    def label(self) -> str:
        return f"Mamba 2, {self.heads} states of {self.head_dim} x {self.state_size}"

    @property
    def split(self) -> tuple[int, ...]:
        return self.heads, self.groups

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.state_size

    @property
    def modules(self) -> Mapping[str, str]:
        return {IN: "in_proj", OUT: "out_proj"}

    @property
    def has_bound_output(self) -> bool:
        return self.is_bound

    @property
    def state(self) -> State:
        return State(self.channels, self.kernel, self.inner * self.state_size)

    @property
    def accesses(self) -> int:
        return 2 * self.channels + 2 * self.inner + self.heads

    def weights(self, d: int) -> Iterator[Weight]:
        group, rows = Group.RECURRENCE, self.inner + self.channels + self.heads
        yield Weight(IN, group, (rows, d), uses=ONCE)
        if self.has_bias:
            yield Weight("mixer in bias", group, (rows,))
        yield from convolution_weights(self.channels, self.kernel, self.has_convolution_bias)
        yield Weight("mixer heads", group, (self.heads,), 3)  # step bias, A, D
        if self.has_norm:
            yield Weight("mixer norm", Group.NORMS, (self.inner,))
        yield Weight(OUT, group, (d, self.inner), uses=ONCE)
        if self.has_bias:
            yield Weight("mixer out bias", group, (d,))

    def scan_flops(self, sequence: int) -> Quantity:
        chunk = min(self.chunk, sequence)
        return _ssd_flops(
            self.channels, self.kernel, self.heads, self.head_dim, self.groups, self.state_size,
            chunk,
        )  # fmt: skip

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        stream, size = f"{TOKENS} * width", at.inner_bytes
        yield from products_saved(at, "input of the mixer", stream, given_bytes, (IN,))
        projected = self.inner + self.channels + self.heads
        yield at.keep("projected", f"{TOKENS} * projected", size, INNER, "convolution, gate, steps",
                       projected=projected)  # fmt: skip
        if at.is_fused:
            # mamba_ssm's mamba_split_conv1d_scan_combined makes the rest again.
            yield at.keep("result of the scan", f"{TOKENS} * inner", size, INNER, "gate and norm",
                           inner=self.inner)  # fmt: skip
            return
        yield from convolution_saved(at, self.channels, self.kernel)
        yield from self._steps_saved(at)
        yield from self._chunks_saved(at)
        yield from self._result_saved(at)
        yield from products_saved(
            at, "input of the mixer's output", f"{TOKENS} * inner", size, (OUT,), INNER,
            inner=self.inner,
        )  # fmt: skip

    def _steps_saved(self, at: Setting) -> Iterator[Saved]:
        """The scan goes to float32; what is float32 already is not copied."""
        sizes = {"inner": self.inner, "heads": self.heads, "chunk": self.chunk}
        yield at.keep(
            "steps", f"2 * {TOKENS} * heads", at.inner_bytes, INNER, "softplus, clamp", **sizes
        )
        if not at.is_frozen:
            yield at.keep("inputs, in whole chunks", f"{CHUNKED} * inner", FLOAT32_BYTES, INNER,
                           "times D", **sizes)  # fmt: skip
        if at.inner_bytes == FLOAT32_BYTES:
            yield at.keep("activated", f"{TOKENS} * channels", FLOAT32_BYTES, INNER,
                           "times steps", channels=self.channels)  # fmt: skip
            yield at.keep("clamped steps", f"{TOKENS} * heads", FLOAT32_BYTES, INNER,
                           "times inputs and A", **sizes)  # fmt: skip
        else:
            yield at.keep(
                "inputs, float32", f"{TOKENS} * inner", FLOAT32_BYTES, INNER, "times steps", **sizes
            )
            times = "" if at.is_frozen else "2 * "
            yield at.keep("steps, float32", f"{times}{TOKENS} * heads", FLOAT32_BYTES, INNER,
                           "times inputs, times A", **sizes)  # fmt: skip

    def _chunks_saved(self, at: Setting) -> Iterator[Saved]:
        """Operands of the five products, each laid out for it, and the decays between them."""
        sizes = {
            "heads": self.heads,
            "inner": self.inner,
            "state": self.state_size,
            "chunk": self.chunk,
        }
        wide, chunks = FLOAT32_BYTES, "batch * ceil(sequence / chunk)"
        yield at.keep("decays, scores, and both", f"3 * {CHUNKED} * heads * chunk", wide, INNER,
                       "products within chunks", **sizes)  # fmt: skip
        yield at.keep("B and C of each head", f"5 * {CHUNKED} * heads * state", wide, INNER,
                       "products of the scan", **sizes)  # fmt: skip
        yield at.keep("inputs and results in chunks", f"3 * {CHUNKED} * inner", wide, INNER,
                       "products of the scan", **sizes)  # fmt: skip
        yield at.keep("decays to a chunk's ends", f"2 * {CHUNKED} * heads", wide, INNER,
                       "their products", **sizes)  # fmt: skip
        yield at.keep("states of chunks", f"(2 * {chunks} + batch) * inner * state", wide, INNER,
                       "products over chunks", **sizes)  # fmt: skip
        yield at.keep(
            "decays between chunks",
            "batch * heads * (ceil(sequence / chunk) + 1) ** 2",
            wide,
            INNER,
            "product over chunks",
            **sizes,
        )

    def _result_saved(self, at: Setting) -> Iterator[Saved]:
        rows, wide = f"{TOKENS} * inner", FLOAT32_BYTES
        gate_bytes = wide if self.has_norm else at.inner_bytes
        if at.inner_bytes < gate_bytes:
            yield at.keep("gate, float32", rows, wide, INNER, "silu", inner=self.inner)
        yield at.keep("result", rows, wide, INNER, "times its gate", inner=self.inner)
        yield at.keep("activated gate", rows, gate_bytes, INNER, "its product", inner=self.inner)
        if self.has_norm:
            yield at.keep("gated", rows, wide, INNER, "norm", inner=self.inner)
            if not at.is_frozen:
                yield at.keep("normed", rows, wide, INNER, "times its weight", inner=self.inner)
            yield at.keep("scale of the mixer's norm", f"{TOKENS} * groups", wide, INNER, "norm",
                           groups=self.groups)  # fmt: skip


@closed_form("Mamba 2's scan", Unit.FLOPS_PER_TOKEN, SSD, "C B by group, all else by head")
def _ssd_flops(
    channels: Count, kernel: Count, heads: Count, head_dim: Count, groups: Count,
    state_size: Count, chunk: Count,
) -> str:  # fmt: skip
    """Scores of a chunk, their product with inputs, a chunk's state, what it gives to outputs."""
    return (
        "2 * channels * kernel + 2 * groups * chunk * state_size"
        " + heads * (2 * chunk * head_dim + 4 * head_dim * state_size)"
    )
