"""The models known by name."""

from torchtally.plan.architecture.known import KnownModel
from torchtally.plan.architecture.known import known_models as table
from torchtally.plan.parameters import parameters
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit


def known_models() -> Table:
    """Each with its size and shape, in the order of the table."""
    return Table(
        title="Models known by name",
        columns=(
            Column("name", "name", Unit.NAME),
            Column("parameters", "parameters", Unit.PARAMETERS),
            Column("active", "active", Unit.PARAMETERS),
            Column("layers", "layers", Unit.COUNT),
            Column("width", "width", Unit.COUNT),
            Column("vocabulary", "vocabulary", Unit.COUNT, rank=1),
            Column("context", "context", Unit.COUNT, rank=2),
        ),
        rows=tuple(map(_row, table())),
        totals=(None,) * 7,
    )


def _row(row: KnownModel) -> tuple[Cell, ...]:
    model = row.model()
    size = parameters(model)
    return (
        row.name,
        size.total.value,
        size.active.value if model.is_mixture else None,
        model.layers,
        model.width,
        model.vocabulary,
        model.context,
    )
