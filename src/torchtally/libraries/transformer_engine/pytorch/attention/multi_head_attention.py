"""Attention between its projections."""

from typing import Any

import torch
from torch import Tensor, nn

from ..module.base import TransformerEngineBaseModule, refuse
from ..module.layernorm_linear import NORMS, LayerNormLinear
from ..module.linear import Linear
from ..quantization import Float8Boundary, Precision
from ..tensor_parallel import divide, world_size
from .dot_product_attention import DotProductAttention
from .fused_attention import Window, is_backward_in_float8
from .rope import apply_rotary_pos_emb


def boundary_before_projection(angles: Any, options: dict[str, Any]) -> Float8Boundary | None:
    """Boundary by steps before: attention's result and its gradient stay in float8
    (`dpa_fp8_output` and `proj_fp8_grad` in multi_head_attention.py); with `fp8_mha` queries, keys
    and values would be products' float8 results, too, but where rotary embeddings turn them.
    """
    recipe = Precision.recipe
    if recipe is None or not recipe.fp8_dpa or not recipe.delayed():
        return None
    if recipe.fp8_mha and angles is None:
        raise NotImplementedError(
            "tally does not know fp8_mha of Transformer Engine's DelayedScaling without rotary "
            "embeddings"
        )
    is_handed = is_backward_in_float8() and not options.get("checkpoint_core_attention")
    return Float8Boundary() if is_handed else None


def head_norm(
    kind: str | None, width: int, eps: float, device: Any, dtype: torch.dtype | None
) -> nn.Module | None:
    """Norm of each head of queries or keys; None where there is none.

    Raises NotImplementedError for one that is not known.
    """
    if kind is None:
        return None
    if kind not in NORMS:
        raise NotImplementedError(f"tally does not know qk_norm_type={kind!r}")
    return NORMS[kind](width, eps, device, params_dtype=dtype)


