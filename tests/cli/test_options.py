"""What a command is asked is one frozen record: parser, help, library and cell make it alike."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from importlib import import_module
from typing import Any

import pytest

from torchtally.cli import COMMANDS, main, parser
from torchtally.cli.declared import asked
from torchtally.cli.fit import FitOptions
from torchtally.cli.run_options import RunOptions
from torchtally.cli.show import ShowOptions
from torchtally.integrations.notebook.magics import CellOptions
from torchtally.options import OptionRecord, options_of
from torchtally.options.simulation import SimulationOptions, simulation_settings
from torchtally.runs.request import RunRequest

OWN_PARSER = {"plan", "data"}
"""`plan` looks its record up late, `data` has commands of its own."""


def record_of(command: str) -> type[OptionRecord]:
    record: Any = import_module(f"torchtally.cli.{command}").command.__annotations__["options"]
    assert issubclass(record, OptionRecord)
    return record


@pytest.mark.parametrize("command", sorted({*COMMANDS} - OWN_PARSER))
def test_the_parser_has_the_records_options_and_no_others(command: str) -> None:
    (top,) = parser([command])._subparsers._group_actions  # type: ignore[union-attr]
    actions = top.choices[command]._actions  # type: ignore[index,call-overload]
    declared = set(options_of(record_of(command)))
    assert {action.dest for action in actions} - {"help", "replace"} == declared - {"replace"}


def test_what_was_typed_is_what_a_library_would_ask() -> None:
    args = parser(["show"]).parse_args(["show", "a.tally", "--gpu", "H200", "--gpu", "B200"])
    options = asked(ShowOptions, args)
    assert options == ShowOptions(file="a.tally", gpu=("H200", "B200"), given=("gpu", "file"))
    with pytest.raises(FrozenInstanceError):
        options.file = "b.tally"  # type: ignore[misc]


def test_a_script_is_asked_for_behind_the_options() -> None:
    words = ["fit", "--vary", "--batch={}", "train.py", "--lr", "1", "--no-folding"]
    assert asked(FitOptions, parser(["fit"]).parse_args(words)) == FitOptions(
        vary="--batch={}",
        folds=False,
        script="train.py",
        script_arguments=("--lr", "1"),
        given=("vary", "folds"),
    )


def test_a_simulation_is_asked_for_alike() -> None:
    names = {field.name for field in fields(SimulationOptions)}
    for record in (RunOptions, CellOptions, RunRequest):
        assert names.issubset(field.name for field in fields(record))
    args = parser(["run"]).parse_args(["run", "--no-oom", "--network=off", "train.py"])
    settings = simulation_settings(asked(RunOptions, args))
    assert settings == {
        **simulation_settings(SimulationOptions()),
        "memory_is_limited": False,
        "network": "off",
        "given": ("memory_is_limited", "network"),
    }


def test_two_forms_of_a_report_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--json", "-", "--format", "csv"]) == 2
    assert "--json is short for --format json" in capsys.readouterr().err


def test_options_of_a_simulation_need_no_torch() -> None:
    code = (
        "import sys, torchtally.cli.run, torchtally.cli.fit, torchtally.cli.audit\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
