"""What a decoder is made of, as far as its costs go: types without a formula in them.

A `Model` is a few kinds of `Layer`, each so many times over. Every number is an int as a config
file would have it; what a model has not is 0, None or False.
"""

from dataclasses import dataclass

from torchtally.plan.mixers.base import Recurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention:
    """Attention with a query, a key and a value of every head: full, grouped or multi-query."""

    heads: int
    kv_heads: int
    head_dim: int
    has_bias: bool = False
    """Query, key and value projections have one."""
    has_output_bias: bool = False
    window: int | None = None
    """A token sees so many tokens, itself among them; None: all before it."""
    is_chunked: bool = False
    """The window does not slide: a token sees what is before it in its own chunk of that size, as
    in Llama 4."""
    head_norm_sizes: tuple[int, ...] = ()
    """Elements of the norms of queries and keys, one each: (head_dim, head_dim) in Qwen 3."""
    has_head_norm_bias: bool = False
    has_plain_head_norms: bool = False
    """Queries and keys are divided by their root mean square, without a weight: Llama 4's."""
    is_fused: bool = False
    """Query, key and value are one matrix, as in GPT-2."""
    is_rotary: bool = True
    is_partly_rotary: bool = False
    """A part of each head turns with its position, and is joined with the rest, though the rest may
    be nothing: GPT-NeoX, Phi-3."""
    has_relative_positions: bool = False
    """One more matrix, of positions' keys, as in Transformer-XL (arXiv 1901.02860) and Gopher."""
    sinks: int = 0
    """Learned scores that no token takes up: one for each head in gpt-oss."""
    is_capped: bool = False
    """Scores go through a tanh: Gemma 2's."""
    is_written_out: bool = False
    """Transformers has operators of its own for it, whatever kernels PyTorch has: BLOOM's."""
    has_gate: bool = False
    """Queries' matrix makes a gate too, by which the result is multiplied: Qwen3-Next's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are kept in one short vector for all heads.

    DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    heads: int
    query_rank: int | None
    """Width of the compressed query; None: queries are made from the token directly."""
    kv_rank: int
    """Width of the compressed keys and values."""
    plain_head_dim: int
    """Of a query's and key's head, the part without positions ("nope")."""
    rotary_head_dim: int
    """The part with positions; of keys, one for all heads ("rope")."""
    value_head_dim: int
    has_bias: bool = False
    """The compressing projections have one."""
    has_output_bias: bool = False

    @property
    def head_dim(self) -> int:
        """Head dimension of queries and keys."""
        return self.plain_head_dim + self.rotary_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two projections with an activation function between them; three where a gate multiplies."""

    width: int
    """Of the inner layer."""
    is_gated: bool
    activation: str
    """As transformers spells it: "silu", "gelu_new", "relu"."""
    has_bias: bool = False
    is_fused: bool = False
    """Gate and first projection are one matrix, as in Phi-3."""
    has_receptance: bool = False
    """It is given a mix of a token with the one before, and a square matrix of another mix makes
    the sigmoid that multiplies its result: RWKV-4's (arXiv 2305.13048, section 3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture: of many feed-forwards a router chooses a few for every token."""

    experts: int
    active: int
    """Chosen for each token."""
    width: int
    """Of one expert's inner layer."""
    is_gated: bool
    activation: str
    shared_width: int = 0
    """Inner width of what every token goes through besides; 0: nothing."""
    has_shared_gate: bool = False
    """A gate of its own for the shared part: one number for each token (Qwen2-MoE)."""
    has_bias: bool = False
    has_shared_bias: bool = False
    is_router_wide: bool = False
    """The router is a product in float32, as in DeepSeek-V2 and V3."""
    is_normalised: bool = False
    """The weights of the chosen experts are divided by their sum: norm_topk_prob."""
    are_all_run: bool = False
    """Transformers' module computes every expert for every token, with those that are not chosen
    given zeros: Llama 4's."""
    is_shared_fused: bool = False
    """Gate and first projection of the shared part are one matrix."""
    has_router_bias: bool = False
    """A trained bias of the router; not DeepSeek-V3's correction, which is a buffer."""
    is_clamped: bool = False
    """Gate and up are clamped, and the gate's sigmoid, not silu, multiplies: gpt-oss's."""
    are_all_linear: bool = False
    """PEFT takes them for the linear modules that they were in transformers 4 (its
    `_convert_peft_config_moe`); else for parameters, which no "all-linear" means."""
    is_router_linear: bool = False
    """And the router by itself is a linear module."""

    @property
    def shared(self) -> FeedForward | None:
        """What every token goes through besides."""
        if not self.shared_width:
            return None
        return FeedForward(
            width=self.shared_width, is_gated=self.is_gated, activation=self.activation
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer, and how many of it there are: mixers of tokens, and a feed-forward.

    Of a transformer each has attention and a feed-forward. A hybrid's may lack either, have a
    recurrence in attention's place, or both beside each other (Falcon-H1).
    """

    count: int
    attention: SelfAttention | LatentAttention | None
    feed_forward: FeedForward | Experts | None
    recurrence: Recurrence | None = None
    norms: int = 2
    """Of the model's width."""
    is_parallel: bool = False
    """Attention and feed-forward are given the same input, and their results are added, as in
    GPT-NeoX."""
    is_predicting: bool = False
    """A module of multi-token prediction: it is given what the layers before it made of a token and
    the embedding of one further on, which two norms and a product join, and has a last norm of its
    own before the model's head (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

    @property
    def has_mixer(self) -> bool:
        return self.attention is not None or self.recurrence is not None

    @property
    def split(self) -> tuple[int, ...]:
        """What chips that share the layer must divide: heads, groups."""
        heads = () if self.attention is None else (self.attention.heads,)
        return heads + (() if self.recurrence is None else self.recurrence.split)

    @property
    def blocks(self) -> int:
        """Halves that add their result to the residual stream: 2, or 1 where it has one of them."""
        return self.has_mixer + (self.feed_forward is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder: token embedding, layers, a last norm and the head that says the next token."""

    name: str
    width: int
    """Of the residual stream: hidden_size, n_embd, d_model."""
    vocabulary: int
    kinds: tuple[Layer, ...]
    """Every kind of layer once, in the order in which they first come."""
    is_tied: bool
    """The head's weight is the embedding's."""
    norm: str = "rms"
    """By what it trains, and by whose operators: "rms" (a weight), "layer" (a weight and a bias),
    "unbiased" (a layer norm's weight alone: MPT's), "centred" (the same in operators of its own, as
    RMS norms are: Cohere's), or "plain" (neither: OLMo's)."""
    has_wide_norm: bool = False
    """A norm's weight multiplies in float32, and then the result is cast back: Gemma's, which is 1
    and what is trained, OLMo 2's, Cohere's."""
    positions: int = 0
    """Learned position embeddings: rows; 0 where there are none."""
    embedding_width: int | None = None
    """Where embedding and head are narrower than the layers, a matrix on each side makes up for it:
    OPT-350M. None: they are of the model's width."""
    has_embedding_norm: bool = False
    """A norm right after the embedding, as in BLOOM."""
    is_embedding_norm_recomputed: bool = False
    """It is the first layer's, and made again with it: RWKV's."""
    has_head_bias: bool = False
    has_capped_logits: bool = False
    """They go through a tanh: Gemma 2's."""
    has_final_norm: bool = True
    context: int | None = None
    """The longest sequence that it was made for."""
    dropout: float = 0.0
    """Of what is added to the residual stream."""
    embedding_dropout: float | None = None
    """None: as `dropout`."""
    attention_dropout: float | None = None
    """Of attention's weights. None: as `dropout`."""
    dtype: str | None = None
    """In which its weights are kept, by torch's name."""
    left_out: tuple[str, ...] = ()
    """Parts of the model that are in no figure, in words: "the vision tower"."""
    notes: tuple[str, ...] = ()
    """What a reader must know of these numbers: an assumption, a default that was taken."""
    source: str = ""
    """Where they come from: a file, a paper, or that they were given by hand."""

    @property
    def layers(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def predicting(self) -> int:
        """Modules of multi-token prediction, each one of `layers`."""
        return sum(kind.count for kind in self.kinds if kind.is_predicting)

    @property
    def losses(self) -> int:
        """How often logits and their loss are computed: by the model, and by each such module."""
        return 1 + self.predicting

    @property
    def is_mixture(self) -> bool:
        return any(isinstance(kind.feed_forward, Experts) for kind in self.kinds)
