"""What attention keeps: from its input to the input of its output projection.

H: heads.  D: head dim.  E: head dim of values.  K: key and value heads.

On each of t chips in tensor parallelism are H / t heads, and K / t of keys and values, but one at
least.
"""

from collections.abc import Iterator

from torchtally.plan.activations.operators import (
    STREAM,
    TOKENS,
    norm_result_bytes,
    norm_saved,
    products_saved,
)
from torchtally.plan.activations.saved import ATTENTION, Region, Saved
from torchtally.plan.activations.setting import (
    BOOL_BYTES,
    FLOAT32_BYTES,
    INT64_BYTES,
    AttentionKernel,
    Setting,
)
from torchtally.plan.adapters import OUTPUT
from torchtally.plan.architecture.geometry import needs_mask
from torchtally.plan.architecture.model import LatentAttention, SelfAttention
from torchtally.plan.flops import Recompute

QUERIES = f"{TOKENS} * heads * head_dim"
KEYS = f"{TOKENS} * max(kv_heads, tensor) * head_dim"
VALUES = f"{TOKENS} * heads * value_head_dim"
SCORES = f"{TOKENS} * heads * keys"
INNER = Region.INNER


def attention_saved(
    at: Setting, attention: SelfAttention | LatentAttention, given_bytes: int
) -> Iterator[Saved]:
    """All that an attention block keeps, its input's copy for its products among it."""
    weights = _first_weights(attention)
    yield from products_saved(at, "input of attention", STREAM, given_bytes, weights)
    if at.first is not None and not at.first.has_attention:
        yield from _output_saved(at, attention, is_kept_already=False)
        return
    if isinstance(attention, LatentAttention):
        yield from _latent_saved(at, attention)
    else:
        yield from _head_norms_saved(at, attention)
    yield from _core_saved(at, attention)


def is_masked(at: Setting, attention: SelfAttention | LatentAttention | None) -> bool:
    """PyTorch's attention is given a mask as a tensor. Kernels that know windows need none."""
    return not at.is_fused and needs_mask(attention, at.tokens)


def _first_weights(attention: SelfAttention | LatentAttention) -> tuple[str, ...]:
    if isinstance(attention, LatentAttention):
        return ("q", "kv down") if attention.query_rank is None else ("q down", "kv down")
    return ("qkv",) if attention.is_fused else ("q", "k", "v")


def _head_norms_saved(at: Setting, self_attention: SelfAttention) -> Iterator[Saved]:
    if self_attention.has_plain_head_norms:
        wide = at.inner_bytes if at.is_fused else FLOAT32_BYTES
        head_dim = self_attention.head_dim
        for name, heads in (("queries", self_attention.heads), ("keys", self_attention.kv_heads)):
            yield at.keep(f"input of {name}' norm", f"{TOKENS} * heads * head_dim", wide, INNER,
                           "norm", heads=heads, head_dim=head_dim)  # fmt: skip
            yield at.keep(f"scale of {name}' norm", f"{TOKENS} * heads", FLOAT32_BYTES, INNER,
                           "norm", heads=heads)  # fmt: skip
    if self_attention.has_gate and at.inner_bytes == FLOAT32_BYTES and not at.is_fused:
        # The norm is given a view of what queries' matrix makes, which autograd keeps whole.
        yield at.keep("gate beside queries", QUERIES, FLOAT32_BYTES, INNER, "one tensor with them",
                       **_sizes(self_attention))  # fmt: skip
    for n, size in enumerate(self_attention.head_norm_sizes):
        heads = self_attention.heads if n == 0 else self_attention.kv_heads
        rows = f"{TOKENS} * norms"
        yield from norm_saved(
            at, f"{'queries' if n == 0 else 'keys'}' norm", at.inner_bytes,
            elements=f"{rows} * norm_size", rows=rows, region=INNER,
            norm_size=size, norms=heads * self_attention.head_dim // size,
        )  # fmt: skip


