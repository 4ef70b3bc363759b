"""The file of budgets: what is written is read, and what is not a budget is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gates.test_limits import ledger
from torchtally.errors import UsageError
from torchtally.gates import check
from torchtally.gates.budget import RECORDED, Budget, BudgetFile, text_of
from torchtally.gates.run import run_gates


def test_a_new_budget_has_the_runs_figures(tmp_path: Path) -> None:
    place = str(tmp_path / "budgets.toml")
    gates = run_gates([], place, is_update=True, run="train.py", gpu="H100-SXM")
    assert gates.update(ledger()) is not None
    (budget,) = BudgetFile.load(place).budgets
    assert tuple(budget.figures) == RECORDED
    assert (budget.figures["flops"], budget.figures["peak"]) == (48, 1536)
    gates = run_gates([], place, is_update=False, run="train.py", gpu="H100-SXM")
    assert all(finding.holds for finding in gates.findings(ledger()))


@pytest.mark.parametrize(("figure", "holds"), [(48, True), (47, False), (47.1, True)])
def test_a_figure_may_get_worse_by_the_tolerance(figure: float, holds: bool) -> None:
    """47.1 and 2 % are 48.042; 47 and 2 % are 47.94."""
    (finding,) = check(ledger(), Budget("run", "gpu", {"flops": figure}).all_limits())
    assert finding.holds is holds


def test_a_rate_may_get_lower_by_the_tolerance() -> None:
    (limit,) = Budget("run", "gpu", {"mfu": 0.5}, "10%").all_limits()
    assert (limit.relation, limit.amount) == (">=", 0.45)


def test_an_update_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    place = tmp_path / "budgets.toml"
    place.write_text(
        '[[budget]]\nrun = "a.py"\ngpu = "H100-SXM"\nflops = 1\n\n'
        '[[budget]]\nrun = "b.py --x \\"y\\""\ngpu = "H100-SXM"\ntolerance = "5%"\n'
        'limits = ["peak < 1KiB"]\nflops = 1\n'
    )
    gates = run_gates([], str(place), is_update=True, run='b.py --x "y"', gpu="H100-SXM")
    assert [finding.holds for finding in gates.findings(ledger())] == [False]
    gates.update(ledger())
    first, second = BudgetFile.load(str(place)).budgets
    assert first == Budget("a.py", "H100-SXM", {"flops": 1})
    assert second == Budget('b.py --x "y"', "H100-SXM", {"flops": 48}, "5%", ("peak < 1KiB",))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(run=TEXTS, gpu=TEXTS, flops=st.integers(0, 10**18), step=st.floats(0, 1e9))
def test_what_is_written_is_read(
    run: str, gpu: str, flops: int, step: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    budget = Budget(run, gpu, {"flops": flops, "step": step, "tokens/s": 1.5})
    path = tmp_path_factory.mktemp("budget") / "file.toml"
    path.write_text(text_of([budget]), encoding="utf-8")
    assert BudgetFile.load(str(path)).budgets == (budget,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[budget", "cannot be read as TOML"),
        ("other = 1", "expected \\[\\[budget\\]\\] alone"),
        ("budget = 3", "expected \\[\\[budget\\]\\] alone"),
        ("budget = [3]", "a budget must be a table"),
        ('[[budget]]\nrun = "a"', "needs a string for gpu"),
        ('[[budget]]\nrun = "a"\ngpu = "g"\npeek = 1', "unknown 'peek'. Did you mean peak"),
        ('[[budget]]\nrun = "a"\ngpu = "g"\npeak = "1GiB"', "peak must be a number"),
        ('[[budget]]\nrun = "a"\ngpu = "g"\ntolerance = "lots"', "is not a fraction"),
        ('[[budget]]\nrun = "a"\ngpu = "g"\nlimits = ["peak"]', "is not a limit"),
        ('[[budget]]\nrun = "a"\ngpu = "g"\nlimits = "peak"', "limits must be a list"),
    ],
)
def test_what_is_no_budget_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        BudgetFile.load(str(tmp_path / "b.toml"))


def test_a_run_without_a_budget_is_refused_before_it_runs(tmp_path: Path) -> None:
    place = str(tmp_path / "b.toml")
    with pytest.raises(UsageError, match=r"no such file\. `tally run --budget"):
        run_gates([], place, is_update=False, run="a.py", gpu="H100-SXM")
    BudgetFile(place, (Budget("a.py", "A100-SXM"),)).save()
    with pytest.raises(UsageError, match=r"no budget for `a\.py` on H100-SXM\. Write it with --up"):
        run_gates([], place, is_update=False, run="a.py", gpu="H100-SXM")
    with pytest.raises(UsageError, match="--update needs a file"):
        run_gates([], None, is_update=True, run="a.py", gpu="H100-SXM")
