"""transformer_engine.pytorch.module.layernorm_mlp: a norm and a feed-forward network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.libraries.operators.transformer_engine import ACTIVATIONS, halves

from ..tensor_parallel import TensorParallel, divide
from .base import TransformerEngineBaseModule, cast, default_init_method
from .layernorm_linear import add_norm, normed
from .product import product


class LayerNormMLP(TransformerEngineBaseModule):
    layer_norm_weight: Tensor
    fc1_weight: Tensor
    fc2_weight: Tensor

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        tp_group: Any = None,
        tp_size: int = 1,
        set_parallel_mode: bool = False,
        sequence_parallel: bool = False,
        init_method: Callable[[Tensor], Any] | None = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.columns, self.rows = (
            TensorParallel(
                tp_group, tp_size, mode if set_parallel_mode else None, sequence_parallel
            )
            for mode in ("column", "row")
        )
        if set_parallel_mode:
            ffn_hidden_size = divide(ffn_hidden_size, self.columns.size)
        if activation not in ACTIVATIONS:
            raise NotImplementedError(f"Activation type {activation} is not supported!")
        self.activation, self.eps = activation, eps
        self.use_bias, self.return_bias = bias, return_bias
        self.return_layernorm_output = return_layernorm_output
        width = ffn_hidden_size * halves(activation)
        add_norm(self, hidden_size, normalization, params_dtype, device)
        for name, shape, initialize in (
            ("fc1", (width, hidden_size), init_method),
            ("fc2", (hidden_size, ffn_hidden_size), output_layer_init_method),
        ):
            initialize = initialize or default_init_method
            self.add_parameter(f"{name}_weight", shape, None, initialize, params_dtype, device)
            if bias:
                self.add_parameter(
                    f"{name}_bias", shape[:1], None, nn.init.zeros_, params_dtype, device
                )

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Any:
        inp = cast(inp, self.layer_norm_weight)
        x = normed(self, inp, self.eps)
        fc1_bias, fc2_bias = (getattr(self, f"{name}_bias", None) for name in ("fc1", "fc2"))
        weight = self.fc1_weight
        options = self.options(
            "fc1", weight, is_first_microbatch, keeps_rows=True, parallel=self.columns
        )
        hidden = product(x, weight, fc1_bias, options)
        weight = self.fc2_weight
        options = self.options(
            "fc2",
            weight,
            is_first_microbatch,
            keeps_rows=True,
            activation=self.activation,
            parallel=self.rows,
        )
        out = product(hidden, weight, None if self.return_bias else fc2_bias, options)
        answers: list[Any] = [out]
        if self.return_bias:
            answers.append(fc2_bias if fc2_bias is None else fc2_bias.to(out.dtype))
        if self.return_layernorm_output:
            answers.append(x)
        return answers[0] if len(answers) == 1 else tuple(answers)
