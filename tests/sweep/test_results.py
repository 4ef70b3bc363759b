"""What came of runs: how they ended, which is best, and how that looks."""

import json
import sys
from math import inf, nan
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweep.sweeps import definition, result
from torchtally.errors import UsageError
from torchtally.report.chart import chart_text
from torchtally.report.terminal import table_text
from torchtally.runs.processes import Exit
from torchtally.sweep.chart import chart
from torchtally.sweep.folder import open_folder
from torchtally.sweep.parquet import check_parquet, steps_file, write_parquet
from torchtally.sweep.results import (
    Status,
    ending,
    last_lines,
    rank_results,
    read_ending,
    result_of,
)
from torchtally.sweep.rows import document, results_table

DOWN = ((1, 10.0), (5, 2.0), (10, 1.0))
UP = ((1, 1.0), (2, 1.5), (3, 0.5), (4, 1.0), (5, 1.0), (6, 2.0), (7, 2.0), (9, 4.0), (10, 3.0))


# How a run ended ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        (0, "all well", Status.ENDED),
        (0, "tally: step 3: out of memory with micro-batches of 8; going on", Status.ENDED),
        (4, "tally: Step 3: the loss is nan", Status.DIVERGED),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried ...", Status.OUT_OF_MEMORY),
        (1, "tally: The device is out of memory: ...", Status.OUT_OF_MEMORY),
        (1, "RuntimeError: [...] DefaultCPUAllocator: can't allocate", Status.OUT_OF_MEMORY),
        (1, "MemoryError", Status.OUT_OF_MEMORY),
        (1, "step 3: out of memory with micro-batches of 8\nKeyError: 'x'", Status.FAILED),
        (2, "tally: data.train: no such file", Status.FAILED),
        (-11, "", Status.FAILED),
        (-9, "", Status.FAILED),
        (143, "", Status.STOPPED),
        (129, "", Status.STOPPED),
        (130, "", Status.STOPPED),
        (-15, "", Status.STOPPED),
    ],
)
def test_what_an_exit_means(tmp_path: Path, code: int, said: str, status: Status) -> None:
    (tmp_path / "output").write_text(said)
    outcome = ending(Exit("it", code, 1.0), tmp_path / "output", is_stopping=False)
    assert outcome.status is status
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(outcome))
    assert read_ending(tmp_path / "result.json") == outcome
    assert outcome.message.startswith("" if status in (Status.ENDED, Status.STOPPED) else said)


def test_killed_says_so(tmp_path: Path) -> None:
    outcome = ending(Exit("it", -9, 1.0), tmp_path / "none", is_stopping=False)
    assert "Killed by signal 9" in outcome.gist
    assert "memory" in outcome.gist


