"""The report of `tally summary`: a model's figures and the tree of its modules."""

from collections.abc import Sequence
from functools import partial

from torchtally.report.documents.model import model_document
from torchtally.report.filters import RowFilter, filter_rows
from torchtally.report.report import Look, Report
from torchtally.report.text import model_sentences, model_text
from torchtally.views.model_summary import DEPTH, ModelSummary


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
        title=summary.root.facts.class_name,
        facts=facts,
        tables=(("modules", table),),
        remarks=remarks,
        text=text,
        document=partial(model_document, summary),
    )
