"""What a model keeps of a sequence when it writes one: keys and values of every layer.

Latent attention is one compressed vector for all heads, as serving engines and transformers 5 keep
it; transformers 4 kept every head's keys and values (EXPANDED). Serving engines keep blocks of
tokens (PAGED), transformers one tensor for a layer (DYNAMIC, STATIC).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.architecture.model import LatentAttention, Layer, Model, SelfAttention
from torchtally.plan.closed_form import Bytes, BytesEach, Count, Tokens, closed_form
from torchtally.plan.inference.gguf import BLOCKS
from torchtally.plan.inference.packings import FLOAT16, FLOAT32, Packing
from torchtally.plan.quantity import Amount, Quantity, of, total
from torchtally.units import Unit


class CacheKind(StrEnum):
    """Who holds keys and values, and in what tensors."""

    PAGED = "paged"
    """Blocks of tokens, each taken when it is needed: vLLM, SGLang, TensorRT-LLM."""
    DYNAMIC = "dynamic"
    """Transformers' `DynamicCache`, which grows by a token. Behind a window it keeps what the next
    token sees besides itself: one token less than the window."""
    STATIC = "static"
    """Transformers' `StaticCache`: as long as the longest sequence from the start."""
    EXPANDED = "expanded"
    """As DYNAMIC, with every head of latent attention: `DeepseekV3Attention` of transformers 4."""


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How the numbers of one head's key or value lie in memory."""

    name: str
    summary: str
    packing: Packing
    layer_bytes: int = 0
    """Scales of a whole layer: one each for keys and values."""
    source: str = ""


_LISTED = (
    CacheFormat("bf16", "16 bits", FLOAT16),
    CacheFormat("fp32", "32 bits", FLOAT32),
    CacheFormat(
        "fp8", "float8, a float32 scale each for a layer's keys and values", Packing(bits=8), 8,
        "vLLM, quantized KV cache: per-tensor scales; transformers, Fp8QuantizedLayer",
    ),
    CacheFormat(
        "int8", "int8, a 16-bit scale and zero for each head and token",
        Packing(bits=8, rows=1, scale_bytes=2, zero_bits=16),
        source="InternLM/lmdeploy, docs/en/quantization/kv_quant.md: per-head, per-token",
    ),
    CacheFormat(
        "int4", "int4, a 16-bit scale and zero for each head and token",
        Packing(bits=4, rows=1, scale_bytes=2, zero_bits=16),
        source="InternLM/lmdeploy, docs/en/quantization/kv_quant.md: per-head, per-token",
    ),
    CacheFormat(
        "nvfp4", "4-bit floats, a float8 scale for 16 numbers",
        Packing(bits=4, rows=1, columns=16, scale_bytes=1), 8,
        "NVIDIA TensorRT-LLM, NVFP4 KV cache",
    ),
    CacheFormat("q8_0", "llama.cpp's q8_0: 34 bytes for 32 numbers", BLOCKS["Q8_0"]),
    CacheFormat("q4_0", "llama.cpp's q4_0: 18 bytes for 32 numbers", BLOCKS["Q4_0"]),
)  # fmt: skip
CACHE_FORMATS: Mapping[str, CacheFormat] = {listed.name: listed for listed in _LISTED}
ALIASES = {"fp16": "bf16", "f16": "bf16", "bfloat16": "bf16", "float16": "bf16", "f32": "fp32",
           "float32": "fp32", "float8": "fp8", "fp4": "nvfp4"}  # fmt: skip


def cache_format(name: str) -> CacheFormat:
    """The format of this name. Raises UsageError for any other."""
    word = name.lower()
    row = CACHE_FORMATS.get(ALIASES.get(word, word))
    if row is None:
        near = did_you_mean(name, [*CACHE_FORMATS, *ALIASES])
        raise UsageError(f"Unknown KV cache format {name!r}. {near}")
    return row


@dataclass(frozen=True, slots=True)
class Cache:
    """How keys and values are kept."""

    kind: CacheKind = CacheKind.PAGED
    block: int = 1
    """Tokens of a page; 1: nothing is wasted."""
    kept: CacheFormat = field(default=CACHE_FORMATS["bf16"])

    @property
    def is_compressed(self) -> bool:
        """Latent attention is kept as its short vector."""
        return self.kind is not CacheKind.EXPANDED


PLAIN = Cache()
"""What the model itself has to keep, in 16 bits."""


def kv_cache_bytes(
    model: Model, sequence: Amount, sequences: Amount = 1, cache: Cache = PLAIN
) -> Quantity:
    """Bytes of so many sequences of this length. A layer with a window keeps no more than its
    window.
    """
    parts = {
        f"kind_{n}": layer_cache_bytes(kind, sequence, sequences, cache)
        for n, kind in enumerate(model.kinds)
    }
    return total("KV cache", Unit.BYTES, parts)


def layer_cache_bytes(
    kind: Layer, sequence: Amount, sequences: Amount = 1, cache: Cache = PLAIN, chips: int = 1
) -> Quantity:
    """Bytes of one kind of layer, in all its layers: keys and values, states, which chips share."""
    parts = {}
    if kind.recurrence is not None:
        parts["state"] = recurrent_state_bytes(kind, sequences, cache, chips)
    if kind.attention is not None:
        parts["keys_and_values"] = _attention_bytes(
            kind.attention, kind.count, sequence, sequences, cache
        )
    if len(parts) == 1:
        return next(iter(parts.values()))
    return total("cache", Unit.BYTES, parts) if parts else of(0, Unit.BYTES, "cache")