def test_while_stopping_whatever_ends_badly_was_stopped(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("KeyboardInterrupt")
    for code, status in ((1, Status.STOPPED), (0, Status.ENDED), (4, Status.DIVERGED)):
        outcome = ending(Exit("it", code, 1.0), tmp_path / "output", is_stopping=True)
        assert outcome.status is status


def test_the_gist_is_the_error_not_what_stands_below_it(tmp_path: Path) -> None:
    (tmp_path / "output").write_text(
        "tally: a note\n  1/9\rtally: error: the error.\nMore of it.\n"
    )
    outcome = ending(Exit("it", 2, 1.0), tmp_path / "output", is_stopping=False)
    assert outcome.gist == "the error."
    (tmp_path / "output").write_text("Traceback:\n  File\nKeyError: 'x'\n")
    outcome = ending(Exit("it", 1, 1.0), tmp_path / "output", is_stopping=False)
    assert outcome.gist == "KeyError: 'x'"
    assert ending(Exit("it", 1, 1.0), tmp_path / "no", is_stopping=False).gist


def test_the_end_of_a_long_output(tmp_path: Path) -> None:
    (tmp_path / "output").write_bytes(b"\xff" * 50_000 + b"\none\rtwo\nthree")
    assert last_lines(tmp_path / "output").endswith("\ntwo\nthree")


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    with open_folder(tmp_path, definition("optimizer.lr=0.01,0.1"), resumes=False) as folder:
        first, second = folder.definition.points
        folder.begin(first)
        lines = [
            {"kind": "run", "schema_version": 1},
            {"step": 1, "unix_s": 1, "train/loss": 3.0},
            {"step": 2, "unix_s": 2, "train/loss": "NaN"},
            {"step": 2, "unix_s": 2, "eval/loss": 2.5},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder.run(first) / "log.jsonl").write_text(text + '{"step": 3, "tra')
        read_back = result_of(folder, first)
        assert read_back.training[0] == (1, 3.0)
        assert (read_back.validation, read_back.steps) == (((2, 2.5),), 2)
        assert read_back.best_loss == 3.0
        assert read_back.status is Status.STOPPED  # it has begun, and nobody knows of its end
        assert result_of(folder, second).status is Status.WAITING
        (folder.run(first) / "log.jsonl").write_text("odd")
        assert result_of(folder, first).status is Status.WAITING


# Which is best -----------------------------------------------------------------------------------


def test_best_first_and_what_did_not_end_behind() -> None:
    points = definition("seed=1,2,3,4,5,6").points
    results = [
        result(points[0], DOWN, Status.DIVERGED),
        result(points[1], status=Status.WAITING),
        result(points[2], UP),
        result(points[3], ((1, nan),)),
        result(points[4], DOWN),
        result(points[5], status=Status.FAILED),
    ]
    assert [outcome.point.values[0][1] for outcome in rank_results(results)] == [5, 3, 4, 1, 6, 2]


def test_by_validation_where_all_that_ended_have_it() -> None:
    points = definition("seed=1,2,3").points
    a = result(points[0], DOWN, validation=((10, 5.0),))
    b = result(points[1], UP, validation=((5, 1.0), (10, 2.0)))
    c = result(points[2], DOWN, Status.DIVERGED)
    assert rank_results([a, b, c]) == [b, a, c]
    assert rank_results([a, b, result(points[2], DOWN)])[0] != b


def test_a_loss_that_rose_is_marked() -> None:
    point = definition("seed=1").points[0]
    assert result(point, UP).remark == "ended, loss rose"
    assert result(point, ((1, 1.0), (2, nan))).has_risen
    assert result(point, ((1, 1.0), (2, inf))).has_risen
    assert not result(point, DOWN).has_risen
    assert not result(point, UP, validation=((0, 2.0), (10, 1.0))).has_risen
    assert result(point, DOWN, validation=((0, 1.0), (10, 2.0))).has_risen
    assert result(point, UP, validation=((10, 1.0),)).has_risen  # one tells of no rise
    assert result(point, DOWN, validation=((0, 1.0), (10, nan))).has_risen
    assert not result(point, UP, Status.DIVERGED).has_risen


def test_batches_that_vary_are_no_rise() -> None:
    """The teacher's of the documents: ten batches of four, the last above the first."""
    point = definition("seed=1").points[0]
    losses = (882.0, 342.0, 168.0, 3659.0, 1797.0, 700.0, 600.0, 500.0, 900.0, 1313.0)
    teacher = result(point, tuple(enumerate(losses, 1)), validation=((10, 1130.0),))
    assert teacher.remark == "ended"
    assert not result(point, ((1, 1.0), (2, 2.0))).has_risen  # of two nothing can be said


# How it looks ------------------------------------------------------------------------------------

FOUR = definition("optimizer.lr=0.01,0.1", "batch=4,8")
RESULTS = [
    result(FOUR.points[0], DOWN, validation=((10, 1.25),)),
    result(FOUR.points[1], UP, validation=((10, 1.125),)),
    result(FOUR.points[2], ((1, 10.0), (5, 20.0)), Status.DIVERGED, message="nan"),
    result(FOUR.points[3], status=Status.OUT_OF_MEMORY, message="CUDA out of memory."),
]
TABLE = """\
teacher.toml, 4 runs by last validation loss
       lr  batch  validation  final loss  best loss  steps    time  status
  b  0.01      8       1.125       3.000     0.5000     10  1.50 s  ended, loss rose
  a  0.01      4       1.250       1.000      1.000     10  1.50 s  ended
  c   0.1      4           -       20.00      10.00      5  1.50 s  diverged
      0.1      8           -           -          -      0  1.50 s  out of memory
"""


def test_the_table() -> None:
    marks = {outcome.point.name: letter for outcome, letter in zip(RESULTS, "abc", strict=False)}
    assert table_text(results_table(FOUR, RESULTS, marks), width=90) == TABLE


@pytest.mark.thorough("the screens beside it")
@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(60, 120))
def test_the_table_fits(keys: int, width: int) -> None:
    grids = ["optimizer.lr=0.0003148,0.01", "batch=4,8", "seed=1,2", "steps=100,200",
             "on_spike=note,stop", "optimizer.weight_decay=0,0.1"][:keys]  # fmt: skip
    sweep = definition(*grids)
    results = [result(point, DOWN, validation=DOWN) for point in sweep.points]
    lines = table_text(results_table(sweep, results, {}), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "validation" in lines[1]
    assert "status" in lines[1]


def test_two_values_are_drawn_over_the_steps() -> None:
    drawn = chart(FOUR, RESULTS)
    assert drawn is not None
    assert drawn.title == "Training loss by step"
    assert drawn.marks == {
        FOUR.points[1].name: "a", FOUR.points[0].name: "b", FOUR.points[2].name: "c",
    }  # fmt: skip
    lines = chart_text(drawn, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith(" 20.00 +")
    assert all(letter in "".join(lines[1:-2]) for letter in "abc")


def test_many_values_of_a_number_are_drawn_over_it() -> None:
    sweep = definition("optimizer.lr=1e-4,1e-3,1e-2,1e-1")
    results = [
        *(result(point, ((1, 9.0), (10, loss)))
          for point, loss in zip(sweep.points, (4.0, 1.0, 2.0), strict=False)),
        result(sweep.points[3], DOWN, Status.DIVERGED),
    ]  # fmt: skip
    drawn = chart(sweep, results)
    assert drawn is not None
    lines = chart_text(drawn, width=40, rows=5).splitlines()
    assert lines == [
        "Last training loss by optimizer.lr",
        "4.000 +o                               X",
        "3.250 +",
        "2.500 +",
        "1.750 +                     o",
        "1.000 +           o",
        "      +---------------------------------",
        "       0.0001    lr, logarithmic     0.1",
        "X  diverged",
    ]


@pytest.mark.thorough("the screens beside it")
@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6), min_size=4, max_size=4
    )
)
def test_any_losses_can_be_drawn(losses: list[list[float]]) -> None:
    for of in (FOUR, definition("optimizer.lr=1e-4,1e-3,1e-2,0")):
        results = [
            result(point, tuple(enumerate(loss, 1)))
            for point, loss in zip(of.points, losses, strict=True)
        ]
        drawn = chart(of, results)
        if drawn is not None:
            assert all(len(line) <= 80 for line in chart_text(drawn).splitlines())
        table_text(results_table(of, results, {}))
        json.dumps(document(of, results), allow_nan=False)


