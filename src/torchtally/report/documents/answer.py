"""The answer to a question of `tally plan`."""

from typing import TYPE_CHECKING, Annotated

from torchtally.report.documents.tables import TablePart, table_part
from torchtally.report.keys import Count, Document, DocumentPart, Mixed, filled, key

if TYPE_CHECKING:
    from torchtally.plan.questions import Answer


class FigurePart(DocumentPart, frozen=True):
    name: str
    value: Mixed
    unit: str
    note: str


class StepPart(FigurePart, frozen=True):
    """Quantity of an answer with its formula."""

    formula: Annotated[str, key("Of a value, by the names of its terms")]
    source: str
    terms: Annotated[dict[str, Count], key("Of a formula, by their place in `working`")]


class AnswerDocument(Document, tag="answer/1", frozen=True):
    """Answer to a question: `tally plan`."""

    question: Annotated[str, key("That was answered")]
    answer: Annotated[str, key("In one sentence")]
    assumptions: Annotated[list[str], key("What an answer assumes")]
    unknown: Annotated[list[str], key("What an answer leaves out, as unknown")]
    figures: Annotated[list[FigurePart], key("Of an answer")]
    tables: list[TablePart]
    working: Annotated[list[StepPart], key("Each quantity with its formula")]


def answer_document(answer: "Answer", sentence: str) -> AnswerDocument:
    """Everything that an answer says. A step names its terms by their place in `working`."""
    places = {quantity: n for n, quantity in enumerate(answer.working)}
    return filled(
        AnswerDocument,
        answer,
        answer=sentence,
        tables=list(map(table_part, answer.tables)),
        assumptions=list(filter(None, answer.assumptions)),
        working=[
            filled(StepPart, each, terms={word: places[term] for word, term in each.terms})
            for each in answer.working
        ],
    )
