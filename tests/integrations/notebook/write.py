"""Execute the notebooks of the examples and keep what they show in their files.

python -m tests.integrations.notebook.write
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from tests.integrations.notebook.kernel import client_of, nbformat

FOLDER = Path(__file__).parents[3] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ELAPSED = re.compile(r"(tally: (?:before )?step .*), [\d.]+ (?:ns|us|ms|s|min)$", re.M)
INSTALLED = re.compile(r"/[^\s:\x1b]*/site-packages")


def rewritten(path: Path) -> Any:
    """The notebook with what its cells show now. Raises CellExecutionError where one fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client_of(notebook, Path(folder), allow_errors=False).execute()
    for cell in notebook.cells:
        is_raised = any(each.output_type == "error" for each in cell.get("outputs", ()))
        assert is_raised is ("raises-exception" in cell.metadata.get("tags", ())), cell.source
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop("text/markdown", None)  # a third form of the same
            if output.output_type == "error":
                output.traceback = list(map(portable, output.traceback))
            if "text/plain" in output.get("data", {}):
                output.data["text/plain"] = timeless(output.data["text/plain"])
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    return notebook


def timeless(text: str) -> str:
    """Without the seconds that a cell took."""
    return ELAPSED.sub(r"\1", text)


def portable(text: str) -> str:
    """Without the folder in which this machine has its libraries."""
    return INSTALLED.sub("site-packages", text)


def written(notebook: Any) -> str:
    """As it stands in its file."""
    return f"{nbformat.writes(notebook).rstrip()}\n"


def main() -> None:
    for path in NOTEBOOKS:
        path.write_text(written(rewritten(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
