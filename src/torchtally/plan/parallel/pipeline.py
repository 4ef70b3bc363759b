"""Pipelines: how long stages wait for each other, and for how many micro-batches they keep memory.

p: stages.  m: micro-batches.  v: chunks of layers on each chip (virtual stages), as many as would
be as long as the longest where layers do not divide (`chunks_as_long`).
F, B, W: seconds of a micro-batch on a stage, forward, backward to its input, backward to its
weights. Where a paper's backward is one, it is B + W.
"""

from torchtally.plan.closed_form import words_of
from torchtally.plan.parallel.layout import Schedule
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit

NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3"
ZERO_BUBBLE = "Qi et al. 2023, arXiv 2401.10241, table 2"

_BUBBLES = {
    Schedule.GPIPE: ("(stages - 1) * (forward_s + input_s + weight_s)", NARAYANAN),
    Schedule.ONE_F_ONE_B: ("(stages - 1) * (forward_s + input_s + weight_s)", NARAYANAN),
    Schedule.INTERLEAVED: (
        "(stages - 1) * (forward_s + input_s + weight_s) / virtual_stages",
        NARAYANAN,
    ),
    Schedule.ZB_H1: ("(stages - 1) * max(0, forward_s + input_s - weight_s)", ZERO_BUBBLE),
    Schedule.ZB_H2: ("(stages - 1) * max(0, forward_s + input_s - 2 * weight_s)", ZERO_BUBBLE),
}


def bubble_s(
    schedule: Schedule,
    stages: Amount,
    *,
    forward_s: Amount,
    input_s: Amount,
    weight_s: Amount,
    virtual_stages: Amount = 1,
) -> Quantity:
    """Seconds of a step in which a chip waits for other stages to fill or to drain.

    `input_s` and `weight_s` are the two halves of the backward pass: the gradient of a stage's
    input, and those of its weights.
    """
    formula, source = _BUBBLES[schedule]
    seconds = {"forward_s": forward_s, "input_s": input_s, "weight_s": weight_s}
    terms = {
        "stages": of(stages, Unit.COUNT),
        **{word: of(amount, Unit.SECONDS) for word, amount in seconds.items()},
        "virtual_stages": of(virtual_stages, Unit.NUMBER),
    }
    used = {word: terms[word] for word in words_of(formula)}
    return derive("bubble", Unit.SECONDS, formula, source, str(schedule), **used)


_IN_FLIGHT = {
    Schedule.GPIPE: ("micro_batches", NARAYANAN, ""),
    Schedule.ONE_F_ONE_B: ("min(micro_batches, stages - stage)", NARAYANAN, ""),
    Schedule.INTERLEAVED: (
        "min(micro_batches,"
        " (2 * (stages - stage - 1) + (virtual_stages - 1) * stages + 1) / virtual_stages)",
        KORTHIKANTI,
        "chunks in flight over the chunks of a chip; p + (p - 1) / v of them on the first stage",
    ),
    Schedule.ZB_H1: (
        "min(micro_batches, stages)",
        ZERO_BUBBLE,
        "what waits for its weights' gradients is counted as if it were all kept",
    ),
    Schedule.ZB_H2: (
        "min(micro_batches, 2 * stages - 1)",
        ZERO_BUBBLE,
        "what waits for its weights' gradients is counted as if it were all kept",
    ),
}


def in_flight(
    schedule: Schedule,
    stages: Amount,
    micro_batches: Amount,
    *,
    stage: Amount = 0,
    virtual_stages: Amount = 1,
) -> Quantity:
    """Micro-batches for which a stage, counted from 0, keeps its layers' activations at most."""
    formula, source, note = _IN_FLIGHT[schedule]
    counts = {"stages": stages, "stage": stage, "micro_batches": micro_batches}
    terms = {word: of(count, Unit.COUNT) for word, count in counts.items()}
    terms["virtual_stages"] = of(virtual_stages, Unit.NUMBER)
    used = {word: terms[word] for word in words_of(formula) if word in terms}
    return derive("micro-batches in flight", Unit.NUMBER, formula, source, note, **used)
