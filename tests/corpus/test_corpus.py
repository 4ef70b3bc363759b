"""The corpus's cases that need nothing but what this project is tested with; and its checker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.case import Case, Figures
from tests.corpus.features import ONE
from tests.corpus.running import expected_of, run, wrong
from tests.corpus.score import kept
from tests.corpus.table import CASES
from tests.warm import warm

OTHERWISE = ("torchrun", "torch.multiprocessing.spawn,", "TP,", "context parallel")
"""Begin the names of ways to train on several GPUs that are tried here. The others are held against
real ranks in tests/virtual/distributed."""
HERE = [
    case
    for case in CASES
    if case.repository is None
    and not case.packages
    and (case.kind != "distributed" or case.name.startswith(OTHERWISE))
]
NAMES = {case.name: case for case in CASES}


@pytest.mark.one_case_in(8)
@pytest.mark.parametrize("case", HERE, ids=lambda case: case.name)
def test_a_script_is_right_unless_it_is_known_not_to_be(case: Case, tmp_path: Path) -> None:
    outcome = run(case, tmp_path, python=warm)
    assert not outcome.left_out
    if case.known_fault:
        assert outcome.faults, "right at last: take its known_fault away, and write the score"
    else:
        assert outcome.faults == ()


def test_the_score_is_of_these_cases_and_those_that_run_here_were_right() -> None:
    outcomes = {str(row["name"]): row["outcome"] for row in kept()}
    assert list(outcomes) == list(NAMES)
    assert {outcomes[case.name] for case in HERE if not case.known_fault} == {"right"}
    assert {outcomes[case.name] for case in CASES if case.known_fault} <= {"wrong"}


def test_names_are_names_of_one_case() -> None:
    assert len(NAMES) == len(CASES)


# The checker -------------------------------------------------------------------------------------

STEP = NAMES["torch.device(0)"]
REPORT: dict[str, Any] = {
    "parameters": ONE.parameters,
    "trained_parameters": ONE.parameters,
    "totals": {"flops_matmul": ONE.flops},
    "steps": 2,
    "per": "steady-state step 2",
    "ending": {"kind": "steps"},
    "coverage": {"uncounted": []},
    "utilisation": [{"peak_share": 0.5}],
}


def test_a_report_as_expected_has_no_faults() -> None:
    assert wrong(STEP, ONE, REPORT, "", "") == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"parameters": 1}, "parameters: 1, expected 2,080"),
        ({"parameters": None}, "parameters: 0, expected 2,080"),
        ({"trained_parameters": 1}, "trained parameters: 1, expected 2,080"),
        ({"totals": {"flops_matmul": ONE.flops + 1}}, "FLOPs: 131,073, expected 131,072"),
        ({"steps": 1}, "steps: 1, expected 2"),
        ({"per": "step 2 (unlike those before it)"},
         "period: step 2, expected steady-state step 2"),
        ({"ending": {"kind": "exit"}}, "ending: exit, expected steps"),
        ({"coverage": {"uncounted": [{"operator": "aten.x"}]}},
         "uncounted operators: ['aten.x'], expected []"),
        ({"utilisation": [{"peak_share": 1.25}]}, "MFU 125.0%"),
    ],
)  # fmt: skip
def test_every_other_report_is_wrong(changed: dict[str, Any], fault: str) -> None:
    assert wrong(STEP, ONE, REPORT | changed, "", "") == [fault]


def test_what_is_not_printed_is_a_fault() -> None:
    case = replace(STEP, prints=("^seen",), notes=("balanced",))
    faults = wrong(case, ONE, REPORT, "nothing", "routing")
    assert faults == ["does not print ^seen", "tally does not say balanced"]


def test_a_script_that_fails_is_wrong(tmp_path: Path) -> None:
    case = replace(STEP, command=("-c", "raise SystemExit(3)"))
    (fault,) = run(case, tmp_path, python=warm).faults
    assert fault.startswith("ended with exit code 3")


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    case = replace(STEP, packages=("no_such_package",))
    assert run(case, tmp_path).left_out == "needs no_such_package"
    other = replace(STEP, repository="someone/something")
    assert run(other, tmp_path).left_out == "needs a checkout of someone/something"


def test_expected_figures_are_known_for_every_case() -> None:
    assert all(isinstance(expected_of(case), Figures) for case in CASES)
