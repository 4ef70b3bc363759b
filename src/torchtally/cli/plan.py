"""`tally plan`: closed-form estimates with their working. No script, no GPU, no torch."""

import argparse
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtally.cli.arguments import (
    Parser,
    Subparsers,
    argparse_type,
    duration,
    flop_count,
    fraction,
    one_of,
    positive_count,
    positive_rate,
    price,
    sequence_length,
    usd,
)
from torchtally.cli.chip_names import say_variants
from torchtally.cli.destination import add_output
from torchtally.cli.output import add_format, write_or_emit, write_report
from torchtally.cli.plan_adapters import EXAMPLES as ADAPTER_EXAMPLES
from torchtally.cli.plan_adapters import add_adapters
from torchtally.cli.plan_inference import EXAMPLES as INFERENCE_EXAMPLES
from torchtally.cli.plan_inference import add_inference, formats_text
from torchtally.cli.plan_options import given_options, refuse_unused
from torchtally.cli.plan_preference import EXAMPLES as PREFERENCE_EXAMPLES
from torchtally.cli.plan_preference import add_preference
from torchtally.cli.plan_questions import question_of
from torchtally.cli.plan_request import CONFIGURATIONS, RECIPE, framework_of, request
from torchtally.cli.plan_samples import EXAMPLES as SAMPLE_EXAMPLES
from torchtally.cli.plan_samples import add_samples
from torchtally.cli.plan_trace import EXAMPLES as TRACE_EXAMPLES
from torchtally.cli.plan_trace import add_trace, write_trace
from torchtally.errors import UsageError
from torchtally.progress import StatusLine
from torchtally.units import parse_bytes, parse_flop_per_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torchtally.gates import Finding
    from torchtally.plan.questions import Answer, Request

NAME = "plan"
SUMMARY = "plan a training or inference without a script: time, memory, layout, cost"

EPILOG = """\
The question follows from the arguments:

  a model                            its parameters, FLOPs and memory
  a model and chips                  does it fit, and how fast is a step?
  a model, tokens, chips, --mfu      how long does it take, at what cost?
  the same without --mfu             at the speed of the best layout
  the same with --deadline           how many chips meet it?
  a model, tokens, --mfu, no chips   what should be rented?
  a model, chips, --deadline         on how many tokens? Or with --budget
  chips, --deadline                  which model, on how many tokens? Or --budget
  a model, chips, --tokens-per-s     which MFU is that?
  --largest model|batch|sequence     the largest that fits the chips
  --search                           every layout of the chips, fastest first
  --layout                           a given one, and what the fastest gains over it
  --flops                            which model and tokens use this compute best?
  a model, --inference               what do weights and KV cache take?
  a model, chips, --inference        how fast does it answer, and for how much?

MODEL is a name (llama-3-70b; `tally plan --models` lists them), a Hugging Face
config.json or the folder it is in, a .safetensors file, or a number of
parameters.

"""

FIRST_EXAMPLES = """\
examples:
  tally plan --parameters 70B --tokens 15T --gpus 1024xH100-SXM --mfu 0.5
  tally plan llama-3-8b
  tally plan llama-3-8b --gpus 8xH100-SXM --micro-batch 1 --sequence 8192
  tally plan llama-3-70b --tokens 15T --gpus 1024xH100-SXM --search
"""
EXAMPLES = f"""\
{FIRST_EXAMPLES}\
  tally plan llama-3-70b --gpus 64xH100-SXM --batch 128 --layout "tp 8, pp 2x5"
  tally plan llama-3-8b --gpus 2x8xH100-SXM --recipe amp --torchtitan best.toml
  tally plan --largest model --gpus 8xH100-SXM --optimizer adamw --recipe fp32
  tally plan 7B --tokens 1T --mfu 0.4 --deadline 14d --gpus H100-SXM
  tally plan 7B --tokens 1T --mfu 0.4 --budget 500K        what should I rent?
  tally plan --gpus 8xH100-SXM --deadline 14d      the best model of two weeks
  tally plan llama-3-8b --gpus 8xH100-SXM --tokens-per-s 100K
  tally plan --flops 3e24 --gpus 1024xH100-SXM --mfu 0.4
  tally plan path/to/config.json --tokens 2T --gpus 256xB200 --mfu 0.4 --explain
  tally plan 7B --tokens 1T --gpus 64xH100-SXM --mfu 0.4 --compare A100-SXM,B200
  tally plan llama-3-8b --gpus 8xH100-SXM --assert "memory < 80GB"
  tally plan --page napkin.html         sliders; without arguments: it asks
"""


