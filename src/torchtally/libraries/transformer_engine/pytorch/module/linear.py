"""transformer_engine.pytorch.module.linear."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..quantization import Float8Boundary
from ..tensor_parallel import TensorParallel, divide
from .base import TransformerEngineBaseModule, cast, default_init_method
from .product import product

Split = Mapping[str, int] | Iterable[str] | None


def parts_of(split: Split, out_features: int) -> Mapping[str, int] | None:
    if split is None or isinstance(split, Mapping):
        return split
    names = list(split)
    return dict.fromkeys((name.removesuffix("_") for name in names), out_features // len(names))


class Linear(TransformerEngineBaseModule):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parameters_split: Split = None,
        device: Any = "cuda",
        tp_group: Any = None,
        tp_size: int = 1,
        parallel_mode: str | None = None,
        sequence_parallel: bool = False,
        init_method: Callable[[Tensor], Any] | None = None,
        save_original_input: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if self.fuse_wgrad_accumulation and parameters_split is not None:
            raise NotImplementedError(
                "tally does not know fuse_wgrad_accumulation of Transformer Engine with "
                "parameters_split"
            )
        self.parallel_mode, self.save_original_input = parallel_mode, save_original_input
        self.parallel = TensorParallel(tp_group, tp_size, parallel_mode, sequence_parallel)
        if self.parallel.is_column:
            out_features = divide(out_features, self.parallel.size)
        elif self.parallel.is_row:
            in_features = divide(in_features, self.parallel.size)
        if self.parallel.is_column and isinstance(parameters_split, Mapping):
            parameters_split = {
                name: divide(size, self.parallel.size) for name, size in parameters_split.items()
            }
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        self.parts = parts_of(parameters_split, out_features)
        shape = (out_features, in_features)
        initialize = init_method or default_init_method
        self.add_parameter("weight", shape, self.parts, initialize, params_dtype, device)
        if bias:
            self.add_parameter("bias", shape[:1], self.parts, nn.init.zeros_, params_dtype, device)
        self.mark(parallel_mode, self.parallel.is_by_sequence)

    @property
    def sequence_parallel(self) -> bool:
        return self.parallel.is_by_sequence

    def product(
        self, x: Tensor, is_first_microbatch: bool | None, boundary: Float8Boundary | None = None
    ) -> Any:
        weight = self.joined("weight", self.parts)
        bias = self.joined("bias", self.parts) if self.use_bias else None
        options = self.options(
            "weight",
            weight,
            is_first_microbatch,
            parallel=self.parallel,
            boundary=boundary,
            keeps_input=self.save_original_input,
        )
        if self.return_bias:
            return product(x, weight, None, options), None if bias is None else bias.to(x.dtype)
        return product(x, weight, bias, options)

    def forward(
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
        boundary: Float8Boundary | None = None,
    ) -> Any:
        first = next(self.parameters())
        return self.product(cast(inp, first), is_first_microbatch, boundary)
