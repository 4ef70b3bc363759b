"""`tally plan`: closed-form estimates with their working. No script, no GPU, no torch."""

import argparse
import sys
import textwrap
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchtally.cli.arguments import (
    Subparsers,
    duration,
    flop_count,
    fraction,
    one_of,
    parsed,
    positive_count,
    positive_rate,
    price,
    sequence_length,
    usd,
)
from torchtally.cli.chip_names import say_variants
from torchtally.cli.output import add_format, write_or_emit, write_report
from torchtally.cli.plan_adapters import EXAMPLES as ADAPTER_EXAMPLES
from torchtally.cli.plan_adapters import adapter_question, adapter_request, add_adapters
from torchtally.cli.plan_inference import EXAMPLES as INFERENCE_EXAMPLES
from torchtally.cli.plan_inference import (
    add_inference,
    formats_text,
    inference_question,
    inference_request,
)
from torchtally.cli.plan_options import given_options, refuse_unused
from torchtally.cli.plan_preference import EXAMPLES as PREFERENCE_EXAMPLES
from torchtally.cli.plan_preference import add_preference, is_preference, preference_request
from torchtally.cli.plan_samples import EXAMPLES as SAMPLE_EXAMPLES
from torchtally.cli.plan_samples import add_samples, has_samples, sample_of
from torchtally.errors import UnknownFamilyError, UsageError
from torchtally.progress import StatusLine
from torchtally.units import parse_bytes, parse_flop_per_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchtally.chips import Cluster
    from torchtally.gates import Finding
    from torchtally.plan.architecture.model import Model
    from torchtally.plan.frameworks.configuration import Configuration
    from torchtally.plan.questions import Answer, Request, Subject

NAME = "plan"
SUMMARY = "plan a training or inference without a script: time, memory, layout, cost"

RECIPE = "mixed"
"""Where --recipe is not given."""
DEFAULT_CHIP = "H100-SXM"
"""Whose operators a class is counted by, where --gpus is not given."""

EPILOG = """\
The question follows from the arguments:

  a model                            its parameters, FLOPs and memory
  a model and chips                  does it fit, and how fast is a step?
  a model, tokens, chips, --mfu      how long does it take, at what cost?
  the same without --mfu             at the speed of the best layout
  the same with --deadline           how many chips meet it?
  a model, tokens, --mfu, no chips   what should be rented?
  a model, chips, --deadline         on how many tokens? Or with --budget
  a model, chips, --tokens-per-s     which MFU is that?
  --largest model|batch|sequence     the largest that fits the chips
  --search                           every layout of the chips, fastest first
  --layout                           one's own, and what the fastest has over it
  --flops                            which model and tokens use this compute best?
  a model, --inference               what do weights and KV cache take?
  a model, chips, --inference        how fast does it answer, and for how much?

MODEL is a name (llama-3-70b; `tally plan --models` lists them), a Hugging Face
config.json or the folder it is in, a .safetensors file, or a number of
parameters.

"""

EXAMPLES = """\
examples:
  tally plan --parameters 70B --tokens 15T --gpus 1024xH100-SXM --mfu 0.5
  tally plan llama-3-8b
  tally plan llama-3-8b --gpus 8xH100-SXM --micro-batch 1 --sequence 8192
  tally plan llama-3-70b --tokens 15T --gpus 1024xH100-SXM --search
  tally plan llama-3-70b --gpus 64xH100-SXM --batch 128 --layout "tp 8, pp 2x5"
  tally plan llama-3-8b --gpus 2x8xH100-SXM --recipe amp --torchtitan best.toml
  tally plan --largest model --gpus 8xH100-SXM --optimizer adamw --recipe fp32
  tally plan 7B --tokens 1T --mfu 0.4 --deadline 14d --gpus H100-SXM
  tally plan 7B --tokens 1T --mfu 0.4 --budget 500K        what should I rent?
  tally plan llama-3-8b --gpus 8xH100-SXM --tokens-per-s 100K
  tally plan --flops 3e24 --gpus 1024xH100-SXM --mfu 0.4
  tally plan path/to/config.json --tokens 2T --gpus 256xB200 --mfu 0.4 --explain
  tally plan 7B --tokens 1T --gpus 64xH100-SXM --mfu 0.4 --compare A100-SXM,B200
  tally plan llama-3-8b --gpus 8xH100-SXM --check "memory < 80GB"
  tally plan --page napkin.html         sliders; without arguments: it asks
"""


