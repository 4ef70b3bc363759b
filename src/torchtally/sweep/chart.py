"""Which chart shows a sweep's losses: one letter per run or series.

If a number has three or more values, the final loss over it; else the losses over steps.
"""

from collections.abc import Sequence
from string import ascii_lowercase

from torchtally.sweep.definition import Definition, short_names
from torchtally.sweep.results import RunResult, Status, is_validated, rank_results
from torchtally.table import XY, Chart, Series
from torchtally.train.keys import hint_of, is_number, value_text

MOST_CURVES = 6
MOST_SERIES = 6
LEAST_VALUES = 3
"""Of a number; fewer do not show a curve."""
LARGEST = 1e300
"""Losses from here on are not drawn, as inf is not: their differences may overflow."""


def chart(definition: Definition, results: Sequence[RunResult]) -> Chart | None:
    """The most informative chart; None if there is nothing to compare."""
    drawn = [result for result in rank_results(results) if _is_drawable(result.final_loss)]
    if len(drawn) < 2:
        return None
    return _over_a_value(definition, results) or _over_steps(drawn)


def _is_drawable(loss: float | None) -> bool:
    return loss is not None and abs(loss) < LARGEST


def _over_a_value(definition: Definition, results: Sequence[RunResult]) -> Chart | None:
    """The final loss over the number with the most values, one letter per combination of the
    others.

    Diverged runs are at the upper edge.
    """
    counts = {
        key: len({dict(result.point.values)[key] for result in results})
        for key in definition.varying_keys
        if is_number(hint_of(key))
    }
    key = max(counts, key=lambda name: counts[name], default=None)
    if key is None or counts[key] < LEAST_VALUES:
        return None
    others = [name for name in definition.varying_keys if name != key]
    short = short_names(definition.varying_keys)
    by_validation = is_validated(results)
    points_by_series: dict[str, list[XY]] = {}
    diverged: list[float] = []
    for each in rank_results(results):
        values = dict(each.point.values)
        loss = each.validation_loss if by_validation else each.final_loss
        if values[key] is None:
            continue
        if each.status is Status.DIVERGED:
            diverged.append(float(values[key]))
        elif loss is not None and _is_drawable(loss):
            name = ", ".join(f"{short[name]}={value_text(values[name])}" for name in others)
            points_by_series.setdefault(name, []).append((float(values[key]), loss))
    if sum(map(len, points_by_series.values())) < 2:
        return None
    if len(points_by_series) > MOST_SERIES:
        points_by_series = {"": [pair for each in points_by_series.values() for pair in each]}
    top = max(loss for points in points_by_series.values() for _, loss in points)
    letters = ["o"] if len(points_by_series) == 1 else ascii_lowercase
    series = [
        Series(letter, tuple(sorted(points)), name)
        for letter, (name, points) in zip(letters, points_by_series.items(), strict=False)
    ]
    if diverged:
        series.append(Series("X", tuple((value, top) for value in sorted(diverged)), "diverged"))
    which = "validation" if by_validation else "training"
    return Chart(f"Last {which} loss by {key}", short[key], tuple(series))


def _over_steps(drawn: Sequence[RunResult]) -> Chart:
    """The losses of the best runs; the table shows their letters."""
    best = drawn[:MOST_CURVES]
    left_out = len(drawn) - len(best)
    marks = {
        result.point.name: letter for letter, result in zip(ascii_lowercase, best, strict=False)
    }
    series = tuple(
        Series(
            marks[result.point.name],
            tuple((float(step), loss) for step, loss in result.training if _is_drawable(loss)),
            is_joined=True,
        )
        for result in best
    )
    note = f"{left_out} more are not shown." if left_out else ""
    return Chart("Training loss by step", "step", series, True, marks, note)