def recurrent_state_bytes(
    kind: Layer, sequences: Amount = 1, cache: Cache = PLAIN, chips: int = 1
) -> Quantity:
    """Bytes of recurrences: states in float32 (lightning attention's in 16 bits), and the last
    inputs of the convolution, or of what mixes tokens, in 16 bits.

    Transformers keeps as many inputs as the convolution sees, engines one less.
    """
    assert kind.recurrence is not None
    state = kind.recurrence.state
    kept = max(state.kernel - (cache.kind is CacheKind.PAGED), 0)
    return _state_bytes(
        kind.count,
        state.numbers,
        state.channels * kept + state.shifted,
        sequences,
        chips,
        4 if state.is_wide else 2,
    )


@closed_form(
    "state", Unit.BYTES, "transformers, LinearAttentionLayer; vLLM, MambaStateShapeCalculator"
)
def _state_bytes(
    layers: Count, numbers: Count, inputs: Count, sequences: Count,
    chips: Count = 1, state_itemsize: BytesEach = 4, itemsize: BytesEach = 2,
) -> str:  # fmt: skip
    return "layers * (numbers * state_itemsize + inputs * itemsize) * sequences / chips"


def _attention_bytes(
    attention: SelfAttention | LatentAttention,
    count: int,
    sequence: Amount,
    sequences: Amount,
    cache: Cache,
) -> Quantity:
    tokens = kept_tokens(attention, of(sequence, Unit.TOKENS, "sequence"), cache)
    heads, key_bytes, value_bytes = entry_of(attention, cache)
    each = (heads, key_bytes, value_bytes)
    if isinstance(attention, LatentAttention) and cache.is_compressed:
        return _latent_bytes(count, *each[1:], tokens, sequences, cache.kept.layer_bytes)
    return _keys_and_values_bytes(count, *each, tokens, sequences, cache.kept.layer_bytes)


def entry_of(attention: SelfAttention | LatentAttention, cache: Cache) -> tuple[int, int, int]:
    """(heads, bytes of a head's key, of its value) of one token in one layer.

    Latent attention keeps one compressed vector and one part with positions for all heads:
    DeepSeek-V2, arXiv 2405.04434, section 2.1.2.
    """
    if isinstance(attention, SelfAttention):
        heads, sizes = attention.kv_heads, (attention.head_dim, attention.head_dim)
    elif cache.is_compressed:
        heads, sizes = 1, (attention.kv_rank, attention.rotary_head_dim)
    else:
        heads, sizes = attention.heads, (attention.head_dim, attention.value_head_dim)
    key_bytes, value_bytes = (cache.kept.packing.bytes_of((1, size)) for size in sizes)
    return heads, key_bytes, value_bytes


def kept_tokens(
    attention: SelfAttention | LatentAttention, sequence: Quantity, cache: Cache
) -> Quantity:
    """Tokens of a sequence whose keys and values take memory, in whole blocks."""
    window = None if isinstance(attention, LatentAttention) else attention.window
    if cache.kind is CacheKind.PAGED:
        if window is None or window >= sequence.value:
            return sequence if cache.block == 1 else _paged_tokens(sequence, cache.block)
        return _paged_window(sequence, cache.block, window)
    if window is None:
        return sequence
    return _kept_tokens(sequence, window - (cache.kind is not CacheKind.STATIC))


@closed_form("paged tokens", Unit.TOKENS, "Kwon et al. 2023, arXiv 2309.06180, section 4.1")
def _paged_tokens(tokens: Tokens, block: Tokens) -> str:
    return "ceil(tokens / block) * block"


@closed_form("paged tokens", Unit.TOKENS, "Kwon et al. 2023, arXiv 2309.06180, section 4.1")
def _paged_window(tokens: Tokens, block: Tokens, window: Tokens) -> str:
    """A window begins anywhere in a block."""
    return "min(ceil(tokens / block), ceil((window - 1) / block) + 1) * block"


@closed_form("kept tokens", Unit.TOKENS)
def _kept_tokens(sequence: Tokens, window: Tokens) -> str:
    return "min(sequence, window)"


@closed_form("KV cache", Unit.BYTES, "DeepSeek-V2, arXiv 2405.04434, table 1")
def _latent_bytes(
    layers: Count,
    latent_bytes: BytesEach,
    rotary_bytes: BytesEach,
    tokens: Tokens,
    sequences: Count,
    scale_bytes: Bytes,
) -> str:
    scales = " + layers * scale_bytes" if scale_bytes else ""
    return f"layers * (latent_bytes + rotary_bytes) * tokens * sequences{scales}"


@closed_form("KV cache", Unit.BYTES, "Pope et al. 2022, arXiv 2211.05102, section 3.3")
def _keys_and_values_bytes(
    layers: Count, kv_heads: Count, key_bytes: BytesEach, value_bytes: BytesEach, tokens: Tokens,
    sequences: Count, scale_bytes: Bytes,
) -> str:  # fmt: skip
    scales = " + layers * scale_bytes" if scale_bytes else ""
    return f"layers * kv_heads * (key_bytes + value_bytes) * tokens * sequences{scales}"


@closed_form("of it wasted in pages", Unit.BYTES)
def wasted_bytes(paged: Bytes, tight: Bytes) -> str:
    """What no token of a sequence takes of its blocks."""
    return "paged - tight"
