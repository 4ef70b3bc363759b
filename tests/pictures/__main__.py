"""Make the pictures of README and docs by the project's own commands.

python -m tests.pictures            or: make pictures
"""

import subprocess
import tempfile
from pathlib import Path

from tests.pictures import neovim
from tests.pictures.recording import recording
from tests.pictures.screens import screens
from tests.report.browser import CHROMIUM, MISSING
from tests.warm import TALLY, warm

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "docs" / "pictures"
RECORDED = "tally run examples/train_gpt.py --gpu H100-SXM"


def page_of_example(folder: Path) -> Path:
    """The interactive page of the example that README shows."""
    command = "run examples/train_gpt.py --gpu H100-SXM --quiet --html page.html"
    subprocess.run(warm(TALLY, *command.split()), cwd=folder, check=True, capture_output=True)
    return folder / "page.html"


def furnished(folder: Path) -> Path:
    """A folder in which the commands find the examples."""
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    return folder


def main() -> None:
    if not CHROMIUM:
        raise SystemExit(MISSING)
    if not neovim.is_there():
        raise SystemExit(neovim.MISSING)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = furnished(Path(name))
        (FOLDER / "tally_run.svg").write_text(recording(RECORDED, folder), encoding="utf-8")
        (folder / "editor").mkdir()
        shown = neovim.neovim(REPOSITORY / "examples" / "train_gpt.py", folder / "editor")
        (FOLDER / "tally_lsp.svg").write_text(shown, encoding="utf-8")
        for file, picture in screens(page_of_example(folder)):
            (FOLDER / file).write_bytes(picture)


if __name__ == "__main__":
    main()
