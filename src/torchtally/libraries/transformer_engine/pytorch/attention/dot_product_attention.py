"""Attention by cuDNN, by flash_attn where that is imported, or plain.

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

from ...common.recipe import Recipe
from ..module.base import refuse
from ..quantization import Float8Boundary, Precision, is_since
from .fused_attention import CudnnAttention, CudnnOptions, Float8Attention, Window, are_interleaved

NO_BACKEND = (
    "No dot product attention backend is available for the provided inputs. Please run with "
    "NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 to find out the reasons for disabling all backends."
)
RESULT_IN_HALF = "NVTE_DPA_FP8CS_O_in_F16"
HALVES = (torch.float16, torch.bfloat16)
ALL: Window = (-1, -1)
CAUSAL: Window = (-1, 0)
FORMATS = ("sbhd", "bshd", "thd")
MASKS = (
    "no_mask",
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
    "arbitrary",
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
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        name: str | None = None,
    ) -> None:
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
        self,
        query_layer: Tensor | None = None,
        key_layer: Tensor | None = None,
        value_layer: Tensor | None = None,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: bool | None = None,
        qkv_layer: Tensor | None = None,
        qkv_interleave_dim: int = -3,
        boundary: Float8Boundary | None = None,
        **options: Any,
    ) -> Tensor:
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
                operands = (qkv_layer, None, None) if qkv_layer is not None else for_cudnn(parts)
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
    recipe: Recipe,
    parts: tuple[Tensor, ...],
    tensor_format: str,
    mask: str,
    bias: str,
    dropout: float,
) -> None:
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
    """Copies of views that are not parts of one tensor in a known order."""
    return [part.contiguous() for part in parts]


def for_cudnn(parts: tuple[Tensor, ...]) -> list[Tensor]:
    return list(parts) if are_interleaved(parts) else contiguous(parts)


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
