"""Decoders as GGUF, the file format of llama.cpp and what is built on it, by the package `gguf`.

Names of tensors are llama.cpp's for the names of transformers. What its graphs compute otherwise
than transformers' models is in `_convert`, as in its `convert_hf_to_gguf.py`.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchtally.errors import UsageError, needed_package
from torchtally.train.models.config import RopeStretch, TransformerConfig
from torchtally.train.models.huggingface import stored_tensors
from torchtally.train.models.huggingface_kinds import DecoderKind, kind_of
from torchtally.train.models.rotary import stretch_rates
from torchtally.train.models.transformer import Transformer

GEMMA = {"global_every": 6, "local_rope_theta": 10_000.0, "query_scalar": None}
"""What llama.cpp has fixed in Gemma 3's graph; query_scalar also as the head dim."""
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""Types of matrices by our names; Q8_0 and Q4_0 have a scale for each 32 numbers."""
WIDE = ("position_embd", "ffn_gate_inp")
"""Matrices that stay in float32, as vectors do: positions and routers."""
GROUP = 32
EXPERT = re.compile(r"model\.layers\.(\d+)\..*\.experts\.(\d+)\.(\w+)\.weight")
EXPERT_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}
CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
NO_MERGE = "Ā Ā"
"""Of two zero bytes: llama.cpp wants a merge; one that is not in the vocabulary stays bytes."""


def write_gguf(
    model: Transformer,
    path: Path | str,
    *,
    weights: str | None = None,
    tokenizer_json: str | None = None,
    end_of_text: int | None = None,
) -> bool:
    """Write the model to one file, atomically, with matrices of a type of TYPES, by default of
    their own dtype. Whether the tokenizer is in it: byte-level byte-pair encoding alone can be.

    Raises UsageError without the package, and for a model that llama.cpp does not compute.
    """
    gguf = needed_package("gguf", "GGUF", "gguf")
    needed_package("gguf.quants", "GGUF", "gguf")
    config, kind = model.config, kind_of(model.config)
    _check(config, kind, weights)
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    type_name = TYPES[weights or dtype]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    writer = gguf.GGUFWriter(unfinished, kind.gguf)
    _add_sizes(gguf, writer, config, kind)
    writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{type_name}", 0))
    has_tokenizer = _add_tokenizer(gguf, writer, config, tokenizer_json, end_of_text)
    for name, value in _by_name(gguf, model, kind).items():
        is_matrix = value.dim() > 1 and name.split(".")[-2] not in WIDE
        quantum = gguf.GGMLQuantizationType[type_name if is_matrix else "F32"]
        numbers = value.detach().float().numpy()
        writer.add_tensor(name, gguf.quants.quantize(numbers, quantum), raw_dtype=quantum)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)
    return has_tokenizer


def _check(config: TransformerConfig, kind: DecoderKind, weights: str | None) -> None:
    if kind.name in ("mistral", "mixtral") and config.window is not None:
        raise UsageError(
            f"model.window: llama.cpp's {kind.name} attends to all previous tokens. Use --to hf."
        )
    for name, wanted in GEMMA.items() if kind.name == "gemma3_text" else ():
        value = getattr(config, name)
        if value != wanted and (name, value) != ("query_scalar", config.head_size):
            raise UsageError(
                f"model.{name}: llama.cpp's Gemma 3 has {wanted}, not {value}. Use --to hf."
            )
    if weights is not None and weights not in TYPES:
        raise UsageError(f"--weights {weights}: GGUF has int8 (Q8_0) and int4 (Q4_0).")
    if weights in ("int8", "int4") and (config.width % GROUP or config.ffn % GROUP):
        raise UsageError(f"{weights}: width and ffn must be multiples of {GROUP}, its groups.")


def _add_sizes(gguf: Any, writer: Any, config: TransformerConfig, kind: DecoderKind) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_vocab_size(config.vocabulary)
    if config.norm == "layer":
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.norm_eps)
    if config.positions == "rope":
        writer.add_key_length(config.head_size)
        writer.add_value_length(config.head_size)
        writer.add_rope_dimension_count(config.head_size)
        writer.add_rope_freq_base(config.rope_theta)
    if config.rope_stretch is not None and config.rope_stretch.original_context == 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_stretch.factor)
    if config.experts is not None:
        writer.add_expert_count(config.experts)
        writer.add_expert_used_count(config.active_experts)
        writer.add_expert_feed_forward_length(config.ffn)
    if kind.name == "gemma3_text":
        writer.add_sliding_window(config.window or config.context)
        if config.logit_cap is not None:
            writer.add_final_logit_softcapping(config.logit_cap)


def _by_name(gguf: Any, model: Transformer, kind: DecoderKind) -> dict[str, Tensor]:
    """All tensors by llama.cpp's names."""
    config = model.config
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind.gguf)
    names = gguf.get_tensor_name_map(architecture, config.layers)
    tensors: dict[str, Tensor] = {}
    experts: dict[str, list[Tensor]] = {}
    for theirs, value in stored_tensors(model).items():
        if match := EXPERT.fullmatch(theirs):
            part = EXPERT_PARTS.get(match[3], match[3].removesuffix("_proj"))
            experts.setdefault(f"blk.{match[1]}.ffn_{part}_exps.weight", []).append(value)
            continue
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert name is not None, theirs
        tensors[name] = _convert(theirs, value, config, kind)
    tensors |= {name: torch.stack(values) for name, values in experts.items()}
    if config.rope_stretch is not None and config.rope_stretch.original_context > 1:
        tensors["rope_freqs.weight"] = _slowing(config, config.rope_stretch)
    return tensors