def _latent_saved(at: Setting, latent_attention: LatentAttention) -> Iterator[Saved]:
    """The compressed queries, keys and values: on every chip, as their norms need them whole."""
    ranks = {"queries": latent_attention.query_rank, "keys and values": latent_attention.kv_rank}
    for name, rank in ranks.items():
        if rank is None:
            continue
        elements = f"{TOKENS} * rank"
        # Of keys and values the part with positions lies beside what the norm is given.
        beside = (
            0
            if name == "queries" or at.inner_bytes < FLOAT32_BYTES
            else latent_attention.rotary_head_dim
        )
        yield from norm_saved(
            at, f"compressed {name}", at.inner_bytes, elements=elements, rank=rank
        )
        if beside:
            yield at.keep(
                "keys' part with positions",
                f"{TOKENS} * rotary_head_dim",
                at.inner_bytes,
                why="one tensor with the compressed keys",
                rotary_head_dim=beside,
            )
        result_bytes = norm_result_bytes(at, at.inner_bytes)
        up = ("q up",) if name == "queries" else ("kv up",)
        yield from products_saved(at, f"normed {name}", elements, result_bytes, up, rank=rank)


def _core_saved(at: Setting, attention: SelfAttention | LatentAttention) -> Iterator[Saved]:
    """Queries, keys, values, scores where they are kept, and what becomes of them."""
    sizes = _sizes(attention)
    if at.kernel is AttentionKernel.MATH and at.recompute is not Recompute.SELECTIVE:
        yield from _math_saved(at, attention)
    else:
        yield from _operands_saved(at, attention)
    if at.kernel is AttentionKernel.FLASH:
        yield at.keep(
            "log-sum-exp",
            f"{TOKENS} * heads",
            FLOAT32_BYTES,
            INNER,
            "recomputation of scores",
            heads=attention.heads,
        ).made_by(ATTENTION)
        if at.inner_bytes < FLOAT32_BYTES:  # memory-efficient attention's is on the host
            yield at.keep(
                "random state", "2", INT64_BYTES, Region.WHOLE, "dropout within attention"
            ).made_by(ATTENTION)
        # The result is laid out as queries are; put together from parts, those lie head by head,
        # and the output projection wants token by token. cuDNN's, which half precision takes.
        is_copied = isinstance(attention, LatentAttention) or attention.is_partly_rotary
        if at.adapter is not None and not at.adapter.keeps(OUTPUT, at.inner_bytes):
            is_copied = False
        if is_copied and not at.is_fused and at.inner_bytes < FLOAT32_BYTES:
            yield at.keep("result, copied", VALUES, at.inner_bytes, INNER, "layout", **sizes)
        yield at.keep(
            "result", VALUES, at.inner_bytes, INNER, "attention's backward", **sizes
        ).made_by(ATTENTION)
    is_gated = isinstance(attention, SelfAttention) and attention.has_gate
    if is_gated:
        yield at.keep(
            "its gate", VALUES, at.inner_bytes, INNER, "sigmoid, and its product", **sizes
        )
    is_kept = at.kernel is AttentionKernel.FLASH and not is_gated
    yield from _output_saved(at, attention, is_kept_already=is_kept)


def _output_saved(
    at: Setting, attention: SelfAttention | LatentAttention, *, is_kept_already: bool
) -> Iterator[Saved]:
    yield from products_saved(
        at, "input of the output projection", VALUES, at.inner_bytes, (OUTPUT,), INNER,
        is_kept_already=is_kept_already, **_sizes(attention),
    )  # fmt: skip


