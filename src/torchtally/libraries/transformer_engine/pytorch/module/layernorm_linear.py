"""transformer_engine.pytorch.module.layernorm and rmsnorm: norms, alone and before a product."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .base import cast, refuse
from .linear import Linear


class NormOptions(nn.Module):
    """Transformer Engine's names of what torch's norms are made with."""

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        params_dtype: torch.dtype | None = None,
        hidden_size: int | None = None,
        sequence_parallel: bool | None = None,
        **options: Any,
    ) -> None:
        refuse(options)
        shape = hidden_size if normalized_shape is None else normalized_shape
        super().__init__(shape, eps, device=device, dtype=dtype or params_dtype)
        if sequence_parallel is not None:
            for parameter in self.parameters():
                parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]


class LayerNorm(NormOptions, nn.LayerNorm): ...


class RMSNorm(NormOptions, nn.RMSNorm): ...


NORMS: dict[str, Callable[..., nn.Module]] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def add_norm(
    module: nn.Module, width: int, normalization: str, dtype: torch.dtype | None, device: Any
) -> None:
    assert normalization in NORMS, "Unsupported normalization type!"
    ones = torch.ones(width, dtype=dtype, device=device)
    module.register_parameter("layer_norm_weight", nn.Parameter(ones))
    has_bias = normalization == "LayerNorm"
    bias = nn.Parameter(torch.zeros_like(ones)) if has_bias else None
    module.register_parameter("layer_norm_bias", bias)


def normed(module: Any, x: Tensor, eps: float) -> Tensor:
    """Norm in the input's dtype; the statistics of its rows are kept in float32."""
    weight, bias = module.layer_norm_weight.to(x.dtype), module.layer_norm_bias
    with torch.autocast("cuda", enabled=False):
        if bias is None:
            return nn.functional.rms_norm(x, weight.shape, weight, eps)
        return nn.functional.layer_norm(x, weight.shape, weight, bias.to(x.dtype), eps)


class LayerNormLinear(Linear):
    layer_norm_weight: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, params_dtype=params_dtype, device=device, **options
        )
        if self.parallel.is_row:
            raise NotImplementedError(
                'tally does not know parallel_mode="row" of Transformer Engine\'s LayerNormLinear'
            )
        self.eps, self.return_layernorm_output = eps, return_layernorm_output
        self.normalization = normalization
        add_norm(self, in_features, normalization, params_dtype, device)
        self.mark(self.parallel_mode, self.parallel.is_by_sequence)

    def forward(  # type: ignore[override]
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        x = normed(self, cast(inp, self.layer_norm_weight), self.eps)
        out = self.product(x, is_first_microbatch)
        if not self.return_layernorm_output:
            return out
        return (*out, x) if self.return_bias else (out, x)