MOST_USED = (
    "--gpus", "--sequence", "--batch", "--micro-batch", "--tokens", "--mfu", "--recipe",
    "--search", "--inference", "--explain",
)  # fmt: skip


class PlanParser(Parser):
    """Its help is one screen; `--help all` has every option."""

    def format_short_help(self) -> str:
        """What is asked, the options that most people use, the names of the others."""
        formatter = self.formatter_class(prog=self.prog)
        formatter.add_usage(self.usage, [], [])
        formatter.add_text(self.description)
        formatter.add_text(EPILOG)
        formatter.start_section("options that most plans need")
        formatter.add_arguments(self._option_string_actions[name] for name in MOST_USED)
        formatter.end_section()
        formatter.start_section("others; `tally plan --help all` explains them")
        formatter.add_text("\n".join(self._others()))
        formatter.end_section()
        formatter.add_text(FIRST_EXAMPLES)
        return formatter.format_help()

    def _others(self) -> "Iterator[str]":
        for group in self._action_groups:
            options = (action.option_strings for action in group._group_actions)
            names = [names[0] for names in options if names and names[0] not in (*MOST_USED, "-h")]
            if names:
                text = f"{group.title}: {' '.join(names)}"
                yield textwrap.fill(text, 78, subsequent_indent="  ", break_on_hyphens=False)