def _operands_saved(at: Setting, attention: SelfAttention | LatentAttention) -> Iterator[Saved]:
    """Queries, keys and values as a fused kernel keeps them."""
    size, sizes = at.inner_bytes, _sizes(attention)
    why = "attention's backward"
    if isinstance(attention, LatentAttention):
        yield at.keep("queries", QUERIES, size, INNER, why, **sizes)
        yield at.keep("keys", QUERIES, size, INNER, why, **sizes)
        elements = (
            VALUES if at.is_fused else f"{TOKENS} * heads * (plain_head_dim + value_head_dim)"
        )
        yield at.keep("values, and keys' part beside them", elements, size, INNER, why,
                       plain_head_dim=attention.plain_head_dim, **sizes)  # fmt: skip
        return
    if is_masked(at, attention):
        yield at.keep("queries", QUERIES, size, INNER, why, **sizes)
        for name in ("keys", "values"):
            yield at.keep(f"{name}, repeated for each head", QUERIES, size, INNER,
                           "no grouped heads with a mask", **sizes)  # fmt: skip
        yield at.keep("mask", f"{TOKENS} * keys", size, Region.WHOLE, "attention's backward")
        return
    if attention.is_fused and not at.is_fused:
        yield at.keep(
            "queries, keys, values in one", f"{QUERIES} + 2 * {KEYS}", size, INNER, why, **sizes
        ).made_by("qkv")
        if attention.is_rotary:
            yield at.keep("turned queries", QUERIES, size, INNER, why, **sizes)
            yield at.keep("turned keys", KEYS, size, INNER, why, **sizes)
        return
    # Turned or normed, queries and keys are others than what their matrices made; the compiler
    # makes them again from that.
    is_plain = at.is_fused or not (attention.is_rotary or attention.head_norm_sizes)
    of_q, of_k = ("q", "k") if is_plain else ("", "")
    yield at.keep("queries", QUERIES, size, INNER, why, **sizes).made_by(of_q)
    yield at.keep("keys", KEYS, size, INNER, why, **sizes).made_by(of_k)
    yield at.keep("values", KEYS, size, INNER, why, **sizes).made_by("v")


def _math_saved(at: Setting, attention: SelfAttention | LatentAttention) -> Iterator[Saved]:
    """What attention keeps that is computed operator by operator: the square of the sequence."""
    sizes = _sizes(attention)
    if at.is_fused:  # Korthikanti 2022: queries, keys and values once, in the activations' dtype
        yield from _operands_saved(at, attention)
        wide = at.inner_bytes
    elif isinstance(attention, SelfAttention) and (attention.is_capped or attention.sinks):
        yield from _own_scores_saved(at, attention)
        return
    else:
        wide = FLOAT32_BYTES
        for name, elements in (("queries", QUERIES), ("keys", QUERIES), ("values", VALUES)):
            yield at.keep(name, elements, wide, INNER, "products of attention", **sizes)
    yield at.keep("softmax of scores", SCORES, wide, INNER, "softmax", heads=attention.heads)
    if at.attention_dropout:
        yield at.keep("mask of scores", SCORES, BOOL_BYTES, INNER, "dropout", heads=attention.heads)
        yield at.keep(
            "dropped scores", SCORES, wide, INNER, "product with values", heads=attention.heads
        )


def _own_scores_saved(at: Setting, attention: SelfAttention) -> Iterator[Saved]:
    """Saved tensors of attention that transformers itself writes out, as PyTorch's knows neither
    caps nor sinks: in the dtype of products but for a softmax.
    """
    size, sizes, heads = at.inner_bytes, _sizes(attention), attention.heads
    for name, elements in (("queries", QUERIES), ("keys", QUERIES), ("values", VALUES)):
        yield at.keep(name, elements, size, INNER, "products of attention", **sizes)
    if attention.is_capped:
        yield at.keep("capped scores", SCORES, size, INNER, "tanh", heads=heads)
    if attention.sinks:
        yield at.keep("softmax of scores and sinks", f"{SCORES} + {TOKENS} * heads", size, INNER,
                       "softmax", heads=heads)  # fmt: skip
        yield at.keep("largest scores", f"{TOKENS} * heads", INT64_BYTES, INNER, "their difference",
                       heads=heads)  # fmt: skip
        return
    yield at.keep("softmax of scores", SCORES, FLOAT32_BYTES, INNER, "softmax", heads=heads)
    if size < FLOAT32_BYTES:
        yield at.keep("softmax, cast", SCORES, size, INNER, "product with values", heads=heads)


def _sizes(attention: SelfAttention | LatentAttention) -> dict[str, int]:
    kv_heads, value_head_dim = (
        (attention.heads, attention.value_head_dim)
        if isinstance(attention, LatentAttention)
        else (attention.kv_heads, attention.head_dim)
    )
    return {
        "heads": attention.heads,
        "kv_heads": kv_heads,
        "head_dim": attention.head_dim,
        "value_head_dim": value_head_dim,
    }
