"""transformer_engine.pytorch.transformer: attention and a feed-forward network."""

from typing import Any

import torch
from torch import Tensor, nn

from .attention import MultiheadAttention
from .module.base import TransformerEngineBaseModule
from .module.layernorm_linear import NORMS
from .module.layernorm_mlp import LayerNormMLP


class BiasDropoutAdd(torch.autograd.Function):
    """residual + dropout(x + bias): keeps which elements were kept, a byte for each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor, p: float) -> Tensor:
        out, kept = torch.ops.transformer_engine.bias_dropout_add(x, bias, residual, p)
        ctx.save_for_backward(kept)
        ctx.p, ctx.is_vector = p, bias is not None and bias.dim() == 1
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        of_x = grad
        if ctx.p:
            of_x = torch.ops.transformer_engine.dropout_backward(grad, kept, ctx.p)
        of_bias = of_x.flatten(0, -2).sum(0) if ctx.is_vector else of_x
        return of_x, of_bias, grad, None


class TransformerLayer(nn.Module):
    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int,
        num_gqa_groups: int | None = None, layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1, attention_dropout: float = 0.1, init_method: Any = None,
        output_layer_init_method: Any = None, layer_number: int | None = None,
        kv_channels: int | None = None, self_attn_mask_type: str = "causal",
        window_size: Any = None, bottom_right_diagonal: bool | None = None,
        enc_dec_attn_mask_type: str = "no_mask", enc_dec_bottom_right_diagonal: Any = None,
        enc_dec_window_size: Any = None, tp_group: Any = None, tp_size: int = 1,
        params_dtype: torch.dtype | None = None, get_rng_state_tracker: Any = None,
        fuse_wgrad_accumulation: bool = False, seq_length: int | None = None,
        micro_batch_size: int | None = None, sequence_parallel: bool = False,
        apply_residual_connection_post_layernorm: bool = False, output_layernorm: bool = False,
        parallel_attention_mlp: bool = False, layer_type: str = "encoder",
        drop_path_rate: float = 0.0, set_parallel_mode: bool = False, fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False, zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True, ub_tp_comm_overlap: bool = False,
        ub_overlap_ag: bool = True, ub_overlap_rs: bool = True, ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = True, ub_bulk_wgrad: bool = True, bias: bool = True,
        activation: str = "gelu", activation_params: Any = None, normalization: str = "LayerNorm",
        device: Any = "cuda", attn_input_format: str = "sbhd", name: str | None = None,
        qk_norm_type: str | None = None, qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False, softmax_type: str = "vanilla",
    ) -> None:  # fmt: skip
        super().__init__()
        if drop_path_rate or apply_residual_connection_post_layernorm:
            raise NotImplementedError(
                "tally does not know drop_path_rate and apply_residual_connection_post_layernorm "
                "of Transformer Engine"
            )
        self.self_attn_mask_type, self.window_size = self_attn_mask_type, window_size
        self.enc_dec_attn_mask_type, self.enc_dec_window_size = (
            enc_dec_attn_mask_type,
            enc_dec_window_size,
        )
        self.layer_type, self.hidden_dropout = layer_type, hidden_dropout
        self.parallel_attention_mlp = parallel_attention_mlp
        common: dict[str, Any] = {
            "bias": bias,
            "params_dtype": params_dtype,
            "device": device,
            "tp_size": tp_size,
            "tp_group": tp_group,
            "set_parallel_mode": set_parallel_mode,
            "normalization": normalization,
            "sequence_parallel": sequence_parallel,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "zero_centered_gamma": zero_centered_gamma,
            "ub_tp_comm_overlap": ub_tp_comm_overlap,
            "return_bias": not parallel_attention_mlp,
        }
        attention: dict[str, Any] = {
            "num_gqa_groups": num_gqa_groups,
            "fuse_qkv_params": fuse_qkv_params,
            "qkv_weight_interleaved": qkv_weight_interleaved,
            "qkv_format": attn_input_format,
            "qk_norm_type": qk_norm_type,
            "qk_norm_eps": qk_norm_eps,
            "qk_norm_before_rope": qk_norm_before_rope,
            "softmax_type": softmax_type,
        }
        attention |= {
            "hidden_size": hidden_size,
            "num_attention_heads": num_attention_heads,
            "kv_channels": kv_channels,
            "attention_dropout": attention_dropout,
            "layernorm_epsilon": layernorm_epsilon,
            **common,
        }
        self.self_attention = MultiheadAttention(input_layernorm=not output_layernorm, **attention)
        if layer_type == "decoder":
            self.inter_attention = MultiheadAttention(
                input_layernorm=True, attention_type="cross", **attention
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation, **common
        )
        self.layernorm = (
            NORMS[normalization](hidden_size, layernorm_epsilon, device, params_dtype=params_dtype)
            if output_layernorm
            else None
        )

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        for child in self.children():
            if isinstance(child, MultiheadAttention | TransformerEngineBaseModule):
                child.set_tensor_parallel_group(tp_group)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        self_attn_mask_type: str | None = None,
        window_size: Any = None,
        bottom_right_diagonal: Any = None,
        encoder_output: Tensor | None = None,
        enc_dec_attn_mask: Any = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: Any = None,
        enc_dec_bottom_right_diagonal: Any = None,
        is_first_microbatch: bool | None = None,
        **options: Any,
    ) -> Tensor:
        x = hidden_states.contiguous()
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        attended = self.self_attention(
            x,
            attention_mask,
            attn_mask_type=self_attn_mask_type or self.self_attn_mask_type,
            window_size=window_size or self.window_size,
            is_first_microbatch=is_first_microbatch,
            **options,
        )
        if self.parallel_attention_mlp:
            fed = self.layernorm_mlp(x, is_first_microbatch=is_first_microbatch)
            return self.added(attended, fed, x)
        x = self.added(attended[0], attended[1], x)
        if self.layer_type == "decoder":
            crossed = self.inter_attention(
                x,
                enc_dec_attn_mask,
                encoder_output,
                attn_mask_type=enc_dec_attn_mask_type or self.enc_dec_attn_mask_type,
                window_size=enc_dec_window_size or self.enc_dec_window_size,
                is_first_microbatch=is_first_microbatch,
                **options,
            )
            x = self.added(crossed[0], crossed[1], x)
        fed, fed_bias = self.layernorm_mlp(x, is_first_microbatch=is_first_microbatch)
        x = self.added(fed, fed_bias, x)
        return x if self.layernorm is None else self.layernorm(x)

    def added(self, x: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        """One kernel with a bias, PyTorch's operators without (`_bias_dropout_add`)."""
        p = self.hidden_dropout if self.training else 0.0
        if bias is None:
            return residual + nn.functional.dropout(x, p)
        out: Tensor = BiasDropoutAdd.apply(x, bias, residual, p)  # type: ignore[no-untyped-call]
        return out
