"""What `tally fit` searched."""

from typing import TYPE_CHECKING, Annotated

from torchtally.report.keys import (
    Bytes,
    Count,
    Document,
    DocumentPart,
    Mixed,
    Number,
    Seconds,
    filled,
    key,
)

if TYPE_CHECKING:
    from torchtally.fit.chips import Fleet
    from torchtally.fit.survey import Survey


class TriedPart(DocumentPart, frozen=True):
    value: Mixed
    fits: bool
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes


class ChipSearchPart(DocumentPart, frozen=True):
    chip: str
    total_memory_bytes: Annotated[Bytes, key("Of the chip as the driver reports it")]
    context_bytes: Bytes
    margin_bytes: Annotated[Bytes, key("Kept free by request")]
    capacity_bytes: Bytes
    largest: Annotated[Number | None, key("The largest value that fits; of a format, its largest")]
    too_large: Annotated[Number | None, key("The smallest value that does not fit")]
    gave_up: Annotated[bool, key("Whether a search ended because the script failed")]
    is_monotone: Annotated[bool, key("Whether no value fits that is larger than one that does not")]
    computed_from: Annotated[Count | None, key("Index in `computations` of what an answer is from")]
    tried: Annotated[list[TriedPart], key("Values, and whether they fit")]


class ComputationPart(DocumentPart, frozen=True):
    simulated: Annotated[str, key("The chip that was simulated")]
    simulated_at: Annotated[list[int], key("Values that a computation rests on")]
    checked_at: Annotated[Mixed | None, key("The value that a computation was checked at")]
    asked: Annotated[list[str], key("What a script asks its GPU")]


class ProbePart(DocumentPart, frozen=True):
    simulated: str
    value: Mixed
    failure: Annotated[str, key("Why a script failed; empty where it did not")]
    steps: Count
    folded: Annotated[Count, key("Evaluation passes that repeat earlier ones, not executed")]
    wall_s: Annotated[Seconds, key("By the clock on the wall")]


class FitDocument(Document, tag="fit/1", frozen=True):
    """Largest value that fits: `tally fit`."""

    vary: Annotated[str, key("The argument of the script that is varied")]
    steps: Count
    caveats: list[str]
    chips: list[ChipSearchPart]
    computations: Annotated[list[ComputationPart], key("Answers computed from runs of others")]
    runs: Annotated[list[ProbePart], key("That were made")]


def fit_document(fleet: "Fleet", survey: "Survey | None", vary: str) -> FitDocument:
    families = survey.computed if survey is not None else []
    computed = {each.chip.name: at for at, family in enumerate(families) for each in family.chips}
    return FitDocument(
        vary=vary,
        steps=fleet.request.steps,
        caveats=list(fleet.caveats),
        chips=[
            filled(
                ChipSearchPart,
                search,
                search.bracket,
                search.search,
                chip=search.chip.name,
                total_memory_bytes=search.chip.total_memory_bytes,
                gave_up=bool(search.bracket and search.bracket.gave_up),
                computed_from=computed.get(search.chip.name),
                tried=[
                    filled(TriedPart, verdict, value=value)
                    for value, verdict in sorted(search.verdicts.items())
                ],
            )
            for search in fleet.searches
        ],
        computations=[
            ComputationPart(
                simulated=family.simulated.chip.name,
                simulated_at=sorted(family.values),
                checked_at=family.check_value,
                asked=list(family.questions),
            )
            for family in families
        ],
        runs=[
            filled(
                ProbePart,
                probe.outcome,
                simulated=probe.chip.name,
                value=probe.value,
                wall_s=round(probe.outcome.wall_s, 3),
            )
            for probe in fleet.probes.values()
        ],
    )
