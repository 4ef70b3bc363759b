"""The shape of a decoder, validated, and its counterpart in the closed forms.

d: width.  h, k: heads of queries, of keys and values.  D: head dim.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin

from torchtally.errors import UsageError, check_choice
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention

Norm = Literal["rms", "layer"]
Positions = Literal["rope", "learned"]
Activation = Literal["swiglu", "gelu", "gelu_tanh"]

NAMES = {"swiglu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
"""Activations by transformers' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeStretch:
    """Rotary positions stretched to longer sequences than the original training, as in Llama 3.1.

    Pairs with a period below original_context / high_factor tokens are unchanged, those above
    original_context / low_factor rotate `factor` times slower, and between these it is
    interpolated. https://github.com/meta-llama/llama-models, models/llama3/model.py.
    """

    factor: float
    original_context: int = 8192
    low_factor: float = 1.0
    high_factor: float = 4.0

    def __post_init__(self) -> None:
        _check_size("original_context", self.original_context)
        if not (self.factor >= 1 and 0 < self.low_factor < self.high_factor):
            raise UsageError(
                f"rope_stretch: factor {self.factor} must be 1 or more, and low_factor "
                f"{self.low_factor} above zero and below high_factor {self.high_factor}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder of equal layers. Raises UsageError naming the key for invalid values."""

    layers: int
    width: int
    """Of the residual stream."""
    heads: int
    kv_heads: int
    """Heads of keys and values: a divisor of `heads`, each shared by a group."""
    ffn: int
    """Width of the inner feed-forward layer."""
    vocabulary: int
    context: int
    """The longest sequence, in tokens."""
    norm: Norm = "rms"
    positions: Positions = "rope"
    activation: Activation = "swiglu"
    """GELU is exact ("gelu", as in nanoGPT) or GPT-2's approximation ("gelu_tanh")."""
    is_tied: bool = False
    """Whether the head shares the embedding's weight."""
    has_bias: bool = False
    """Whether projections and layer norms have biases; the head never has one."""
    window: int | None = None
    """How many tokens a token attends to, itself included; None: all previous ones."""
    dropout: float = 0.0
    """Applied to attention weights, the embedding, and additions to the residual stream."""
    rope_theta: float = 10_000.0
    rope_stretch: RopeStretch | None = None
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "ffn", "vocabulary", "context"):
            _check_size(name, getattr(self, name))
        if self.window is not None:
            _check_size("window", self.window)
        for field in fields(self):
            if get_origin(field.type) is Literal:
                value = getattr(self, field.name)
                check_choice(f"{field.name}: unknown value", value, get_args(field.type))
        _check_heads(self)
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout: expected a value in [0, 1), got {self.dropout}.")
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name}: expected more than 0, got {value}.")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def model(self, name: str = "torchtally.train") -> Model:
        """The same decoder in `torchtally.plan`, for parameters, FLOPs and bytes."""
        is_rotary = self.positions == "rope"
        attention = SelfAttention(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            has_bias=self.has_bias, has_output_bias=self.has_bias, window=self.window,
            is_fused=True, is_rotary=is_rotary,
        )  # fmt: skip
        feed_forward = FeedForward(
            width=self.ffn, is_gated=self.activation == "swiglu",
            activation=NAMES[self.activation], has_bias=self.has_bias,
        )  # fmt: skip
        return Model(
            name=name, width=self.width, vocabulary=self.vocabulary,
            kinds=(Layer(count=self.layers, attention=attention, feed_forward=feed_forward),),
            is_tied=self.is_tied,
            # The closed forms call a layer norm without bias "rms".
            norm="layer" if self.norm == "layer" and self.has_bias else "rms",
            positions=0 if is_rotary else self.context, context=self.context,
            dropout=self.dropout, source="torchtally.train",
        )  # fmt: skip


def _check_size(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}: expected a whole number above 0, got {value!r}.")


def _check_heads(config: TransformerConfig) -> None:
    d, h, k = config.width, config.heads, config.kv_heads
    if d % h:
        raise UsageError(f"heads: {h} does not divide the width {d}. Change one of them.")
    if h % k:
        raise UsageError(f"kv_heads: {k} does not divide {h} heads. Give a divisor of {h}.")
    if config.positions == "rope" and (d // h) % 2:
        raise UsageError(
            f"heads: rotary positions need an even head dim, and width / heads is {d // h}."
        )
