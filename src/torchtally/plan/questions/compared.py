"""The same question of several chips, beside each other."""

from collections.abc import Sequence
from dataclasses import replace

from torchtally.chips import Cluster, chip
from torchtally.errors import UsageError
from torchtally.plan.quantity import Quantity
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.uses import Question
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit


def compare(request: Request, names: Sequence[str], question: Question) -> Answer:
    """The answer for the chips asked for, and its figures for as many of each of the others."""
    request = replace(request, is_written=False)  # programs are not for all chips
    first = question(request)
    clusters = [request.of_cluster, *(_like(request.of_cluster, name) for name in names)]
    answers: dict[str, Answer | str] = {clusters[0].chip.name: first}
    for cluster in clusters[1:]:
        # The user's price is that of the first chip.
        recipe = request.recipe.on(cluster.chip)
        other = replace(request, cluster=cluster, recipe=recipe, usd_per_hour=None)
        try:
            answers[cluster.chip.name] = question(other)
        except UsageError as error:
            answers[cluster.chip.name] = str(error)
    missing = [f"{name}: {answer}" for name, answer in answers.items() if isinstance(answer, str)]
    answered = {name: answer for name, answer in answers.items() if isinstance(answer, Answer)}
    return replace(
        first,
        tables=(_table(answered), *first.tables),
        unknown=(*first.unknown, *missing, *_unknown(answered, first)),
    )


def _like(cluster: Cluster, name: str) -> Cluster:
    """A cluster of as many of another chip, in its own nodes."""
    return Cluster(chip(name), cluster.count)


def _unknown(answers: dict[str, Answer], first: Answer) -> tuple[str, ...]:
    """What is unknown for the others but not for the first."""
    return tuple(
        dict.fromkeys(
            name
            for answer in answers.values()
            for name in answer.unknown
            if name not in first.unknown
        )
    )


def _table(answers: dict[str, Answer]) -> Table:
    """A row for each chip, a column for each figure that is not the same for all of them."""
    units: dict[str, Unit] = {}
    cells: dict[str, dict[str, Quantity]] = {}
    for chip_name, answer in answers.items():
        cells[chip_name] = {figure.name: figure for figure in answer.figures}
        units |= {figure.name: figure.unit for figure in answer.figures}
    varying = [name for name in units if len({_value(row, name) for row in cells.values()}) > 1]
    columns = [
        Column(f"figure_{name.replace(' ', '_')}", name, units[name], rank=n)
        for n, name in enumerate(varying)
    ]
    return Table(
        title="The same on other chips",
        columns=(Column("chip", "chip", Unit.NAME), *columns),
        rows=tuple(
            (chip_name, *(_value(row, name) for name in varying))
            for chip_name, row in cells.items()
        ),
        totals=(None,) * (1 + len(columns)),
    )


def _value(row: dict[str, Quantity], name: str) -> Cell:
    return row[name].value if name in row else None
