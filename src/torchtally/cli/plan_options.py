"""Which options each question of `tally plan` depends on. Any other is refused, never ignored."""

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torchtally.cli.plan_adapters import OPTIONS as ADAPTERS
from torchtally.cli.plan_inference import OPTIONS as INFERENCE
from torchtally.cli.plan_preference import OPTIONS as PREFERENCE
from torchtally.cli.plan_samples import OPTIONS as SAMPLES
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.plan.questions import Answer, Request

Question = Callable[["Request"], "Answer"]
Options = frozenset[str]

MODEL = frozenset(("model", "parameters", "layers", "mtp"))
BY_SIZES = frozenset(("kv_heads", "ffn", "tied", "gated"))
"""Of a model that its sizes describe: with --layers alone."""
COUNTED = frozenset(("sequence", "convention"))
"""What FLOPs of a token depend on besides the model, where its shape is known."""
RATE = frozenset(("recipe", "peak"))
"""What a share of the peak depends on."""
STEP = frozenset(
    ("sequence", "micro_batch", "batch", "recipe", "optimizer", "recompute", "attention", "host",
     "pace", "kernels", "convention", "memory", "peak")
)  # fmt: skip
"""What a predicted step and its memory depend on."""
SERVED = frozenset(("prompt", "weights", "kv_cache", "kv_block", "engine", "memory"))
"""What the memory of a model that generates depends on."""
TUNED = frozenset((*ADAPTERS, "weights", "recipe", "optimizer", "recompute", "attention", "memory"))
"""What the memory of a fine-tuning depends on."""
IN_CLASS = frozenset((*SAMPLES, "sequence", "micro_batch", "recipe"))
"""What a step depends on that is counted in the model's own class."""
GUESSED = frozenset(("draft", "guesses", "acceptance"))
ALWAYS = frozenset(("gpus", "compare"))
"""Without --gpus, those that describe a chip are refused before."""
CHECKED = frozenset(
    (*MODEL, *BY_SIZES, *COUNTED, *STEP, "tokens", "mfu", "price", "deadline", "budget",
     "largest", "tokens_per_s", "flops", "top", *INFERENCE, *ADAPTERS, *PREFERENCE, *SAMPLES)
)  # fmt: skip
"""Every option that has to change an answer; what is not here is of the output, or asks."""


def refuse_unused(args: argparse.Namespace, request: "Request", question: Question) -> None:
    """Raise UsageError for an option that this question does not depend on."""
    used = used_options(request, question) | ALWAYS
    if args.layers is not None:
        used |= BY_SIZES
    unused = [option for option in given_options(args) if option not in used]
    if unused:
        raise UsageError(_refusal(unused, question))


def given_options(args: argparse.Namespace) -> Iterator[str]:
    """Those on the command line, in the order of the help: none has a default of its own."""
    for option in vars(args):
        if option in CHECKED and getattr(args, option) not in (None, False):
            yield option


