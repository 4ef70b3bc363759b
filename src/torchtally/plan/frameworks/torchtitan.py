"""A layout as torchtitan's configuration: what it can run, and the file that has it run it.

The keys are those of torchtitan 0.2 (torchtitan/config/job_config.py). 0.3 has the same ones as
options, but for the recomputation.
"""

from collections.abc import Mapping
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import Recompute
from torchtally.plan.frameworks.values import count, degrees, is_true, section
from torchtally.plan.parallel.degrees import layout_in_short
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.step import Workload

Value = str | int | bool
Config = Mapping[str, Mapping[str, Value]]
"""By section and key."""

FLAVORS = {
    "Llama 3 8B": ("llama3", "8B"),
    "Llama 3.1 8B": ("llama3", "8B"),
    "Llama 3 70B": ("llama3", "70B"),
    "Llama 3.1 70B": ("llama3", "70B"),
    "Llama 3.1 405B": ("llama3", "405B"),
    "DeepSeek-V2 Lite": ("deepseek_v3", "16B"),
    "DeepSeek-V2": ("deepseek_v3", "236B"),
    "DeepSeek-V3": ("deepseek_v3", "671B"),
}
"""Its names of a model and of its size."""
SHARDINGS = {Sharding.NONE: "default", Sharding.ZERO2: "never", Sharding.ZERO3: "always"}
"""`fsdp_reshard_after_forward`: FSDP that never reshards keeps what it has gathered."""
SCHEDULES = {Schedule.ONE_F_ONE_B: "1F1B", Schedule.INTERLEAVED: "Interleaved1F1B"}
RECOMPUTES: Mapping[Recompute, Mapping[str, Value]] = {
    Recompute.NONE: {"mode": "none"},
    Recompute.OPERATORS: {"mode": "selective", "selective_ac_option": "op"},
    Recompute.FULL: {"mode": "full"},
}


def flavor_of(model: Model) -> tuple[str, str]:
    """torchtitan's names of a model and of its size. Raises UsageError where it has none."""
    if model.predicting:
        raise UsageError("torchtitan has no prediction modules: leave --mtp out.")
    if model.name not in FLAVORS:
        raise UsageError(f"{model.name} is not one of torchtitan's models: {', '.join(FLAVORS)}.")
    return FLAVORS[model.name]


