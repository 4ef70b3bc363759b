"""Costs by operator with its shapes: what it was called with, and how often."""

from torchtally.ledger import Entry, Ledger
from torchtally.table import Cell, Column, Table
from torchtally.trace import TensorSpec
from torchtally.units import Unit
from torchtally.views.bottlenecks import bound_cells, bound_columns
from torchtally.views.columns import ALLOCATED, COUNT, FLOPS, MOVED, SAVED, cost_table
from torchtally.views.peak import tensor_text
from torchtally.views.provenance import CallPart
from torchtally.views.view import view

QUANTITIES = (COUNT, FLOPS, MOVED, SAVED, ALLOCATED)
MOST_TENSORS = 6
"""Of a list argument, as foreach operators have."""


@view("call", "operators and the shapes they are called with")
def calls(ledger: Ledger) -> Table:
    """Table by operator, shapes and literals; of a fused kernel by its parts."""
    names = {call_part(entry): entry.operator for entry in ledger.reported}
    bound = bound_cells(ledger, call_part)
    rows = [
        (total, (names[part], *call_texts(ledger, part), *bound(part)))
        for part, total in ledger.sums(call_part).items()
    ]
    texts = (
        Column("operator", "operator", Unit.PLACE),
        Column("inputs", "called with", Unit.TEXT),
        Column("outputs", "result", Unit.TEXT, rank=4),
        *bound_columns(ledger),
    )
    return cost_table("By operator and shape", QUANTITIES, texts, rows, ledger)


def call_part(entry: Entry) -> CallPart:
    return CallPart(entry.op.call, entry.part)


def call_texts(ledger: Ledger, part: CallPart) -> tuple[Cell, Cell]:
    """Arguments and results; of a part of a fused kernel, the kernel's name."""
    call = ledger.trace.calls[part.call]
    if call.fused is not None and call.fused.parts:
        return f"in {call.name}", ""
    literals = [f"{name}={value}" for name, value in call.literals]
    return ", ".join([*_tensors(call.inputs), *literals]), ", ".join(_tensors(call.outputs))


def _tensors(specs: tuple[TensorSpec, ...]) -> list[str]:
    texts = [tensor_text(spec) for spec in specs[:MOST_TENSORS]]
    more = len(specs) - len(texts)
    return [*texts, f"{more} more"] if more > 0 else texts
