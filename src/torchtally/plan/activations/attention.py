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
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import (
    BOOL_BYTES,
    FLOAT32_BYTES,
    INT64_BYTES,
    Kernel,
    Setting,
)
from torchtally.plan.architecture.model import LatentAttention, SelfAttention
from torchtally.plan.flops import Recompute

QUERIES = f"{TOKENS} * heads * head_dim"
KEYS = f"{TOKENS} * max(kv_heads, tensor) * head_dim"
VALUES = f"{TOKENS} * heads * value_head_dim"
SCORES = f"{TOKENS} * heads * keys"
INNER = Region.INNER


def attention_saved(
    at: Setting, it: SelfAttention | LatentAttention, given_bytes: int
) -> Iterator[Saved]:
    """All that an attention block keeps, its input's copy for its products among it."""
    products = _first_products(it)
    yield from products_saved(at, "input of attention", STREAM, given_bytes, products)
    if isinstance(it, LatentAttention):
        yield from _latent_saved(at, it)
    else:
        yield from _head_norms_saved(at, it)
    yield from _core_saved(at, it)


def is_masked(at: Setting, it: SelfAttention | LatentAttention) -> bool:
    """Transformers gives PyTorch's attention a mask as a tensor, as it must where a window or a
    chunk is shorter than the sequence. Kernels that know windows need none.
    """
    window = None if isinstance(it, LatentAttention) else it.window
    return not at.is_fused and window is not None and window < at.tokens


def _first_products(it: SelfAttention | LatentAttention) -> int:
    if isinstance(it, LatentAttention):
        return 2
    return 1 if it.is_fused else 3


def _head_norms_saved(at: Setting, it: SelfAttention) -> Iterator[Saved]:
    for n, size in enumerate(it.head_norm_sizes):
        heads = it.heads if n == 0 else it.kv_heads
        rows = f"{TOKENS} * norms"
        yield from norm_saved(
            at, f"{'queries' if n == 0 else 'keys'}' norm", at.inner_bytes,
            elements=f"{rows} * norm_size", rows=rows, region=INNER,
            norm_size=size, norms=heads * it.head_dim // size,
        )  # fmt: skip


def _latent_saved(at: Setting, it: LatentAttention) -> Iterator[Saved]:
    """The compressed queries, keys and values: on every chip, as their norms need them whole."""
    ranks = {"queries": it.query_rank, "keys and values": it.kv_rank}
    for name, rank in ranks.items():
        if rank is None:
            continue
        elements = f"{TOKENS} * rank"
        # Of keys and values the part with positions lies beside what the norm is given.
        beside = 0 if name == "queries" or at.inner_bytes < FLOAT32_BYTES else it.rotary_head_dim
        yield from norm_saved(
            at, f"compressed {name}", at.inner_bytes, elements=elements, rank=rank
        )
        if beside:
            yield at.saved(
                "keys' part with positions", f"{TOKENS} * rotary_head_dim", at.inner_bytes,
                why="one tensor with the compressed keys", rotary_head_dim=beside,
            )  # fmt: skip
        given = norm_result_bytes(at, at.inner_bytes)
        yield from products_saved(at, f"normed {name}", elements, given, rank=rank)


def _core_saved(at: Setting, it: SelfAttention | LatentAttention) -> Iterator[Saved]:
    """Queries, keys, values, scores where they are kept, and what becomes of them."""
    sizes = _sizes(it)
    if at.kernel is Kernel.MATH and at.recompute is not Recompute.SELECTIVE:
        yield from _math_saved(at, it)
    else:
        yield from _operands_saved(at, it)
    if at.kernel is Kernel.FLASH:
        yield at.saved("log-sum-exp", f"{TOKENS} * heads", FLOAT32_BYTES, INNER,
                       "scores made again", heads=it.heads)  # fmt: skip
        yield at.saved("random state", "2", INT64_BYTES, Region.WHOLE, "dropout within attention")
        # The result is laid out as queries are; put together from parts, those lie head by head,
        # and the output projection wants token by token. cuDNN's, which half precision takes.
        is_copied = isinstance(it, LatentAttention) or it.is_partly_rotary
        if is_copied and not at.is_fused and at.inner_bytes < FLOAT32_BYTES:
            yield at.saved("result, copied", VALUES, at.inner_bytes, INNER, "layout", **sizes)
        yield at.saved("result", VALUES, at.inner_bytes, INNER, "attention's backward", **sizes)
    yield from products_saved(
        at, "input of the output projection", VALUES, at.inner_bytes, region=INNER,
        is_kept_already=at.kernel is Kernel.FLASH, **sizes,
    )  # fmt: skip


