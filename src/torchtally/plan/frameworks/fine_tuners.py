"""axolotl's and LLaMA-Factory's YAML: how a fine-tuning is spread, its batch and its adapters.

Keys are those of axolotl's `utils/schemas/config.py` @067b021 and of LLaMA-Factory's examples.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchtally.errors import UsageError
from torchtally.plan.frameworks.accelerate import SHARDING, STRATEGIES
from torchtally.plan.frameworks.values import count, degrees, is_true, section


class Adapters(NamedTuple):
    """What a file says of adapters, as options of `tally plan`."""

    rank: int
    weights: str
    """"" for 16 bits."""

    @property
    def options(self) -> tuple[str, ...]:
        packed = () if not self.weights else ("--weights", self.weights)
        return ("--lora", str(self.rank), *packed)


BITS = {4: "nf4", 8: "int8"}
"""bitsandbytes' formats of frozen weights."""


def is_axolotl(document: Mapping[str, Any]) -> bool:
    return "base_model" in document and (
        "micro_batch_size" in document or "sequence_len" in document
    )


def is_llama_factory(document: Mapping[str, Any]) -> bool:
    return "finetuning_type" in document or "per_device_train_batch_size" in document


def axolotl_words(document: Mapping[str, Any], name: str) -> list[str]:
    """Words of a layout."""
    words = degrees(
        tp=count(document, "tensor_parallel_size"), cp=count(document, "context_parallel_size")
    )
    words.append(_sharding(document, name))
    words.append(_batch(document, "micro_batch_size"))
    if is_true(document.get("gradient_checkpointing")) or document.get(
        "gradient_checkpointing"
    ) in ("unsloth", "offload"):
        words.append("full")
    return words


def llama_factory_words(document: Mapping[str, Any], name: str) -> list[str]:
    """Words of a layout. It recomputes layers unless it is told not to."""
    words = [_sharding(document, name), _batch(document, "per_device_train_batch_size")]
    if not is_true(document.get("disable_gradient_checkpointing")):
        words.append("full")
    return words


def adapters(document: Mapping[str, Any]) -> Adapters | None:
    """Adapters of either's file; None where all weights are trained."""
    if document.get("adapter") in ("lora", "qlora"):
        bits = 8 if is_true(document.get("load_in_8bit")) else None
        bits = 4 if is_true(document.get("load_in_4bit")) else bits
        return Adapters(count(document, "lora_r", 8), "" if bits is None else BITS[bits])
    if document.get("finetuning_type") == "lora":
        bits = count(document, "quantization_bit", 0)
        return Adapters(count(document, "lora_rank", 8), BITS.get(bits, ""))
    return None


def axolotl_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says instead of the stack's facts."""
    facts: dict[str, Any] = {}
    if is_true(document.get("torch_compile")):
        facts["host"] = "compiled"
    if is_true(document.get("liger_fused_linear_cross_entropy")) or is_true(
        document.get("chunked_cross_entropy")
    ):
        facts["loss"] = "chunked"
    if "flash_attention_2" in str(document.get("attn_implementation")) or is_true(
        document.get("flash_attention")
    ):
        facts["attention"] = "fa2"
    return facts


def llama_factory_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if is_true(document.get("enable_liger_kernel")):
        facts["loss"] = "chunked"
    if document.get("flash_attn") == "fa2":
        facts["attention"] = "fa2"
    return facts


def _batch(document: Mapping[str, Any], key: str) -> str:
    return f"mb {count(document, key)}x{count(document, 'gradient_accumulation_steps')}"


def _sharding(document: Mapping[str, Any], name: str) -> str:
    """Sharding by FSDP's part, or by the name of DeepSpeed's file, which says zero3 or z3."""
    fsdp = section(document, "fsdp_config")
    if fsdp or document.get("fsdp"):
        strategy = fsdp.get(SHARDING)
        if strategy is not None:
            return STRATEGIES.get(str(strategy), "zero-3")
        return "zero-3" if is_true(fsdp.get("reshard_after_forward", True)) else "zero-2"
    path = document.get("deepspeed")
    if not path:
        return "ddp"
    stage = re.search(r"z(?:ero)?_?([0-3])", str(path))
    if stage is None:
        raise UsageError(
            f"{name}: deepspeed: {path} does not say ZeRO's stage in its name: give that file, "
            f"--layout {path}, or the layout in words."
        )
    return "ddp" if stage[1] == "0" else f"zero-{stage[1]}"
