"""DeepSpeed's JSON: ZeRO's stage and the batch.

Keys are those of deepspeed.ai/docs/config-json. Activations are recomputed by the model's code, not
by this file; pipelines and tensor parallelism are the script's, too.
"""

import json
from collections.abc import Mapping
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.frameworks.values import count, is_true, section
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.step import Workload

KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")


def layout_words(document: Mapping[str, Any], name: str) -> tuple[list[str], int | None]:
    """(words of a layout, sequences of a step). Raises UsageError where it has none of the keys."""
    if not any(key in document for key in KEYS):
        raise UsageError(f"{name}: no layout found: DeepSpeed's files have {', '.join(KEYS)}.")
    zero = section(document, "zero_optimization")
    stage = zero.get("stage", 0)
    if stage not in range(4):
        raise UsageError(f"{name}: zero_optimization.stage is 0 to 3, got {stage!r}.")
    words = [f"zero-{stage}" if stage else "ddp"]
    micro, times = document.get(KEYS[1]), document.get("gradient_accumulation_steps")
    batch = document.get(KEYS[2])
    size, steps = count(document, KEYS[1]), count(document, "gradient_accumulation_steps")
    if micro not in (None, "auto"):
        words.append(f"mb {size}x{steps}" if times not in (None, "auto") else f"mb {size}")
    return words, None if batch in (None, "auto") else count(document, KEYS[2])


def facts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of gradients: DeepSpeed overlaps them at stage 3 alone unless it is told
    (runtime/zero/config.py, `overlap_comm_valid`).
    """
    zero = section(document, "zero_optimization")
    is_overlapped = zero.get("overlap_comm", zero.get("stage") == 3)
    return {"overlap.data": float(is_true(is_overlapped))}


def is_its(layout: Layout) -> bool:
    """Whether the file alone has such a layout run."""
    return (
        layout.tensor == layout.pipeline == layout.context == layout.expert == 1
        and layout.shard_group is None
    )


def config_text(layout: Layout, workload: Workload) -> str:
    """Text for `deepspeed --deepspeed_config`; other keys are the user's."""
    is_bf16 = workload.recipe.products == "bfloat16"
    document = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches,
        "zero_optimization": {"stage": layout.shard.stage},
        "bf16": {"enabled": is_bf16},
    }
    return json.dumps(document, indent=2) + "\n"
