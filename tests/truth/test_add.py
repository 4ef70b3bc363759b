"""Rows that anybody adds: a command, figures, and ours beside them."""

from pathlib import Path

import pytest

from tests.truth.add import FILE, Added, added, main, predicted, table
from torchtally.errors import UsageError

COMMAND = ["llama-3.1-8b", "--gpus", "8xH100-SXM", "--layout", "dp 8, zero-3, mb 1x1"]
ROW = Added("our log", "2026-11-29", "llama-3.1-8b --gpus 8xH100-SXM --layout 'dp 8'", "2", "")


def test_a_row_is_added_once_and_shown_beside_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "added.csv"
    arguments = [
        "--source",
        "our log",
        "--step-s",
        "2.0",
        "--memory-gib",
        "70",
        "--file",
        str(file),
    ]
    for _ in range(2):
        assert main([*arguments, "--", *COMMAND]) == 0
    (row,) = added(file)
    assert row.command == "llama-3.1-8b --gpus 8xH100-SXM --layout 'dp 8, zero-3, mb 1x1'"
    ours = predicted(row)
    shown = capsys.readouterr().out.splitlines()[2]
    assert f"| 2 s | {ours.step_s / 2:.2f} |" in shown
    assert f"| {ours.ideal_s / 0.4 / 2:.2f} | 70 GiB | {ours.memory_gib / 70:.2f} |" in shown
    assert file.read_text().splitlines()[0] == "source,as_of,command,step_s,memory_gib"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step-s", "2"], "say where the figure was published"),
        (["--source", "us"], "give --step-s, --memory-gib or both"),
        (["--source", "us", "--step-s", "fast"], "expected a number above zero"),
        (["--source", "us", "--step-s", "2", "--as-of", "today"], "give a day"),
    ],
)
def test_what_is_no_row_is_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "added.csv"
    assert main([*arguments, "--file", str(file), "--", *COMMAND]) == 2
    assert said in capsys.readouterr().err
    assert not file.exists()


def test_a_command_without_a_layout_is_refused() -> None:
    row = Added("us", "2026-11-29", "llama-3.1-8b --gpus 8xH100-SXM", "2", "")
    with pytest.raises(UsageError, match="needs chips and a layout"):
        predicted(row)


def test_what_is_not_known_has_no_cell() -> None:
    assert table([ROW]).count("|  |") == 1  # the peak and ours over it


def test_all_rows_of_the_file_are_read() -> None:
    assert added(FILE)