def torchtitan_config(layout: Layout, workload: Workload) -> Config:
    """Raises UsageError for a model or a sharding that torchtitan does not have."""
    name, flavor = flavor_of(workload.model)
    shards = 1 if layout.shard is Sharding.NONE else layout.shards // layout.context
    local_batch = layout.micro_batch * (layout.micro_batches if layout.has_stages else 1)
    parallelism: dict[str, Value] = {
        "data_parallel_replicate_degree": layout.data // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": SHARDINGS[layout.shard],
        "tensor_parallel_degree": layout.tensor,
        "context_parallel_degree": layout.context,
        "pipeline_parallel_degree": layout.pipeline,
    }
    if workload.model.is_mixture:
        parallelism |= {
            "expert_parallel_degree": layout.expert,
            "expert_tensor_parallel_degree": layout.expert_split if layout.expert > 1 else 1,
        }
    if layout.has_stages:
        chunks = layout.pipeline * layout.virtual_stages
        parallelism |= {
            "pipeline_parallel_schedule": SCHEDULES[layout.schedule],
            "pipeline_parallel_microbatch_size": layout.micro_batch,
            "pipeline_parallel_layers_per_stage": -(-workload.model.layers // chunks),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    return {
        "model": {"name": name, "flavor": flavor},
        "training": {
            "local_batch_size": local_batch,
            "global_batch_size": layout.global_batch,
            "seq_len": workload.sequence,
        },
        "parallelism": parallelism,
        "activation_checkpoint": RECOMPUTES[layout.recompute],
        "compile": {"enable": layout.implementation is Implementation.FUSED},
    }


def is_its(layout: Layout) -> bool:
    """Whether it has all that a layout needs."""
    by_groups = layout.shards % layout.context == 0 and _spreads_experts(layout)
    has_words = layout.shard in SHARDINGS and layout.recompute in RECOMPUTES
    return by_groups and has_words and (not layout.has_stages or layout.schedule in SCHEDULES)


def _spreads_experts(layout: Layout) -> bool:
    """Whether experts are spread over all of cp, all or nothing of tp, and then over dp
    (distributed/parallel_dims.py).
    """
    is_across = layout.expert_split < layout.tensor
    if layout.expert == 1:
        return not is_across
    first = layout.context * (layout.tensor if is_across else 1)
    is_known = layout.expert_split in (1, layout.tensor)
    is_shared = layout.shards * layout.tensor % layout.expert_chips == 0
    return is_known and layout.expert % first == 0 and is_shared


def config_text(layout: Layout, workload: Workload) -> str:
    """Text for `--job.config_file`; other sections are the user's."""
    lines = [
        f"# {workload.model.name} on {workload.cluster.count} {workload.cluster.chip.name}: "
        f"{layout_in_short(layout)}",
        "# Add the data, the tokenizer and the optimizer's hyperparameters.",
    ]
    for name, values in torchtitan_config(layout, workload).items():
        lines += ["", f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def layout_words(document: Mapping[str, Any], layers: int | None) -> tuple[list[str], int | None]:
    """(words of the layout in a configuration, sequences of a step).

    A degree of -1 is all chips that remain, and left to those. Raises UsageError for a value that
    torchtitan would refuse.
    """
    parallel, training = section(document, "parallelism"), section(document, "training")
    replicas = count(parallel, "data_parallel_replicate_degree")
    shards = count(parallel, "data_parallel_shard_degree", -1)
    context, stages = (
        count(parallel, f"{name}_parallel_degree") for name in ("context", "pipeline")
    )
    tensor = count(parallel, "tensor_parallel_degree")
    expert = count(parallel, "expert_parallel_degree")
    words = degrees(tp=tensor, cp=context, ep=expert)
    if expert > 1:
        words.append(f"etp {count(parallel, 'expert_tensor_parallel_degree')}")
    if tensor > 1:
        words.append("sp")
    if shards > 0:
        words.append(f"dp {replicas * shards}")
    local = count(training, "local_batch_size", 8)
    micro = count(parallel, "pipeline_parallel_microbatch_size") if stages > 1 else local
    words.append(f"mb {micro}x{max(1, local // micro)}" if stages > 1 else f"mb {micro}")
    words += _stages(parallel, stages, layers)
    reshard = parallel.get("fsdp_reshard_after_forward", "default")
    if shards == 1:
        words.append("ddp")
    elif reshard == "never" or (reshard == "default" and stages > 1):
        words.append("zero-2")
    else:
        is_grouped = replicas > 1 and shards > 0
        words.append(f"fsdp:{shards * context}" if is_grouped else "zero-3")
    words.append(_recomputation(section(document, "activation_checkpoint")))
    batch = count(training, "global_batch_size", -1)
    return words, None if batch == -1 else batch


def facts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of its run: compiled, with its loss, or not at all."""
    compiled = section(document, "compile")
    if not is_true(compiled.get("enable")):
        return {"host": "eager", "kernels": "eager", "loss": "float32"}
    is_loss = "loss" in compiled.get("components", ("model", "loss"))
    overlap = float(is_true(compiled.get("enable_async_tensor_parallel")))
    return {
        "host": "compiled",
        "kernels": "fused",
        "overlap.tensor": overlap,
        **({} if is_loss else {"loss": "float32"}),
    }


def _recomputation(checkpoint: Mapping[str, Any]) -> str:
    """Recomputation by torchtitan's default, that of operators."""
    mode = checkpoint.get("mode", "selective")
    option = str(checkpoint.get("selective_ac_option", "op"))
    for recompute, values in RECOMPUTES.items():
        if mode == values["mode"] and option == values.get("selective_ac_option", option):
            return str(recompute)
    raise UsageError(
        f"activation_checkpoint: mode {mode!r} with selective_ac_option {option!r} is not "
        'supported. These are: none, selective with "op", full.'
    )


def _stages(parallel: Mapping[str, Any], stages: int, layers: int | None) -> list[str]:
    if stages == 1:
        return []
    each = count(parallel, "pipeline_parallel_layers_per_stage", 0)
    chunks = max(1, (layers or 0) // (stages * each)) if each else 1
    known = {name.lower(): schedule for schedule, name in SCHEDULES.items()}
    schedule = str(parallel.get("pipeline_parallel_schedule", "1F1B")).lower()
    if schedule not in known:
        raise UsageError(
            f"pipeline_parallel_schedule {schedule!r} is not supported. These are: "
            f"{', '.join(SCHEDULES.values())}."
        )
    if known[schedule] is Schedule.INTERLEAVED and chunks == 1:
        chunks = 2  # torchtitan's own choice without layers_per_stage
    return [f"pp {stages}x{chunks}" if chunks > 1 else f"pp {stages}"]
