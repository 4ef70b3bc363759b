"""Transformer Engine's kernels (NVIDIA/TransformerEngine 2).

M, K, N: (M, K) @ (N, K).  B: sequences.  S: queries.  H: heads.  D: head dim.
"""

from math import prod

import torch
from torch import Tensor

from torchtally.libraries.operators.registry import define

BLOCK = 128
"""Of `Float8BlockScaling`: 1 x 128 numbers share a scale, of a weight 128 x 128."""
MX_BLOCK = 32
NVFP4_BLOCK = 16
NUMBERS_EACH = 2
"""Of float4 in a byte."""

Size = tuple[int, int]


def whole(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def scales_of(recipe: str, M: int, K: int) -> tuple[torch.dtype, Size]:
    """What rows of (M, K) are scaled by, in the paddings that cuBLAS reads (`get_scale_shape` in
    pytorch/tensor/*_tensor.py).
    """
    if recipe == "block":
        return torch.float32, (-(-K // BLOCK), whole(M, 4))
    if recipe == "square_block":
        return torch.float32, (-(-M // BLOCK), whole(-(-K // BLOCK), 4))
    if recipe == "mxfp8":
        return torch.float8_e8m0fnu, (whole(M, 128), whole(K // MX_BLOCK, 4))
    if recipe == "nvfp4":
        return torch.float8_e4m3fn, (whole(M, 128), whole(-(-K // NVFP4_BLOCK), 4))
    return torch.float32, (1, 1)


@define(
    "transformer_engine",
    "quantize(Tensor x, str recipe, ScalarType dtype, bool rows, bool columns, str activation) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def quantize(
    x: Tensor, recipe: str, dtype: torch.dtype, rows: bool, columns: bool, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(data, scales) of x for products over its rows, and for those over its columns, each if
    it is wanted; of an activation of x, where one is named.

    Hopper multiplies float8 only where both operands have K last, and what is scaled in blocks
    along K is scaled anew along M: a second copy, transposed but in MXFP8. With a scale for the
    whole tensor both share it.
    """
    *tokens, width = x.shape
    M, K = prod(tokens), width // halves(activation)
    packed = NUMBERS_EACH if dtype is torch.float4_e2m1fn_x2 else 1
    scale_dtype, row_scales = scales_of(recipe, M, K)
    _, column_scales = scales_of(recipe, K, M)
    column_shape = (M, K) if recipe == "mxfp8" else (K, M // packed)
    column_scales = column_scales[::-1] if recipe == "mxfp8" else column_scales
    is_shared = row_scales == (1, 1)

    def made(size: Size, dtype: torch.dtype, wanted: bool) -> Tensor:
        return x.new_empty(size if wanted else (0,), dtype=dtype)

    return (
        made((M, K // packed), dtype, rows),
        made(row_scales, scale_dtype, rows or is_shared),
        made(column_shape, dtype, columns),
        made(column_scales, scale_dtype, columns and not is_shared),
    )


@define("transformer_engine", "dequantize(Tensor x, Tensor scale, ScalarType dtype) -> Tensor")
def dequantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Tensor dequantised of one scale."""
    return x.new_empty(x.shape, dtype=dtype)


MATRICES = "Tensor a, Tensor b, Tensor? a_scale, Tensor? b_scale"


@define(
    "transformer_engine",
    f"gemm({MATRICES}, Tensor? bias, ScalarType dtype, SymInt M, SymInt N, SymInt K) -> Tensor",
)
def gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor | None,
    b_scale: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    M: int,
    N: int,
    K: int,
) -> Tensor:
    return a.new_empty((M, N), dtype=dtype)


@define(
    "transformer_engine",
    f"gemm_into({MATRICES}, Tensor? bias, Tensor(a!) out, SymInt M, SymInt N, SymInt K, "
    "bool accumulate) -> ()",
)
def gemm_into(*arguments: object) -> None:
    """Product of a group, into its rows of a result that is all groups', or a gradient."""


ACTIVATIONS = (
    "gelu",
    "relu",
    "silu",
    "qgelu",
    "srelu",
    "glu",
    "swiglu",
    "geglu",
    "reglu",
    "qgeglu",
    "sreglu",
)


def halves(activation: str) -> int:
    """Gated ones are a function of half of their input, times the other half."""
    return 2 if activation.endswith("glu") else 1


@define("transformer_engine", "activation(Tensor x, str activation) -> Tensor")
def activate(x: Tensor, activation: str) -> Tensor:
    width = x.shape[-1] // halves(activation)
    return x.new_empty((*x.shape[:-1], width))


@define(
    "transformer_engine", "activation_backward(Tensor grad, Tensor x, str activation) -> Tensor"
)
def activate_backward(grad: Tensor, x: Tensor, activation: str) -> Tensor:
    return x.new_empty(x.shape)


@define(
    "transformer_engine",
    "bias_dropout_add(Tensor x, Tensor? bias, Tensor residual, float p) -> (Tensor, Tensor)",
)
def bias_dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """(residual + dropout(x + bias), what was kept): one kernel that PyTorch compiles (jit.py)."""
    kept = x.new_empty(x.shape if p else (0,), dtype=torch.bool)
    return residual.new_empty(residual.shape), kept


@define("transformer_engine", "dropout_backward(Tensor grad, Tensor kept, float p) -> Tensor")
def dropout_backward(grad: Tensor, kept: Tensor, p: float) -> Tensor:
    return grad.new_empty(grad.shape)


@define("transformer_engine", "rotary(Tensor x, Tensor angles) -> Tensor")
def rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Contiguous, however x lies (csrc/extensions/apply_rope.cpp)."""
    return x.new_empty(x.shape)


OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor? bias"
OPTIONS = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    "bool is_causal, bool is_end_aligned, int window_size_left, int window_size_right"
)


def laid_out(
    like: Tensor, width: int, sequence_first: bool, dtype: torch.dtype | None = None
) -> Tensor:
    """(B, S, H, width) over memory of (S, B, H, width), or over its own."""
    if not sequence_first:
        return like.new_empty((*like.shape[:-1], width), dtype=dtype)
    B, S, H, _ = like.shape
    return like.new_empty((S, B, H, width), dtype=dtype).transpose(0, 1)


@define(
    "transformer_engine",
    f"cudnn_attention({OPERANDS}, {OPTIONS}, bool sequence_first, ScalarType? dtype=None) "
    "-> (Tensor, Tensor, Tensor)",
)
def cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    is_causal: bool,
    is_end_aligned: bool,
    window_size_left: int,
    window_size_right: int,
    sequence_first: bool,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(result, log-sum-exp, state of random numbers), of (B, S, H, D) or packed (tokens, H, D)
    (`fused_attn_fwd` in csrc/extensions/attention.cpp). The result has the queries' dtype, or
    another.
    """
    *tokens, H, _ = query.shape
    rows = (tokens[0], H, tokens[1], 1) if len(tokens) == 2 else (*tokens, H, 1)
    out = laid_out(query, value.shape[-1], sequence_first, dtype)
    state = query.new_empty(2, dtype=torch.int64)
    return out, query.new_empty(rows, dtype=torch.float32), state


@define(
    "transformer_engine",
    f"cudnn_attention_backward(Tensor grad_out, {OPERANDS}, Tensor out, Tensor softmax_lse, "
    "Tensor(a!) grad_query, Tensor(b!) grad_key, Tensor(c!) grad_value, Tensor(d!)? grad_bias, "
    f"{OPTIONS}) -> ()",
)
def cudnn_attention_backward(*arguments: object) -> None:
    """All results are written to."""
