"""No option replaces a file that tally did not write, in any command, before anything runs."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.calibrations import gpu as calibration
from tests.report.test_text import realistic
from tests.views.stopwatch import stopwatch
from torchtally.cli import COMMANDS, main, parser
from torchtally.cli.destination import is_ours
from torchtally.ledger import account
from torchtally.report.browser.page import browser_page
from torchtally.report.exports import Wanted, export, export_names
from torchtally.report.formats import render
from torchtally.report.ledger import ledger_report, view_report
from torchtally.report.report import Look
from torchtally.report.schema import schema_text
from torchtally.timing.calibration.file import text as calibration_text
from torchtally.views import by

PRECIOUS = b"PK\x03\x04 weights of a week, before `import torchtally`"
READ = {"--against", "--budget", "--execution-trace", "--prices"}
"""Options that name a file to be read; that of --update is checked to be one of budgets."""
WORDS = {
    "export": ["--to", "perfetto", "SCRIPT"],
    "fit": ["--vary", "--batch={}", "SCRIPT"],
    "diff": ["SCRIPT", "SCRIPT"],
    "dtypes": ["1"],
    "glossary": [],
    "gpus": [],
    "schema": [],
    "bench": ["--show"],
}
"""With which the arguments of a command can be read; one that is not here takes a script or file.
"""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """By the words of the command."""
    for name in COMMANDS:
        yield from below("", parser([name]))


def below(words: str, of_words: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    for action in of_words._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield f"{words} {name}".strip(), inner
                yield from below(f"{words} {name}".strip(), inner)


CASES = [
    (name, option)
    for name, of_command in parsers()
    for option, _ in (of_command.get_default("outputs") or {}).values()
]


def test_every_option_that_names_a_file_is_known_to_read_or_to_write_it() -> None:
    for name, of_command in parsers():
        writing = of_command.get_default("outputs") or {}
        for action in of_command._actions:
            if action.option_strings and action.metavar in ("FILE", "PAGE"):
                assert action.dest in writing or READ & {*action.option_strings}, (name, action)
    assert {("run", "-o"), ("run", "--json"), ("run", "--html"), ("fit", "--json")} <= {*CASES}
    assert {("plan", "--page"), ("sweep", "--parquet"), ("show", "--html")} <= {*CASES}


@pytest.mark.parametrize(("command", "option"), CASES)
def test_a_file_of_the_users_stays(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script would leave a file if it ran."""
    script, file = tmp_path / "train.py", tmp_path / "model.pt"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    file.write_bytes(PRECIOUS)
    words = [str(script) if word == "SCRIPT" else word for word in WORDS.get(command, ["SCRIPT"])]
    assert main([*command.split(), option, str(file), *words]) == 2
    said = capsys.readouterr().err
    assert f"{file}: exists" in said
    assert "--replace" in said
    assert file.read_bytes() == PRECIOUS
    assert not (tmp_path / "ran").exists()


def test_a_file_of_the_users_is_replaced_on_demand(tmp_path: Path) -> None:
    trace, page = tmp_path / "run.tally", tmp_path / "run.html"
    realistic().save(trace)
    page.write_bytes(PRECIOUS)
    assert main(["report", str(trace)]) == 2  # the page's name follows from the trace's
    assert page.read_bytes() == PRECIOUS
    assert main(["report", str(trace), "--replace"]) == 0
    assert main(["report", str(trace)]) == 0  # it is ours now


def test_what_tally_wrote_is_known_by_its_content(tmp_path: Path) -> None:
    ledger = account(realistic(), roofline=stopwatch())
    page = ledger_report(ledger)
    trace = tmp_path / "model.pt"
    ledger.trace.save(trace)
    written: list[str | bytes] = [
        b"",
        trace.read_bytes(),
        render(page, "json", Look()),
        render(view_report(by(ledger, "line"), ledger), "json", Look()),
        render(page, "html", Look()),
        browser_page(ledger, {}),
        schema_text("run"),
        calibration_text(calibration()),
    ]
    for name in {*export_names()} - {"folded"}:  # which has no room for it
        written += export(ledger, name, Wanted()).parts.values()
    file = tmp_path / "file"
    for content in written:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert is_ours(str(file)), content[:200]


@pytest.mark.parametrize(
    "content",
    [
        PRECIOUS,
        b"import torchtally\n",
        b'{\n "schema": "theirs/1"\n}',
        b"<!DOCTYPE html>\n<title>torchtally</title>",
        b"\x80\x04\x95 a pickle of theirs",
        b"PAR1 a table of theirs PAR1",
        b"\x1f\x8b cut short",
        b" torchtally trace format=13",
    ],
)
def test_what_others_wrote_is_not_ours(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "run.tally"
    file.write_bytes(content)
    assert not is_ours(str(file))
