"""Which question the arguments of `tally plan` ask."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.plan_adapters import adapter_question
from torchtally.cli.plan_inference import inference_question
from torchtally.cli.plan_preference import is_preference
from torchtally.cli.plan_request import framework_of
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.cli.plan_options import Question
    from torchtally.plan.questions import Request


def question_of(args: argparse.Namespace, request: "Request") -> "Question":
    """The options that name a question come first, then what is missing."""
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
    if request.subject is None and is_limited and request.cluster is not None:
        from torchtally.plan.questions.model_within import model_within

        return model_within
    if request.subject is None:
        raise UsageError(
            "Missing model: give a name (llama-3-70b), a config.json, a .safetensors file or a "
            "number of parameters (70B); or ask for the largest one: --largest model; or for the "
            "best one of a time: --gpus 8xH100-SXM --deadline 14d."
        )
    if request.tokens is None:
        return _without_tokens(request, is_limited)
    if request.cluster is None:
        return what_to_rent
    return training_time if args.deadline is None else fewest_chips


def _named_question(args: argparse.Namespace) -> "Question | None":
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


def _without_tokens(request: "Request", is_limited: bool) -> "Question":
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