def recipe_names() -> "Iterable[str]":
    from torchtally.plan.recipes import RECIPES

    return RECIPES


def optimizer_names() -> "Iterable[str]":
    from torchtally.plan.optimizers import OPTIMIZERS

    return OPTIMIZERS


def epilog() -> str:
    """What is asked, the recipes and optimizers there are, and the examples."""
    from torchtally.plan.recipes import RECIPES

    recipes = "".join(f"  {recipe.name:12}{recipe.summary}\n" for recipe in RECIPES.values())
    optimizers = textwrap.fill(
        ", ".join(optimizer_names()), 78, initial_indent="  ", subsequent_indent="  "
    )
    return (
        f"{EPILOG}recipes (default {RECIPE}):\n{recipes}\noptimizers:\n{optimizers}\n\n"
        f"weights of inference:\n{formats_text()}\n{EXAMPLES}{INFERENCE_EXAMPLES}"
        f"{ADAPTER_EXAMPLES}{PREFERENCE_EXAMPLES}{SAMPLE_EXAMPLES}"
    )


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Closed-form estimates of training and inference; --explain prints the "
        "working.",
        epilog=epilog,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="what is trained (see below)")
    _add_model(parser)
    _add_training(parser)
    add_samples(parser)
    add_adapters(parser)
    add_preference(parser)
    add_inference(parser)
    _add_chips(parser)
    _add_questions(parser)
    _add_output(parser)
    parser.set_defaults(command=command)


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model by its numbers, instead of MODEL")
    count = positive_count
    group.add_argument("--parameters", type=count, metavar="N", help="how many: 70B")
    group.add_argument("--layers", type=count, metavar="N")
    group.add_argument("--width", type=count, metavar="N", help="of the residual stream")
    group.add_argument("--heads", type=count, metavar="N", help="of queries")
    group.add_argument("--kv-heads", type=count, metavar="N", help="of keys and values; as --heads")
    group.add_argument("--ffn", type=count, metavar="N", help="inner width; four times --width")
    group.add_argument("--vocabulary", type=count, metavar="N")
    group.add_argument("--tied", action="store_true", help="the head's weight is the embedding's")
    group.add_argument(
        "--gated",
        action="store_true",
        help="three matrices in a feed-forward, with --ffn: SwiGLU",
    )
    group.add_argument("--models", action="store_true", help="list the models known by name")


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is trained")
    count = positive_count
    group.add_argument("--tokens", type=count, metavar="N", help="of the whole training: 15T")
    group.add_argument(
        "--sequence",
        "--context",
        type=sequence_length,
        metavar="N",
        help="tokens in one, 128K is 131072; the model's longest, at most 8192",
    )
    group.add_argument(
        "--micro-batch", type=count, metavar="N", help="sequences a chip works on at once"
    )
    group.add_argument("--batch", type=count, metavar="N", help="sequences in an optimizer step")
    group.add_argument(
        "--recipe",
        type=one_of(recipe_names),
        metavar="NAME",
        help="number formats (below)",
    )
    group.add_argument(
        "--optimizer",
        type=one_of(optimizer_names),
        metavar="NAME",
        help="whose state takes memory (below); default adamw",
    )
    group.add_argument(
        "--recompute",
        choices=("none", "selective", "op", "full"),
        help="activation recomputation in the backward pass: attention's scores, all but "
        "attention and every other product (torchtitan's), or all; --search tries none and full",
    )
    group.add_argument(
        "--attention",
        choices=("flash", "math", "cudnn", "fa1", "fa2", "fa3"),
        help="kernel: flash is what PyTorch would take, the default",
    )
    group.add_argument(
        "--host",
        choices=("eager", "compiled", "graphs"),
        help="what issues kernels: Python (eager, default), torch.compile's code, CUDA graphs",
    )
    group.add_argument(
        "--pace",
        choices=("typical", "best"),
        help="predicted steps: as published trainings went (default), or kernels at their best",
    )
    group.add_argument(
        "--kernels",
        choices=("eager", "fused"),
        help="norms, activations and losses as transformers runs them (eager), or as Megatron-LM "
        "does (fused, of --search)",
    )
    group.add_argument(
        "--convention", choices=("full", "causal"), help="attention's FLOPs; default full"
    )


