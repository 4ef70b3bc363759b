"""transformer_engine.pytorch.attention: by cuDNN, by flash_attn where that is imported, or plain.

Which one is taken is Transformer Engine's choice (pytorch/attention/dot_product_attention/utils.py,
`get_attention_backend`, and backends.py). What cuDNN keeps: `fused_attention.py`.

B: sequences.  S: queries.  T: keys.  H: heads.  D: head dim.
"""

import math
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtally.libraries.operators.attention import FlashOptions, attend

from ..common.recipe import Recipe
from .distributed import divide, world_size
from .fused_attention import (
    CudnnAttention,
    CudnnOptions,
    Float8Attention,
    Window,
    is_backward_in_float8,
)
from .module import LayerNorm, LayerNormLinear, Linear, RMSNorm, WithProducts, refuse
from .quantization import Float8Boundary, Precision, is_since
from .rotary import RotaryPositionEmbedding, apply_rotary_pos_emb

__all__ = [
    "DotProductAttention",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "apply_rotary_pos_emb",
]

NO_BACKEND = (
    "No dot product attention backend is available for the provided inputs. Please run with "
    "NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 to find out the reasons for disabling all backends."
)
RESULT_IN_HALF = "NVTE_DPA_FP8CS_O_in_F16"
HALVES = (torch.float16, torch.bfloat16)
ALL: Window = (-1, -1)
CAUSAL: Window = (-1, 0)
FORMATS = ("sbhd", "bshd", "thd")
MASKS = tuple(
    """
    no_mask padding causal padding_causal causal_bottom_right padding_causal_bottom_right arbitrary
    """.split()
)


def has_flash_attention() -> bool:
    try:
        return bool(version("flash-attn"))
    except PackageNotFoundError:
        return False


def is_allowed(backend: str) -> bool:
    return os.environ.get(f"NVTE_{backend}_ATTN", "1") != "0"


