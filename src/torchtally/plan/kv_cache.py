"""What a model keeps of a sequence when it writes one: keys and values of every layer."""

from torchtally.plan.architecture.geometry import geometry_of
from torchtally.plan.architecture.model import LatentAttention, Layer, Model
from torchtally.plan.closed_form import BytesEach, Count, Tokens, closed_form
from torchtally.plan.quantity import Amount, Quantity, of, total
from torchtally.units import Unit


def kv_cache_bytes(
    model: Model, sequence: Amount, sequences: Amount = 1, itemsize_bytes: int = 2
) -> Quantity:
    """Of so many sequences of this length. A layer with a window keeps no more than its window."""
    parts = {
        f"kind_{n}": layer_cache_bytes(kind, sequence, sequences, itemsize_bytes)
        for n, kind in enumerate(model.kinds)
    }
    return total("KV cache", Unit.BYTES, parts)


def layer_cache_bytes(
    kind: Layer, sequence: Amount, sequences: Amount, itemsize_bytes: int
) -> Quantity:
    """Of one kind of layer, in all its layers.

    Latent attention keeps one compressed vector and one part with positions for all heads:
    DeepSeek-V2, arXiv 2405.04434, section 2.1.2.
    """
    attention = kind.attention
    tokens = of(sequence, Unit.TOKENS, "sequence")
    if isinstance(attention, LatentAttention):
        ranks = (attention.kv_rank, attention.rotary_head_dim)
        return _latent_bytes(kind.count, *ranks, itemsize_bytes, tokens, sequences)
    most_keys = geometry_of(attention, int(tokens.value)).most_keys
    if most_keys < tokens.value:
        tokens = _kept_tokens(tokens, most_keys)
    heads = (attention.kv_heads, attention.head_dim)
    return _keys_and_values_bytes(kind.count, *heads, itemsize_bytes, tokens, sequences)


@closed_form("KV cache", Unit.BYTES, "DeepSeek-V2, arXiv 2405.04434, table 1")
def _latent_bytes(
    layers: Count, kv_rank: Count, rotary_head_dim: Count,
    item_bytes: BytesEach, tokens: Tokens, sequences: Count,
) -> str:  # fmt: skip
    return "layers * (kv_rank + rotary_head_dim) * item_bytes * tokens * sequences"


@closed_form("kept tokens", Unit.TOKENS)
def _kept_tokens(sequence: Tokens, window: Tokens) -> str:
    return "min(sequence, window)"


@closed_form("KV cache", Unit.BYTES, "Pope et al. 2022, arXiv 2211.05102, section 3.3")
def _keys_and_values_bytes(
    layers: Count, kv_heads: Count, head_dim: Count,
    item_bytes: BytesEach, tokens: Tokens, sequences: Count,
) -> str:  # fmt: skip
    return "2 * layers * kv_heads * head_dim * item_bytes * tokens * sequences"
