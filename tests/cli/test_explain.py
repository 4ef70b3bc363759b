"""`tally explain` as a user runs it: pages, views, documents, joins, snapshots, errors."""

import gzip
import json
import pickle
import subprocess
from pathlib import Path

import pytest

from tests.cli.run_tally import environment
from tests.profiles.kineto_files import linear_step
from tests.profiles.nsys_files import linear_step as nsight_step
from tests.truth.snapshots import FILE as SNAPSHOT
from tests.warm import TALLY, warm

SCRIPT = """\
import torch
a, b = (torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
first, weight = torch.nn.Parameter(a), torch.nn.Parameter(b)
loss = first @ weight
loss.backward(torch.empty_like(loss))
weight.grad.mul_(0.5)
"""


def tally(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = warm(TALLY, *arguments)
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, env=environment() | variables
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    linear_step().write(tmp_path / "trace.json.gz")
    return tmp_path


def test_a_page_says_where_the_time_went(folder: Path) -> None:
    done = tally("explain", "trace.json.gz", cwd=folder)
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first == "trace.json.gz: measured on H100-SXM, by torch.profiler (Kineto)"
    text = " ".join(done.stdout.split())
    assert "680.0 us, 89.7 % computing, 10.3 % idle (between queued kernels)" in text
    for title in ("By operator", "Idle time of the device", "Calls against their roofline"):
        assert title in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.thorough
def test_views_documents_and_what_is_kept(folder: Path) -> None:
    done = tally(
        "explain", "trace.json.gz", "-o", "real.tally", "--by", "phase", "--json", cwd=folder
    )
    rows = {row["phase"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["backward"]["seconds"] == pytest.approx(410e-6)
    assert rows["backward"]["flop_per_s"] == pytest.approx(4 * 4096**3 / 400e-6)
    shown = tally("show", "real.tally", "--by", "phase", "--json", cwd=folder)
    assert json.loads(shown.stdout)["rows"] == list(rows.values())
    assert tally("show", "real.tally", cwd=folder).stdout.startswith("trace.json.gz: measured on")
    elsewhere = tally("show", "real.tally", "--by", "phase", "--gpu", "B200", "--json", cwd=folder)
    assert "flop_per_s" not in json.loads(elsewhere.stdout)["rows"][0]  # predicted, there


@pytest.mark.thorough
def test_a_real_step_beside_a_simulated_one(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    done = tally(
        "explain", "trace.json.gz", "--script", "train.py", "-o", "placed.tally", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "100.0 % of the measured operators" in " ".join(done.stdout.split())
    assert "train.py:4" in done.stdout
    for title in ("Where the real step differs", "By line of your code, measured and predicted"):
        assert title in done.stdout
    lines = json.loads(tally("show", "placed.tally", "--by", "line", "--json", cwd=folder).stdout)[
        "rows"
    ]
    seconds = {row["source"]: row["seconds"] for row in lines}
    assert seconds["loss = first @ weight"] == pytest.approx(610e-6)


def test_a_snapshot_has_its_own_page(folder: Path) -> None:
    document = json.loads(gzip.decompress(SNAPSHOT.read_bytes()))
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(document["snapshot"]))
    done = tally("explain", "snapshot.pickle", "--json", cwd=folder)
    loaded = json.loads(done.stdout)
    assert loaded["peak_allocated_bytes"] == document["said"]["peak_allocated_bytes"]
    page = tally("explain", "snapshot.pickle", cwd=folder)
    assert "to the byte" in " ".join(page.stdout.split())
    assert "expandable_segments:True" in page.stdout


@pytest.mark.thorough
def test_a_trace_becomes_a_calibration(folder: Path) -> None:
    place = {"TALLY_CALIBRATIONS": str(folder / "kept")}
    done = tally("bench", "--import", "trace.json.gz", "-o", "mine.json", cwd=folder, **place)
    assert done.returncode == 0, done.stderr
    samples = json.loads((folder / "mine.json").read_text())["samples"]
    seconds = {call[0]: seconds for call, seconds in samples}
    assert seconds == {"aten.mm": 0.0002, "aten.mul_": 1e-5}
    (folder / "train.py").write_text(SCRIPT)
    run = tally("explain", "trace.json.gz", "--script", "train.py", "--json", cwd=folder, **place)
    rows = {row["source"]: row for row in json.loads(run.stdout)["tables"]["lines"]["rows"]}
    line = rows["loss = first @ weight"]
    assert line["predicted_s"] == pytest.approx(line["measured_s"], rel=0.03)


def test_how_to_record_is_printed_without_a_file(tmp_path: Path) -> None:
    done = tally("explain", "--record", cwd=tmp_path)
    assert done.returncode == 0
    compile(done.stdout, "record", "exec")
    assert "record_shapes=True" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "missing trace"),
        (["none.json"], "none.json: no such file"),
        (["trace.json.gz", "--against", "none.tally"], "none.tally: no such file"),
        (["trace.json.gz", "--against", "a", "--script", "b"], "choose one"),
        (["trace.json.gz", "--gpu", "H1000"], "H1000"),
        (["trace.json.gz", "--step", "7"], "--step 7"),
        (["trace.json.gz", "trace.json.gz"], "both are of rank 0 of 1"),
        (["trace.json.gz", "--script", "-c 'raise SystemExit(7)'"], "failed (exit code 7)"),
        (["kept.tally"], "`tally show kept.tally` opens it"),
    ],
)
def test_what_cannot_be_explained_is_said_in_a_line(
    folder: Path, arguments: list[str], said: str
) -> None:
    if arguments == ["kept.tally"]:
        tally("explain", "trace.json.gz", "-o", "kept.tally", cwd=folder)
    done = tally("explain", *arguments, cwd=folder)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert said in done.stderr
    sentence, _, _ = done.stderr.partition("\n\n")  # below it an example may stand
    assert len(sentence.splitlines()) <= 3


def test_an_export_of_nsight_systems_and_what_it_lacks(tmp_path: Path) -> None:
    nsight_step().write(tmp_path / "report.sqlite")
    done = tally("explain", "report.sqlite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert text.startswith("report.sqlite: measured on H100-SXM, by Nsight Systems")
    assert "680.0 us, 89.7 % computing" in text
    assert "Dtypes not recorded: read from the kernels' names (5 of them)." in text
    (tmp_path / "report.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    done = tally("explain", "report.sqlite", cwd=tmp_path)
    assert done.returncode != 0
    assert "report.sqlite: the export is damaged or cut short" in done.stderr


def test_one_execution_trace_for_each_trace(folder: Path) -> None:
    done = tally("explain", "a.json", "b.json", "--execution-trace", "et.json", cwd=folder)
    assert done.returncode != 0
    assert "2 traces and 1 execution traces: give one for each" in done.stderr