def _operands_saved(at: Setting, it: SelfAttention | LatentAttention) -> Iterator[Saved]:
    """Queries, keys and values as a fused kernel keeps them."""
    size, sizes = at.inner_bytes, _sizes(it)
    why = "attention's backward"
    if isinstance(it, LatentAttention):
        yield at.saved("queries", QUERIES, size, INNER, why, **sizes)
        yield at.saved("keys", QUERIES, size, INNER, why, **sizes)
        elements = (
            VALUES if at.is_fused else f"{TOKENS} * heads * (plain_head_dim + value_head_dim)"
        )
        yield at.saved("values, and keys' part beside them", elements, size, INNER, why,
                       plain_head_dim=it.plain_head_dim, **sizes)  # fmt: skip
        return
    if is_masked(at, it):
        yield at.saved("queries", QUERIES, size, INNER, why, **sizes)
        for name in ("keys", "values"):
            yield at.saved(f"{name}, repeated for each head", QUERIES, size, INNER,
                           "no grouped heads with a mask", **sizes)  # fmt: skip
        yield at.saved("mask", f"{TOKENS} * keys", size, Region.WHOLE, "attention's backward")
        return
    if it.is_fused and not at.is_fused:
        yield at.saved("queries, keys, values in one", f"{QUERIES} + 2 * {KEYS}", size, INNER, why,
                       **sizes)  # fmt: skip
        if it.is_rotary:
            yield at.saved("turned queries", QUERIES, size, INNER, why, **sizes)
            yield at.saved("turned keys", KEYS, size, INNER, why, **sizes)
        return
    yield at.saved("queries", QUERIES, size, INNER, why, **sizes)
    yield at.saved("keys", KEYS, size, INNER, why, **sizes)
    yield at.saved("values", KEYS, size, INNER, why, **sizes)


def _math_saved(at: Setting, it: SelfAttention | LatentAttention) -> Iterator[Saved]:
    """What attention keeps that is computed operator by operator: the square of the sequence."""
    sizes = _sizes(it)
    if at.is_fused:  # Korthikanti 2022: queries, keys and values once, in the activations' dtype
        yield from _operands_saved(at, it)
        wide = at.inner_bytes
    else:
        wide = FLOAT32_BYTES
        for name, elements in (("queries", QUERIES), ("keys", QUERIES), ("values", VALUES)):
            yield at.saved(name, elements, wide, INNER, "products of attention", **sizes)
    yield at.saved("softmax of scores", SCORES, wide, INNER, "softmax", heads=it.heads)
    if at.attention_dropout:
        yield at.saved("mask of scores", SCORES, BOOL_BYTES, INNER, "dropout", heads=it.heads)
        yield at.saved("dropped scores", SCORES, wide, INNER, "product with values",
                       heads=it.heads)  # fmt: skip


def _sizes(it: SelfAttention | LatentAttention) -> dict[str, int]:
    kv_heads, value_head_dim = (
        (it.heads, it.value_head_dim)
        if isinstance(it, LatentAttention)
        else (it.kv_heads, it.head_dim)
    )
    return {
        "heads": it.heads,
        "kv_heads": kv_heads,
        "head_dim": it.head_dim,
        "value_head_dim": value_head_dim,
    }
