"""Scaled dot-product attention, fused and not.

B: batch.  H: query heads.  S: query sequence.  T: key and value sequence.  D: head dim of queries
and keys.  E: head dim of values.  Grouped key and value heads are each used H / H_kv times: H.

In full: every query meets every key. `is_causal` and windows halve nothing here; a convention
laid over the ledger does. Forward is two products: queries by keys, weights by values. Backward of
a fused kernel is five: the scores again, then the gradients of values, weights, queries and keys
(Dao et al., FlashAttention, arXiv:2205.14135, algorithm 4). The softmax between them is not
counted; `torch.utils.flop_counter` counts the same.
"""

from collections.abc import Callable
from functools import partial
from math import prod

from torchtally.trace import Call
from torchtally.work.arithmetic import multiply_add_flops
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, integer, one_pass, rule


def forward_flops(points: int, key_dim: int, value_dim: int) -> int:
    """`points` is B*H*S*T, the elements of the scores."""
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


def heads_first_points(call: Call) -> int:
    """B*H*S*T of (B, H, S, D) queries and (B, H_kv, T, D) keys."""
    return prod(call.tensor("query").shape[:-1]) * call.tensor("key").shape[-2]


VARLEN_OFFSETS = ("cum_seq_q", "cu_seqlens_q", "cu_seq_q")
LONGEST_QUERY = ("max_q", "max_seqlen_q")
LONGEST_KEY = ("max_k", "max_seqlen_k")


def heads_second_points(call: Call) -> int:
    """B*H*S*T of (B, S, H, D) queries; of packed sequences, at most the sum of H*S_i*T_i.

    A packed batch holds its sequences end to end, (total, H, D), and their lengths are values, not
    shapes. Known are the totals and the longest: sum S_i*T_i <= min(total S * longest T,
    total T * longest S), exact when all sequences are as long as the longest.
    """
    query, key = call.tensor("query").shape, call.tensor("key").shape
    H = query[-2]
    S, T = prod(query[:-2]), prod(key[:-2])
    if not any(call.tensors(name) for name in VARLEN_OFFSETS):
        return H * S * key[-3]
    longest_S = max(integer(call, name, 0) for name in LONGEST_QUERY) or S
    longest_T = max(integer(call, name, 0) for name in LONGEST_KEY) or T
    return H * min(S * longest_T, T * longest_S)


def cudnn_points(call: Call) -> int:
    """B*H*S*T for cuDNN: it takes (B, H, S, D), or packed sequences as (total, H, D)."""
    is_packed = len(call.tensor("query").shape) == 3
    return heads_second_points(call) if is_packed else heads_first_points(call)


def fused(points: Callable[[Call], int], flops: Callable[[int, int, int], int], call: Call) -> Cost:
    D, E = call.tensor("query").shape[-1], call.tensor("value").shape[-1]
    return one_pass(call, flops=flops(points(call), D, E))


KERNELS = {
    heads_first_points: (FORWARD, BACKWARD),
    heads_second_points: (
        "_flash_attention_forward _flash_attention_forward_no_dropout_inplace"
        " _efficient_attention_forward torch_attn._varlen_attn torch_attn._varlen_attn_out",
        "_flash_attention_backward _efficient_attention_backward torch_attn._varlen_attn_backward",
    ),
    cudnn_points: ("_cudnn_attention_forward", "_cudnn_attention_backward"),
}
"""How queries and keys lie: operators of the forward pass, and of the backward pass."""

for points, (forward, backward) in KERNELS.items():
    rule(forward, kind=Kind.ATTENTION)(partial(fused, points, forward_flops))
    rule(backward, kind=Kind.ATTENTION)(partial(fused, points, backward_flops))


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
