"""The suite does not depend on the machine at hand: it runs on invented ones, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines import sitecustomize as machines
from torchtally.timing.calibration import library

QUESTIONS = """\
import os
from torchtally.chips.processor import processor_name
from torchtally.timing.calibration.library import of_host
from torchtally.trace.decoding import machine_bytes
device = (calibration := of_host()) and calibration.device
print(processor_name(), machine_bytes(), os.cpu_count(), device, sep="|")
"""


def answers(name: str) -> str:
    folder = str(Path(machines.__file__).parent)
    variables = os.environ | {machines.VARIABLE: name, "PYTHONPATH": folder}
    command = [sys.executable, "-c", QUESTIONS]
    return subprocess.run(command, env=variables, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("name", machines.MACHINES)
def test_an_invented_machine_answers_for_this_one(name: str) -> None:
    cpu, memory_bytes, cores = machines.MACHINES[name]
    calibrated = cpu if name == "measured" else None
    assert answers(name) == f"{cpu}|{memory_bytes}|{cores}|{calibrated}"


def test_one_of_them_has_the_cpu_of_a_shipped_calibration() -> None:
    titles = [library.title(file) for file in library.files(library.SHIPPED)]
    measured = [title.device for title in titles if title.kind == "cpu"]
    assert measured == [machines.MACHINES["measured"].cpu]