def test_nothing_to_compare_is_not_drawn() -> None:
    assert chart(FOUR, [result(point) for point in FOUR.points]) is None
    assert chart(FOUR, [result(FOUR.points[0], DOWN)]) is None


def test_results_as_plain_data() -> None:
    printed = document(FOUR, RESULTS)
    assert printed["ranked_by"] == "validation_loss"
    assert printed["varying"] == ["optimizer.lr", "batch"]
    assert [run["status"] for run in printed["runs"]] == [
        "ended",
        "ended",
        "diverged",
        "out of memory",
    ]
    assert printed["runs"][0]["values"] == {"optimizer.lr": 0.01, "batch": 8}
    assert printed["runs"][3]["final_loss"] is None


# Parquet -----------------------------------------------------------------------------------------


def test_parquet_reads_back(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    sweep = definition("optimizer.lr=none,0.1", 'log.to=[],["wandb"]', "steps=10")
    results = [result(point, ((1, nan), (2, 2.0))) for point in sweep.points[:3]]
    results.append(result(sweep.points[3], status=Status.WAITING))
    write_parquet(tmp_path / "r.parquet", sweep, results)
    table = parquet.read_table(tmp_path / "r.parquet")
    assert {
        str(column.type) for column in table.schema if column.name == "config.optimizer.lr"
    } == {"double"}
    rows = table.to_pylist()
    assert len(rows) == 4
    by_name = {row["run"]: row for row in rows}
    for each in results:
        row = by_name[each.point.name]
        assert (row["config.optimizer.lr"], tuple(row["config.log.to"]), row["config.steps"]) == (
            tuple(dict(each.point.values).values())
        )
        assert (row["status"], row["final_loss"]) == (each.status.value, each.final_loss)
    about = json.loads(table.schema.metadata[b"torchtally.sweep"])
    assert about["toml"] == sweep.toml
    steps = parquet.read_table(steps_file(tmp_path / "r.parquet")).to_pylist()
    assert steps_file(tmp_path / "r.parquet").name == "r-steps.parquet"
    assert len(steps) == 6
    assert [step["step"] for step in steps[:2]] == [1, 2]
    assert steps[0]["train/loss"] != steps[0]["train/loss"]  # nan stays nan
    assert steps[1]["train/loss"] == 2.0
    assert {step["config.optimizer.lr"] for step in steps} == {None, 0.1}


def test_parquet_of_nothing(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(tmp_path / "r.parquet", FOUR, [result(FOUR.points[0], status=Status.WAITING)])
    assert parquet.read_table(tmp_path / "r-steps.parquet").num_rows == 0


def test_parquet_that_cannot_be_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow.parquet")
    check_parquet(tmp_path / "r.parquet")
    with pytest.raises(UsageError, match="its folder does not exist"):
        check_parquet(tmp_path / "none" / "r.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r'pip install "torchtally\[parquet\]"'):
        check_parquet(tmp_path / "r.parquet")
