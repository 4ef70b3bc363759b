"""The numbers of tensors as a report: tables, a document."""

from dataclasses import replace
from functools import partial

from torchtally.report.documents.tensor_numbers import tensor_numbers_document
from torchtally.report.report import Look, Report
from torchtally.report.terminal import prose, table_text
from torchtally.units import format_count
from torchtally.views.tensor_numbers import (
    TensorNumbers,
    by_format,
    exponents,
    left_out_text,
    worst_tensors,
)

TOP = 10
"""Tensors that are listed."""


def tensor_numbers_report(numbers: TensorNumbers, top: int = TOP) -> Report:
    """What formats lose, the worst tensors, magnitudes; a document has all tensors."""
    total = numbers.total
    count = len(numbers.tensors)
    facts = [
        f"{format_count(total.numbers)} numbers in {count} tensor{'s' * (count != 1)} of "
        f"{numbers.source}, besides {format_count(total.zeros)} zeros."
    ]
    if total.nonfinite:
        facts.append(f"{format_count(total.nonfinite)} are inf or NaN, in the file already.")
    report = Report(
        title="Numbers of tensors",
        facts=tuple(facts),
        tables=(
            ("formats", by_format(numbers)),
            ("tensors", worst_tensors(numbers).top(top)),
            ("exponents", exponents(numbers)),
        ),
        remarks=tuple(filter(None, [left_out_text(numbers)])),
        document=partial(tensor_numbers_document, numbers),
    )
    return replace(report, text=partial(_text, report))


def _text(report: Report, look: Look) -> str:
    """How many numbers there are stands above the tables."""
    tables = (
        table_text(table, width=look.width, is_coloured=look.is_coloured)
        for _, table in report.tables
    )
    sentences = ("".join(prose(each, look.width) for each in group)
                 for group in (report.facts, report.remarks))  # fmt: skip
    above, below = sentences
    return "\n".join(part for part in (above, *tables, below) if part)
