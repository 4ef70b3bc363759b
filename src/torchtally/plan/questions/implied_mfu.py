"""Which MFU do so many tokens a second imply?"""

from torchtally.errors import UsageError
from torchtally.plan.flops import token_flops
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.plan_options import MODEL, PEAK
from torchtally.plan.questions.request import Request, flops_per_token, peak_flop_per_s, sequence_of
from torchtally.plan.questions.uses import counted_fields, uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.training import mfu
from torchtally.units import Unit
from torchtally.work.convention import Convention


@uses(MODEL, PEAK, "tokens_per_s", counted_fields)
def implied_mfu(request: Request) -> Answer:
    """The share of the data sheet's peak that an observed speed reaches, by every convention."""
    if request.tokens_per_s is None:
        raise UsageError("Missing speed: give --tokens-per-s 400K, of all chips together.")
    per_token, counted = flops_per_token(request)
    cluster = request.of_cluster
    observed = of(request.tokens_per_s, Unit.TOKEN_PER_S).with_name("observed tokens/s")
    chips = request.of_chips
    peak = peak_flop_per_s(request, cluster.chip)
    implied = mfu(observed, per_token, chips, peak)
    if implied.value > 1:
        raise UsageError(
            f"{request.tokens_per_s:g} tokens/s would be {100 * implied.value:.0f} % of the peak "
            f"of {cluster.count} {cluster.chip.name}. Is it tokens per second of all chips "
            f"together, and are products in {request.recipe.products}?"
        )
    return Answer(
        question="implied-mfu",
        headline=(
            implied,
            f" MFU: {subject_text(request)} at ",
            observed,
            " tokens on ",
            *chips_text(cluster),
        ),
        figures=(implied, *_others(request, observed, chips, peak)),
        assumptions=(*counted, f"MFU of the data sheet's dense {request.recipe.products} peak."),
    )


def _others(
    request: Request, observed: Quantity, chips: Quantity, peak: Quantity
) -> tuple[Quantity, ...]:
    """The same speed by other conventions of counting attention."""
    subject = request.of_subject
    six = derive(
        "FLOPs per token, 6N", Unit.FLOPS_PER_TOKEN, "6 * parameters", parameters=subject.active
    )
    figures = [mfu(observed, six, chips, peak).with_name("MFU, 6N")]
    length, _ = sequence_of(request)
    if subject.model is not None and length is not None:
        for attention, name in ((Convention.FULL, "in full"), (Convention.CAUSAL, "causal")):
            flops = token_flops(subject.model, length, attention=attention).model
            figures.append(mfu(observed, flops, chips, peak).with_name(f"MFU, attention {name}"))
    return tuple(figures)
