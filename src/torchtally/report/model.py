"""The report of `tally summary`: a model's figures and the tree of its modules."""

from collections.abc import Sequence
from functools import partial

from torchtally.report.document import Document, gaps_document, pick, picks
from torchtally.report.filters import RowFilter, filter_rows
from torchtally.report.report import Look, Report
from torchtally.report.text import model_sentences, model_text
from torchtally.views.model_summary import DEPTH, ModelSummary, ModuleNode

FIGURES = ("flops_forward", "flops_backward", "flops_recompute", "bytes_saved")
"""Attributes of a total, and their keys."""


def model_report(
    summary: ModelSummary,
    *,
    depth: int | None = DEPTH,
    columns: Sequence[str] | None = None,
    filters: Sequence[RowFilter] = (),
) -> Report:
    """The page about a model, its tree to so many levels; the document has all of it.

    `filters` leave rows of the tree out. Raises UsageError for a column that it does not have.
    """
    table = filter_rows(summary.table(depth), filters)
    table = table.only(columns) if columns else table

    def text(look: Look) -> str:
        return model_text(summary, table, width=look.width, is_coloured=look.is_coloured)

    facts, remarks = model_sentences(summary)
    return Report(
        schema="model",
        title=summary.root.facts.class_name,
        facts=facts,
        tables=(("modules", table),),
        remarks=remarks,
        text=text,
        document=partial(model_document, summary),
    )


def model_document(summary: ModelSummary) -> Document:
    """All figures, and every module with those of the modules inside it. Unknown ones are null."""
    ledger, outcome = summary.ledger, summary.verdict
    is_timed = ledger.roofline is not None
    return {
        "model": summary.root.facts.class_name,
        **pick(ledger.trace, "chip", "torch_version"),
        **pick(summary, "inputs", "how", "is_training", "parameters", "trained_parameters"),
        "convention": {
            "attention": str(ledger.convention), "text": ledger.convention.description,
        },
        **pick(ledger.total, *FIGURES),
        **pick(summary, "model_flops", "step_s"),
        "peak_allocated_bytes": summary.peak_bytes,
        "peak_reserved_bytes": outcome.reserved_bytes,
        **pick(outcome, "context_bytes", "capacity_bytes", "fits"),
        "modules": [_module(node, is_timed) for node in summary.root.walk()],
        "outside": {
            **pick(summary.outside, *FIGURES),
            "seconds": summary.outside.seconds if is_timed else None,
        },
        "coverage": {
            **pick(ledger.coverage, "counted", "free"),
            "uncounted": gaps_document(ledger.coverage.uncounted),
        },
        "untimed": gaps_document(ledger.untimed),
        "notes": picks(ledger.trace.notes, "text", "count"),
    }  # fmt: skip


def _module(node: ModuleNode, is_timed: bool) -> Document:
    return {
        "module": node.facts.path,
        "class": node.facts.class_name,
        **pick(node, "parameters", "trained_parameters"),
        "own_parameters": node.facts.parameters,
        **pick(node.total, *FIGURES),
        "seconds": node.total.seconds if is_timed else None,
        "module_outputs": [list(shape) for shape in node.facts.output],
    }
