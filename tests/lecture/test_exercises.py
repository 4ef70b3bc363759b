"""Exercises: right, wrong and empty answers, checked by themselves and as notebooks."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import environment, furnish
from tests.integrations.notebook.kernel import cells_of, client_of, nbformat
from tests.lecture.notebooks import PAGES, answer_source, exercise_cells
from tests.warm import TALLY, warm
from torchtally.errors import UsageError
from torchtally.integrations.lecture import EXERCISES, check
from torchtally.integrations.lecture.check import exercise_of, is_near, ledger_of, verdict
from torchtally.integrations.lecture.exercise import value
from torchtally.ledger import Ledger

SCRIPT = """\
import torch

model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(32, 128, 64, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a student's script."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "train.py").write_text(SCRIPT)
    command = "run train.py --gpu H100-SXM --quiet -o mine.tally"
    subprocess.run(warm(TALLY, *command.split()), cwd=folder, check=True, capture_output=True)
    return folder / "mine.tally"


@pytest.fixture(scope="module")
def ledger(mine: Path) -> Ledger:
    return ledger_of(str(mine))


def test_each_page_has_three_and_the_third_is_on_ones_own_script() -> None:
    numbers = [f"{page}.{place}" for page in range(1, len(PAGES) + 1) for place in (1, 2, 3)]
    assert list(EXERCISES) == numbers
    assert [e.number for e in EXERCISES.values() if e.is_own] == numbers[2::3]
    assert all(exercise.mistakes for exercise in EXERCISES.values())


@pytest.mark.parametrize("number", EXERCISES)
def test_right_wrong_and_empty_answers(number: str, mine: Path, ledger: Ledger) -> None:
    exercise = EXERCISES[number]
    right = value(exercise.answer, ledger)
    assert verdict(exercise, right, str(mine)) == f"{number}: right. {exercise.working}"
    assert verdict(exercise, None, "no such file").startswith(f"{number}: no answer yet.")
    assert verdict(exercise, "8", "no such file").startswith(f"{number}: expected a number")
    assert verdict(exercise, 3.7 * right + 1, str(mine)).startswith(f"{number}: not yet")
    if not exercise.is_own:
        for mistake in exercise.mistakes:
            assert not is_near(value(mistake.answer, None), right, exercise.tolerance)


@pytest.mark.parametrize("number", EXERCISES)
def test_a_common_mistake_has_its_hint(number: str, mine: Path, ledger: Ledger) -> None:
    exercise = EXERCISES[number]
    right = value(exercise.answer, ledger)
    for mistake in exercise.mistakes:
        wrong = value(mistake.answer, ledger)
        if not is_near(wrong, right, exercise.tolerance):  # a script may have no such part
            assert verdict(exercise, wrong, str(mine)) == f"{number}: not yet. {mistake.hint}"


def test_a_ratio_is_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    check("8.2", 64)
    check("8.2", 7)
    check("8.2", 9)
    eight, small, large = capsys.readouterr().out.splitlines()
    assert "bits and bytes" in eight
    assert small == "8.2: not yet: too small."
    assert large == "8.2: not yet: too large."


def test_a_number_that_is_no_exercise_and_a_script_that_did_not_run() -> None:
    with pytest.raises(UsageError, match=r"no exercise '20\.1'"):
        exercise_of("20.1")
    with pytest.raises(UsageError, match=r"mine\.tally does not exist: run your script first"):
        check("7.3", 0.5)


def answered(page: int, answers: dict[str, str]) -> object:
    """The notebook of a page's exercises with these answers; an empty cell where there is none."""
    cells = list(exercise_cells(page))
    for place, cell in enumerate(cells):
        cell.id = f"cell-{place}"
        match = re.search(r'check\("(.+)",', cell.source)
        if match is not None:
            cell.source = answer_source(match[1], answers.get(match[1], "None"))
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize("page", range(1, len(PAGES) + 1))
@pytest.mark.parametrize(
    ("kind", "says"), [("right", "right."), ("wrong", "not yet"), ("empty", "no answer yet")]
)
def test_a_notebook_with_answers(
    page: int, kind: str, says: str, mine: Path, ledger: Ledger, tmp_path: Path
) -> None:
    folder = furnish(tmp_path)
    shutil.copy(mine.parent / "train.py", folder)
    exercises = [exercise for exercise in EXERCISES.values() if exercise.page == page]
    rights = {exercise.number: value(exercise.answer, ledger) for exercise in exercises}
    answers = {
        "right": {number: repr(right) for number, right in rights.items()},
        "wrong": {number: repr(3.7 * right + 1) for number, right in rights.items()},
        "empty": {},
    }[kind]
    executed = answered(page, answers)
    client_of(executed, folder, allow_errors=False).execute(env=environment(folder))
    printed = [cell.printed for cell in cells_of(executed) if "check(" in cell.source]
    assert len(printed) == 3
    for exercise, text in zip(exercises, printed, strict=True):
        assert text.startswith(f"{exercise.number}: {says}")
