"""Limits that were asserted."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from torchtally.report.keys import Document, DocumentPart, Mixed, Number, filled, key

if TYPE_CHECKING:
    from torchtally.gates import Finding


class LimitPart(DocumentPart, frozen=True):
    limit: Annotated[str, key("As it was given: peak < 24GiB")]
    quantity: Annotated[str, key("That a limit is of")]
    relation: Annotated[str, key("Of a limit: <, <=, >, >=")]
    amount: Number
    unit: str
    value: Annotated[Mixed | None, key('A number, or a string ("inf", a condition)')]
    doubt: Annotated[str, key("Why a limit cannot be decided")]
    where: Annotated[str, key("The line behind a figure")]
    holds: Annotated[bool | None, key("Whether a limit holds; null where that cannot be decided")]


def limits_part(findings: "Iterable[Finding]") -> list[LimitPart]:
    """Each limit in its plain unit; a value that is unknown is null."""
    return [
        filled(
            LimitPart,
            finding,
            finding.limit,
            finding.reading,
            limit=finding.limit.text,
            quantity=finding.limit.name,
        )
        for finding in findings
    ]


class LimitsDocument(Document, tag="limits/1", frozen=True):
    """Limits by themselves, in a notebook."""

    limits: list[LimitPart]