def _add_chips(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on what")
    group.add_argument("--gpus", metavar="CHIPS", help="1024xH100-SXM, 4x2xA100-PCIe, RTX-4090")
    group.add_argument("--mfu", type=fraction, metavar="SHARE", help="to be reached: 0.4")
    group.add_argument(
        "--memory",
        type=parsed(parse_bytes),
        metavar="BYTES",
        help="of one chip, instead of the table's: 80GB",
    )
    group.add_argument(
        "--peak",
        type=parsed(parse_flop_per_s),
        metavar="RATE",
        help="of one chip for the recipe's products, instead of the table's: 989.5TFLOP/s",
    )
    group.add_argument(
        "--price", type=price, metavar="USD", help="of one chip for an hour, instead of the table's"
    )
    group.add_argument(
        "--compare", metavar="CHIPS", help="the same on other chips: H100-SXM,A100-SXM,B200"
    )


CONFIGURATIONS = {
    "torchtitan": ("torchtitan", "its configuration (0.2, TOML)"),
    "megatron": ("Megatron-LM", "its arguments"),
    "deepspeed": ("DeepSpeed", "its configuration (JSON): ZeRO alone"),
    "accelerate": ("accelerate", "its configuration (YAML): FSDP"),
}
"""Of frameworks: a search, or --layout, is written as each has it."""
CONFIGURED = (".toml", ".json", ".yaml", ".yml", ".sh")
"""At the end of files that layouts are read of."""


def _add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the question")
    group.add_argument("--deadline", type=duration, metavar="TIME", help="30d, 24h, 2w")
    group.add_argument("--budget", type=usd, metavar="USD", help="1M, $250K")
    group.add_argument(
        "--largest", choices=("model", "batch", "sequence"), help="the largest that fits"
    )
    group.add_argument(
        "--tokens-per-s", type=positive_rate, metavar="N", help="observed, of all chips: 400K"
    )
    group.add_argument("--flops", type=flop_count, metavar="N", help="compute to spend: 3e24")
    group.add_argument("--search", action="store_true", help="every parallel layout, fastest first")
    group.add_argument(
        "--layout",
        metavar="WORDS",
        help="a layout of one's own, beside the fastest: 'dp 16/z2, tp 8, pp 8x5, mb 1x8, full'; "
        "or the file of one: of torchtitan (.toml), DeepSpeed (.json), accelerate (.yaml), "
        "Megatron-LM (its arguments)",
    )
    for option, (name, form) in CONFIGURATIONS.items():
        group.add_argument(
            f"--{option}",
            metavar="FILE",
            help=f"the same of what {name} has, and write it as {form}",
        )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--explain", action="store_true", help="each formula, with the numbers put in, and sources"
    )
    group.add_argument("--top", type=positive_count, metavar="N", help="rows of a table: 10")
    group.add_argument(
        "--page",
        metavar="FILE",
        help="napkin math as a page for a browser, offline: the closed forms with sliders, "
        "beginning with the numbers given here",
    )
    group.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="LIMIT",
        help="what a figure of the answer must be, or the exit code is 3: 'memory < 80GB', "
        "'training-time < 30d' (repeatable)",
    )
    add_format(parser)


