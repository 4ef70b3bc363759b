"""`tally plan MODEL -o FILE`: a step or an answer as a trace, written out of recordings."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchtally.chips import Cluster, chip
from torchtally.cli.plan_megatron import STACK, megatron_step
from torchtally.cli.plan_megatron import USED as OF_MEGATRON
from torchtally.cli.plan_request import DEFAULT_CHIP, cluster_of
from torchtally.cli.plan_stack import with_recipe
from torchtally.cli.streams import say
from torchtally.errors import UsageError
from torchtally.options import options_of
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.plan.parallel.pace import Host
from torchtally.plan.questions import Request
from torchtally.plan.questions.inference_request import USUAL_PROMPT
from torchtally.plan.questions.plan_options import ADAPTED
from torchtally.plan.questions.request import USUAL_SEQUENCE
from torchtally.plan.recipes import RECIPES, Recipe
from torchtally.progress import StatusLine

if TYPE_CHECKING:
    from torchtally.cli.output import ReportOptions
    from torchtally.models.answering import AnswerMode
    from torchtally.models.recorded import Adapt, RecordedMode, TrainingMode
    from torchtally.models.spread import Spread
    from torchtally.programs.compiled import Regions
    from torchtally.programs.step import AskedStep
    from torchtally.trace import Trace, World

USED = ADAPTED | {
    *("output", "model", "gpus", "layout", "micro_batch", "sequence"),
    *("recipe", "optimizer", "recompute", "host", "implementation"),
}
"""What a written step depends on."""
KERNELS = frozenset(("host", "implementation"))
"""Fields that change kernels alone, which are derived from the step that a program writes."""
ANSWERED = frozenset(
    (
        "output",
        "inference",
        "model",
        "gpus",
        "global_batch",
        "prompt",
        "generate",
        "weights",
        "engine",
    )
)
"""What a written answer depends on."""
EAGER = "eager"
"""The engine that is transformers itself."""
ANSWER_TOKENS = 4
"""Of a written answer, where --generate is not given: passes over single tokens differ little."""


def write_trace(request: Request, argv: Sequence[str], form: "ReportOptions") -> int:
    """Write the step's trace, and show it as `tally show` does, in this form."""
    from torchtally.cli import show
    from torchtally.programs.compiled import compiled

    is_megatron = request.stack_name == STACK
    model, path = check(request, OF_MEGATRON if is_megatron else None)
    command = shlex.join(argv)
    if is_megatron:
        trace, regions = megatron_step(request, command), None
    else:
        request = with_recipe(request)
        trace, regions = traced_step(request, model, command), regions_of(request)
    if regions is not None:
        trace = compiled(trace, regions)
        say(f"tally: {trace.notes[-1].text}.")
    trace.save(path)
    say(f"tally: {trace.notes[0].text}.")
    return show.command(show.ShowOptions(file=path, format=form.format, json=form.json))


def traced_step(request: Request, model: str, command: str) -> "Trace":
    """The step by a program that is shipped or was recorded before: both without torch. Else it is
    recorded now.
    """
    from torchtally.programs.cached import cached_step
    from torchtally.programs.shipped import shipped_step
    from torchtally.programs.step import AskedStep

    cluster = cluster_of(request) or Cluster(chip(DEFAULT_CHIP))
    values, place = configuration(model)
    asked = AskedStep(
        batch=batch_of(request, cluster),
        sequence=request.prompt if request.inference else request.sequence,
        usual_sequence=USUAL_PROMPT if request.inference else USUAL_SEQUENCE,
        mode=mode_words(request, cluster),
        chip=cluster.chip,
        command=command,
        world=world_of(request, cluster),
    )
    if is_compiled_by_torch(request):
        return recorded_step(request, cluster, values, place, asked)
    return (
        shipped_step(str(values.get("model_type")), place, asked)
        or cached_step(values, asked)
        or recorded_step(request, cluster, values, place, asked)
    )


def recorded_step(
    request: Request, cluster: Cluster, values: Mapping[str, Any], place: str, asked: "AskedStep"
) -> "Trace":
    """The step, recorded now."""
    from torchtally.models.planned import configured_class, planned_step
    from torchtally.models.spread import Spread

    mode: RecordedMode
    if request.inference:
        mode = answer_mode(request, cluster, asked.batch)
    else:
        spread = Spread(layout_of(request, cluster), cluster.gpus_per_node)
        mode = replace(mode_of(request, spread), is_compiled=is_compiled_by_torch(request))
    configured = configured_class(values, place)
    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:
        how = "compiling its layers" if mode.is_compiled else "with three layers"
        status.show(f"recording {configured.name} {how}", at_once=True)
        return planned_step(configured, values, asked, mode)


