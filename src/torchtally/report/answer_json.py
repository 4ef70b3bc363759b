"""Answers as documents for programs: the sentence, every number with its unit, all working."""

from torchtally.plan.quantity import Quantity
from torchtally.plan.questions import Answer
from torchtally.report.answer import headline
from torchtally.report.document import Document, rows_of


def answer_document(answer: Answer) -> Document:
    """Everything that an answer says. A step names its terms by their place in `working`."""
    places = {quantity: n for n, quantity in enumerate(answer.working)}
    return {
        "question": answer.question,
        "answer": headline(answer),
        "figures": [_number(figure) for figure in answer.figures],
        "tables": [
            {
                "title": table.title,
                "columns": [
                    {"name": column.name, "unit": str(column.unit)} for column in table.columns
                ],
                "rows": rows_of(table),
                "rows_left_out": table.left_out,
                "note": table.note,
            }
            for table in answer.tables
        ],
        "assumptions": [assumption for assumption in answer.assumptions if assumption],
        "unknown": list(answer.unknown),
        "working": [
            {
                **_number(quantity),
                "formula": quantity.formula,
                "terms": {word: places[term] for word, term in quantity.terms},
                "source": quantity.source,
            }
            for quantity in answer.working
        ],
    }


def _number(quantity: Quantity) -> Document:
    return {
        "name": quantity.name,
        "value": quantity.value,
        "unit": str(quantity.unit),
        "note": quantity.note,
    }
