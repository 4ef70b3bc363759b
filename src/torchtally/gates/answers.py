"""Limits of a plan's answer: on its figures, by their names."""

from collections.abc import Sequence

from torchtally.gates.check import Finding, check_values
from torchtally.gates.limits import LimitText, limit_of, parse_comparison, plain
from torchtally.plan.questions import Answer


def parse_checks(texts: Sequence[str]) -> list[LimitText]:
    """Raises UsageError for what is no limit. Which quantities there are, the answer says."""
    return [parse_comparison(text) for text in texts]


def check_answer(answer: Answer, comparisons: Sequence[LimitText]) -> list[Finding]:
    """A finding for each. Raises UsageError for a figure that the answer does not have."""
    figures = {
        plain(figure.name): (figure.value, figure.unit) for figure in reversed(answer.figures)
    }
    units = {name: unit for name, (_, unit) in reversed(figures.items())}
    return check_values(figures, [limit_of(each, units) for each in comparisons])