class MultiheadAttention(nn.Module):
    def __init__(
        self, hidden_size: int, num_attention_heads: int, kv_channels: int | None = None,
        attention_dropout: float = 0.1, layernorm_epsilon: float = 1e-5, init_method: Any = None,
        output_layer_init_method: Any = None, layer_number: int | None = None,
        attn_mask_type: str = "causal", window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None, tp_group: Any = None, tp_size: int = 1,
        num_gqa_groups: int | None = None, fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Any = None, sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None, return_bias: bool = False,
        return_layernorm_output: bool = False, input_layernorm: bool = False,
        attention_type: str = "self", set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False, zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True, bias: bool = True, normalization: str = "LayerNorm",
        device: Any = "cuda", qkv_format: str = "sbhd", name: str | None = None,
        qk_norm_type: str | None = None, qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False, softmax_type: str = "vanilla", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        refuse({"zero_centered_gamma": zero_centered_gamma, **options})
        if attention_type not in ("self", "cross"):
            raise AssertionError(f"attention_type {attention_type} not supported")
        self.qkv_format, self.attn_mask_type, self.window_size = (
            qkv_format,
            attn_mask_type,
            window_size,
        )
        self.attention_type, self.input_layernorm = attention_type, input_layernorm
        self.return_bias, self.return_layernorm_output = return_bias, return_layernorm_output
        self.qkv_weight_interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.heads = num_attention_heads
        self.head = kv_channels or hidden_size // num_attention_heads
        self.groups = num_gqa_groups or num_attention_heads
        queries, keys = self.head * self.heads, self.head * self.groups
        common: dict[str, Any] = {
            "bias": bias,
            "params_dtype": params_dtype,
            "device": device,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "sequence_parallel": sequence_parallel,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
        }
        size = tp_size if tp_group is None else world_size(tp_group)
        self.heads, self.groups = divide(self.heads, size), divide(self.groups, size)
        columns = {**common, "parallel_mode": "column" if set_parallel_mode else None}
        normed: dict[str, Any] = {
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "return_layernorm_output": return_layernorm_output,
        }
        split = {"query": queries, "key": keys, "value": keys}
        if attention_type == "self":
            width, parts = queries + 2 * keys, None if fuse_qkv_params else split
            if input_layernorm:
                self.layernorm_qkv = LayerNormLinear(
                    hidden_size, width, parameters_split=parts, **normed, **columns
                )
            else:
                self.qkv = Linear(hidden_size, width, parameters_split=parts, **columns)
        else:
            parts = None if fuse_qkv_params else {"query": queries}
            if input_layernorm:
                self.layernorm_query = LayerNormLinear(
                    hidden_size, queries, parameters_split=parts, **normed, **columns
                )
            else:
                self.query_layer = Linear(hidden_size, queries, **columns)
            parts = None if fuse_qkv_params else {"key": keys, "value": keys}
            self.key_value = Linear(hidden_size, 2 * keys, parameters_split=parts, **columns)
        self.q_norm, self.k_norm = (
            head_norm(qk_norm_type, self.head, qk_norm_eps, device, params_dtype) for _ in range(2)
        )
        self.qk_norm_before_rope = qk_norm_before_rope
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.head,
            num_gqa_groups,
            attention_dropout,
            qkv_format,
            attention_type=attention_type,
            softmax_type=softmax_type,
        )
        self.proj = Linear(
            queries,
            hidden_size,
            return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None,
            **common,
        )

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        for child in self.children():
            if isinstance(child, TransformerEngineBaseModule):
                child.set_tensor_parallel_group(tp_group)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_output: Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: Window | None = None,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: Any = None,
        **options: Any,
    ) -> Any:
        of_norm = None
        boundary = boundary_before_projection(rotary_pos_emb, options)
        if self.attention_type == "self":
            layer = self.layernorm_qkv if self.input_layernorm else self.qkv
            mixed = layer(hidden_states, is_first_microbatch=is_first_microbatch)
            if self.return_layernorm_output and self.input_layernorm:
                mixed, of_norm = mixed
            each, at = self.heads // self.groups + 2, -2 if self.qkv_weight_interleaved else -3
            shape = (self.groups, each) if at == -2 else (each, self.groups)
            mixed = mixed.view(*mixed.shape[:-1], *shape, self.head)
            if each == 3 and rotary_pos_emb is None and self.q_norm is None:
                options |= {"qkv_layer": mixed, "qkv_interleave_dim": at}
                query = key = value = None
            else:
                query, key, value = (
                    part.reshape(*part.shape[:-3], -1, self.head)
                    for part in mixed.split([each - 2, 1, 1], dim=at)
                )
        else:
            key, value = self.keys_and_values(encoder_output, is_first_microbatch)
            layer = self.layernorm_query if self.input_layernorm else self.query_layer
            query = layer(hidden_states, is_first_microbatch=is_first_microbatch)
            if self.return_layernorm_output and self.input_layernorm:
                query, of_norm = query
            query = query.view(*query.shape[:-1], self.heads, self.head)
        if query is not None and key is not None:
            query, key = self.turned(query, key, rotary_pos_emb)
        context = self.core_attention(
            query,
            key,
            value,
            qkv_format=self.qkv_format,
            attention_mask=attention_mask,
            attn_mask_type=attn_mask_type or self.attn_mask_type,
            window_size=window_size or self.window_size,
            boundary=boundary,
            **options,
        )
        out = self.proj(context, is_first_microbatch=is_first_microbatch, boundary=boundary)
        answers = list(out) if self.return_bias else [out]
        if of_norm is not None:
            answers.append(of_norm)
        return answers[0] if len(answers) == 1 else tuple(answers)

    def keys_and_values(
        self, encoder_output: Tensor | None, is_first_microbatch: bool | None
    ) -> tuple[Tensor, Tensor]:
        mixed = self.key_value(encoder_output, is_first_microbatch=is_first_microbatch)
        if self.qkv_weight_interleaved:
            key, value = mixed.view(*mixed.shape[:-1], self.groups, 2 * self.head).chunk(2, dim=-1)
        else:
            key, value = mixed.view(*mixed.shape[:-1], 2 * self.groups, self.head).chunk(2, dim=-2)
        return key, value

    def turned(self, query: Tensor, key: Tensor, angles: Any) -> tuple[Tensor, Tensor]:
        """Normed, if they are to be, and by rotary embeddings."""
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm_before_rope:
            query, key = self.q_norm(query), self.k_norm(key)
        if angles is not None:
            of_query, of_key = angles if isinstance(angles, tuple) else (angles, angles)
            query, key = (
                apply_rotary_pos_emb(part, of_part, self.qkv_format, fused=True)
                for part, of_part in ((query, of_query), (key, of_key))
            )
        if self.q_norm is not None and self.k_norm is not None and not self.qk_norm_before_rope:
            query, key = self.q_norm(query), self.k_norm(key)
        return query, key