def command(args: argparse.Namespace) -> int:
    """Answer the question of the arguments; without any, ask for one."""
    from torchtally.cli.asking import converse, is_terminal

    if args.argv == [NAME] and is_terminal():
        return converse(lambda words: command(parsed_words(words)), request_of_words)
    if args.page is not None:
        write_napkin(args)
        return 0
    from torchtally.report.answer import answer_report
    from torchtally.report.report import table_report

    if args.models:
        given = next(given_options(args), None)
        if given is not None:
            raise UsageError(
                "--models lists what there is, and takes nothing beside it but a format."
            )
        from torchtally.plan.questions.known_models import known_models

        write_report(table_report(known_models()), args)
        return 0
    answer, findings = _checked(args) if args.check else (_ask(args), [])
    framework = framework_of(args)
    if framework:
        write_or_emit(answer.config, getattr(args, framework))
    write_report(answer_report(answer, is_explained=args.explain), args)
    return show_findings(findings)


def parsed_words(words: "Sequence[str]") -> argparse.Namespace:
    """The arguments that the words are. Raises SystemExit where they are none, having said why."""
    from torchtally.cli import parser

    args = parser([NAME]).parse_args([NAME, *words])
    args.argv = [NAME, *words]
    return args


def request_of_words(words: "Sequence[str]") -> "Request":
    """Raises UsageError for a model or chips that are not known."""
    return request(parsed_words(words))


def write_napkin(args: argparse.Namespace) -> None:
    """The closed forms as a page, with the numbers that the arguments give."""
    from torchtally.plan.questions.napkin import napkin_of
    from torchtally.report.browser.napkin import napkin_page

    write_or_emit(napkin_page(napkin_of(request(args))), args.page)


def _checked(args: argparse.Namespace) -> "tuple[Answer, list[Finding]]":
    """Limits that cannot be read are refused before the question is answered."""
    from torchtally.gates.answers import check_answer, parse_checks

    comparisons = parse_checks(args.check)
    answer = _ask(args)
    return answer, check_answer(answer, comparisons)


def show_findings(findings: "Sequence[Finding]") -> int:
    """On stderr, where no program reads the answer. Returns the exit code."""
    if not findings:
        return 0
    from torchtally.cli.output import emit, is_coloured, width
    from torchtally.gates import GATE_EXIT
    from torchtally.report.gates import findings_text

    if sys.stderr is not None:
        text = findings_text(findings, width=width(), is_coloured=is_coloured(sys.stderr))
        emit(text, sys.stderr)
    return 0 if all(finding.holds for finding in findings) else GATE_EXIT


def _ask(args: argparse.Namespace) -> "Answer":
    """The answer, on one kind of chip or on several beside each other."""
    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:

        def show_tried(layouts: int) -> None:
            status.show(f"{layouts:,} layouts tried")

        return _answered(args, replace(request(args), progress=show_tried))


def _answered(args: argparse.Namespace, request: "Request") -> "Answer":
    question = question_of(args, request)
    refuse_unused(args, request, question)
    if args.compare is None:
        return question(request)
    from torchtally.plan.questions.compared import compare

    names = [word.strip() for word in args.compare.split(",") if word.strip()]
    if not names:
        raise UsageError("--compare names no chip: --compare A100-SXM,B200")
    say_variants(names)
    return compare(request, names, question)


def question_of(args: argparse.Namespace, request: "Request") -> "Callable[[Request], Answer]":
    """Which question the arguments ask: the options that name one first, then what is missing."""
    from torchtally.plan.questions.chips_needed import fewest_chips, what_to_rent
    from torchtally.plan.questions.training_time import training_time

    if is_preference(args):
        from torchtally.plan.questions.preference import preference

        return preference
    if args.lora is not None:
        return adapter_question(args)
    named = inference_question(args) if args.inference else _named_question(args)
    if named is not None:
        return named
    is_limited = args.deadline is not None or args.budget is not None
    if request.subject is None:
        raise UsageError(
            "Which model? Give a name (llama-3-70b), a config.json, a .safetensors file or a "
            "number of parameters (70B); or ask for the largest one: --largest model."
        )
    if request.tokens is None:
        return _without_tokens(request, is_limited)
    if request.cluster is None:
        return what_to_rent
    return training_time if args.deadline is None else fewest_chips


