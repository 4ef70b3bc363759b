"""The shape of a decoder, validated, and its counterpart in the closed forms.

d: width.  h, k: heads of queries, of keys and values.  D: head dim.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from torchtally.checkpoints.checked import Decay, Positive, Size, check_fields
from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Experts, FeedForward, Layer, Model, SelfAttention

Norm = Literal["rms", "rms_plus_one", "layer"]
Positions = Literal["rope", "learned"]
Activation = Literal["swiglu", "geglu", "gelu", "gelu_tanh"]

NAMES = {
    "swiglu": "silu",
    "geglu": "gelu_pytorch_tanh",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
}
"""Activations by transformers' names."""
GATED = ("swiglu", "geglu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeStretch:
    """Rotary positions stretched to longer sequences than the original training, as in Llama 3.1.

    Pairs with a period below original_context / high_factor tokens are unchanged, those above
    original_context / low_factor rotate `factor` times slower, and between these it is
    interpolated. https://github.com/meta-llama/llama-models, models/llama3/model.py. With an
    original context of 1, all pairs rotate `factor` times slower: linear stretching.
    """

    factor: float
    original_context: Size = 8192
    low_factor: float = 1.0
    high_factor: float = 4.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.factor >= 1 and 0 < self.low_factor < self.high_factor):
            raise UsageError(
                f"rope_stretch: factor {self.factor} must be 1 or more, and low_factor "
                f"{self.low_factor} above zero and below high_factor {self.high_factor}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder of equal layers. Raises UsageError naming the key for invalid values."""

    layers: Size
    width: Size
    """Of the residual stream."""
    heads: Size
    kv_heads: Size
    """Heads of keys and values: a divisor of `heads`, each shared by a group."""
    ffn: Size
    """Width of the inner feed-forward layer, or of that of each expert."""
    vocabulary: Size
    context: Size
    """The longest sequence, in tokens."""
    norm: Norm = "rms"
    """"rms_plus_one" multiplies by 1 + weight, as Gemma does."""
    positions: Positions = "rope"
    activation: Activation = "swiglu"
    """GELU is exact ("gelu", as in nanoGPT) or GPT-2's approximation ("gelu_tanh"); "geglu" is the
    latter with a gate."""
    is_tied: bool = False
    """Whether the head shares the embedding's weight."""
    has_bias: bool = False
    """Whether projections and layer norms have biases; the head never has one."""
    window: Size | None = None
    """How many tokens a token attends to, itself included; None: all previous ones."""
    dropout: Decay = 0.0
    """Applied to attention weights, the embedding, and additions to the residual stream."""
    rope_theta: Positive = 10_000.0
    rope_stretch: RopeStretch | None = None
    norm_eps: Positive = 1e-5
    head_dim: Size | None = None
    """None: width / heads."""
    has_qkv_bias: bool = False
    """Whether queries, keys and values have biases where nothing else has: Qwen 2."""
    has_qk_norm: bool = False
    """An RMS norm of each head's queries and keys, before rotation: Qwen 3, Gemma 3."""
    has_post_norms: bool = False
    """Norms also of what attention and feed-forward add to the residual stream: Gemma."""
    is_embedding_scaled: bool = False
    """Embeddings are multiplied by sqrt(width): Gemma."""
    global_every: Size | None = None
    """Every so manieth layer is without the window; None: all layers have it."""
    local_rope_theta: Positive | None = None
    """Of layers with the window, which are not stretched then; None: as the others."""
    query_scalar: Size | None = None
    """Scores are divided by its square root; None: by that of the head dim."""
    logit_cap: Positive | None = None
    """Logits become cap * tanh(logits / cap)."""
    experts: Size | None = None
    """Feed-forwards of a layer, of which a router chooses `active_experts` for each token and adds
    them up by the softmax of their scores. There is no loss for balance."""
    active_experts: Size | None = None
    init_std: Positive | None = None
    """Of all initial matrices but those that write to the residual stream, which have
    1 / sqrt(2 layers) of it; None: 1 / sqrt(in)."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_heads(self)
        if (self.experts is None) != (self.active_experts is None) or (
            self.experts and self.active_experts and self.active_experts > self.experts
        ):
            raise UsageError(
                f"active_experts: {self.active_experts} of {self.experts} experts: give both, and "
                "no more active ones than there are."
            )

    @property
    def head_size(self) -> int:
        """The head dim, given or by the width."""
        return self.head_dim or self.width // self.heads

    def is_local(self, layer: int) -> bool:
        """Whether this layer, counted from 0, has the window."""
        every = self.global_every
        return self.window is not None and (every is None or (layer + 1) % every != 0)

    def model(self, name: str = "torchtally.train") -> Model:
        """The same decoder in `torchtally.plan`, for parameters, FLOPs and bytes."""
        is_rotary = self.positions == "rope"
        D = self.head_size
        attention = SelfAttention(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=D,
            has_bias=self.has_bias or self.has_qkv_bias, has_output_bias=self.has_bias,
            head_norm_sizes=(D, D) if self.has_qk_norm else (), is_fused=True, is_rotary=is_rotary,
        )  # fmt: skip
        local = sum(map(self.is_local, range(self.layers)))
        windows = [(local, self.window), (self.layers - local, None)]
        return Model(
            name=name, width=self.width, vocabulary=self.vocabulary,
            kinds=tuple(
                Layer(
                    count=count, attention=replace(attention, window=window),
                    feed_forward=self._feed_forward(), norms=4 if self.has_post_norms else 2,
                )
                for count, window in windows if count
            ),
            is_tied=self.is_tied, has_wide_norm=self.norm == "rms_plus_one",
            # The closed forms call a layer norm without bias "rms".
            norm="layer" if self.norm == "layer" and self.has_bias else "rms",
            positions=0 if is_rotary else self.context, context=self.context,
            dropout=self.dropout, source="torchtally.train",
        )  # fmt: skip

    def _feed_forward(self) -> FeedForward | Experts:
        sizes: Any = {
            "width": self.ffn,
            "is_gated": self.activation in GATED,
            "activation": NAMES[self.activation],
            "has_bias": self.has_bias,
        }
        if self.experts is None or self.active_experts is None:
            return FeedForward(**sizes)
        return Experts(
            experts=self.experts,
            active=self.active_experts,
            is_normalised=True,
            has_router_bias=False,
            **sizes,
        )


def _check_heads(config: TransformerConfig) -> None:
    d, h, k = config.width, config.heads, config.kv_heads
    if config.head_dim is None and d % h:
        raise UsageError(
            f"heads: {h} does not divide the width {d}. Change one of them, or give head_dim."
        )
    if h % k:
        raise UsageError(f"kv_heads: {k} does not divide {h} heads. Give a divisor of {h}.")
    if config.positions == "rope" and config.head_size % 2:
        raise UsageError(
            f"heads: rotary positions need an even head dim, and it is {config.head_size}."
        )
