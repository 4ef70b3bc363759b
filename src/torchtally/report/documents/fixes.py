"""What `tally fix` changed in a script."""

from typing import Annotated

from torchtally.report.documents.tables import TablePart
from torchtally.report.keys import Bytes, Document, key


class FixesDocument(Document, tag="fixes/1", frozen=True):
    """Changes of a script that help, and their proof: `tally fix`."""

    chip: str
    capacity_bytes: Bytes
    goal: Annotated[str, key("What changes are for: fit or faster")]
    fits: bool
    kept: Annotated[list[str], key("Names of the fixes that are kept")]
    patch: Annotated[str, key("A unified diff; empty where nothing helps")]
    tables: dict[str, TablePart]
