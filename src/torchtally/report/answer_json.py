"""Answers as documents for programs: the sentence, every number with its unit, all working."""

from torchtally.plan.quantity import Quantity
from torchtally.plan.questions import Answer
from torchtally.report.answer import headline
from torchtally.report.document import SCHEMA_VERSION, Document, rows_of


def answer_document(answer: Answer) -> Document:
    """Everything that an answer says. A step names its terms by their place in `working`."""
    places = {it: n for n, it in enumerate(answer.working)}
    return {
        "schema_version": SCHEMA_VERSION,
        "question": answer.question,
        "answer": headline(answer),
        "figures": [_number(it) for it in answer.figures],
        "tables": [
            {
                "title": it.title,
                "columns": [
                    {"name": column.name, "unit": str(column.unit)} for column in it.columns
                ],
                "rows": rows_of(it),
                "rows_left_out": it.left_out,
                "note": it.note,
            }
            for it in answer.tables
        ],
        "assumptions": [it for it in answer.assumptions if it],
        "unknown": list(answer.unknown),
        "working": [
            {
                **_number(it),
                "formula": it.formula,
                "terms": {word: places[term] for word, term in it.terms},
                "source": it.source,
            }
            for it in answer.working
        ],
    }


def _number(it: Quantity) -> Document:
    return {"name": it.name, "value": it.value, "unit": str(it.unit), "note": it.note}