def _named_question(args: argparse.Namespace) -> "Callable[[Request], Answer] | None":
    from torchtally.plan.questions.compute_budget import compute_budget
    from torchtally.plan.questions.implied_mfu import implied_mfu
    from torchtally.plan.questions.largest import LARGEST, largest_model
    from torchtally.plan.questions.layouts import layouts
    from torchtally.plan.questions.own_layout import own_layout

    options = {
        "--largest": (args.largest is not None, LARGEST.get(args.largest, largest_model)),
        "--layout": (args.layout is not None, own_layout),
        "--search": (args.search or (framework_of(args) != "" and args.layout is None), layouts),
        "--tokens-per-s": (args.tokens_per_s is not None, implied_mfu),
        "--flops": (args.flops is not None, compute_budget),
    }
    named = {option: question for option, (is_given, question) in options.items() if is_given}
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are separate questions: give one at a time.")
    return next(iter(named.values()), None)


def _without_tokens(request: "Request", is_limited: bool) -> "Callable[[Request], Answer]":
    from torchtally.plan.questions.counted import counted_card, counted_fit
    from torchtally.plan.questions.fit import fit
    from torchtally.plan.questions.model_card import model_card
    from torchtally.plan.questions.tokens_within import tokens_within

    counted = None if request.subject is None else request.subject.counted
    has_step = counted is not None and counted.step is not None
    if request.cluster is not None:
        whole = counted_fit if has_step else fit
        return tokens_within if is_limited else whole
    if is_limited:
        raise UsageError(
            "--deadline and --budget need more: --tokens 1T (what should be rented?) or "
            "--gpus 8xH100-SXM (on how many tokens?)."
        )
    return counted_card if has_step else model_card


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

    model = _model(args)
    kernel, fused = ATTENTIONS[args.attention] if args.attention else (None, None)
    configured = configured_layout(args, model)
    if args.price is not None and args.price[0]:
        raise UsageError("--price is of the chip in --gpus: give the amount alone, --price 2.49.")
    if args.mfu is not None and args.mfu == 0:
        raise UsageError("--mfu must be above 0; usual is 0.3 to 0.6.")
    return Request(
        subject=model,
        tokens=args.tokens,
        flops=args.flops,
        cluster=_cluster(args),
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
    """Whose configuration is to be written; "" for none. Raises UsageError for several."""
    asked = [option for option in CONFIGURATIONS if getattr(args, option) is not None]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)}: give one at a time.")
    return asked[0] if asked else ""


def configured_layout(
    args: argparse.Namespace, subject: "Subject | None"
) -> "Configuration | None":
    """The layout of the file that --layout names; None for one in words."""
    import os

    is_file = args.layout is not None and (
        os.path.isfile(args.layout) or args.layout.lower().endswith(CONFIGURED)
    )
    if not is_file:
        return None
    from torchtally.plan.frameworks.configuration import configuration

    model = None if subject is None else subject.model
    layers = None if model is None else model.layers
    found = configuration(args.layout, layers)
    say = f"{args.layout}, of {found.framework}: {found.words}"
    batch = "" if found.batch is None else f", steps of {found.batch} sequences"
    print(f"tally: {say}{batch}", file=sys.stderr)
    return found


def _cluster(args: argparse.Namespace) -> "Cluster | None":
    """The chips that --gpus names, with what the user knows better of them than the table."""
    if args.gpus is None:
        unused = [name for name in ("memory", "peak", "compare") if getattr(args, name) is not None]
        if unused:
            raise UsageError(f"--{unused[0]}: which chip? Add --gpus H100-SXM.")
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
                f"{unknown} With transformers installed its own class is counted."
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

    cluster = _cluster(args)
    return counted_subject(
        count_model(
            str(config_of(args.model)),
            sample_of(args),
            recipe(args.recipe or RECIPE),
            chip(DEFAULT_CHIP) if cluster is None else cluster.chip,
        )
    )


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
