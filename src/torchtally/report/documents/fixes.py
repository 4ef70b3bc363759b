"""What `tally fix` changed in a script."""

from typing import Annotated

import msgspec

from torchtally.report.documents.tables import TablePart
from torchtally.report.keys import Bytes, Document, key


class SkippedFixPart(msgspec.Struct, frozen=True):
    """A change that was not run, or a file that was left alone."""

    name: str
    reason: str


class FixesDocument(Document, tag="fixes/1", frozen=True):
    """Changes of a script that help, and their proof: `tally fix`."""

    chip: str
    capacity_bytes: Bytes
    goal: Annotated[str, key("What changes are for: fit, budget or faster")]
    fits: bool
    kept: Annotated[list[str], key("Names of the fixes that are kept")]
    patch: Annotated[str, key("A unified diff; empty where nothing helps")]
    skipped: Annotated[list[SkippedFixPart], key("Changes that were not run, and files left alone")]
    tables: dict[str, TablePart]
