"""What a model keeps of a sequence when it writes one: keys and values of every layer."""

from torchtally.plan.architecture.model import LatentAttention, Layer, Model
from torchtally.plan.quantity import Amount, Quantity, derive, of, total
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
        return derive(
            "KV cache",
            Unit.BYTES,
            "layers * (kv_rank + rotary_head_dim) * item_bytes * tokens * sequences",
            "DeepSeek-V2, arXiv 2405.04434, table 1",
            layers=of(kind.count, Unit.COUNT),
            kv_rank=of(attention.kv_rank, Unit.COUNT),
            rotary_head_dim=of(attention.rotary_head_dim, Unit.COUNT),
            item_bytes=of(itemsize_bytes, Unit.BYTES_EACH),
            tokens=tokens,
            sequences=of(sequences, Unit.COUNT),
        )
    if attention.window is not None and attention.window < tokens.value:
        tokens = derive(
            "kept tokens",
            Unit.TOKENS,
            "min(sequence, window)",
            sequence=tokens,
            window=of(attention.window, Unit.TOKENS),
        )
    return derive(
        "KV cache",
        Unit.BYTES,
        "2 * layers * kv_heads * head_dim * item_bytes * tokens * sequences",
        "Pope et al. 2022, arXiv 2211.05102, section 3.3",
        layers=of(kind.count, Unit.COUNT),
        kv_heads=of(attention.kv_heads, Unit.COUNT),
        head_dim=of(attention.head_dim, Unit.COUNT),
        item_bytes=of(itemsize_bytes, Unit.BYTES_EACH),
        tokens=tokens,
        sequences=of(sequences, Unit.COUNT),
    )
