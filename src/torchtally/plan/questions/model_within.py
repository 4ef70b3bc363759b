"""Which model, on how many tokens, is best trained within a time or a budget on these chips?"""

from dataclasses import dataclass, replace

from torchtally.errors import UsageError
from torchtally.plan.closed_form import Seconds, Tokens, closed_form
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.bill import bill, unknown_costs
from torchtally.plan.questions.layouts import NoLayoutFitsError
from torchtally.plan.questions.request import Request, flops_per_token, peak_flop_per_s, subject
from torchtally.plan.questions.tokens_within import for_money, seconds_within
from torchtally.plan.questions.training_time import reached_mfu
from torchtally.plan.questions.uses import paced_fields, uses
from torchtally.plan.questions.words import chips_text
from torchtally.plan.questions.workload import with_shape
from torchtally.plan.scaling import losses, optimal_parameters, optimal_tokens
from torchtally.plan.training import flops_within
from torchtally.units import Unit, format_count

FIRST_MFU = 0.4
"""With which the size is looked for whose own MFU is then predicted."""
ROUNDS = 4
NEAR = 0.02
"""How far the predicted model may be from the optimum when the search for it ends."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """A compute-optimal training and the MFU that it rests on."""

    flops: Quantity
    parameters: Quantity
    mfu: Quantity
    how: tuple[str, ...] = ()
    """Where a predicted MFU comes from."""
    assumptions: tuple[str, ...] = ("6 FLOPs per parameter and token; attention scores excluded.",)


@uses("deadline_s", "budget_usd", "usd_per_hour", paced_fields)
def model_within(request: Request) -> Answer:
    """Answer with the compute-optimal model of the FLOPs that the chips do in that time."""
    cluster, chips = request.of_cluster, request.of_chips
    seconds = seconds_within(request, chips)
    best = _optimum(request, seconds)
    parameters, tokens = best.parameters, optimal_tokens(best.parameters)
    return Answer(
        question="model-within",
        headline=(
            parameters,
            " parameters on ",
            tokens,
            " tokens are compute-optimal for ",
            seconds,
            " on ",
            *chips_text(cluster),
            *for_money(request),
            " at ",
            best.mfu,
            " MFU",
            *best.how,
        ),
        figures=(
            parameters,
            tokens,
            best.flops,
            mean_tokens_per_s(tokens, seconds),
            *losses(parameters, tokens),
            *bill(request, chips, seconds, cluster.chip),
        ),
        assumptions=(
            "By the rule of 20 tokens per parameter, for training cost only: a model that serves "
            "many requests should be smaller and trained longer "
            "(tally plan MODEL --gpus CHIPS --deadline TIME: on how many tokens).",
            "A plan of this model takes the shape usual for its size, whose time may differ "
            "from this one's by some percent.",
            *best.assumptions,
        ),
        unknown=unknown_costs(request, cluster.chip),
        next=(_next(request, parameters, tokens),),
    )


def _optimum(request: Request, seconds: Quantity) -> Optimum:
    """The optimum by the user's MFU, else by that of its fastest layout, found in a few rounds.

    Raises UsageError where the optimum does not fit the chips.
    """
    chips, peak = request.of_chips, peak_flop_per_s(request, request.chip)
    mfu = request.of_mfu if request.mfu is not None else of(FIRST_MFU, Unit.FRACTION)
    flops = flops_within(seconds, chips, peak, mfu)
    found = Optimum(flops, optimal_parameters(flops), mfu)
    for _ in range(ROUNDS if request.mfu is None else 0):
        before, found = found, _predicted(request, seconds, found)
        if abs(found.parameters.value / before.parameters.value - 1) < NEAR:
            break
    return found


def _predicted(request: Request, seconds: Quantity, before: Optimum) -> Optimum:
    """The optimum by the MFU and the FLOPs of a model as large as the one before."""
    size = int(before.parameters.value)
    shaped = with_shape(replace(request, subject=subject(size)))
    try:
        reached = reached_mfu(shaped)
    except NoLayoutFitsError as error:
        raise UsageError(
            f"The compute-optimal model of about {format_count(size)} parameters does not fit: "
            f"{error}\nThe largest that fits: --largest model."
        ) from error
    per_token, counted = flops_per_token(replace(shaped, convention=reached.attention))
    chips, peak = request.of_chips, peak_flop_per_s(request, request.chip)
    flops = flops_within(seconds, chips, peak, reached.mfu)
    each = of(per_token.value / size, Unit.NUMBER).with_name(
        "FLOPs per parameter and token, in the assumed shape"
    )
    parameters = optimal_parameters(flops, flops_per_parameter=each)
    model = shaped.of_model
    how = f", predicted for an assumed shape ({model.layers} layers of width {model.width})"
    return Optimum(flops, parameters, reached.mfu, (how,), (*reached.assumptions, *counted))


@closed_form("tokens/s", Unit.TOKEN_PER_S)
def mean_tokens_per_s(tokens: Tokens, seconds: Seconds) -> str:
    return "tokens / seconds"


def _next(request: Request, parameters: Quantity, tokens: Quantity) -> str:
    """The command that plans the training of the model found."""
    cluster = request.of_cluster
    nodes = "" if cluster.gpus_per_node is None else f"{cluster.nodes}x"
    chips = f"{nodes}{cluster.count // cluster.nodes if nodes else cluster.count}x"
    size, count = (
        format_count(int(value)).replace(" ", "") for value in (parameters.value, tokens.value)
    )
    given = {
        "--recipe": request.recipe.name,
        "--sequence": request.sequence,
        "--batch": request.global_batch,
        "--micro-batch": request.micro_batch,
        "--price": None if request.usd_per_hour is None else f"{request.usd_per_hour:g}",
    }
    options = "".join(f" {option} {value}" for option, value in given.items() if value is not None)
    return f"tally plan {size} --tokens {count} --gpus {chips}{cluster.chip.name}{options} --search"
