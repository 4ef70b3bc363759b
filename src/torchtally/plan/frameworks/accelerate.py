"""accelerate's YAML: FSDP, and its degrees of parallelism.

Keys are those that `accelerate config` writes (accelerate 1.15, commands/config/cluster.py).
"""

from collections.abc import Mapping
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.flops import Recompute
from torchtally.plan.frameworks.values import count, degrees, is_true, section
from torchtally.plan.parallel.degrees import layout_in_short
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.step import Workload

FSDP, PARALLEL = "fsdp_config", "parallelism_config"
STRATEGIES = {"FULL_SHARD": "zero-3", "SHARD_GRAD_OP": "zero-2", "NO_SHARD": "ddp",
              "HYBRID_SHARD": "zero-3", "HYBRID_SHARD_ZERO2": "zero-2"}  # fmt: skip
"""Of FSDP's first version."""
SHARDING = "fsdp_sharding_strategy"
SHARDINGS = (Sharding.NONE, Sharding.ZERO2, Sharding.ZERO3)


def layout_words(document: Mapping[str, Any], name: str) -> tuple[list[str], int | None]:
    """(words of a layout, None: the batch is the script's). Raises UsageError for other files."""
    kind = str(document.get("distributed_type", ""))
    if FSDP not in document and PARALLEL not in document and not kind:
        raise UsageError(
            f"{name}: no layout found: accelerate's files have distributed_type, {FSDP}."
        )
    if kind == "DEEPSPEED":
        raise UsageError(f"{name}: it leaves the layout to DeepSpeed: give that file's path.")
    parallel = section(document, PARALLEL)
    sizes = {key.removeprefix("parallelism_config_"): value for key, value in parallel.items()}
    words = degrees(tp=count(sizes, "tp_size"), cp=count(sizes, "cp_size"))
    fsdp = section(document, FSDP)
    if not fsdp and kind != "FSDP":
        return [*words, "ddp"], None
    words.append(_sharding(fsdp, sizes, name))
    if is_true(fsdp.get("fsdp_activation_checkpointing")):
        words.append("full")
    return words, None


def _sharding(fsdp: Mapping[str, Any], sizes: Mapping[str, Any], name: str) -> str:
    replicas, shards = count(sizes, "dp_replicate_size"), count(sizes, "dp_shard_size")
    if SHARDING in fsdp:
        strategy = str(fsdp[SHARDING])
        if strategy not in STRATEGIES:
            raise UsageError(
                f"{name}: {SHARDING} {strategy!r} is not one of {', '.join(STRATEGIES)}."
            )
        return STRATEGIES[strategy]
    value = fsdp.get("fsdp_reshard_after_forward", True)
    if str(value) in STRATEGIES:
        return STRATEGIES[str(value)]
    if not is_true(value):
        return "zero-2"
    return f"fsdp:{shards}" if replicas > 1 and shards > 1 else "zero-3"


def is_its(layout: Layout) -> bool:
    """Whether the file alone has such a layout run."""
    is_grouped = layout.shard_group is not None and layout.shard is not Sharding.ZERO3
    return (
        layout.pipeline == layout.expert == 1
        and layout.shard in SHARDINGS
        and layout.recompute in (Recompute.NONE, Recompute.FULL)
        and not is_grouped
    )


def config_text(layout: Layout, workload: Workload) -> str:
    """Text for `accelerate launch --config_file`; machines and precision are the user's."""
    is_sharded = layout.shard is not Sharding.NONE
    shards = layout.shards // layout.context if is_sharded else 1
    lines = [
        f"# {workload.model.name} on {workload.cluster.count} {workload.cluster.chip.name}: "
        f"{layout_in_short(layout)}",
        f"# Batches of {layout.micro_batch} on each, "
        f"gradient_accumulation_steps {layout.micro_batches}.",
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {'FSDP' if is_sharded else 'MULTI_GPU'}",
        f"num_processes: {layout.chips}",
    ]
    if is_sharded:
        lines += [
            f"{FSDP}:",
            "  fsdp_version: 2",
            f"  fsdp_reshard_after_forward: {str(layout.shard is Sharding.ZERO3).lower()}",
            f"  fsdp_activation_checkpointing: {str(layout.recompute is Recompute.FULL).lower()}",
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        ]
    if layout.tensor > 1 or layout.context > 1 or layout.shard_group is not None:
        lines += [
            f"{PARALLEL}:",
            f"  parallelism_config_dp_replicate_size: {layout.data // shards}",
            f"  parallelism_config_dp_shard_size: {shards}",
            f"  parallelism_config_tp_size: {layout.tensor}",
            f"  parallelism_config_cp_size: {layout.context}",
        ]
    return "\n".join(lines) + "\n"
