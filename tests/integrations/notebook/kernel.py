"""Notebooks executed by nbclient in a real kernel, forked from a Python with torch loaded."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.warm import warm

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

KERNEL = "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT_S = 120


class Cell:
    """An executed cell and all that it showed."""

    def __init__(self, cell: Any) -> None:
        self.source: str = cell.source
        self.outputs: list[Any] = list(cell.get("outputs", ()))

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


class Notebook:
    """Cells, and the client that executes them in a new kernel. One that fails stops no other."""

    def __init__(self, sources: Sequence[str], folder: Path) -> None:
        notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
        self.client = client_of(notebook, folder, allow_errors=True)

    @property
    def cells(self) -> list[Cell]:
        """As they are now."""
        return cells_of(self.client.nb)


def executed(sources: Sequence[str], folder: Path) -> list[Cell]:
    """The cells one after the other."""
    notebook = Notebook(sources, folder)
    notebook.client.execute()
    json.dumps(notebook.client.nb)  # what it shows can be saved
    return notebook.cells


def client_of(notebook: Any, folder: Path, *, allow_errors: bool) -> Any:
    return nbclient.NotebookClient(
        notebook,
        km=warm_kernel(),
        timeout=TIMEOUT_S,
        allow_errors=allow_errors,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )


def warm_kernel() -> Any:
    """A manager of a kernel that takes 0.3 s of CPU time to start, not 3 s."""
    manager = jupyter_client.AsyncKernelManager()
    manager._kernel_spec = jupyter_client.kernelspec.KernelSpec(
        argv=[*warm(KERNEL), "-f", "{connection_file}"], display_name="Python 3", language="python"
    )
    return manager


def cells_of(notebook: Any) -> list[Cell]:
    return [Cell(cell) for cell in notebook.cells if cell.cell_type == "code"]
