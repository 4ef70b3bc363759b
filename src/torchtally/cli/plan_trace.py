"""`tally plan MODEL -o FILE`: a training step as a trace, written out of recordings."""

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from torchtally.cli.destination import add_output
from torchtally.cli.plan_adapters import OPTIONS as ADAPTERS
from torchtally.cli.plan_adapters import adapter_request
from torchtally.cli.plan_options import given_options
from torchtally.cli.plan_request import DEFAULT_CHIP, RECIPE, cluster_of
from torchtally.cli.streams import say
from torchtally.errors import UsageError
from torchtally.progress import StatusLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtally.chips import Cluster
    from torchtally.models.recorded import Adapt, TrainingMode
    from torchtally.models.spread import Spread
    from torchtally.plan.parallel.layout import Layout
    from torchtally.plan.recipes import Recipe
    from torchtally.programs.step import AskedStep
    from torchtally.trace import Trace

EXAMPLES = """\
  tally plan llama-3-8b --gpus H100-SXM --micro-batch 4 --recipe bf16 -o plan.tally
  tally plan llama-3-70b --gpus 64xH100-SXM --layout 'dp 64/z3' --recipe bf16 -o plan.tally
"""
OPTIONS = frozenset(
    ("model", "gpus", "layout", "micro_batch", "sequence", "recipe", "optimizer", "recompute",
     *ADAPTERS)
)  # fmt: skip
"""What a written step depends on."""
RECOMPUTE = {None: False, "none": False, "full": True}
"""Whether layers are checkpointed, by --recompute."""


def add_trace(parser: argparse.ArgumentParser, group: Any) -> None:
    """Add the option that asks for a trace."""
    add_output(
        parser,
        "-o",
        "--output",
        group=group,
        metavar="FILE",
        help="write a training step as a trace, as `tally run -o` does, and show it: the operators "
        "of the model's class, recorded with three small layers; what is not shipped needs "
        "transformers",
    )


def write_trace(args: argparse.Namespace) -> int:
    """Write the step's trace, and show it as `tally show` does."""
    from torchtally.cli import parsed

    check(args)
    trace = traced_step(args)
    trace.save(args.output)
    say(f"tally: {trace.notes[0].text}.")
    form = ("--format", args.format) if args.json is None else ("--json", args.json)
    shown = parsed(["show", args.output, *form])
    return int(shown.command(shown))


def traced_step(args: argparse.Namespace) -> "Trace":
    """The step by a program that is shipped or was recorded before: both without torch. Else it is
    recorded now.
    """
    from torchtally.chips import Cluster, chip
    from torchtally.plan.questions.request import USUAL_SEQUENCE
    from torchtally.programs.cached import cached_step
    from torchtally.programs.shipped import shipped_step
    from torchtally.programs.step import AskedStep

    cluster = cluster_of(args) or Cluster(chip(DEFAULT_CHIP))
    values, place = configuration(args.model)
    asked = AskedStep(
        batch=args.micro_batch or 1,
        sequence=args.sequence,
        usual_sequence=USUAL_SEQUENCE,
        mode=mode_words(args, cluster),
        chip=cluster.chip,
        command=shlex.join(args.argv),
    )
    return (
        shipped_step(str(values.get("model_type")), place, asked)
        or cached_step(values, asked)
        or recorded_step(args, cluster, values, place, asked)
    )


def recorded_step(
    args: argparse.Namespace,
    cluster: "Cluster",
    values: "Mapping[str, Any]",
    place: str,
    asked: "AskedStep",
) -> "Trace":
    """The step, recorded now."""
    from torchtally.models.planned import configured_class, planned_step
    from torchtally.models.spread import Spread

    layout = layout_of(args, cluster)
    mode = mode_of(args, Spread(layout, cluster.gpus_per_node))
    configured = configured_class(values, place)
    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:
        status.show(f"recording {configured.name} with three layers", at_once=True)
        return planned_step(configured, values, asked, mode)


