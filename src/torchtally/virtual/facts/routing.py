"""Which candidates are chosen where scores are unknown: the experts of a mixture, a next token.

Every candidate equally often, or, where the user declares an imbalance, some more often than others
(`--what-if imbalance=1.5`).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BALANCED = "assumed: balanced routing"
"""What is said where a script reads a choice of unknown scores: an expert, a token."""

UNEVEN = "declared: the busiest expert gets {} times the mean"
"""The same where an imbalance is declared."""


def is_declared(assumption: str | None) -> bool:
    return assumption is not None and assumption.startswith(UNEVEN.partition(" ")[0])


FIRST_CHOICE = (math.sqrt(5) - 1) / 2
"""Where among the candidates choices begin: neither at an end nor, with several beams' candidates
in one row, at the end of a beam's. Tokens with a meaning, as a text's end, are at the ends.
"""


def balanced_indices(shape: Sequence[int], candidates: int, dim: int | None) -> Tensor:
    """Indices that choose every candidate equally often, from the middle on.

    Along `dim` lie the choices of one chooser, all different where there are enough candidates.
    """
    order = torch.arange(math.prod(shape))
    chosen = (order + int(candidates * FIRST_CHOICE)) % candidates
    if dim is None or not shape:
        return chosen.view(tuple(shape))
    rest = list(shape)
    choices = rest.pop(dim)
    return chosen.view(*rest, choices).movedim(-1, dim)


def imbalance() -> float:
    """How many times the mean the busiest expert gets. Replaced where the user declares it."""
    return 1.0


def chosen_indices(shape: Sequence[int], candidates: int, dim: int, busiest: float) -> Tensor:
    """Indices that choose the first candidate `busiest` times as often as the mean, and the others
    ever less often in equal steps, down to as far below the mean as the first is above it, or to
    none at all.

    Along `dim` lie the choices of one chooser, all different.
    """
    rest = list(shape)
    choices = rest.pop(dim)
    expected = choices * shares(candidates, min(busiest, candidates / choices), choices)
    choosers = math.prod(rest)
    # Systematic sampling: points one apart from a start of each chooser's own.
    starts = (torch.arange(choosers, dtype=torch.float64) * FIRST_CHOICE).frac()
    points = starts[:, None] + torch.arange(choices, dtype=torch.float64)
    chosen = torch.searchsorted(expected.cumsum(0), points, right=True).clamp_max(candidates - 1)
    return chosen.view(*rest, choices).movedim(-1, dim)


def shares(candidates: int, busiest: float, choices: int) -> Tensor:
    """Shares of all choices, by candidate, the busiest first. No candidate is chosen twice."""
    place = torch.arange(candidates, dtype=torch.float64)
    share = (1 - place * step_of(candidates, busiest)).clamp_min(0) * busiest / candidates
    for _ in range(candidates):  # what goes beyond one choice of each goes to the others
        over = (share - 1 / choices).clamp_min(0)
        if not over.sum() > 1e-12:
            break
        rest = torch.where(over > 0, 0.0, share)
        share = share - over + over.sum() * rest / rest.sum()
    return share


def step_of(candidates: int, busiest: float) -> float:
    """Step by which each gets less of the busiest one's load than the one before it.

    m candidates that get something have m * (2 - (m - 1) * step) / 2 times the busiest one's load.
    """
    for some in range(2, candidates + 1):
        step = 2 * (some - candidates / busiest) / (some * (some - 1))
        if 0 <= step * (some - 1) <= 1 <= step * some:
            return step
    return 2 * (1 - 1 / busiest) / max(1, candidates - 1) if busiest <= 2 else 1.0
