"""`tally report` and `tally run --html`: where the page goes, and which files it quotes."""

import base64
import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.builders import TraceBuilder, frame, mm_call, site
from tests.cli.run_tally import TIMEOUT_S, command, environment
from torchtally.cli import main
from torchtally.cli.sources import source_texts
from torchtally.ledger import account
from torchtally.trace import Trace

SOURCE = "import torch\n\n\ndef main():\n    hidden = x @ weight\n"
SCRIPT = """\
import torch
weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
for _ in range(2):
    weight.sum().backward()
    torch.optim.SGD([weight]).step()
"""


def trace_of(file: Path | str, line: int = 5, text: str = "hidden = x @ weight") -> Trace:
    builder = TraceBuilder()
    builder.run(mm_call(2, 3, 4), (-1, -1), site=site(frame(str(file), line, text)))
    builder.end_step()
    return builder.build()


def texts_of(trace: Trace) -> dict[str, str]:
    return source_texts(account(trace))


def data_of(page: str) -> dict[str, Any]:
    match = re.search(r'id="data" type="application/gzip">([^<]*)<', page)
    assert match is not None
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(match[1])))
    return data


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(SOURCE)
    trace_of(tmp_path / "model.py").save(tmp_path / "run.tally")
    return tmp_path


def test_the_page_goes_beside_the_trace_and_its_name_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "run.tally"]) == 0
    assert capsys.readouterr().out == "run.html\n"
    (file,) = data_of((here / "run.html").read_text())["files"]
    assert file["text"] == SOURCE.splitlines()


def test_the_page_goes_where_it_is_told_to(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "run.tally", "-o", "-", "--no-source"]) == 0
    (file,) = data_of(capsys.readouterr().out)["files"]
    assert file["text"] is None
    assert main(["report", "run.tally", "-o", str(here / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_another_chip_times_the_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "run.tally", "-o", "-", "--gpu", "A100-SXM", "--step", "all"]) == 0
    page = capsys.readouterr().out
    assert "Timed on A100-SXM." in page
    assert data_of(page)["period"].startswith("the whole run")


def test_a_file_is_quoted_where_it_still_is_what_ran(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    assert texts_of(trace_of(file)) == {str(file): SOURCE}
    file.write_text(SOURCE.replace("x @ weight", "x + weight"))
    assert texts_of(trace_of(file)) == {}
    file.write_text(f"# moved down\n{SOURCE}")
    assert texts_of(trace_of(file)) == {}
    file.unlink()
    assert texts_of(trace_of(file)) == {}


def test_a_relative_file_is_found_from_where_the_script_ran(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    trace = structs.replace(trace_of("model.py"), facts={"cwd": str(tmp_path)})
    assert texts_of(trace) == {"model.py": SOURCE}


@pytest.mark.parametrize(
    ("name", "line", "text"),
    [("key.pem", 1, "SECRET"), ("key.py", 1, ""), ("key.py", 0, "SECRET"), ("key.py", 9, "SECRET")],
)
def test_a_strangers_trace_quotes_no_file_that_it_does_not_know(
    tmp_path: Path, name: str, line: int, text: str
) -> None:
    (tmp_path / name).write_text("SECRET\n")
    known = frame(str(tmp_path / name), line, "x")
    trace = trace_of(tmp_path / name)
    sites = (site(structs.replace(known, text=text)),)
    assert texts_of(structs.replace(trace, sites=sites)) == {}


def test_a_run_writes_its_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        command("--html", "page.html", "--quiet", "train.py"),
        capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    data = data_of((tmp_path / "page.html").read_text())
    assert data["files"][0]["name"] == "train.py"
    assert data["files"][0]["text"] == SCRIPT.splitlines()
    assert data["verdict"]["claim"] == "fits"
