"""Scaled dot-product attention, fused and not.

B: batch.  H: query heads.  S: query sequence.  T: key and value sequence.  D: head dim of queries
and keys.  E: head dim of values.  Grouped key and value heads are each used H / H_kv times: H.

In full: every query is counted with as many keys as any query of its kernel attends to, masked
or not (`geometry.py`); a convention laid over the ledger leaves out what a causal kernel masks.
Forward is two products: queries by keys, weights by values. Backward of a fused kernel is five: the
scores again, then the gradients of values, weights, queries and keys (Dao et al., FlashAttention,
arXiv:2205.14135, algorithm 4). The softmax between them is not counted; `torch.utils.flop_counter`
counts the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import prod

from torchtally.trace import Call
from torchtally.work.arithmetic import multiply_add_flops
from torchtally.work.cost import Cost
from torchtally.work.geometry import Counted, Geometry
from torchtally.work.rule import Kind, full_names, integer, integers, is_set, one_pass, rule

Heads = Mapping[Geometry | Counted, int | Fraction]
"""Geometries of a call, and how many heads of how many sequences have each. A fraction where the
lengths of packed sequences are not known: so many times the longest is what all are at most."""


def forward_flops(points: int, key_dim: int, value_dim: int) -> int:
    """`points` are the elements of the scores: B*H*S*T, less in windows."""
    return 2 * points * (key_dim + value_dim)


def backward_flops(points: int, key_dim: int, value_dim: int) -> int:
    return 2 * points * (3 * key_dim + 2 * value_dim)


FORWARD = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math"
    " _scaled_dot_product_attention_math_for_mps scaled_dot_product_attention"
)
BACKWARD = (
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_cudnn_attention_backward"
    " _scaled_dot_product_flash_attention_for_cpu_backward"
    " _scaled_dot_product_fused_attention_overrideable_backward"
)


VARLEN_OFFSETS = ("cum_seq_q", "cu_seqlens_q", "cu_seq_q")
LONGEST_QUERY = ("max_q", "max_seqlen_q")
LONGEST_KEY = ("max_k", "max_seqlen_k")


def heads_first(call: Call) -> Heads:
    """Heads of (B, H, S, D) queries and (B, H_kv, T, D) keys."""
    *batch, S, _ = call.tensor("query").shape
    return {geometry_of(call, S, call.tensor("key").shape[-2]): prod(batch)}


def heads_second(call: Call) -> Heads:
    """Heads of (B, S, H, D) queries, or of packed sequences that lie end to end, (total, H, D).

    The lengths of packed sequences are values of their offsets. Where these are not known, known
    are the totals and the longest: sum S_i*T_i <= min(total S * longest T, total T * longest S),
    exact when all sequences are as long as the longest.
    """
    query, key = call.tensor("query").shape, call.tensor("key").shape
    H = query[-2]
    S, T = prod(query[:-2]), prod(key[:-2])
    if not any(call.tensors(name) for name in VARLEN_OFFSETS):
        return {geometry_of(call, query[-3], key[-3]): prod(query[:-3]) * H}
    lengths = zip(integers(call, "lengths_q"), integers(call, "lengths_k"), strict=True)
    known = Counter(geometry_of(call, *pair) for pair in lengths)
    if known:
        return {geometry: H * times for geometry, times in known.items()}
    longest_S = max(integer(call, name, 0) for name in LONGEST_QUERY) or S
    longest_T = max(integer(call, name, 0) for name in LONGEST_KEY) or T
    square = longest_S * longest_T
    sequences = Fraction(min(S * longest_T, T * longest_S), square) if square else 0
    return {geometry_of(call, longest_S, longest_T): H * sequences}


def cudnn(call: Call) -> Heads:
    """cuDNN takes (B, H, S, D), or packed sequences as (total, H, D)."""
    is_packed = len(call.tensor("query").shape) == 3
    return heads_second(call) if is_packed else heads_first(call)


def block_masked(call: Call) -> Heads:
    """`flex_attention`, whose block mask was counted if its values are known: all heads of all
    sequences together.
    """
    *batch, S, _ = call.tensor("query").shape
    T, heads = call.tensor("key").shape[-2], prod(batch)
    counts = integers(call, "attended")
    if not counts or not heads:
        return {Geometry(queries=S, keys=T): heads}
    full, attended = (Fraction(pairs, heads) for pairs in counts)
    computed = Fraction(integer(call, "computed", heads * S * T), heads)
    return {
        Counted(
            queries=S, keys=T, full_pairs=full, attended_pairs=attended, computed_pairs=computed
        ): heads
    }


BIASES = ("attn_mask", "attn_bias", "bias")
"""What the kernels call a mask that is a tensor."""


def geometry_of(call: Call, S: int, T: int) -> Geometry:
    """What the kernel of a call computes of S queries and T keys, as its literals say.

    The last query's key is the last one in flash-attention, which `_flash_attention_forward` and
    varlen are; elsewhere only where memory-efficient attention's `custom_mask_type` is 2.
    """
    plain = Geometry(queries=S, keys=T)
    if any(spec.elements for name in BIASES for spec in call.tensors(name)):
        return plain
    before, after = window_of(call)
    mask_type = integer(call, "custom_mask_type", 0)
    is_end_aligned = (
        is_set(call, "is_end_aligned")
        or mask_type == 2
        or (
            "scaled_dot_product" not in call.name
            and ("flash" in call.name or "varlen" in call.name)
        )
    )
    if is_set(call, "is_causal") or is_set(call, "causal") or mask_type:
        after = 0
    if before is None and after is None:
        return plain
    return replace(plain, before=before, after=after, is_end_aligned=is_end_aligned)


def window_of(call: Call) -> tuple[int | None, int | None]:
    """Keys before and after its own that a query attends to; None, or negative: all.

    Flash-attention says how many on each side; memory-efficient attention how many up to its own
    (kernel_forward.h).
    """
    sides = integers(call, "window_size")
    if len(sides) == 1:
        return (sides[0] - 1, None) if sides[0] > 0 else (None, None)
    left, right = sides or (
        integer(call, "window_size_left", -1),
        integer(call, "window_size_right", -1),
    )
    return (None if left < 0 else left), (None if right < 0 else right)


def pairs(heads: Heads) -> int:
    """Queries with keys, in full: elements of the scores."""
    return int(sum(times * geometry.full_pairs for geometry, times in heads.items()))


def fused_cost(
    heads_of: Callable[[Call], Heads], flops: Callable[[int, int, int], int], call: Call
) -> Cost:
    D, E = call.tensor("query").shape[-1], call.tensor("value").shape[-1]
    return one_pass(call, flops=flops(pairs(heads_of(call)), D, E))


KERNELS = {
    heads_first: (FORWARD, BACKWARD),
    heads_second: (
        "_flash_attention_forward _flash_attention_forward_no_dropout_inplace"
        " _efficient_attention_forward torch_attn._varlen_attn torch_attn._varlen_attn_out"
        " flash_attn.forward flash_attn_3.forward transformer_engine.cudnn_attention",
        "_flash_attention_backward _efficient_attention_backward torch_attn._varlen_attn_backward"
        " flash_attn.backward flash_attn_3.backward transformer_engine.cudnn_attention_backward",
    ),
    cudnn: ("_cudnn_attention_forward", "_cudnn_attention_backward"),
    block_masked: ("torchtally.flex_attention", "torchtally.flex_attention_backward"),
}
"""How queries and keys lie: operators of the forward pass, and of the backward pass."""

LAYOUTS: dict[str, Callable[[Call], Heads]] = {}
"""By the operator."""

for heads_of, (forward, backward) in KERNELS.items():
    rule(forward, kind=Kind.ATTENTION)(partial(fused_cost, heads_of, forward_flops))
    rule(backward, kind=Kind.ATTENTION)(partial(fused_cost, heads_of, backward_flops))
    LAYOUTS |= dict.fromkeys(full_names(f"{forward} {backward}"), heads_of)


@rule("flash_attn.with_cache", kind=Kind.ATTENTION)
def with_cache(call: Call) -> Cost:
    """Cost of queries and a cache, of which all is read, and what is new is written."""
    cost = fused_cost(heads_second, forward_flops, call)
    cache = [call.tensor(name) for name in ("key", "value")]
    new = [spec for name in ("new_key", "new_value") for spec in call.tensors(name)]
    cached_bytes, new_bytes = (sum(spec.bytes for spec in specs) for specs in (cache, new))
    return Cost(
        cost.flops, cost.bytes_read + cached_bytes, cost.bytes_written - cached_bytes + new_bytes
    )


LAYOUTS["flash_attn.with_cache"] = heads_second


def heads_of_call(call: Call) -> Heads | None:
    """The geometries that an attention operator computes; None for a whole layer of them."""
    heads_of = LAYOUTS.get(call.name)
    return None if heads_of is None else heads_of(call)


def attended_share(call: Call) -> Fraction:
    """Share of the pairs, counted by a kernel's FLOPs in full, that its mask leaves: half for
    causal attention. A mask that is a tensor leaves none out: the kernel computes them all.
    """
    heads = heads_of_call(call) or {}
    full = pairs(heads)
    attended = sum(
        times * geometry.full_pairs * geometry.attended_share for geometry, times in heads.items()
    )
    return Fraction(attended, full) if full else Fraction(1)


def projections_flops(call: Call, tokens: int, weights: tuple[str, ...]) -> int:
    """2 * tokens * weight elements: every weight meets every token once."""
    specs = [call.tensor(name) for name in weights]
    return sum(spec.elements * tokens * multiply_add_flops(spec) for spec in specs)


@rule("_native_multi_head_attention", kind=Kind.ATTENTION)
def multi_head_attention(call: Call) -> Cost:
    """Four projections around attention: `nn.MultiheadAttention`'s inference path."""
    B, S, E = call.tensor("query").shape
    T = call.tensor("key").shape[-2]
    projected = projections_flops(call, B * S, ("qkv_weight", "proj_weight"))
    return one_pass(call, flops=projected + forward_flops(B * S * T, E, E))


@rule("_transformer_encoder_layer_fwd", kind=Kind.ATTENTION)
def encoder_layer(call: Call) -> Cost:
    """`nn.TransformerEncoderLayer`'s inference path: attention and feed-forward products only."""
    B, S, E = call.tensor("src").shape
    weights = ("qkv_weight", "proj_weight", "ffn_weight_1", "ffn_weight_2")
    projected = projections_flops(call, B * S, weights)
    return one_pass(call, flops=projected + forward_flops(B * S * S, E, E))
