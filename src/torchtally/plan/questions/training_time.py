"""How long does a training take on these chips, and what does it cost?"""

from dataclasses import dataclass, replace

from torchtally.plan.closed_form import Count, Seconds, Tokens, closed_form
from torchtally.plan.memory import token_data_bytes
from torchtally.plan.parallel.degrees import layout_text
from torchtally.plan.parallel.step import Step
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer, Part
from torchtally.plan.questions.bill import bill, unknown_costs
from torchtally.plan.questions.fit import convention_in_words, pace_in_words
from torchtally.plan.questions.plan_options import MODEL, PEAK, STEP
from torchtally.plan.questions.request import Request, flops_per_token, peak_flop_per_s, sequence_of
from torchtally.plan.questions.uses import Fields, counted_fields, uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.questions.workload import with_shape
from torchtally.plan.training import tokens_per_s, training_flops_of, training_s
from torchtally.units import Unit
from torchtally.work.convention import Convention


def used_by_time(request: Request) -> Fields:
    """What the seconds of all steps depend on."""
    used = {"tokens", "mfu", "budget_usd", "usd_per_hour", *PEAK, *counted_fields(request)}
    if request.mfu is None:
        return used | STEP  # the fastest layout's
    if request.sequence is not None or counted_fields(request):
        used |= {"global_batch"} | ({"sequence"} if request.global_batch is not None else set())
    return used


@uses(MODEL, used_by_time)
def training_time(request: Request) -> Answer:
    """FLOPs over what the chips do in a second, with cost and energy."""
    request = request if request.mfu is not None else with_shape(request)
    cluster, tokens = request.of_cluster, request.of_tokens
    peak = peak_flop_per_s(request, cluster.chip)
    reached = reached_mfu(request)
    mfu = reached.mfu
    per_token, counted = flops_per_token(replace(request, convention=reached.attention))
    chips = request.of_chips
    flops = training_flops_of(per_token, tokens)
    seconds = training_s(flops, chips, peak, mfu)
    costs = bill(request, chips, seconds, cluster.chip)
    figures = (
        seconds,
        flops,
        tokens_per_s(per_token, chips, peak, mfu),
        *_steps(request, tokens),
        *_data(request, tokens),
        *costs,
    )
    return Answer(
        question="training-time",
        headline=(
            seconds,
            *_range(seconds, reached.step),
            f" to train {subject_text(request)} on ",
            tokens,
            " tokens with ",
            *chips_text(cluster),
            " at ",
            mfu,
            " MFU",
            *beside_budget(request, costs),
        ),
        figures=figures,
        assumptions=(
            *counted,
            *reached.assumptions,
            "MFU is of the data sheet's dense peak and covers whole steps; restarts, evaluation "
            "and idle time are not counted.",
        ),
        unknown=unknown_costs(request, cluster.chip),
    )


@dataclass(frozen=True, slots=True)
class Reached:
    """The MFU of a training, and where it comes from."""

    mfu: Quantity
    attention: Convention
    """How it counts attention."""
    assumptions: tuple[str, ...] = ()
    step: Step | None = None
    """The fastest layout's; None: the user gave the MFU."""


def reached_mfu(request: Request) -> Reached:
    """The MFU that the user expects, else that of the fastest layout of the shape."""
    if request.mfu is not None or request.of_subject.model is None:
        return Reached(request.of_mfu, request.convention)
    from torchtally.plan.questions.layouts import rank

    ranking, _, assumptions = rank(request)
    best = ranking.steps[0]
    reached = (
        *assumptions,
        *convention_in_words(best, request),
        f"MFU as predicted for the fastest of {ranking.tried} layouts "
        f"({layout_text(best.layout)}), without interruptions: --mfu overrides it, --search shows "
        "the layouts.",
        *pace_in_words(ranking.workload),
    )
    return Reached(best.mfu.with_name("predicted MFU"), best.attention, reached, best)


def _range(seconds: Quantity, step: Step | None) -> tuple[Part, ...]:
    """Range behind the days of a predicted training: those at best, and those of a slow one."""
    if step is None or step.slow.value == step.seconds.value:
        return ()
    best, slow = (scaled_s(seconds, end, step.seconds) for end in (step.best, step.slow))
    return (" (best ", best, ", slow ", slow, ")")


@closed_form("training time", Unit.SECONDS)
def scaled_s(seconds: Seconds, end_s: Seconds, step_s: Seconds) -> str:
    return "seconds * end_s / step_s"


def beside_budget(request: Request, costs: tuple[Quantity, ...]) -> tuple[Part, ...]:
    """Whether the money suffices, where a budget and a price are known."""
    cost = next((quantity for quantity in costs if quantity.unit is Unit.USD), None)
    if request.budget_usd is None or cost is None:
        return ()
    budget = of(request.budget_usd, Unit.USD).with_name("budget")
    claim = "within" if cost.value <= budget.value else "more than"
    return (" for ", cost, f", {claim} the budget of ", budget)


def _data(request: Request, tokens: Quantity) -> tuple[Quantity, ...]:
    """How large the token ids are on disk, where the vocabulary is known."""
    model = request.of_subject.model
    return () if model is None else (token_data_bytes(tokens, model.vocabulary),)


def _steps(request: Request, tokens: Quantity) -> tuple[Quantity, ...]:
    """Optimizer steps, where the global batch and the sequence are known."""
    sequence, _ = sequence_of(request)
    if request.global_batch is None or sequence is None:
        return ()
    return (_optimizer_steps(tokens, request.global_batch, sequence),)


@closed_form("optimizer steps", Unit.COUNT)
def _optimizer_steps(tokens: Tokens, sequences: Count, sequence: Tokens) -> str:
    return "ceil(tokens / (sequences * sequence))"
