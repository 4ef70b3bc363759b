"""What `tally tune` searched."""

from typing import TYPE_CHECKING, Annotated

from msgspec import field

from torchtally.report.keys import (
    Bytes,
    Count,
    Document,
    DocumentPart,
    Fraction,
    Joules,
    Seconds,
    Usd,
    Watts,
    filled,
    key,
)

if TYPE_CHECKING:
    from torchtally.tune.answer import TuneAnswer


class TunePointPart(DocumentPart, frozen=True, kw_only=True):
    gpus: Annotated[str, key("Chips, and how many: 8xH100-SXM")]
    settings: Annotated[list[str], key("A value for each of `settings_varied`")] = field(
        name="setting_values"
    )
    ran_on: Annotated[str, key("The GPUs that were simulated")]
    failure: str
    step_s: Seconds | None
    batch: Annotated[Count | None, key("What all ranks work on in a step")]
    length_in: Annotated[str, key("What a training's length counts: tokens, samples, steps")]
    peak_reserved_bytes: Bytes
    peak_allocated_bytes: Bytes
    mfu: Fraction | None
    compute_share: Fraction | None
    gpus_usd_per_hour: Annotated[Usd | None, key("Of all GPUs")]
    watts: Annotated[Watts | None, key("Mean power of all GPUs")]
    floor_s: Annotated[dict[str, Seconds], key("Seconds of a step at the roofline, by GPUs")]
    seconds: Seconds | None
    cost_usd: Annotated[
        Usd | None,
        key("Of the length that was asked for, of a row of a view its time's, on all GPUs"),
    ]
    energy_joules: Annotated[
        Joules | None,
        key("Of all GPUs: at their thermal design power, of what was traced at their mean power"),
    ]
    on_front: Annotated[bool, key("Whether nothing that was run is better in everything")]
    patch: str


class TuneDocument(Document, tag="tune/1", frozen=True):
    """Settings and chips that a script was run with: `tally tune`."""

    search: Annotated[str, key("Digest of what was searched: script, settings, steps")]
    script: str
    settings_varied: Annotated[list[str], key("Arguments, variables and fixes with several values")]
    training_length: Annotated[Count, key("Tokens (samples, steps) of the training that is costed")]
    length_in: str
    deadline_s: Annotated[Seconds | None, key("By which a training is to end")]
    cheapest: Annotated[Count | None, key("Place among `points` of the cheapest in time")]
    pruned: Annotated[Count, key("Settings on GPUs that were not run: they cannot win")]
    is_cut: Annotated[bool, key("Whether the limit of runs ended a search")]
    was_interrupted: Annotated[bool, key("Whether Ctrl-C ended it")]
    points: Annotated[list[TunePointPart], key("The front first")]


def tune_document(answer: "TuneAnswer", search: str) -> TuneDocument:
    """The whole search, which it can be resumed from."""
    shown = answer.front
    best = answer.cheapest
    points = [*shown, *(point for point in answer.points if point not in shown)]
    return TuneDocument(
        search=search,
        script=" ".join(answer.script),
        settings_varied=[" ".join(knob.argument.words)
              for knob in answer.knobs],
        training_length=answer.amount,
        length_in=answer.length_in,
        deadline_s=answer.deadline_s,
        cheapest=None if best is None else points.index(best),
        pruned=answer.pruned,
        is_cut=answer.is_cut,
        was_interrupted=answer.was_interrupted,
        points=[
            filled(
                TunePointPart,
                point,
                None if point.failure else answer.cost(point),
                on_front=point in shown,
                patch=answer.patches.get(point.settings, ""),
            )
            for point in points
        ],
    )  # fmt: skip
