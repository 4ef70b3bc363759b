"""What `tally fit` found, as a document for programs."""

from typing import Any

from torchtally.fit.chips import Fleet
from torchtally.fit.survey import Survey
from torchtally.report.document import SCHEMA_VERSION


def fit_document(fleet: Fleet, survey: Survey | None, vary: str) -> dict[str, Any]:
    """For programs."""
    families = survey.computed if survey is not None else []
    computed = {each.chip.name: at for at, family in enumerate(families) for each in family.chips}
    return {
        "schema_version": SCHEMA_VERSION,
        "vary": vary,
        "steps": fleet.request.steps,
        "chips": [
            {
                "chip": search.chip.name,
                "total_memory_bytes": search.chip.total_memory_bytes,
                "context_bytes": search.context_bytes,
                "margin_bytes": search.margin_bytes,
                "capacity_bytes": search.capacity_bytes,
                "largest": search.bracket and search.bracket.largest,
                "too_large": search.bracket and search.bracket.too_large,
                "gave_up": bool(search.bracket and search.bracket.gave_up),
                "is_monotone": search.search.is_monotone,
                "computed_from": computed.get(search.chip.name),
                "tried": [
                    {
                        "value": value,
                        "fits": verdict.fits,
                        "peak_allocated_bytes": verdict.peak_allocated_bytes,
                        "peak_reserved_bytes": verdict.peak_reserved_bytes,
                    }
                    for value, verdict in sorted(search.verdicts.items())
                ],
            }
            for search in fleet.searches
        ],
        "computations": [
            {
                "simulated": family.simulated.chip.name,
                "values": sorted(family.values),
                "checked_at": family.check_value,
                "asked": list(family.questions),
            }
            for family in families
        ],
        "runs": [
            {
                "simulated": probe.chip.name,
                "value": probe.value,
                "failure": probe.outcome.failure,
                "steps": probe.outcome.steps,
                "folded": probe.outcome.folded,
                "wall_s": round(probe.outcome.wall_s, 3),
            }
            for probe in fleet.probes.values()
        ],
    }
