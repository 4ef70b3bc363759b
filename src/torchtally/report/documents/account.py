"""Lines of code, and what was counted of them by which convention."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import field

from torchtally.report.keys import Count, DocumentPart, P, filled, key

if TYPE_CHECKING:
    from torchtally.ledger import Ledger, Line
    from torchtally.trace import Frame


class LinePart(DocumentPart, frozen=True):
    """Line of code."""

    file: Annotated[str | None, key("Path of a file; beside `line`, of a line as it was recorded")]
    line: Annotated[Count | None, key("Number of a line of code in `file`, counted from 1")]
    source: Annotated[str | None, key("Of a line of code, its text; of a figure, where it is from")]


def in_line(kind: type[P], line: "Line | Frame | None", *sources: object, **values: Any) -> P:
    """A part that begins with a line of code, of which all is null where there is none."""
    return filled(
        kind,
        *sources,
        file=line.file if line else None,
        line=line.line if line else None,
        source=line.text if line else None,
        **values,
    )


class ConventionPart(DocumentPart, frozen=True):
    attention: Annotated[str, key("How causal attention is counted: full, causal")]
    text: Annotated[str, key("As it stands")]


def convention_part(ledger: "Ledger") -> ConventionPart:
    return ConventionPart(str(ledger.convention), ledger.convention.description)


class GapPart(DocumentPart, frozen=True):
    op: Annotated[str, key("As torch spells it")] = field(name="operator")
    count: Count
    reason: Annotated[str, key("Why it is so")]


class CoveragePart(DocumentPart, frozen=True):
    counted: Annotated[Count, key("Operators that a rule counted")]
    free: Annotated[Count, key("Operators that cost nothing: views, metadata")]
    uncounted: Annotated[list[GapPart], key("Operators without a rule")]


class NotePart(DocumentPart, frozen=True):
    text: str
    count: Count
