"""`tally plan`: closed-form estimates with their working. No script, no GPU, no torch."""

import argparse
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Parser, Subparsers
from torchtally.cli.chip_names import say_variants
from torchtally.cli.declared import add_options, asked
from torchtally.cli.output import ReportOptions, write_or_emit, write_report
from torchtally.errors import UsageError
from torchtally.progress import StatusLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchtally.gates import Finding
    from torchtally.plan.questions import Answer, Request
    from torchtally.plan.questions.uses import Question

NAME = "plan"
SUMMARY = "plan a training or inference without a script: time, memory, layout, cost"

EPILOG = """\
The question follows from the arguments:

  a model                            its parameters, FLOPs and memory
  a model and chips                  does it fit, and how fast is a step?
  a model, tokens, chips, --mfu      how long does it take, at what cost?
  the same without --mfu             at the speed of the best layout
  the same with --checkpoint-every   and with saves, failures, restarts?
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
  tally plan 70B --tokens 15T --gpus 1024xH100-SXM --mfu 0.4 --mtbf llama-3 \\
      --checkpoint-every auto --checkpoint-bandwidth 20GB/s --restart 10min
  tally plan llama-3-8b --gpus 8xH100-SXM --tokens-per-s 100K
  tally plan --flops 3e24 --gpus 1024xH100-SXM --mfu 0.4
  tally plan path/to/config.json --tokens 2T --gpus 256xB200 --mfu 0.4 --explain
  tally plan 7B --tokens 1T --gpus 64xH100-SXM --mfu 0.4 --compare A100-SXM,B200
  tally plan llama-3-8b --gpus 8xH100-SXM --assert "memory < 80GB"
  tally plan --page napkin.html         sliders; without arguments: it asks
  tally plan llama-3.1-8b --inference --context 128K          weights, KV cache
  tally plan llama-3-70b --inference --gpus 4xH100-SXM --weights fp8
  tally plan llama-3-70b --inference --gpus 4xH100-SXM --largest batch
  tally plan deepseek-v3 --inference --gpus 4x8xH100-SXM --layout "dp 32, ep 32"
  tally plan llama-3-8b --inference --gpus RTX-4090 --weights q4_K_M \\
      --engine llama.cpp
  tally plan llama-3-70b --inference --gpus 2xH100-SXM --draft llama-3-8b
  tally plan qwen-2.5-14b --lora 16 --weights nf4 --gpus RTX-4090 --sequence 2048
  tally plan llama-3-8b --lora 64 --lora-targets q,v --gpus RTX-4090 \\
      --largest sequence --recompute full
  tally plan llama-3-8b --dpo --gpus 8xH100-SXM --prompt 512 --generate 512
  tally plan qwen-2.5-7b --grpo --gpus 8xH100-SXM --generate 1024 --engine vllm
  tally plan qwen-2.5-7b --grpo --lora 16 --gpus H100-SXM --reference
  tally plan llava/config.json --images 1x336      with its vision tower
  tally plan t5/config.json --source-sequence 512 --sequence 128
  tally plan unet/config.json --images 512 --gpus RTX-4090 --micro-batch 4
  tally plan llama-3-8b --gpus H100-SXM --micro-batch 4 --recipe bf16 -o plan.tally
  tally plan llama-3-70b --gpus 64xH100-SXM --layout 'dp 64/z3' --recipe bf16 -o plan.tally
  tally plan llama-3-8b --gpus 4xH100-SXM --micro-batch 2 --stack megatron -o plan.tally
"""


MOST_USED = tuple(
    """
    --gpus --sequence --batch --micro-batch --tokens --mfu --recipe --search --inference --explain
    """.split()
)


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