class DotProductAttention(nn.Module):
    def __init__(
        self, num_attention_heads: int, kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None, attention_dropout: float = 0.0,
        qkv_format: str = "sbhd", attn_mask_type: str = "causal",
        window_size: Window | None = None, bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False, tp_size: int = 1, get_rng_state_tracker: Any = None,
        tp_group: Any = None, layer_number: int | None = None, attention_type: str = "self",
        cp_group: Any = None, cp_global_ranks: Any = None, cp_stream: Any = None,
        cp_comm_type: str = "p2p", softmax_scale: float | None = None,
        softmax_type: str = "vanilla", return_max_logit: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        refuse(
            {
                "cp_group": cp_group,
                "softmax_type": softmax_type,
                "return_max_logit": return_max_logit,
            }
        )
        self.qkv_format, self.attn_mask_type, self.window_size = (
            qkv_format,
            attn_mask_type,
            window_size,
        )
        key_dim = kv_channels if isinstance(kv_channels, int) else kv_channels[0]
        self.softmax_scale = softmax_scale or 1 / math.sqrt(key_dim)
        self.attention_dropout = attention_dropout

    def forward(
        self, query_layer: Tensor | None = None, key_layer: Tensor | None = None,
        value_layer: Tensor | None = None, attention_mask: Any = None,
        qkv_format: str | None = None, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None, max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None, attn_mask_type: str | None = None,
        window_size: Window | None = None, bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False, core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
        fast_zero_fill: bool = True, inference_params: Any = None,
        pad_between_seqs: bool | None = None, qkv_layer: Tensor | None = None,
        qkv_interleave_dim: int = -3, boundary: Float8Boundary | None = None, **options: Any,
    ) -> Tensor:  # fmt: skip
        refuse({"inference_params": inference_params, **options})
        tensor_format = qkv_format or self.qkv_format
        mask = (attn_mask_type or self.attn_mask_type).replace(",", "_")
        mask = "padding_causal" if mask == "causal_padding" else mask
        assert tensor_format in FORMATS, (
            "DotProductAttention only supports qkv_format = {'sbhd', 'bshd', 'thd'}!"
        )
        assert mask in MASKS, f"Attention mask type {mask} is not supported!"
        window = window_size or self.window_size or (CAUSAL if "causal" in mask else ALL)
        dropout = self.attention_dropout if self.training else 0.0
        if qkv_layer is not None:
            parts = qkv_layer.unbind(qkv_interleave_dim)
        else:
            assert query_layer is not None
            assert key_layer is not None
            assert value_layer is not None
            parts = query_layer, key_layer, value_layer
        recipe = Precision.recipe
        if recipe is not None and recipe.fp8_dpa:
            check_float8(recipe, parts, tensor_format, mask, core_attention_bias_type, dropout)
            backend = "FLOAT8"
        else:
            backend = self.backend(parts, tensor_format, mask, core_attention_bias_type)
        offsets = (cu_seqlens_q, cu_seqlens_kv, max_seqlen_q or 0, max_seqlen_kv or 0)
        if tensor_format != "thd":
            offsets = (None, None, 0, 0)

        def attended(*parts: Tensor) -> Tensor:
            if backend == "FLOAT8":
                cudnn = CudnnOptions(tensor_format, mask, window, offsets)
                operands = (qkv_layer, None, None) if qkv_layer is not None else contiguous(parts)
                out: Tensor = Float8Attention.apply(  # type: ignore[no-untyped-call]
                    *operands, qkv_interleave_dim, cudnn, recipe, boundary
                )
            elif backend == "FUSED":
                cudnn = CudnnOptions(tensor_format, mask, window, offsets)
                operands = (qkv_layer, None, None) if qkv_layer is not None else contiguous(parts)
                out = CudnnAttention.apply(  # type: ignore[no-untyped-call]
                    *operands, core_attention_bias, qkv_interleave_dim, cudnn
                )
            elif backend == "FLASH":
                out = flash(parts, tensor_format, mask, window, offsets)
            else:
                out = self.unfused(parts, tensor_format, core_attention_bias, dropout)
            return out.flatten(-2)

        if checkpoint_core_attention:
            again: Tensor = checkpoint(attended, *parts, use_reentrant=False)
            return again
        return attended(*parts)

    def backend(self, parts: tuple[Tensor, ...], tensor_format: str, mask: str, bias: str) -> str:
        """The first backend of those that take such a call: on Hopper and later cuDNN's, before
        that flash_attn's.
        """
        is_half = all(part.dtype in HALVES for part in parts)
        fuses = is_half and is_since(8, 0) and mask != "arbitrary" and bias != "pre_scale_bias"
        fits = fuses and all(part.shape[-1] % 8 == 0 for part in parts)
        flashes = (
            fuses and bias in ("no_bias", "alibi") and has_flash_attention() and is_allowed("FLASH")
        )
        if flashes and not (is_since(9, 0) and fits and is_allowed("FUSED")):
            return "FLASH"
        if fits and is_allowed("FUSED"):
            return "FUSED"
        if tensor_format == "thd" or not is_allowed("UNFUSED"):
            raise ValueError(NO_BACKEND)
        return "UNFUSED"

    def unfused(
        self, parts: tuple[Tensor, ...], tensor_format: str, bias: Tensor | None, dropout: float
    ) -> Tensor:
        """Scores in memory; masking and softmax are one kernel (`FusedScaleMaskSoftmax`)."""
        first = 1 if tensor_format == "bshd" else 0
        query, key, value = (part.transpose(0, 1) if first else part for part in parts)
        S, B, H, _ = query.shape
        groups = H // key.shape[2]
        if groups > 1:
            key, value = (part.repeat_interleave(groups, dim=2) for part in (key, value))
        query, key, value = (
            part.reshape(part.shape[0], B * H, -1).transpose(0, 1) for part in (query, key, value)
        )
        scores = query.new_empty(B * H, S, key.shape[1])
        scores = torch.baddbmm(
            scores, query, key.transpose(1, 2), beta=0.0, alpha=self.softmax_scale
        )
        scores = scores.view(B, H, S, -1)
        if bias is not None:
            scores = (scores + bias).to(query.dtype)
        probabilities = nn.functional.dropout(scores.softmax(-1), dropout)
        out = torch.bmm(probabilities.view(B * H, S, -1), value).view(B, H, S, -1)
        return (
            out.permute(0, 2, 1, 3).contiguous() if first else out.permute(2, 0, 1, 3).contiguous()
        )


def check_float8(
    recipe: Recipe, parts: tuple[Tensor, ...], tensor_format: str, mask: str, bias: str,
    dropout: float,
) -> None:  # fmt: skip
    """Raise where no backend attends in float8 (`get_attention_backend`), and for what is not known
    here. flash_attn and the plain one do not train in it.
    """
    least = (9, 0) if recipe.delayed() else (10, 0)
    is_half = all(part.dtype in HALVES and part.shape[-1] % 16 == 0 for part in parts)
    if not is_half or not is_since(*least) or not is_allowed("FUSED"):
        raise ValueError(NO_BACKEND)
    if tensor_format == "thd" or bias != "no_bias" or mask == "arbitrary" or dropout:
        raise NotImplementedError(
            "tally knows fp8_dpa of Transformer Engine for formats sbhd and bshd, without a bias, "
            "an arbitrary mask or dropout"
        )
    if os.environ.get(RESULT_IN_HALF, "1") == "0":
        raise NotImplementedError(f"tally does not know {RESULT_IN_HALF}=0")


def contiguous(parts: tuple[Tensor, ...]) -> list[Tensor]:
    """What cuDNN is given: views that are not parts of one tensor in a known order are copied
    (`get_qkv_layout`).
    """
    return [part.contiguous() for part in parts]


def flash(
    parts: tuple[Tensor, ...],
    tensor_format: str,
    mask: str,
    window: Window,
    offsets: tuple[Any, ...],
) -> Tensor:
    """Attention by flash_attn, which takes (B, S, H, D)."""
    is_first = tensor_format == "sbhd"
    query, key, value = (part.transpose(0, 1).contiguous() if is_first else part for part in parts)
    options = FlashOptions(2, "causal" in mask, window, False, *offsets)
    out, _ = attend(query, key, value, options)
    return out.transpose(0, 1).contiguous() if is_first else out


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
        refuse(
            {
                "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
                "zero_centered_gamma": zero_centered_gamma,
                **options,
            }
        )
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
            "bias": bias, "params_dtype": params_dtype, "device": device, "tp_group": tp_group,
            "tp_size": tp_size, "sequence_parallel": sequence_parallel,
        }  # fmt: skip
        size = tp_size if tp_group is None else world_size(tp_group)
        self.heads, self.groups = divide(self.heads, size), divide(self.groups, size)
        columns = {**common, "parallel_mode": "column" if set_parallel_mode else None}
        normed: dict[str, Any] = {
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "return_layernorm_output": return_layernorm_output,
        }
        fused = {**columns, "is_fused": fuse_qkv_params}
        self._add_projections(hidden_size, queries, keys, normed, **fused)
        norms = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}
        if qk_norm_type is not None and qk_norm_type not in norms:
            raise NotImplementedError(f"tally does not know qk_norm_type={qk_norm_type!r}")
        self.q_norm, self.k_norm = (
            None
            if qk_norm_type is None
            else norms[qk_norm_type](self.head, qk_norm_eps, device, params_dtype=params_dtype)
            for _ in range(2)
        )
        self.qk_norm_before_rope = qk_norm_before_rope
        self.core_attention = DotProductAttention(
            num_attention_heads, self.head, num_gqa_groups, attention_dropout, qkv_format,
            attention_type=attention_type, softmax_type=softmax_type,
        )  # fmt: skip
        self.proj = Linear(
            queries,
            hidden_size,
            return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None,
            **common,
        )

    def _add_projections(
        self, hidden_size: int, queries: int, keys: int, normed: dict[str, Any], *,
        is_fused: bool, **columns: Any,
    ) -> None:  # fmt: skip
        """Make what queries, keys and values are products with: one of all in self-attention."""
        if self.attention_type == "self":
            width, split = queries + 2 * keys, {"query": queries, "key": keys, "value": keys}
            parts = None if is_fused else split
            if self.input_layernorm:
                self.layernorm_qkv = LayerNormLinear(
                    hidden_size, width, parameters_split=parts, **normed, **columns
                )
            else:
                self.qkv = Linear(hidden_size, width, parameters_split=parts, **columns)
            return
        parts = None if is_fused else {"query": queries}
        if self.input_layernorm:
            self.layernorm_query = LayerNormLinear(
                hidden_size, queries, parameters_split=parts, **normed, **columns
            )
        else:
            self.query_layer = Linear(hidden_size, queries, **columns)
        parts = None if is_fused else {"key": keys, "value": keys}
        self.key_value = Linear(hidden_size, 2 * keys, parameters_split=parts, **columns)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        for child in self.children():
            if isinstance(child, WithProducts):
                child.set_tensor_parallel_group(tp_group)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None,
        encoder_output: Tensor | None = None, attn_mask_type: str | None = None,
        window_size: Window | None = None, is_first_microbatch: bool | None = None,
        rotary_pos_emb: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
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
            query, key, value, qkv_format=self.qkv_format, attention_mask=attention_mask,
            attn_mask_type=attn_mask_type or self.attn_mask_type,
            window_size=window_size or self.window_size, boundary=boundary, **options,
        )  # fmt: skip
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