def used_options(request: "Request", question: Question) -> Options:
    """What the question's answer depends on, of this model on these chips."""
    from torchtally.plan.questions.chips_needed import fewest_chips, what_to_rent
    from torchtally.plan.questions.compute_budget import compute_budget
    from torchtally.plan.questions.counted import counted_card, counted_fit
    from torchtally.plan.questions.fine_tuning import (
        fine_tuning,
        largest_tuned_batch,
        largest_tuned_sequence,
    )
    from torchtally.plan.questions.fit import fit
    from torchtally.plan.questions.implied_mfu import implied_mfu
    from torchtally.plan.questions.inference import inference
    from torchtally.plan.questions.inference_memory import (
        inference_memory,
        longest_context_served,
        most_sequences_served,
    )
    from torchtally.plan.questions.largest import largest_batch, largest_model, largest_sequence
    from torchtally.plan.questions.layouts import layouts
    from torchtally.plan.questions.model_card import model_card
    from torchtally.plan.questions.model_within import model_within
    from torchtally.plan.questions.own_layout import own_layout
    from torchtally.plan.questions.preference import preference
    from torchtally.plan.questions.tokens_within import tokens_within
    from torchtally.plan.questions.training_time import training_time

    counted = _count(request)
    costs = {"price"} if request.tokens is not None else set()
    uses: dict[Question, set[str] | Options] = {
        model_card: {"recipe", "optimizer", *counted},
        fit: STEP,
        counted_card: {*IN_CLASS, "optimizer"},
        counted_fit: {*IN_CLASS, "optimizer", "memory", "peak"},
        training_time: _training_time(request),
        fewest_chips: {"tokens", "mfu", "deadline", "optimizer", "memory", "price", *RATE,
                       *counted},
        what_to_rent: {"tokens", "mfu", "deadline", "budget", "recipe", "price", *counted},
        tokens_within: {"deadline", "budget", "price", *counted, *_pace(request)},
        model_within: {"deadline", "budget", "price", *_pace(request)},
        implied_mfu: {"tokens_per_s", *RATE, *counted},
        largest_model: _largest_model(request),
        largest_batch: {"largest", *STEP} - {"micro_batch", "batch"},
        largest_sequence: {"largest", *STEP} - {"sequence", "batch"},
        layouts: {"tokens", "top", *costs, *STEP},
        own_layout: STEP,
        compute_budget: _compute_budget(request),
        inference: {*SERVED, *GUESSED, "batch", "sequence", "generate", "pace", "price", "top"},
        inference_memory: {*SERVED, "sequence", "generate", "batch"} - {"memory"},
        most_sequences_served: {*SERVED, "sequence", "generate", "largest"},
        longest_context_served: {*SERVED, "batch", "largest"},
        fine_tuning: _fine_tuning(request),
        preference: _preference(request),
        largest_tuned_batch: {*TUNED, "sequence", "largest"},
        largest_tuned_sequence: {*TUNED, "micro_batch", "largest"},
    }  # fmt: skip
    has_model = question not in (largest_model, compute_budget, model_within)
    return frozenset(uses[question]) | (MODEL if has_model else frozenset())


def _count(request: "Request") -> Options:
    """Options that a number of parameters takes: attention's FLOPs are unknown, 6 FLOPs each."""
    from torchtally.plan.questions.request import sequence_of

    if request.subject is None or request.subject.model is None:
        counted = None if request.subject is None else request.subject.counted
        return IN_CLASS if counted is not None and counted.step is not None else frozenset()
    length, _ = sequence_of(request)
    return COUNTED if length is not None else frozenset(("sequence",))


def _pace(request: "Request") -> set[str]:
    """Options that decide the MFU: the user's, or the predicted step's where it is not given."""
    return {"mfu", *(RATE if request.mfu is not None else STEP)}


def _training_time(request: "Request") -> set[str]:
    used = {"tokens", "mfu", "budget", "price", *RATE, *_count(request)}
    if request.mfu is None:
        return used | STEP  # the fastest layout's
    if request.sequence is not None or _count(request):
        used |= {"batch", "sequence"} if request.global_batch is not None else {"batch"}
    return used


def _largest_model(request: "Request") -> set[str]:
    used = {"largest", "recipe", "optimizer", "memory", "sequence"}
    with_activations = {"micro_batch", "batch", "recompute", "attention", "kernels"}
    return used | with_activations if request.sequence is not None else used


def _fine_tuning(request: "Request") -> set[str]:
    used = {*ADAPTERS, "weights", "recipe", "optimizer", "sequence", "convention", "recompute"}
    if request.cluster is None:
        return used
    used |= {*TUNED, "micro_batch"}
    if request.tokens is not None and request.mfu is not None:
        used |= {"tokens", "mfu", "price", "peak"}
    return used


def _preference(request: "Request") -> set[str]:
    if request.preference is None:
        return set()
    used = {"prompt", "generate", "micro_batch", "batch", "convention", "memory", "recipe",
            "optimizer", "recompute", "attention", "peak"}  # fmt: skip
    used |= {"engine"}
    if request.preference.method == "grpo":
        used |= {*PREFERENCE}
    return used | ({*TUNED} if request.adapters is not None else {"host", "pace", "kernels"})


def _compute_budget(request: "Request") -> set[str]:
    return {"flops"} if request.cluster is None else {"flops", "mfu", "price", *RATE}


def _refusal(unused: list[str], question: Question) -> str:
    words = ["MODEL" if option == "model" else f"--{option.replace('_', '-')}" for option in unused]
    verb = "changes" if len(words) == 1 else "change"
    name = question.__name__.replace("_", " ")
    *others, last = words
    listed = f"{', '.join(others)} and {last}" if others else last
    pronoun = "it" if len(words) == 1 else "them"
    return (
        f"{listed} {verb} nothing in the answer to this question ({name}).\n"
        f"Leave {pronoun} out, or ask another: `tally plan --help` says which arguments ask what."
    )
