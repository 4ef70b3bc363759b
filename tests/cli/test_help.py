"""Help fits a terminal of 80 columns."""

import pytest

from torchtally.cli import COMMANDS, main
from torchtally.cli.help_text import fitted


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["plan", "all"]], ids=str)
def test_no_line_of_a_commands_help_is_longer_than_80(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ending:
        main([*words[:1], "--help", *words[1:]])
    assert ending.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []


TEXT = """\
a sentence that was
wrapped elsewhere

  --gpu NAME  the chip
  tally run --gpu H100-SXM train.py  a comment
kept"""


def test_text_that_fits_is_kept() -> None:
    assert "\n".join(fitted(TEXT, 60)) == TEXT


def test_text_that_does_not_fit_goes_on_in_its_column_or_below() -> None:
    assert list(fitted(TEXT.replace("kept", "kept " * 8 + "on"), 38)) == [
        "a sentence that was", "wrapped elsewhere", "",
        "  --gpu NAME  the chip",
        "  tally run --gpu H100-SXM train.py",
        "      a comment",
        "kept kept kept kept kept kept kept",
        "kept on",
    ]  # fmt: skip
    assert list(fitted("  --gpu NAME  the chip that a step runs on", 38)) == [
        "  --gpu NAME  the chip that a step",
        "              runs on",
    ]


def test_a_command_that_does_not_fit_can_be_pasted() -> None:
    assert list(fitted("  tally run --gpu H100-SXM --steps 4 train.py", 30)) == [
        "  tally run --gpu H100-SXM \\",
        "      --steps 4 train.py",
    ]
    assert list(fitted("  tally fit train.py --vary '--size {}'", 38)) == [
        "  tally fit train.py --vary \\",
        "      '--size {}'",
    ]
