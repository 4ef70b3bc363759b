"""transformer_engine.pytorch: modules whose products are in float8 within `fp8_autocast`.

A linear layer keeps the transposes of its input and its weight in float8 (module/linear.py);
outside of `fp8_autocast` what torch's keeps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtally.libraries.operators import float8  # noqa: F401 (defines the operators)


class Precision:
    """Of the code that runs."""

    is_float8 = False


@contextmanager
def fp8_autocast(
    enabled: bool = True, calibrating: bool = False, fp8_recipe: Any = None, fp8_group: Any = None,
    _graph: bool = False,
) -> Iterator[None]:  # fmt: skip
    before, Precision.is_float8 = Precision.is_float8, enabled
    try:
        yield
    finally:
        Precision.is_float8 = before


@contextmanager
def autocast(enabled: bool = True, **options: Any) -> Iterator[None]:
    with fp8_autocast(enabled):
        yield


def quantized(x: Tensor, rows: bool, columns: bool) -> tuple[Tensor, Tensor, Tensor]:
    data, transposed, scale = torch.ops.transformer_engine.quantize(x, rows, columns)
    return data, transposed, scale


class Float8Product(torch.autograd.Function):
    """x @ weight.T + bias, of (M, K) and (N, K)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        trains_weight, trains_x = ctx.needs_input_grad[1], ctx.needs_input_grad[0]
        data, x_columns, x_scale = quantized(x, True, trains_weight)
        weights, weight_columns, weight_scale = quantized(weight, True, trains_x)
        ctx.save_for_backward(x_columns, x_scale, weight_columns, weight_scale)
        ctx.has_bias, ctx.dtypes = bias is not None, (x.dtype, weight.dtype)
        result: Tensor = torch.ops.transformer_engine.gemm(
            data, x_scale, weights, weight_scale, bias, x.dtype
        )
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x_columns, x_scale, weight_columns, weight_scale = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        gemm, (x_dtype, weight_dtype) = torch.ops.transformer_engine.gemm, ctx.dtypes
        rows, columns, scale = quantized(grad.contiguous(), of_x, of_weight)
        grad_x = grad_weight = None
        if of_x:
            grad_x = gemm(rows, scale, weight_columns, weight_scale, None, x_dtype)
        if of_weight:
            grad_weight = gemm(columns, scale, x_columns, x_scale, None, weight_dtype)
        return grad_x, grad_weight, grad.sum(0) if of_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if not Precision.is_float8:
        return F.linear(x, weight, bias)
    flat = x.reshape(-1, x.shape[-1])
    if any(size % 16 for size in (flat.shape[0], *weight.shape)):
        raise AssertionError(
            "FP8 execution requires the product of all dimensions except the last to be divisible "
            f"by 8 and the last dimension to be divisible by 16, but got {tuple(x.shape)}"
        )
    out: Tensor = Float8Product.apply(flat, weight, bias)  # type: ignore[no-untyped-call]
    return out.reshape(*x.shape[:-1], weight.shape[0])


class Linear(nn.Linear):
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        params_dtype: torch.dtype | None = None, device: Any = "cuda", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device=device, dtype=params_dtype)

    def forward(
        self, input: Tensor, is_first_microbatch: bool | None = None, **options: Any
    ) -> Tensor:
        return linear(input, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, device: Any = "cuda", dtype: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, device=device, dtype=dtype)


class RMSNorm(nn.RMSNorm):
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, device: Any = "cuda", dtype: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, device=device, dtype=dtype)


NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


class LayerNormLinear(nn.Module):
    def __init__(
        self, in_features: int, out_features: int, eps: float = 1e-5, bias: bool = True,
        normalization: str = "LayerNorm", params_dtype: torch.dtype | None = None,
        device: Any = "cuda", return_layernorm_output: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm = NORMS[normalization](in_features, eps, device=device, dtype=params_dtype)
        self.linear = Linear(in_features, out_features, bias, params_dtype, device)
        self.returns_norm = return_layernorm_output

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **rest: Any) -> Any:
        normed = self.norm(inp)
        out = self.linear(normed)
        return (out, normed) if self.returns_norm else out


Activation = Callable[[Tensor], Tensor]
GATED: dict[str, Activation] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
PLAIN: dict[str, Activation] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


class LayerNormMLP(nn.Module):
    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, bias: bool = True,
        normalization: str = "LayerNorm", activation: str = "gelu",
        params_dtype: torch.dtype | None = None, device: Any = "cuda", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = activation
        width = ffn_hidden_size * (2 if activation in GATED else 1)
        self.norm = NORMS[normalization](hidden_size, eps, device=device, dtype=params_dtype)
        self.fc1 = Linear(hidden_size, width, bias, params_dtype, device)
        self.fc2 = Linear(ffn_hidden_size, hidden_size, bias, params_dtype, device)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **rest: Any) -> Tensor:
        hidden: Tensor = self.fc1(self.norm(inp))
        if self.activation in GATED:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = GATED[self.activation](gate) * up
        else:
            hidden = PLAIN[self.activation](hidden)
        out: Tensor = self.fc2(hidden)
        return out
