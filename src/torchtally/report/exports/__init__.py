"""Files that other tools open. Each format is one file of this folder with

    SUMMARY: str                 its line in `tally export --help`
    SUFFIX: str                  of the file's name where none is given: run.tally -> run.trace.json
    def export(ledger: Ledger, wanted: Wanted) -> Exported: ...
    IS_OF_A_QUANTITY = True      where it is of one (`--of`); may be left out

The file's name, with "-" for "_", is the format's. A new file is a new format of `tally export`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtally.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks of a format."""

    quantity: str = ""
    """Of stacks: a name of `views.stacks.QUANTITIES`; "" where none was named."""
    is_of_a_period: bool = False
    """The user named a step or several; else what is of the whole run stays so."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of the files, by what is appended to the name that was asked for."""

    parts: Mapping[str, str | bytes]
    """Of one file: by ""."""
    remarks: tuple[str, ...] = ()
    """Sentences on what the files do not have."""


def export_names() -> tuple[str, ...]:
    """The formats there are, in alphabetical order."""
    files = os.listdir(os.path.dirname(__file__))
    names = {name.removesuffix(".py") for name in files if name.endswith(".py")} - {"__init__"}
    return tuple(sorted(name.replace("_", "-") for name in names))


def exporter(name: str) -> ModuleType:
    """The file of the format of this name."""
    assert name in export_names(), name
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def export(ledger: "Ledger", name: str, wanted: Wanted | None = None) -> Exported:
    """The ledger in the format of this name.

    Raises UsageError where the ledger lacks what the format is of.
    """
    exported: Exported = exporter(name).export(ledger, wanted or Wanted())
    return exported
