"""Megatron-LM's arguments, in a script that starts it or by themselves.

Names are those of megatron/training/arguments.py, core 0.12 to 0.18.
"""

import re
from collections.abc import Mapping

from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import Recompute
from torchtally.plan.frameworks.values import count, degrees
from torchtally.plan.parallel.degrees import layout_in_short
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.step import Workload

OPTION = re.compile(r"""--([a-z][a-z0-9-]+)(?:[ =\t]+(?:\\\n\s*)?["']?(?!--)([^\s\\"'()]+))?""")
LAYOUT = "pipeline-model-parallel-layout"
LAYOUT_GIVEN = re.compile(rf"""--{LAYOUT}[ =]+["']?([^\s"']+)""")
"""Its value has parentheses."""
SHARDINGS = {
    "no_shard": "ddp",
    "optim": "zero-1",
    "optim_grads": "zero-2",
    "optim_grads_params": "zero-3",
}
"""`--data-parallel-sharding-strategy`, of --use-megatron-fsdp."""
STRATEGIES = {words: name for name, words in SHARDINGS.items()}
SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
TENSOR, PIPELINE, CONTEXT, EXPERT, EXPERT_TENSOR = (
    f"{name}-parallel-size"
    for name in ("tensor-model", "pipeline-model", "context", "expert-model", "expert-tensor")
)


def layout_words(text: str, name: str, layers: int | None) -> tuple[list[str], int | None]:
    """(words of a layout, sequences of a step). Raises UsageError where it has no argument."""
    given = _given(text)
    known = (
        TENSOR,
        PIPELINE,
        CONTEXT,
        EXPERT,
        EXPERT_TENSOR,
        "micro-batch-size",
        "global-batch-size",
    )
    if not any(option in given for option in known):
        raise UsageError(f"{name}: no arguments of Megatron-LM found (--{TENSOR} 8, ...).")
    for option in known:
        if given.get(option, "").startswith("$"):
            raise UsageError(
                f"{name}: --{option} is {given[option]}, which only the shell can expand: write "
                "the number."
            )
    stages = count(given, PIPELINE)
    words = degrees(tp=count(given, TENSOR), cp=count(given, CONTEXT), ep=count(given, EXPERT))
    if EXPERT in given or EXPERT_TENSOR in given:
        words.append(f"etp {count(given, EXPERT_TENSOR, count(given, TENSOR))}")
    if stages > 1:
        chunks = _chunks(given, stages, layers)
        words.append(f"pp {stages}x{chunks}" if chunks > 1 else f"pp {stages}")
    if count(given, TENSOR) > 1:
        words.append("sp" if "sequence-parallel" in given else "no-sp")
    words.append(_sharding(given, name))
    if "micro-batch-size" in given:
        words.append(f"mb {count(given, 'micro-batch-size')}")
    granularity = given.get("recompute-granularity")
    if granularity in ("full", "selective"):
        words.append(granularity)
    batch = count(given, "global-batch-size") if "global-batch-size" in given else None
    return words, batch


FACTS: Mapping[str, tuple[str, object]] = {
    "overlap-grad-reduce": ("overlap.data", 1.0),
    "tp-comm-overlap": ("overlap.tensor", 1.0),
    "cross-entropy-loss-fusion": ("loss", "fused"),
    "fp8-param-gather": ("fp8-weights", True),
    "grad-reduce-in-bf16": ("gradients", "bfloat16"),
    "use-flash-attn": ("attention", "flash"),
    "external-cuda-graph": ("host", "graphs"),
    "enable-cuda-graph": ("host", "graphs"),
}
"""What an argument says instead of the stack's facts."""
GRAPHS = {
    "full_iteration": "graphs",
    "local": "graphs",
    "transformer_engine": "graphs",
    "none": "eager",
}
"""`--cuda-graph-impl`."""


def facts_of(text: str) -> dict[str, object]:
    """What the arguments say of the run."""
    given = _given(text)
    facts = dict(fact for option, fact in FACTS.items() if option in given)
    graphs = GRAPHS.get(given.get("cuda-graph-impl", ""))
    return facts if graphs is None else {**facts, "host": graphs}


def _given(text: str) -> dict[str, str]:
    """Values of all arguments; "true" of those without."""
    code = re.sub(r"(?m)^\s*#.*$", "", text)
    given = {option: value or "true" for option, value in OPTION.findall(code)}
    if uneven := LAYOUT_GIVEN.search(code):
        given[LAYOUT] = uneven[1]
    return given


