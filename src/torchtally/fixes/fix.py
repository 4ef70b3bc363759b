"""What a fix is: a change of source, as a person would write it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pkgutil import iter_modules

import libcst as cst


class ValueChange(StrEnum):
    """What a fix does to the numbers that a training computes."""

    SAME = "same bits"
    """Operators are the same, or run again."""
    ROUNDED = "rounding"
    """The same sums in another order, or by another kernel."""
    CHANGED = "changed"
    """Numbers of fewer bits."""


@dataclass(frozen=True, slots=True)
class FileEvidence:
    """What a run says of a file, by the texts of its lines, which stay when others are added."""

    forward: frozenset[str]
    """Lines below which the forward pass ran; of the script alone."""
    recomputable: frozenset[str] = frozenset()
    """Classes of which the model has several modules that keep activations."""
    peaks: frozenset[str] = frozenset(("bfloat16", "tf32"))
    """Dtypes whose products the chip has a rate for."""


class NotApplicableError(Exception):
    """A rewrite's reason for leaving a file as it is."""


Rewrite = Callable[[cst.Module, FileEvidence], cst.Module]


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of one file's source. Where there is nothing to change, the module comes back."""

    name: str
    text: str
    """What it does, in a few words."""
    values: ValueChange
    needs: str
    """What a source must have for it to apply."""
    rewrite: Rewrite = field(repr=False)


_FIXES: dict[str, Fix] = {}


def fix(name: str, text: str, values: ValueChange, needs: str) -> Callable[[Rewrite], Rewrite]:
    """Decorator: the function is the rewrite of the fix of this name."""

    def add(rewrite: Rewrite) -> Rewrite:
        assert name not in _FIXES, name
        _FIXES[name] = Fix(name, text, values, needs, rewrite)
        return rewrite

    return add


def fixes() -> tuple[Fix, ...]:
    """All fixes of the catalogue, by name."""
    from torchtally.fixes import catalogue

    for module in iter_modules(catalogue.__path__):
        import_module(f"{catalogue.__name__}.{module.name}")
    return tuple(_FIXES[name] for name in sorted(_FIXES))