def check(args: argparse.Namespace) -> None:
    """Raises UsageError for options that a written step does not depend on."""
    if args.model is None:
        raise UsageError("-o needs a model: a name (llama-3-8b) or a config.json.")
    if args.output == "-":
        raise UsageError("-o: a trace goes to a file, -o plan.tally.")
    others = ("inference", "search", "compare", "memory", "peak")
    asked = [*given_options(args), *(name for name in others if getattr(args, name))]
    asked += ["explain"] if args.explain else []
    unused = [option for option in asked if option not in OPTIONS]
    if unused:
        raise UsageError(
            f"-o writes one step out, of which --{unused[0].replace('_', '-')} changes "
            "nothing.\nLeave it out, or plan without -o."
        )
    if args.recompute not in RECOMPUTE:
        raise UsageError(
            f"--recompute {args.recompute}: a class of transformers checkpoints whole layers: "
            "--recompute full, or none."
        )


def layout_of(args: argparse.Namespace, cluster: "Cluster") -> "Layout":
    """How the GPUs share the step. Raises UsageError for a layout that torch alone does not run."""
    from torchtally.models.spread import check_spread
    from torchtally.plan.parallel.layout import Layout
    from torchtally.plan.parallel.layout_words import parse_layout

    if cluster.count > 1 and args.layout is None:
        raise UsageError(
            f"-o with --gpus {cluster.count}x{cluster.chip.name} needs to know how they share a "
            f"step: --layout 'dp {cluster.count}/z3' (FSDP2), or 'dp {cluster.count}' (DDP)."
        )
    base = Layout(micro_batch=args.micro_batch or 1)
    layout = parse_layout(args.layout or "", cluster.count, None, base)
    if layout.chips != cluster.count:
        raise UsageError(
            f"--layout {args.layout!r} is of {layout.chips} GPUs, and --gpus names {cluster.count}."
        )
    check_spread(layout)
    return layout


def configuration(model: str) -> "tuple[Mapping[str, Any], str]":
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


def mode_of(args: argparse.Namespace, spread: "Spread") -> "TrainingMode":
    """How the step is trained. Raises UsageError for a recipe that torch alone does not run."""
    from torchtally.models.optimizers import optimizer_names as names_in_torch
    from torchtally.models.precision import precision_of
    from torchtally.models.recorded import TrainingMode
    from torchtally.plan.recipes import RECIPES, recipe

    chosen = recipe(args.recipe or RECIPE)
    runnable = [each.name for each in RECIPES.values() if is_runnable(each)]
    precision = precision_of(chosen)
    if precision is None or not is_runnable(chosen):
        raise UsageError(
            f"-o runs the step by torch alone, and recipe {chosen.name} needs a library.\n"
            f"Choose one of {', '.join(runnable)}: --recipe bf16."
        )
    optimizer = args.optimizer or "adamw"
    if optimizer not in names_in_torch():
        raise UsageError(f"-o: torch.optim has no {optimizer}. Leave --optimizer out for AdamW.")
    return TrainingMode(
        precision=precision,
        optimizer=optimizer,
        is_checkpointed=RECOMPUTE[args.recompute],
        adapt=adapt_of(args),
        spread=spread,
    )


def mode_words(args: argparse.Namespace, cluster: "Cluster") -> str:
    """How the step is trained, as text: the key of its program."""
    from torchtally.programs.step import mode_text

    usual = {"recipe": RECIPE, "optimizer": "adamw", "recompute": "none"}
    others = OPTIONS - {"model", "gpus", "micro_batch", "sequence"}
    values = {name: getattr(args, name) or usual.get(name) for name in others}
    if cluster.count > 1:
        values["gpus"] = f"{cluster.count}, {cluster.gpus_per_node} in a node"
    return mode_text(**values)


def adapt_of(args: argparse.Namespace) -> "Adapt | None":
    """What puts the adapters of --lora into the model; None without them."""
    asked = adapter_request(args)
    if asked is None:
        return None
    from torchtally.models.adapting import adapters

    return adapters(
        asked.rank, asked.targets, dropout=asked.dropout, has_magnitude=asked.has_magnitude
    )


def is_runnable(recipe: "Recipe") -> bool:
    """A training loop of torch alone does this: no master weights, no scaled losses."""
    has_copies = recipe.master is not None or recipe.flat_gradients or recipe.step_gradients
    return not has_copies and recipe.products != "float16" and not recipe.is_in_8_bits