def _chunks(given: dict[str, str], stages: int, layers: int | None) -> int:
    """Chunks of layers on each chip."""
    if LAYOUT in given:
        return max(1, _chunks_of(given[LAYOUT]) // stages)
    if "num-virtual-stages-per-pipeline-rank" in given:
        return count(given, "num-virtual-stages-per-pipeline-rank")
    each = count(given, "num-layers-per-virtual-pipeline-stage", 0)
    layers = count(given, "num-layers", layers or 0)
    return max(1, layers // (stages * each)) if each else 1


def _uneven(model: Model, chunks: int) -> str:
    """Layers (t) of each chunk, the longer ones first, between embedding (E) and loss (L), in front
    of which are those that predict (m).
    """
    least, more = divmod(model.layers, chunks)
    if model.predicting > least:
        raise UsageError(
            f"{model.predicting} prediction modules are more than the last of {chunks} chunks has "
            "layers: give fewer stages."
        )
    counts = [least + 1] * more + [least] * (chunks - more)
    counts[-1] -= model.predicting
    layers = "|".join(f"t*{count}" if count else "" for count in counts)
    return f"E{layers}{'m' * model.predicting}L"


def _chunks_of(layout: str) -> int:
    """Chunks in a layout as Megatron-LM reads it, in which "(t|)*3" is "t|t|t|"."""
    repeated = re.compile(r"\(([^()]*)\)\*(\d+)")
    return repeated.sub(lambda group: group[1] * int(group[2]), layout).count("|") + 1


def _sharding(given: dict[str, str], name: str) -> str:
    strategy = given.get("data-parallel-sharding-strategy")
    if strategy is not None and strategy not in SHARDINGS:
        raise UsageError(
            f"{name}: --data-parallel-sharding-strategy {strategy!r} is not one of "
            f"{', '.join(SHARDINGS)}."
        )
    if strategy is not None:
        return SHARDINGS[strategy]
    if "use-torch-fsdp2" in given:
        return "zero-3"
    return "zero-1" if "use-distributed-optimizer" in given else "ddp"


def is_its(layout: Layout) -> bool:
    """Whether Megatron-LM has all that a layout needs."""
    is_known = layout.schedule in SCHEDULES or not layout.has_stages
    is_recomputed = layout.recompute is not Recompute.OPERATORS
    return is_known and is_recomputed and layout.shard_group is None


def config_text(layout: Layout, workload: Workload) -> str:
    """A line for each argument; the model's, the data's and the optimizer's are the user's."""
    options: dict[str, object] = {
        TENSOR: layout.tensor,
        PIPELINE: layout.pipeline,
        CONTEXT: layout.context,
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.global_batch,
        "seq-length": workload.sequence,
    }
    if workload.model.is_mixture:
        options |= {EXPERT: layout.expert, EXPERT_TENSOR: layout.expert_split}
    chunks = layout.pipeline * layout.virtual_stages
    predicting = workload.model.predicting
    if predicting:
        options["mtp-num-layers"] = predicting
    if workload.model.layers % chunks or (predicting and chunks > 1):
        options[LAYOUT] = _uneven(workload.model, chunks)
    elif layout.has_stages and layout.virtual_stages > 1:
        options["num-virtual-stages-per-pipeline-rank"] = layout.virtual_stages
    flags = ["sequence-parallel"] * (layout.tensor > 1 and layout.is_sequence_parallel)
    if layout.shard is not Sharding.NONE:
        flags.append("use-distributed-optimizer")
    if layout.shard in (Sharding.ZERO2, Sharding.ZERO3):
        flags.append("use-megatron-fsdp")
        options["data-parallel-sharding-strategy"] = STRATEGIES[str(layout.shard)]
    if layout.recompute is not Recompute.NONE:
        options["recompute-granularity"] = layout.recompute
    if layout.recompute is Recompute.FULL:
        options |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    lines = [f"--{option} {value}" for option, value in options.items()]
    lines += [f"--{flag}" for flag in flags]
    head = (
        f"# {workload.model.name} on {workload.cluster.count} {workload.cluster.chip.name}: "
        f"{layout_in_short(layout)}"
    )
    return "\n".join([head, *lines]) + "\n"
