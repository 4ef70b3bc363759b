"""Costs by operator, by kind of work and by phase."""

import posixpath
from collections import Counter

from torchtally.ledger import Ledger, kernel_of, op_of
from torchtally.table import Column, Table
from torchtally.units import Unit
from torchtally.views.bottlenecks import bound_cells, bound_columns
from torchtally.views.columns import OF_OPERATORS, OF_PHASES, cost_table
from torchtally.views.view import view


@view("op", "operators as torch spells them")
def operators(ledger: Ledger) -> Table:
    """Table by operator, named as torch spells it."""
    uncounted = {uncounted.op for uncounted in ledger.coverage.uncounted}
    untimed = {untimed.op for untimed in ledger.untimed}
    bound = bound_cells(ledger, op_of)

    def remark(name: str) -> str:
        return "not counted" if name in uncounted else "no time" if name in untimed else ""

    rows = [(total, (name, remark(name), *bound(name))) for name, total in ledger.by_op().items()]
    texts = (
        Column("operator", "operator", Unit.PLACE),
        Column("remark", "", Unit.TEXT),
        *bound_columns(ledger),
    )
    return cost_table("By operator", OF_OPERATORS, texts, rows, ledger)


@view("kernel", "kernels: those that a compiler fused, and the operators that are one")
def kernels(ledger: Ledger) -> Table:
    """Table by kernel as it is launched: a fused one with the operators and lines that are in
    it.
    """
    operators: dict[str, set[str]] = {}
    lines: dict[str, set[str]] = {}
    launches: Counter[str] = Counter()
    for entry in ledger.reported:
        name = kernel_of(entry)
        launches[name] += entry.is_first
        if entry.call.fused is not None:
            operators.setdefault(name, set()).add(entry.operator.partition(".")[2])
            if entry.line is not None:
                lines.setdefault(name, set()).add(
                    f"{posixpath.basename(entry.line.file)}:{entry.line.line}"
                )
    bound = bound_cells(ledger, kernel_of)

    def names_in_order(names: set[str]) -> str:
        return ", ".join(sorted(names))

    rows = [
        (total, (launches[name], name, names_in_order(operators.get(name, set())),
                 names_in_order(lines.get(name, set())), *bound(name)))
        for name, total in ledger.sums(kernel_of).items()
    ]  # fmt: skip
    texts = (
        Column("launches", "launches", Unit.COUNT),
        Column("kernel", "kernel", Unit.PLACE),
        Column("operators", "operators", Unit.PLACE, rank=1),
        Column("from_lines", "lines", Unit.PLACE, rank=2),
        *bound_columns(ledger),
    )
    return cost_table("By kernel", OF_OPERATORS, texts, rows, ledger)


@view("kind", "kinds of work: products, attention, elementwise, ...")
def kinds(ledger: Ledger) -> Table:
    """Table by kind of work: products, attention, elementwise, views."""
    rows = [(total, (str(kind),)) for kind, total in ledger.by_kind().items()]
    texts = (Column("kind", "kind", Unit.NAME),)
    return cost_table("By kind of work", OF_OPERATORS, texts, rows, ledger)


@view("phase", "forward, backward, recompute, optimizer")
def phases(ledger: Ledger) -> Table:
    """Table by phase: forward, backward, recompute (recomputed forward work), optimizer."""
    rows = [(total, (str(phase),)) for phase, total in ledger.by_phase().items()]
    texts = (Column("phase", "phase", Unit.NAME),)
    return cost_table("By phase", OF_PHASES, texts, rows, ledger)
