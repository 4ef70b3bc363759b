"""The numbers of tensors as a report: tables, a document."""

from dataclasses import replace
from functools import partial

from torchtally.report.documents.tensor_numbers import real_step_document, tensor_numbers_document
from torchtally.report.report import Look, Report
from torchtally.report.terminal import prose, table_text
from torchtally.units import format_count
from torchtally.views.tensor_numbers import (
    RealStep,
    TensorNumbers,
    by_format,
    exponents,
    layers,
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


def real_step_report(step: RealStep) -> Report:
    """Layers' outputs and gradients in their order, and what of the script was not run as it is."""
    facts = [
        f"The first step of {step.script}, for real on the CPU: "
        f"{len(step.outputs.tensors)} outputs of layers, "
        f"gradients of {len(step.gradients.tensors)} parameters."
    ]
    facts += [f"Shrunk: {cut}." for cut in step.shrunk]
    facts += [
        f"inf or NaN, and left out of what is below: {format_count(each.nonfinite)} of "
        f"{format_count(each.elements)} numbers of {kind}."
        for kind, each in (("outputs", step.outputs.total), ("gradients", step.gradients.total))
        if each.nonfinite
    ]
    if step.ending:
        facts.append(f"The script ended before its backward pass: {step.ending.rstrip('.')}.")
    tables = (
        ("layer_outputs", layers("Outputs of layers", step.outputs)),
        ("gradients", layers("Gradients", step.gradients)),
    )
    report = Report(
        title="A first step with real values",
        facts=tuple(facts),
        tables=tuple((name, table) for name, table in tables if table.rows),
        document=partial(real_step_document, step),
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