def _convert(name: str, value: Tensor, config: TransformerConfig, kind: DecoderKind) -> Tensor:
    """A tensor as llama.cpp's graph takes it."""
    if CONV1D.search(name):
        return value.T.contiguous()
    if config.norm == "rms_plus_one" and name.endswith("norm.weight"):
        return value + 1
    if kind.gguf == "llama" and (match := re.search(r"\.([qk])_proj\.", name)):
        # It rotates neighbours, (2 i, 2 i + 1), where we rotate halves, (i, i + D / 2).
        heads = config.heads if match[1] == "q" else config.kv_heads
        pairs: Tensor = value.unflatten(0, (heads, 2, -1))
        return pairs.transpose(1, 2).flatten(0, 2)
    return value


def _slowing(config: TransformerConfig, stretch: RopeStretch) -> Tensor:
    """How many times slower each pair rotates."""
    half = config.head_size // 2
    rates = 1.0 / config.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)
    return rates / stretch_rates(rates, stretch)


def _add_tokenizer(
    gguf: Any,
    writer: Any,
    config: TransformerConfig,
    tokenizer_json: str | None,
    end_of_text: int | None,
) -> bool:
    document = {} if tokenizer_json is None else json.loads(tokenizer_json)
    if not _is_like_gpt2(document):
        writer.add_tokenizer_model("none")
        return False
    texts: dict[int, str] = {at: text for text, at in document["model"]["vocab"].items()}
    special = {added["id"]: added["content"] for added in document.get("added_tokens", ())}
    texts |= special
    kinds, ids = gguf.TokenType, range(config.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # The vocabulary may be padded.
    writer.add_token_list([texts.get(at, f"[PAD{at}]") for at in ids])
    writer.add_token_types(
        [
            kinds.CONTROL if at in special else kinds.NORMAL if at in texts else kinds.UNUSED
            for at in ids
        ]
    )
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in document["model"]["merges"]
    ]
    writer.add_token_merges(merges or [NO_MERGE])
    writer.add_add_bos_token(False)
    if end_of_text is not None:
        writer.add_eos_token_id(end_of_text)
        writer.add_bos_token_id(end_of_text)
    return True


def _is_like_gpt2(document: Mapping[str, Any]) -> bool:
    """Byte-level byte pairs of text that is split as GPT-2's, or not at all without merges."""
    model, split = document.get("model") or {}, document.get("pre_tokenizer") or {}
    return (
        model.get("type") == "BPE"
        and split.get("type") == "ByteLevel"
        and (split.get("use_regex", True) or not model["merges"])
    )
