"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464) and Kimi Delta Attention (arXiv 2510.26692).

k, h: heads of queries and keys, of values.  K, V: their head dims.  Q: chunk.  d: width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.activations.operators import STREAM, TOKENS, products_saved
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import BOOL_BYTES, FLOAT32_BYTES, Setting
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import Count, closed_form
from torchtally.plan.mixers.base import Recurrence, State
from torchtally.plan.mixers.convolution import OUT, convolution_saved, convolution_weights
from torchtally.plan.mixers.mamba2 import CHUNKED
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

DELTA = "Yang et al. 2024, arXiv 2412.06464, section 3.3; arXiv 2406.06484, section 3.2"
CHUNK = 64
"""flash-linear-attention's and transformers'."""
INNER = Region.INNER


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta(Recurrence):
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    projections: tuple[tuple[str, ...], ...]
    """Which of q, k, v, z (the output's gate), a (decay), b (step) are rows of one matrix."""
    is_by_channel: bool = False
    """Kimi's: every channel of a key decays by itself, and decay and gate come through a rank of
    one head."""

    @property
    def label(self) -> str:
        name = "Kimi Delta Attention" if self.is_by_channel else "gated DeltaNet"
        return f"{name}, {self.value_heads} states of {self.key_dim} x {self.value_dim}"

    @property
    def split(self) -> tuple[int, ...]:
        return self.key_heads, self.value_heads

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def inner(self) -> int:
        """Inner width: values of all heads."""
        return self.value_heads * self.value_dim

    @property
    def modules(self) -> Mapping[str, str]:
        """Qwen's are rows of few matrices, OLMo's and Kimi's matrices of their own."""
        names = ["".join(names) for names in self.projections]
        if ("q",) not in self.projections:
            return {f"mixer {name}": f"in_proj_{name}" for name in names} | {OUT: "out_proj"}
        modules = {f"mixer {name}": f"{'g' if name == 'z' else name}_proj" for name in names}
        if self.is_by_channel:
            for name, letter in (("decay", "f"), ("gate", "g")):
                modules |= {f"mixer {name} down": f"{letter}_a_proj"}
                modules |= {f"mixer {name} up": f"{letter}_b_proj"}
        return modules | {OUT: "o_proj"}

    @property
    def state(self) -> State:
        numbers = self.value_heads * self.key_dim * self.value_dim
        return State(self.channels, self.kernel, numbers)

    @property
    def accesses(self) -> int:
        decays = self.value_heads * (self.key_dim if self.is_by_channel else 1)
        return 4 * self.channels + 3 * self.inner + decays + self.value_heads

    def weights(self, d: int) -> Iterator[Weight]:
        group, h = Group.RECURRENCE, self.value_heads
        keys = self.key_heads * self.key_dim
        rows = {"q": keys, "k": keys, "v": self.inner, "z": self.inner, "a": h, "b": h}
        for names in self.projections:
            out = sum(rows[name] for name in names)
            yield Weight(f"mixer {''.join(names)}", group, (out, d), uses=ONCE)
        yield from convolution_weights(self.channels, self.kernel, has_bias=False)
        if self.is_by_channel:
            yield from self._wide_gates(d)
        else:
            yield Weight("mixer heads", group, (h,), 2)  # A, step bias
        yield Weight("mixer norm", Group.NORMS, (self.value_dim,))
        yield Weight(OUT, group, (d, self.inner), uses=ONCE)

    def _wide_gates(self, d: int) -> Iterator[Weight]:
        group, rank, decays = Group.RECURRENCE, self.key_dim, self.value_heads * self.key_dim
        for name, rows in (("decay", decays), ("gate", self.inner)):
            yield Weight(f"mixer {name} down", group, (rank, d), uses=ONCE)
            yield Weight(f"mixer {name} up", group, (rows, rank), uses=ONCE)
        yield Weight("mixer heads", group, (decays,))
        yield Weight("mixer A", group, (1, 1, self.value_heads, 1))

    def scan_flops(self, sequence: int) -> Quantity:
        chunk = min(CHUNK, sequence)
        return _delta_flops(
            self.channels, self.kernel, self.value_heads, self.key_dim, self.value_dim, chunk
        )

    def saved(self, at: Setting, given_bytes: int) -> Iterator[Saved]:
        size = at.inner_bytes
        names = tuple(f"mixer {''.join(names)}" for names in self.projections)
        if self.is_by_channel:
            names += ("mixer decay down", "mixer gate down")
        yield from products_saved(at, "input of the mixer", STREAM, given_bytes, names)
        yield at.keep("queries, keys, values", f"{TOKENS} * channels", size, INNER, "convolution",
                       channels=self.channels)  # fmt: skip
        if self.is_by_channel:
            for name in ("decay", "gate"):
                yield from products_saved(
                    at, f"input of the {name}'s second product", f"{TOKENS} * rank", size,
                    (f"mixer {name} up",), Region.WHOLE, rank=self.key_dim,
                )  # fmt: skip
        if at.is_fused:
            yield from self._fused_saved(at)
        else:
            yield from convolution_saved(at, self.channels, self.kernel)
            by_channel = self.is_by_channel
            yield from self._channels_saved(at) if by_channel else self._chunks_saved(at)
            yield from self._norm_saved(at)
        yield from products_saved(
            at, "input of the mixer's output", f"{TOKENS} * inner", size, (OUT,), INNER,
            inner=self.inner,
        )  # fmt: skip

    def _fused_saved(self, at: Setting) -> Iterator[Saved]:
        """flash-linear-attention: operands, and the inverse of each chunk's triangle."""
        size, heads = at.inner_bytes, self.value_heads
        yield at.keep("convolved, activated", f"{TOKENS} * channels", size, INNER, "scan",
                       channels=self.channels)  # fmt: skip
        decays = heads * (self.key_dim if self.is_by_channel else 1)
        yield at.keep("decays", f"{TOKENS} * decays", FLOAT32_BYTES, INNER, "scan", decays=decays)
        yield at.keep("steps", f"{TOKENS} * heads", size, INNER, "scan", heads=heads)
        yield at.keep(
            "inverse", f"{TOKENS} * heads * chunk", size, INNER, "scan", heads=heads, chunk=CHUNK
        )
        yield at.keep("result and gate", f"2 * {TOKENS} * inner", size, INNER, "norm and gate",
                       inner=self.inner)  # fmt: skip

    def _chunks_saved(self, at: Setting) -> Iterator[Saved]:
        """Saved tensors of `torch_chunk_gated_delta_rule`, which computes in float32."""
        wide = FLOAT32_BYTES
        sizes = {
            "heads": self.value_heads,
            "chunk": CHUNK,
            "key_dim": self.key_dim,
            "keys_of_heads": self.value_heads * self.key_dim,
            "inner": self.inner,
        }
        yield at.keep("steps", f"{TOKENS} * heads", at.inner_bytes, INNER, "sigmoid", **sizes)
        yield at.keep("gates, norms and decays", f"8 * {CHUNKED} * heads", wide, INNER,
                       "their products", **sizes)  # fmt: skip
        # What is float32 already keeps its layout, and products copy it.
        copies = 12 if at.inner_bytes == FLOAT32_BYTES else 8
        yield at.keep("queries and keys", f"{copies} * {CHUNKED} * keys_of_heads", wide, INNER,
                       "norms and products", **sizes)  # fmt: skip
        yield at.keep("values", f"3 * {CHUNKED} * inner", wide, INNER, "products", **sizes)
        yield at.keep("scores, decays, triangles", f"5 * {CHUNKED} * heads * chunk", wide, INNER,
                       "products within chunks", **sizes)  # fmt: skip
        yield at.keep("states of chunks", "batch * ceil(sequence / chunk) * key_dim * inner", wide,
                       INNER, "products over chunks", **sizes)  # fmt: skip

    def _channels_saved(self, at: Setting) -> Iterator[Saved]:
        """Saved tensors of `chunk_kimi_delta_attention`: scores are sums over channels that each
        decay by themselves, made element by element, and rows of a chunk's triangle one after the
        other.
        """
        wide, heads, keys = FLOAT32_BYTES, self.value_heads, self.value_heads * self.key_dim
        sizes = {
            "heads": heads,
            "chunk": CHUNK,
            "key_dim": self.key_dim,
            "keys_of_heads": keys,
            "inner": self.inner,
        }
        chunks = "batch * ceil(sequence / chunk)"
        yield at.keep("steps", f"{TOKENS} * heads", at.inner_bytes, INNER, "sigmoid", **sizes)
        yield at.keep("decays", f"3 * {TOKENS} * keys_of_heads", wide, INNER, "softplus", **sizes)
        yield at.keep("which decays are large", f"{TOKENS} * keys_of_heads", BOOL_BYTES, INNER,
                       "softplus", **sizes)  # fmt: skip
        yield at.keep(
            "norms and steps", f"3 * {CHUNKED} * heads", wide, INNER, "their products", **sizes
        )
        yield at.keep("queries and keys", f"11 * {CHUNKED} * keys_of_heads", wide, INNER,
                       "norms and products", **sizes)  # fmt: skip
        yield at.keep("queries for states", f"({chunks} - batch) * chunk * keys_of_heads", wide,
                       INNER, "products over chunks", **sizes)  # fmt: skip
        yield at.keep("values", f"3 * {CHUNKED} * inner", wide, INNER, "products", **sizes)
        yield at.keep("decays between tokens, and scores by channels",
                       f"3 * {CHUNKED} * heads * chunk * key_dim", wide, INNER, "their products",
                       **sizes)  # fmt: skip
        yield at.keep("scores and triangles", f"2 * {CHUNKED} * heads * chunk", wide, INNER,
                       "products within chunks", **sizes)  # fmt: skip
        yield at.keep("rows of triangles", f"{chunks} * heads * (chunk ** 3 - chunk) / 3", wide,
                       INNER, "the rows behind them", **sizes)  # fmt: skip
        yield at.keep("states of chunks", f"{chunks} * (key_dim + 1) * inner", wide, INNER,
                       "products over chunks", **sizes)  # fmt: skip

    def _norm_saved(self, at: Setting) -> Iterator[Saved]:
        rows, wide, inner = f"{TOKENS} * inner", FLOAT32_BYTES, self.inner
        yield at.keep(
            "result, gate, activated gate", f"3 * {rows}", wide, INNER, "norm and gate", inner=inner
        )
        # Kimi's norm stays in float32, and its gate's sigmoid keeps its result alone.
        size = wide if self.is_by_channel else at.inner_bytes
        if not at.is_frozen:
            yield at.keep("normed", rows, size, INNER, "times its weight", inner=inner)
        if not self.is_by_channel:
            yield at.keep("normed, times its weight", rows, size, INNER, "its gate", inner=inner)
        yield at.keep("scale of the mixer's norm", f"{TOKENS} * heads", wide, INNER, "norm",
                       heads=self.value_heads)  # fmt: skip


@closed_form("delta rule", Unit.FLOPS_PER_TOKEN, DELTA, "each chunk's triangle inverted, unsolved")
def _delta_flops(
    channels: Count, kernel: Count, heads: Count, key_dim: Count, value_dim: Count, chunk: Count
) -> str:
    """FLOPs as a formula. Within a chunk: keys with keys, queries with keys, the inverse with keys
    and with values, scores with values. Over chunks: keys and queries with the state, and the
    state's update.
    """
    return (
        "2 * channels * kernel"
        " + heads * (2 * chunk * (3 * key_dim + 2 * value_dim) + 6 * key_dim * value_dim)"
    )
