"""A script or a feature, where its code comes from, and what a report of it must say."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["script", "feature", "distributed"]

STEADY = "steady-state step 2"
FIRST = "step 1 (with all before it)"
WHOLE = "the whole run"
GENERATED = "the generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    parameters: int
    """Of all tensors that are parameters, trained and frozen."""
    flops: int
    """Of the products in the reported period: matrix products, convolutions, attention."""
    trained: int | None = None
    """Of those that are trained, where it is not all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Figures that FlopCounterMode gives for the script on the CPU: in `counted.json`."""

    arguments: tuple[str, ...] | None = None
    """Of the script there, where they are others."""
    steps_of_optimizers: int = 1
    """How many make a training step."""
    after: int = 1
    """So many training steps are not counted: a first batch may be of another size."""
    frozen: int = 0
    """Parameters that no optimizer has."""
    attention: int = 0
    """FLOPs that a fused backward kernel adds: it computes the scores again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    kind: Kind = "script"
    command: tuple[str, ...]
    """What follows `tally run`."""
    repository: str | None = None
    """Of a checkout, `owner/name`. None: the file is in this folder's `scripts`."""
    folder: str = "."
    """Of the checkout; the script runs there."""
    packages: tuple[str, ...] = ()
    """Modules that must be installed, beyond what this project is tested with."""
    data: Callable[[Path], None] | None = None
    """Puts into the checkout's copy what one would have downloaded, in toy sizes."""
    stdin: str | None = None
    ranks: int = 1
    """GPUs, of which the first is the one that is run."""
    figures: Figures | Counted
    period: str = STEADY
    """The report's name of what it covers, up to its first bracket."""
    steps: int = 2
    ending: str = "steps"
    prints: tuple[str, ...] = ()
    """Regular expressions that match the script's output."""
    notes: tuple[str, ...] = ()
    """Regular expressions that match what tally says."""
    uncounted: tuple[str, ...] = ()
    """Kernels of the library's own that may be without a rule: they have no products."""
    known_fault: str = ""
    """Why it is wrong, where that is known."""
    check: Callable[[dict[str, Any], str], list[str]] | None = None
    """Of the report and the script's output: what else is wrong."""

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]