def check(request: Request, fields: frozenset[str] | None = None) -> tuple[str, str]:
    """The model and the file; `fields` are those that the step depends on, where they are not the
    usual ones. Raises UsageError for options a written step does not depend on.
    """
    if request.model is None:
        raise UsageError("-o needs a model: a name (llama-3-8b) or a config.json.")
    assert request.output is not None
    if request.output == "-":
        raise UsageError("-o: a trace goes to a file, -o plan.tally.")
    options = options_of(type(request))
    used, what = (ANSWERED, "one answer") if request.inference else (fields or USED, "one step")
    unused = [options[field].name for field in request.given if field not in used]
    if unused:
        raise UsageError(
            f"-o writes {what} out, of which {unused[0]} changes nothing.\n"
            "Leave it out, or plan without -o."
        )
    if request.host not in (Host.EAGER, Host.COMPILED):
        raise UsageError(
            f"--host {request.host}: -o writes a step out as Python issues it, or with its layers "
            "compiled: --host compiled."
        )
    if request.host is Host.COMPILED and request.implementation is Implementation.FUSED:
        raise UsageError(
            "-o: --host compiled and --kernels fused both say what makes a step's kernels: "
            "leave one of them out."
        )
    return request.model, request.output


def regions_of(request: Request) -> "Regions | None":
    """What is given kernels of its own, by --host and --kernels; None: nothing."""
    from torchtally.programs.compiled import COMPILED_LAYERS, FUSED_BLOCKS

    if request.host is Host.COMPILED:
        return None if is_compiled_by_torch(request) else COMPILED_LAYERS
    return FUSED_BLOCKS if request.implementation is Implementation.FUSED else None


def is_compiled_by_torch(request: Request) -> bool:
    """Whether PyTorch's compiler runs for the step: of GPUs that share one, whose streams wait for
    each other. Else compiled kernels are derived.
    """
    cluster = cluster_of(request)
    return request.host is Host.COMPILED and cluster is not None and cluster.count > 1


def layout_of(request: Request, cluster: Cluster) -> Layout:
    """How the GPUs share the step. Raises UsageError for a layout that torch alone does not run."""
    from torchtally.models.spread import check_spread

    layout = asked_layout(request, cluster)
    check_spread(layout)
    return layout


def asked_layout(request: Request, cluster: Cluster) -> Layout:
    """The layout as it is typed; where none is, FSDP2 over all GPUs, as an answer assumes it.

    Raises UsageError for one of other GPUs.
    """
    base = Layout(
        micro_batch=request.micro_batch or 1, recompute=request.recompute or Recompute.NONE
    )
    usual = f"dp {cluster.count}/z3" if cluster.count > 1 else ""
    layout = parse_layout(request.layout or usual, cluster.count, None, base)
    if layout.chips != cluster.count:
        raise UsageError(
            f"--layout {request.layout!r} is of {layout.chips} GPUs, and --gpus names "
            f"{cluster.count}."
        )
    return layout


def batch_of(request: Request, cluster: Cluster) -> int:
    """Prompts of an answer, or sequences of a micro-batch."""
    if request.inference:
        return request.global_batch or 1
    return asked_layout(request, cluster).micro_batch


def configuration(model: str) -> tuple[Mapping[str, Any], str]:
    """Keys of a config.json, and where they are: a file, or a row of the known models.

    Raises UsageError for a model that is known by its sizes alone.
    """
    from torchtally.models.config_values import config_values
    from torchtally.plan.architecture.known import known_row
    from torchtally.plan.architecture.lookup import config_of, is_file

    if is_file(model):
        path = str(config_of(model))
        return config_values(path), path
    row = known_row(model)
    if row.config is None:
        raise UsageError(
            f"-o records a class of transformers, and {row.name} has none: its sizes alone are "
            "known.\nGive a config.json of a class that is like it."
        )
    return row.config, row.name


