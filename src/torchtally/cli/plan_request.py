"""The model, the chips and the numbers that the arguments of `tally plan` give."""

import argparse
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchtally.cli.chip_names import say_variants
from torchtally.cli.plan_adapters import adapter_request
from torchtally.cli.plan_inference import inference_request
from torchtally.cli.plan_preference import is_preference, preference_request
from torchtally.cli.plan_samples import has_samples, sample_of
from torchtally.cli.streams import say
from torchtally.errors import UnknownFamilyError, UsageError
from torchtally.progress import StatusLine

if TYPE_CHECKING:
    from torchtally.chips import Cluster
    from torchtally.plan.architecture.model import Model
    from torchtally.plan.frameworks.configuration import Configuration
    from torchtally.plan.questions import Request, Subject

RECIPE = "mixed"
"""Where --recipe is not given."""
DEFAULT_CHIP = "H100-SXM"
"""Whose operators a class is counted by, where --gpus is not given."""
CONFIGURATIONS = {
    "torchtitan": ("torchtitan", "its configuration (0.2, TOML)"),
    "megatron": ("Megatron-LM", "its arguments"),
    "deepspeed": ("DeepSpeed", "its configuration (JSON): ZeRO alone"),
    "accelerate": ("accelerate", "its configuration (YAML): FSDP"),
}
"""Of frameworks: a search, or --layout, is written as each has it."""
CONFIGURED = (".toml", ".json", ".yaml", ".yml", ".sh")
"""At the end of files that layouts are read of."""


def request(args: argparse.Namespace) -> "Request":
    """What the arguments say. Raises UsageError where they contradict each other."""
    from torchtally.plan.activations.setting import Implementation
    from torchtally.plan.flops import Recompute
    from torchtally.plan.optimizers import optimizer
    from torchtally.plan.parallel.attention import ATTENTIONS
    from torchtally.plan.parallel.pace import PACES, Host
    from torchtally.plan.questions import Request
    from torchtally.plan.recipes import recipe
    from torchtally.work.convention import Convention

    model = _predicting(args, _model(args))
    kernel, fused = ATTENTIONS[args.attention] if args.attention else (None, None)
    configured = configured_layout(args, model)
    if args.price is not None and args.price[0]:
        raise UsageError(
            "--price applies to the chip in --gpus: give the amount alone, --price 2.49."
        )
    if args.mfu is not None and args.mfu == 0:
        raise UsageError("--mfu must be above 0; 0.3 to 0.6 is usual.")
    return Request(
        subject=model,
        tokens=args.tokens,
        flops=args.flops,
        cluster=cluster_of(args),
        mfu=args.mfu,
        deadline_s=args.deadline,
        budget_usd=args.budget,
        usd_per_hour=None if args.price is None else args.price[1],
        tokens_per_s=args.tokens_per_s,
        sequence=args.sequence,
        micro_batch=args.micro_batch,
        global_batch=args.batch or (configured.batch if configured else None),
        recipe=recipe(args.recipe or RECIPE),
        optimizer=optimizer(args.optimizer or "adamw"),
        recompute=None if args.recompute is None else Recompute(args.recompute),
        attention=Convention(args.convention or "full"),
        kernel=kernel,
        fused=fused,
        host=Host(args.host or "eager"),
        pace=PACES[args.pace or "typical"],
        implementation=None if args.kernels is None else Implementation(args.kernels),
        layout=configured.words if configured else args.layout or "",
        inference=inference_request(args),
        adapters=adapter_request(args),
        preference=preference_request(args),
        framework=framework_of(args),
        rows=args.top,
    )


def framework_of(args: argparse.Namespace) -> str:
    """Framework whose configuration is to be written; "" for none. Raises UsageError for
    several.
    """
    asked = [option for option in CONFIGURATIONS if getattr(args, option) is not None]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)}: give one at a time.")
    return asked[0] if asked else ""


def configured_layout(
    args: argparse.Namespace, subject: "Subject | None"
) -> "Configuration | None":
    """The layout of the file that --layout names; None for one in words."""
    is_file = args.layout is not None and (
        os.path.isfile(args.layout) or args.layout.lower().endswith(CONFIGURED)
    )
    if not is_file:
        return None
    from torchtally.plan.frameworks.configuration import configuration

    model = None if subject is None else subject.model
    layers = None if model is None else model.layers
    layout_file = configuration(args.layout, layers)
    read = f"{args.layout}, of {layout_file.framework}: {layout_file.words}"
    batch = "" if layout_file.batch is None else f", steps of {layout_file.batch} sequences"
    say(f"tally: {read}{batch}")
    return layout_file


