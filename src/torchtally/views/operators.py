"""Costs by operator, by kind of work and by phase."""

from torchtally.ledger import Ledger
from torchtally.views.columns import (
    ALLOCATED,
    COUNT,
    FLOPS,
    MATMUL,
    READ,
    SAVED,
    WRITTEN,
    cost_table,
)
from torchtally.views.table import Column, Table, Unit

QUANTITIES = (COUNT, FLOPS, READ, WRITTEN, ALLOCATED)


def operators(ledger: Ledger) -> Table:
    """By operator, named as torch spells it."""
    uncounted = {it.op for it in ledger.coverage.uncounted}
    rows = [
        (total, (name, "not counted" if name in uncounted else ""))
        for name, total in ledger.by_op().items()
    ]
    texts = (Column("name", "operator", Unit.PLACE), Column("remark", "", Unit.TEXT))
    return cost_table("By operator", QUANTITIES, texts, rows, ledger.total)


def kinds(ledger: Ledger) -> Table:
    """By kind of work: products, attention, elementwise, views."""
    rows = [(total, (str(kind),)) for kind, total in ledger.by_kind().items()]
    texts = (Column("name", "kind", Unit.NAME),)
    return cost_table("By kind of work", QUANTITIES, texts, rows, ledger.total)


def phases(ledger: Ledger) -> Table:
    """By phase: forward, backward, recompute (forward work done again), optimizer."""
    rows = [(total, (str(phase),)) for phase, total in ledger.by_phase().items()]
    quantities = (COUNT, FLOPS, MATMUL, READ, WRITTEN, SAVED, ALLOCATED)
    texts = (Column("name", "phase", Unit.NAME),)
    return cost_table("By phase", quantities, texts, rows, ledger.total)
