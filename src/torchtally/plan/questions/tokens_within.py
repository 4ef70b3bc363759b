"""Number of tokens on which these chips can train, for a budget or until a deadline."""

from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.closed_form import Chips, Hours, closed_form
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer, Part
from torchtally.plan.questions.bill import bill, price_of
from torchtally.plan.questions.plan_options import MODEL
from torchtally.plan.questions.request import Request, flops_per_token, peak_flop_per_s
from torchtally.plan.questions.training_time import reached_mfu
from torchtally.plan.questions.uses import counted_fields, paced_fields, uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.questions.workload import with_shape
from torchtally.plan.scaling import optimal_tokens
from torchtally.plan.training import chip_hours_for, flops_within, tokens_for
from torchtally.units import Unit


@uses(MODEL, "deadline_s", "budget_usd", "usd_per_hour", counted_fields, paced_fields)
def tokens_within(request: Request) -> Answer:
    """Answer with as many tokens as the shorter of time and money allows."""
    request = request if request.mfu is not None else with_shape(request)
    cluster = request.of_cluster
    chips = request.of_chips
    seconds = seconds_within(request, chips)
    reached = reached_mfu(request)
    mfu = reached.mfu
    per_token, counted = flops_per_token(replace(request, convention=reached.attention))
    flops = flops_within(seconds, chips, peak_flop_per_s(request, cluster.chip), mfu)
    tokens = tokens_for(flops, per_token)
    return Answer(
        question="tokens-within",
        headline=(
            tokens,
            f" tokens for {subject_text(request)} in ",
            seconds,
            " on ",
            *chips_text(cluster),
            *for_money(request),
            " at ",
            mfu,
            " MFU",
        ),
        figures=(
            tokens,
            flops,
            optimal_tokens(request.of_subject.active),
            *bill(request, chips, seconds, cluster.chip),
        ),
        assumptions=(*counted, *reached.assumptions),
    )


def for_money(request: Request) -> tuple[Part, ...]:
    """Words for the budget, where one is given."""
    if request.budget_usd is None:
        return ()
    return (" for ", of(request.budget_usd, Unit.USD).with_name("budget"))


def seconds_within(request: Request, chips: Quantity) -> Quantity:
    """Seconds until the deadline, or as long as the money lasts."""
    limits = []
    if request.deadline_s is not None:
        limits.append(of(request.deadline_s, Unit.SECONDS).with_name("deadline"))
    if request.budget_usd is not None:
        price = price_of(request, request.chip)
        if price is None:
            raise UsageError(
                f"price unknown: give that of one {request.chip.name} for an hour, --price 2.49."
            )
        hours = chip_hours_for(request.budget_usd, price)
        limits.append(_paid_s(hours, chips))
    if not limits:
        raise UsageError("Missing limit: give --deadline 30d or --budget 1M.")
    return min(limits, key=lambda limit: limit.value)


@closed_form("time that the budget buys", Unit.SECONDS)
def _paid_s(chip_hours: Hours, chips: Chips) -> str:
    return "3600 * chip_hours / chips"