def epilog() -> str:
    """What is asked, the recipes and optimizers there are, and the examples."""
    from torchtally.plan.inference.formats import WEIGHT_FORMATS
    from torchtally.plan.optimizers import OPTIMIZERS
    from torchtally.plan.recipes import RECIPES
    from torchtally.plan.stacks.stack import names

    stacks = textwrap.fill(
        ", ".join(names()), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    recipes = "".join(f"  {recipe.name:12}{recipe.summary}\n" for recipe in RECIPES.values())
    optimizers = textwrap.fill(
        ", ".join(OPTIMIZERS), 78, initial_indent="  ", subsequent_indent="  "
    )
    weights = "".join(f"  {kept.name:12}{kept.summary}\n" for kept in WEIGHT_FORMATS.values())
    return (
        f"{EPILOG}recipes (default mixed):\n{recipes}\noptimizers:\n{optimizers}\n\n"
        f"stacks:\n{stacks}\n\nweights of inference:\n{weights}\n{EXAMPLES}"
    )


def add_parser(subparsers: Subparsers, record: "type[Request] | None" = None) -> None:
    """Add the command's parser, with the options of `Request` or of a record that has more."""
    from torchtally.plan.questions import Request

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
    add_options(parser, record or Request)
    add_options(parser, ReportOptions)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Answer the question of the arguments; without any, ask for one."""
    from torchtally.cli import parsed
    from torchtally.cli.asking import converse, is_terminal

    if args.argv == [NAME] and is_terminal():
        return converse(lambda words: command(parsed([NAME, *words])), request_of_words)
    options = asked_of(args)
    if options.page is not None:
        if options.output is not None:
            raise UsageError("--page and -o are two answers: give one at a time.")
        write_napkin(options, options.page)
        return 0
    if options.output is not None:
        from torchtally.cli.plan_trace import write_trace

        return write_trace(options, args.argv, asked(ReportOptions, args))
    if options.models:
        list_models(options, args)
        return 0
    from torchtally.report.answer import answer_report

    answer, findings = _checked(options) if options.limits else (_ask(options), [])
    if options.framework:
        write_or_emit(answer.config, getattr(options, options.framework))
    write_report(answer_report(answer, is_explained=options.explain), asked(ReportOptions, args))
    return show_findings(findings)


def asked_of(args: argparse.Namespace) -> "Request":
    """The options as they were typed."""
    from torchtally.plan.questions import Request

    return asked(Request, args)


def request_of_words(words: "Sequence[str]") -> "Request":
    """Raises UsageError for a model or chips that are not known."""
    from torchtally.cli import parsed
    from torchtally.cli.plan_request import resolved

    return resolved(asked_of(parsed([NAME, *words])))


def list_models(options: "Request", args: argparse.Namespace) -> None:
    """Print the models known by name."""
    from torchtally.plan.questions.known_models import known_models
    from torchtally.plan.questions.uses import given_options
    from torchtally.report.report import table_report

    if given_options(options):
        raise UsageError(
            "--models lists the known models; the only other option it takes is --format."
        )
    write_report(table_report(known_models()), asked(ReportOptions, args))


def write_napkin(options: "Request", path: str) -> None:
    """The closed forms as a page, with the numbers that the options give."""
    from torchtally.cli.plan_request import resolved
    from torchtally.plan.questions.napkin import napkin_of
    from torchtally.report.browser.napkin import napkin_page

    write_or_emit(napkin_page(napkin_of(resolved(options))), path)


def _checked(options: "Request") -> "tuple[Answer, list[Finding]]":
    """Limits that cannot be read are refused before the question is answered."""
    from torchtally.gates.answers import check_answer, parse_checks

    comparisons = parse_checks(options.limits)
    answer = _ask(options)
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


def _ask(options: "Request") -> "Answer":
    """The answer, on one kind of chip or on several beside each other."""
    from torchtally.cli.plan_request import resolved

    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:

        def show_tried(layouts: int) -> None:
            status.show(f"{layouts:,} layouts tried")

        return answer_of(replace(resolved(options), progress=show_tried))


def answer_of(request: "Request") -> "Answer":
    """The answer to the question that a request asks, which refuses what it does not depend on."""
    from torchtally.cli.plan_questions import question_of
    from torchtally.cli.plan_stack import with_stack
    from torchtally.plan.questions.uses import is_by_stack, refuse_unused

    question = question_of(request)
    refuse_unused(request, question)
    answer = _answer_to(question, request)
    return with_stack(answer, request) if is_by_stack(request, question) else answer


def _answer_to(question: "Question", request: "Request") -> "Answer":
    if request.compare is None:
        return question(request)
    from torchtally.plan.questions.compared import compare

    names = [word.strip() for word in request.compare.split(",") if word.strip()]
    if not names:
        raise UsageError("--compare: no chips given. Name some: --compare A100-SXM,B200")
    say_variants(names)
    return compare(request, names, question)
