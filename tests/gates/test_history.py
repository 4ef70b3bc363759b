"""A budget's history: real commits of a real repository."""

import json
import subprocess
from pathlib import Path

import pytest

from torchtally.cli import main
from torchtally.gates.budget import Budget, BudgetFile
from torchtally.gates.course import course_chart, course_table
from torchtally.gates.history import history

RUN = ("train.py --batch 8", "H100-SXM")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def commit(place: Path, subject: str, *budgets: Budget) -> None:
    BudgetFile(str(place), budgets).save()
    git(place.parent, "add", place.name)
    git(place.parent, "commit", "--allow-empty", "-m", subject)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Figures of 10, 10 and 40 bytes; the second commit changes another run."""
    git(tmp_path, "init")
    place = tmp_path / "budgets.toml"
    other = Budget("other.py", "A100-SXM", {"flops": 1})
    commit(place, "first", Budget(*RUN, {"peak": 10, "step": 0.5}))
    commit(place, "other", Budget(*RUN, {"peak": 10, "step": 0.5}), other)
    place.write_text("broken")
    git(tmp_path, "commit", "-am", "not a budget")
    commit(place, "<b>larger</b>\x1b[31m", Budget(*RUN, {"peak": 40, "step": 0.25}), other)
    return place


def test_commits_are_oldest_first_and_broken_versions_left_out(place: Path) -> None:
    commits = history(str(place))
    assert [each.subject[:5] for each in commits] == ["first", "other", "<b>la"]
    assert commits[0].budgets == (Budget(*RUN, {"peak": 10, "step": 0.5}),)


def test_a_course_has_the_commits_that_changed_its_figures(place: Path) -> None:
    table = course_table(history(str(place)), *RUN)
    assert table.column("peak_allocated_bytes") == (10, 40)
    assert table.column("step_s") == (0.5, 0.25)
    chart = course_chart(history(str(place)), *RUN)
    assert chart is not None
    assert {each.name: each.points for each in chart.series} == {
        "peak": ((1.0, 1.0), (2.0, 4.0)),
        "step": ((1.0, 1.0), (2.0, 0.5)),
    }


def test_what_did_not_change_has_no_chart(place: Path) -> None:
    assert course_chart(history(str(place)), "other.py", "A100-SXM") is None
    assert course_chart(history(str(place)), "none.py", "A100-SXM") is None


def test_a_file_outside_of_a_repository_has_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    place = tmp_path / "budgets.toml"
    BudgetFile(str(place), (Budget(*RUN, {"peak": 10}),)).save()
    assert history(str(place)) == []
    monkeypatch.setenv("PATH", "")
    assert history(str(place)) == []
    assert main(["budget", str(place)]) == 0
    assert "10 B" in capsys.readouterr().out


def test_the_command_shows_budgets_history_and_chart(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", str(place)]) == 0
    out = capsys.readouterr().out
    assert "train.py --batch 8 on H100-SXM" in out
    assert "Figures as multiples of the first" in out
    assert "\x1b" not in out
    assert main(["budget", str(place), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    courses = {course["title"]: course["rows"] for course in document["histories"]}
    rows = courses["train.py --batch 8 on H100-SXM"]
    assert [row["peak_allocated_bytes"] for row in rows] == [10, 40]
    assert main(["budget", "none.toml"]) == 2
    assert "none.toml: no such file" in capsys.readouterr().err