class HelpAction(argparse.Action):
    """Prints one screen, or all, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        assert isinstance(parser, PlanParser)
        parser._print_message(
            parser.format_help() if values == "all" else parser.format_short_help(), sys.stdout
        )
        parser.exit()


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
        f"{ADAPTER_EXAMPLES}{PREFERENCE_EXAMPLES}{SAMPLE_EXAMPLES}{TRACE_EXAMPLES}"
    )


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage="tally plan [MODEL] [options]",
        description="Closed-form estimates of training and inference; --explain prints the "
        "working.",
        epilog=epilog,
        add_help=False,
    )
    parser.__class__ = PlanParser
    parser.add_argument(
        "-h",
        "--help",
        nargs="?",
        choices=("all",),
        action=HelpAction,
        help="show this help message and exit; all: with every option",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the model (see below)")
    parser.add_argument(
        "--mtp",
        type=positive_count,
        metavar="N",
        help="modules of multi-token prediction: DeepSeek-V3 has 1; default none",
    )
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
    group = parser.add_argument_group("the model by its sizes, instead of MODEL")
    count = positive_count
    group.add_argument("--parameters", type=count, metavar="N", help="number of parameters: 70B")
    group.add_argument("--layers", type=count, metavar="N")
    group.add_argument("--width", type=count, metavar="N", help="width of the residual stream")
    group.add_argument("--heads", type=count, metavar="N", help="query heads")
    group.add_argument(
        "--kv-heads", type=count, metavar="N", help="key and value heads; default: as --heads"
    )
    group.add_argument("--ffn", type=count, metavar="N", help="inner width; default: 4 x --width")
    group.add_argument("--vocabulary", type=count, metavar="N")
    group.add_argument("--tied", action="store_true", help="the head shares the embedding's weight")
    group.add_argument(
        "--gated",
        action="store_true",
        help="gated feed-forward (SwiGLU): three matrices; needs --ffn",
    )
    group.add_argument("--models", action="store_true", help="list the models known by name")


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    count = positive_count
    group.add_argument(
        "--tokens", type=count, metavar="N", help="tokens of the whole training: 15T"
    )
    group.add_argument(
        "--sequence",
        "--context",
        type=sequence_length,
        metavar="N",
        help="tokens per sequence, 128K is 131072; default: the model's context, at most 8192",
    )
    group.add_argument("--micro-batch", type=count, metavar="N", help="sequences per chip and pass")
    group.add_argument("--batch", type=count, metavar="N", help="sequences per optimizer step")
    group.add_argument(
        "--recipe",
        type=one_of(recipe_names),
        metavar="NAME",
        help="number formats, which --help all lists; default mixed",
    )
    group.add_argument(
        "--optimizer",
        type=one_of(optimizer_names),
        metavar="NAME",
        help="optimizer, for the memory of its state (below); default adamw",
    )
    group.add_argument(
        "--recompute",
        choices=("none", "selective", "op", "full"),
        help="activation recomputation: none; selective, attention's scores; op, all but "
        "attention and every other product (torchtitan); or full; --search tries none and "
        "full",
    )
    group.add_argument(
        "--attention",
        choices=("flash", "math", "cudnn", "fa1", "fa2", "fa3"),
        help="attention kernel; default flash, PyTorch's own choice",
    )
    group.add_argument(
        "--host",
        choices=("blocking", "eager", "compiled", "dense-graphs", "graphs"),
        help="what issues kernels: Python (eager, default; blocking, with CUDA_LAUNCH_BLOCKING=1), "
        "torch.compile's code, CUDA graphs (dense-graphs: of all but experts)",
    )
    group.add_argument(
        "--pace",
        choices=("typical", "best"),
        help=(
            "predicted steps: typical, as in published trainings (default), or kernels at their "
            "best"
        ),
    )
    group.add_argument(
        "--kernels",
        choices=("eager", "fused"),
        help="norms, activations and losses as transformers runs them (eager), or as Megatron-LM "
        "does (fused; default with --search)",
    )
    group.add_argument(
        "--convention",
        choices=("full", "causal"),
        help="how attention's FLOPs are counted; default full",
    )


def _add_chips(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chips")
    group.add_argument("--gpus", metavar="CHIPS", help="1024xH100-SXM, 4x2xA100-PCIe, RTX-4090")
    group.add_argument("--mfu", type=fraction, metavar="SHARE", help="MFU of the training: 0.4")
    group.add_argument(
        "--memory",
        type=argparse_type(parse_bytes),
        metavar="BYTES",
        help="memory of one chip, instead of the table's: 80GB",
    )
    group.add_argument(
        "--peak",
        type=argparse_type(parse_flop_per_s),
        metavar="RATE",
        help="peak of one chip in the recipe's dtype, instead of the table's: 989.5TFLOP/s",
    )
    group.add_argument(
        "--price",
        type=price,
        metavar="USD",
        help="price of one chip per hour, instead of the table's",
    )
    group.add_argument(
        "--compare", metavar="CHIPS", help="compare with other chips: H100-SXM,A100-SXM,B200"
    )


def _add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the question")
    group.add_argument("--deadline", type=duration, metavar="TIME", help="30d, 24h, 2w")
    group.add_argument("--budget", type=usd, metavar="USD", help="1M, $250K")
    group.add_argument(
        "--largest", choices=("model", "batch", "sequence"), help="the largest that fits"
    )
    group.add_argument(
        "--tokens-per-s",
        type=positive_rate,
        metavar="N",
        help="observed speed of all chips together: 400K",
    )
    group.add_argument("--flops", type=flop_count, metavar="N", help="compute to spend: 3e24")
    group.add_argument("--search", action="store_true", help="every parallel layout, fastest first")
    group.add_argument(
        "--layout",
        metavar="WORDS",
        help="a given layout, compared with the fastest: 'dp 16/z2, tp 8, pp 8x5, mb 1x8, full'; "
        "or a configuration file: torchtitan (.toml), DeepSpeed (.json), accelerate "
        "(.yaml), Megatron-LM (its arguments)",
    )
    for option, (name, form) in CONFIGURATIONS.items():
        add_output(
            parser,
            f"--{option}",
            group=group,
            metavar="FILE",
            help=f"--search among the layouts that {name} supports, and write the best as {form}",
        )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    add_trace(parser, group)
    group.add_argument(
        "--explain", action="store_true", help="print each formula with its numbers and sources"
    )
    group.add_argument("--top", type=positive_count, metavar="N", help="rows per table; default 10")
    add_output(
        parser,
        "--page",
        group=group,
        metavar="FILE",
        help="napkin math as a page for a browser, offline: the closed forms with sliders, "
        "starting from the numbers given here",
    )
    group.add_argument(
        "--assert",
        dest="limits",
        action="append",
        default=[],
        metavar="LIMIT",
        help="a limit on a figure of the answer; if it does not hold, the exit code is 3: "
        "'memory < 80GB', 'training-time < 30d' (repeatable)",
    )
    add_format(parser)


def command(args: argparse.Namespace) -> int:
    """Answer the question of the arguments; without any, ask for one."""
    from torchtally.cli import parsed
    from torchtally.cli.asking import converse, is_terminal

    if args.argv == [NAME] and is_terminal():
        return converse(lambda words: command(parsed([NAME, *words])), request_of_words)
    if args.page is not None:
        if args.output is not None:
            raise UsageError("--page and -o are two answers: give one at a time.")
        write_napkin(args)
        return 0
    if args.output is not None:
        return write_trace(args)
    from torchtally.report.answer import answer_report
    from torchtally.report.report import table_report

    if args.models:
        given = next(given_options(args), None)
        if given is not None:
            raise UsageError(
                "--models lists the known models; the only other option it takes is --format."
            )
        from torchtally.plan.questions.known_models import known_models

        write_report(table_report(known_models()), args)
        return 0
    answer, findings = _check(args) if args.limits else (_ask(args), [])
    framework = framework_of(args)
    if framework:
        write_or_emit(answer.config, getattr(args, framework))
    write_report(answer_report(answer, is_explained=args.explain), args)
    return show_findings(findings)


def request_of_words(words: "Sequence[str]") -> "Request":
    """Raises UsageError for a model or chips that are not known."""
    from torchtally.cli import parsed

    return request(parsed([NAME, *words]))


def write_napkin(args: argparse.Namespace) -> None:
    """The closed forms as a page, with the numbers that the arguments give."""
    from torchtally.plan.questions.napkin import napkin_of
    from torchtally.report.browser.napkin import napkin_page

    write_or_emit(napkin_page(napkin_of(request(args))), args.page)


def _check(args: argparse.Namespace) -> "tuple[Answer, list[Finding]]":
    """Limits that cannot be read are refused before the question is answered."""
    from torchtally.gates.answers import check_answer, parse_checks

    comparisons = parse_checks(args.limits)
    answer = _ask(args)
    return answer, check_answer(answer, comparisons)


def show_findings(findings: "Sequence[Finding]") -> int:
    """Shows findings on stderr, where no program reads the answer. Returns the exit code."""
    if not findings:
        return 0
    from torchtally.cli.output import emit, is_coloured, width
    from torchtally.gates import GATE_EXIT
    from torchtally.report.gates import findings_text

    if sys.stderr is not None:
        colour = is_coloured(sys.stderr)
        text = findings_text(findings, width=width(), is_coloured=colour)
        emit(text, sys.stderr, is_coloured=colour)
    return 0 if all(finding.holds for finding in findings) else GATE_EXIT


def _ask(args: argparse.Namespace) -> "Answer":
    """The answer, on one kind of chip or on several beside each other."""
    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:

        def show_tried(layouts: int) -> None:
            status.show(f"{layouts:,} layouts tried")

        return _answer(args, replace(request(args), progress=show_tried))


def _answer(args: argparse.Namespace, request: "Request") -> "Answer":
    question = question_of(args, request)
    refuse_unused(args, request, question)
    if args.compare is None:
        return question(request)
    from torchtally.plan.questions.compared import compare

    names = [word.strip() for word in args.compare.split(",") if word.strip()]
    if not names:
        raise UsageError("--compare: no chips given. Name some: --compare A100-SXM,B200")
    say_variants(names)
    return compare(request, names, question)
