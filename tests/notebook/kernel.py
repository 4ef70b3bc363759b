"""Notebooks executed by nbclient in a real kernel of this Python."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT_S = 120


class Cell:
    """An executed cell and all that it showed."""

    def __init__(self, cell: Any) -> None:
        self.source: str = cell.source
        self.outputs: list[Any] = list(cell.outputs)

    @property
    def printed(self) -> str:
        """What it wrote to stdout and stderr."""
        return "".join(each.text for each in self.outputs if each.output_type == "stream")

    def shown(self, mime: str = "text/plain") -> list[str]:
        """Everything displayed in a form, the cell's result last."""
        kinds = ("display_data", "execute_result")
        data = [each.data for each in self.outputs if each.output_type in kinds]
        return [each[mime] for each in data if mime in each]

    @property
    def error(self) -> str:
        """The traceback as it is shown, without colours; "" where it went well."""
        lines = [each.traceback for each in self.outputs if each.output_type == "error"]
        return COLOURS.sub("", "\n".join(line for each in lines for line in each))


def executed(sources: Sequence[str], folder: Path) -> list[Cell]:
    """The cells one after the other in a new kernel; a cell that fails does not stop the rest."""
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    return run_notebook(notebook, folder, allow_errors=True)


def run_notebook(notebook: Any, folder: Path, *, allow_errors: bool = False) -> list[Cell]:
    client = nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        allow_errors=allow_errors,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    json.dumps(notebook)  # what a notebook shows can be saved
    return [Cell(cell) for cell in notebook.cells if cell.cell_type == "code"]