def mode_of(request: Request, spread: "Spread") -> "TrainingMode":
    """How the step is trained. Raises UsageError for a recipe that torch alone does not run."""
    from torchtally.models.optimizers import optimizer_names as names_in_torch
    from torchtally.models.precision import PRECISIONS, precision_of
    from torchtally.models.recorded import TrainingMode

    chosen = request.recipe
    runnable = [each.name for each in RECIPES.values() if is_runnable(each)]
    precision = precision_of(chosen)
    if precision is None or not is_runnable(chosen):
        raise UsageError(
            f"-o runs the step by torch alone, and recipe {chosen.name} needs a library.\n"
            f"Choose one of {', '.join(runnable)}: --recipe bf16."
        )
    has_master = chosen.master is not None
    if has_master and spread.layout.is_fully_sharded:
        spread = replace(spread, computes_in=precision.weight_dtype)
        precision = replace(precision, weight_dtype=PRECISIONS["fp32"].weight_dtype)
        has_master = False
    if has_master and spread.layout.chips > 1:
        raise UsageError(
            f"-o: a loop of torch alone keeps the master weights of recipe {chosen.name} on one "
            f"GPU, or in FSDP2's shards.\nChoose --layout 'dp {spread.layout.chips}/z3', or "
            "--recipe bf16."
        )
    optimizer = request.optimizer.name
    if optimizer not in names_in_torch():
        raise UsageError(f"-o: torch.optim has no {optimizer}. Leave --optimizer out for AdamW.")
    return TrainingMode(
        precision=precision,
        optimizer=optimizer,
        is_checkpointed=spread.layout.recompute is Recompute.FULL,
        adapt=adapt_of(request),
        spread=spread,
        has_master=has_master,
    )


def answer_mode(request: Request, cluster: Cluster, batch: int) -> "AnswerMode":
    """How an answer is generated. Raises UsageError for what no class of transformers does."""
    from torchtally.models.answering import WEIGHT_DTYPES, AnswerMode

    if request.engine is None or request.engine.name != EAGER:
        raise UsageError("-o runs an answer by the model's class itself: add --engine eager.")
    if cluster.count > 1:
        raise UsageError(f"-o writes the answer of one GPU out: --gpus {cluster.chip.name}.")
    weights = weights_of(request)
    if weights not in WEIGHT_DTYPES:
        raise UsageError(
            f"-o: weights in {weights} need a library.\nChoose one of {', '.join(WEIGHT_DTYPES)}."
        )
    tokens = request.generate or ANSWER_TOKENS
    return AnswerMode(weight_dtype=WEIGHT_DTYPES[weights], batch=batch, tokens=tokens)


def weights_of(request: Request) -> str:
    """The format of the weights of an answer."""
    return "bf16" if request.weights is None else request.weights.name


def mode_words(request: Request, cluster: Cluster) -> str:
    """How the step is trained, as text: the key of its program."""
    from torchtally.programs.step import FULLY_SHARDED, mode_text

    if request.inference:
        tokens = request.generate or ANSWER_TOKENS
        return mode_text(answer=tokens, weights=weights_of(request), gpus=cluster.count)
    usual = {"recipe", "optimizer", "recompute"}
    fields = (USED - KERNELS - {"output", "model", "gpus", "micro_batch", "sequence"}) & {
        *usual,
        *request.given,
    }
    words = {field: _word(getattr(request, field)) for field in fields}
    layout = asked_layout(request, cluster)
    if layout.is_fully_sharded:
        words |= {"layout": FULLY_SHARDED, "recompute": layout.recompute.value}
    elif cluster.count > 1:
        words["gpus"] = f"{cluster.count}, {cluster.gpus_per_node} in a node"
    return mode_text(**words)


def world_of(request: Request, cluster: Cluster) -> "World":
    """The ranks of a step whose program is one for any number of them."""
    from torchtally.trace import World

    if request.inference or not asked_layout(request, cluster).is_fully_sharded:
        return World()
    return World(cluster.count, cluster.node_size)


def _word(value: object) -> str:
    if isinstance(value, Recipe | Optimizer):
        return value.name
    if isinstance(value, tuple):
        return ",".join(value)
    return "none" if value is None else str(value)


def adapt_of(request: Request) -> "Adapt | None":
    """What puts the adapters of --lora into the model; None without them."""
    if request.lora is None:
        return None
    from torchtally.models.adapting import adapters

    return adapters(
        request.lora, request.lora_targets, dropout=request.lora_dropout, has_magnitude=request.dora
    )


def is_runnable(recipe: Recipe) -> bool:
    """A training loop of torch alone does this: gradients as the weights, no scaled losses."""
    has_copies = recipe.flat_gradients or recipe.step_gradients
    is_plain = recipe.gradients == recipe.weights and not has_copies
    return is_plain and recipe.products != "float16" and not recipe.is_quantised