def cluster_of(args: argparse.Namespace) -> "Cluster | None":
    """The chips that --gpus names, with what the user knows better of them than the table."""
    if args.gpus is None:
        unused = [name for name in ("memory", "peak", "compare") if getattr(args, name) is not None]
        if unused:
            raise UsageError(f"--{unused[0]} needs a chip: add --gpus H100-SXM.")
        return None
    from torchtally.chips import cluster
    from torchtally.plan.recipes import recipe

    say_variants([args.gpus])
    chips = cluster(args.gpus)
    chip = chips.chip
    if args.memory is not None:
        chip = chip.with_memory(args.memory)
    if args.peak is not None:
        chip = chip.with_peak(recipe(args.recipe or RECIPE).products, args.peak)
    return replace(chips, chip=chip)


SHAPE_OPTIONS = ("layers", "width", "heads", "kv_heads", "ffn", "vocabulary")


def _model(args: argparse.Namespace) -> "Subject | None":
    """What MODEL, --parameters or the shape's options say; None where nothing does."""
    from torchtally.plan.questions import subject

    sizes = [f"--{name.replace('_', '-')}" for name in SHAPE_OPTIONS if getattr(args, name)]
    named = {"MODEL": args.model is not None, "--parameters": args.parameters is not None}
    sources = [*(option for option, is_given in named.items() if is_given), *sizes[:1]]
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} both describe the model: give one of them.")
    if args.parameters is not None:
        return subject(int(args.parameters))
    if args.model is not None:
        return _subject_of(args)
    return subject(_decoder(args)) if sizes else None


def _predicting(args: argparse.Namespace, said: "Subject | None") -> "Subject | None":
    """Subject with the prediction modules of --mtp."""
    from torchtally.plan.architecture.prediction import with_prediction
    from torchtally.plan.questions import subject

    if args.mtp is None:
        return said
    if args.lora is not None or is_preference(args):
        raise UsageError("--mtp: PEFT and TRL train no prediction modules; leave it out.")
    if said is None or said.model is None:
        raise UsageError(
            "--mtp needs the model's shape: give a name (deepseek-v3) or a config.json of a family "
            "with a closed form."
        )
    return subject(with_prediction(said.model, args.mtp))


def _subject_of(args: argparse.Namespace) -> "Subject":
    """A model by its name or file; of a family without a row, or with images and sound, what its
    own class counts.
    """
    from torchtally.plan.architecture.lookup import config_of, is_file
    from torchtally.plan.questions import subject

    if has_samples(args) and is_file(args.model):
        return _counted_subject(args)
    try:
        return subject(_model_of(args.model))
    except UnknownFamilyError as unknown:
        if find_spec("transformers") is None:
            raise UnknownFamilyError(
                f"{unknown} Install transformers to count the model in its own class."
            ) from None
        from torchtally.models.counted import is_countable

        if not is_countable(str(config_of(args.model))):
            raise
        return _counted_subject(args)


def _counted_subject(args: argparse.Namespace) -> "Subject":
    from torchtally.chips import chip
    from torchtally.models.counted import count_model
    from torchtally.plan.architecture.lookup import config_of
    from torchtally.plan.questions import counted_subject
    from torchtally.plan.recipes import recipe

    cluster = cluster_of(args)
    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:
        status.show("counting a step of its own class (fewer tokens: --sequence 64)", at_once=True)
        counted = count_model(
            str(config_of(args.model)),
            sample_of(args),
            recipe(args.recipe or RECIPE),
            chip(DEFAULT_CHIP) if cluster is None else cluster.chip,
        )
    return counted_subject(counted)


def _model_of(text: str) -> "Model | int":
    """A number of parameters, or a model by its name or file."""
    from torchtally.plan.architecture.lookup import count_alone, model
    from torchtally.units import parse_count

    try:
        return parse_count(text)
    except UsageError:
        alone = count_alone(text)
        return model(text) if alone is None else alone


def _decoder(args: argparse.Namespace) -> "Model":
    """A decoder of equal layers, from its sizes."""
    from torchtally.plan.architecture.shapes import by_hand

    needed = ("layers", "width", "heads", "vocabulary")
    missing = [f"--{name}" for name in needed if getattr(args, name) is None]
    if missing:
        raise UsageError(
            f"A model by its numbers needs {', '.join(missing)} too: give --layers, --width, "
            "--heads and --vocabulary."
        )
    return by_hand(
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        vocabulary=args.vocabulary,
        is_tied=args.tied,
        kv_heads=args.kv_heads,
        feed_forward=args.ffn,
        is_gated=args.gated,
        context=args.sequence,
    )
