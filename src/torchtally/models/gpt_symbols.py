"""Sizes of a GPT of Megatron-Core as symbols; needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchtally.errors import UsageError
from torchtally.models.config_symbols import FFN, GROUP, HEAD_DIM, KV_HEADS, VOCABULARY, WIDTH
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention
from torchtally.programs.sizes import RANKS
from torchtally.programs.step import BATCH, SEQUENCE

PADDED_TO = 128
"""Rows of the vocabulary that a rank has are a multiple of it (Megatron-LM's
`--make-vocab-size-divisible-by`)."""

SPLIT = (KV_HEADS, FFN, VOCABULARY, SEQUENCE)
"""Sizes that ranks divide."""


@dataclass(frozen=True, slots=True)
class GptSymbols:
    """A GPT of Megatron-Core whose sizes can be changed."""

    sizes: Mapping[str, int]
    """Of a rank: heads, inner widths, rows of the vocabulary and tokens are a share of each."""
    layers: int
    options: Mapping[str, bool]
    """Of what there are several kinds: `is_tied`, and biases and norms of queries and keys."""
    name: str = "GPTModel"
    kept: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    period: int = 1
    lead: int = 1

    @property
    def variant(self) -> str:
        """All that it is besides its sizes, as text."""
        return ", ".join(name for name, is_so in sorted(self.options.items()) if is_so)

    def modules(self, layers: int) -> int:
        """The length of the list of so many layers."""
        return layers

    def least(self, sequence: int) -> Mapping[str, int]:
        """What sizes are above in every recording."""
        return {}

    def step_sizes(self, batch: int, sequence: int, ranks: int) -> dict[str, int]:
        """Sizes of a step on a rank. Raises UsageError where ranks do not divide the sequence."""
        if sequence % ranks:
            raise UsageError(
                f"{ranks} GPUs of sequence parallelism do not divide {sequence} tokens.\n"
                f"Choose another length: --sequence {-(-sequence // ranks) * ranks}."
            )
        several = {RANKS: ranks} if ranks > 1 else {}
        return {**self.sizes, BATCH: batch, SEQUENCE: sequence // ranks, **several}

    def at(self, values: Mapping[str, int], layers: int) -> "GptSymbols":
        """The GPT with these sizes, and so many layers."""
        ranks = values.get(RANKS, 1)
        whole = {symbol: values[symbol] * ranks for symbol in SPLIT}
        return replace(self, sizes={**values, **whole}, layers=layers)


def gpt_symbols(model: Model, ranks: int = 1) -> GptSymbols:
    """The symbols of a decoder like Llama, with a rank's share of its padded vocabulary.

    Raises UsageError for another, and for ranks that do not divide it.
    """
    kind = model.kinds[0]
    attention, block = kind.attention, kind.feed_forward
    if not (
        isinstance(attention, SelfAttention)
        and isinstance(block, FeedForward)
        and model.kinds == (like_llama(kind, attention, block),)
        and model.norm == "rms"
        and not model.dropout
    ):
        raise UsageError(
            f"{model.name}: of Megatron-Core's models the dense ones like Llama are recorded, and "
            "this is another.\nPlan it without -o."
        )
    if attention.kv_heads % ranks or block.width % ranks:
        raise UsageError(
            f"{model.name}: {ranks} GPUs of tensor parallelism do not divide {attention.kv_heads} "
            f"heads of keys and an inner width of {block.width}.\n"
            "Choose another tp: --layout 'tp 2'."
        )
    sizes = {
        WIDTH: model.width,
        KV_HEADS: attention.kv_heads // ranks,
        GROUP: attention.heads // attention.kv_heads,
        HEAD_DIM: attention.head_dim,
        FFN: block.width // ranks,
        VOCABULARY: -(-model.vocabulary // (PADDED_TO * ranks)) * PADDED_TO,
    }
    options = {
        "has_bias": attention.has_bias,
        "has_head_norms": bool(attention.head_norm_sizes),
        "is_tied": model.is_tied,
    }
    return GptSymbols(sizes, model.layers, options)


def like_llama(kind: Layer, attention: SelfAttention, block: FeedForward) -> Layer:
    """The layer that Megatron-Core's options make of these sizes."""
    head_dim = attention.head_dim
    attention = SelfAttention(
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=head_dim,
        has_bias=attention.has_bias,
        head_norm_sizes=(head_dim, head_dim) if attention.head_norm_sizes else (),
    )
    block = FeedForward(width=block.width, is_gated=True, activation="silu")
    return Layer(count=kind.count, attention=attention, feed_forward=block)
