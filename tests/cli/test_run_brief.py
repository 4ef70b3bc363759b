"""`tally run --brief`: the answer of a real run, and against the one before."""

import json
from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run

SCRIPT = """\
import sys
import torch
model = torch.nn.Linear(WIDTH, 4096, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8192, WIDTH, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(SCRIPT.replace("WIDTH", "4096"))
    return tmp_path


def test_a_run_and_the_next_after_an_edit(folder: Path) -> None:
    first = tally_run("--brief", "--json", "brief.json", "train.py", cwd=folder)
    assert first.code == 0
    assert first.stderr.splitlines()[0].startswith("fits H100-SXM: peak ")
    assert "since the last run" not in first.stderr
    content = (folder / "brief.json").read_bytes()
    assert len(content) <= 1024
    document = json.loads(content)
    assert document["schema"] == "brief/1"
    assert document["since_last"] is None
    assert document["lines"][0]["where"] == "train.py:6"

    (folder / "train.py").write_text(SCRIPT.replace("WIDTH", "2048"))
    second = tally_run("--brief", "--json", "brief.json", "train.py", cwd=folder)
    assert len(second.stderr.splitlines()) <= 12
    assert "since the last run: step -" in second.stderr
    since = json.loads((folder / "brief.json").read_bytes())["since_last"]
    assert since["seconds_change"] < 0
    assert since["bytes_change"] < 0
    assert {line["where"] for line in since["lines"]} >= {"train.py:6"}


def test_a_broken_limit_is_named_and_exits_as_ever(folder: Path) -> None:
    run = tally_run("--brief", "--assert", "peak < 1MiB", "train.py", cwd=folder)
    assert run.code == 3
    assert "limits: peak < 1MiB: DOES NOT HOLD" in run.stderr


def test_out_of_memory_says_what_would_fit(folder: Path) -> None:
    (folder / "train.py").write_text(
        SCRIPT.replace("WIDTH", "4096").replace("8192", "int(sys.argv[2])")
    )
    words = ("--brief", "--format", "json", "train.py", "--batch", "1500000")
    run = tally_run(*words, cwd=folder)
    assert run.code == 1
    document = json.loads(run.stderr.splitlines()[-1])
    assert document["claim"] == "does not fit"
    assert document["would_fit"][0].startswith("--batch 750000")
    assert any("before memory ran out" in doubt for doubt in document["doubts"])
    assert not list((folder / "cache").rglob("*.json"))  # a run that failed is no last run


def test_what_a_brief_report_does_not_have_is_refused(folder: Path) -> None:
    run = tally_run("--brief", "--columns", "flops", "train.py", cwd=folder)
    assert run.code == 2
    assert "--brief has neither a display nor tables" in run.stderr
