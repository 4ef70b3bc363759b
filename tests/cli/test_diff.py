"""`tally diff` of two traces, as a user runs it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.builders import big_trace
from tests.warm import warm


def diff(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = warm(
        "from torchtally.cli import main\nimport sys\nsys.exit(main())", "diff", *arguments
    )
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    for name, count in (("before", 200), ("after", 500)):
        big_trace(count).save(str(tmp_path / f"{name}.tally"))
    return tmp_path


def test_a_page_of_what_differs(traces: Path) -> None:
    done = diff("before.tally", "after.tally", cwd=traces)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Before and after: ")
    for title in ("Memory at the peak, by category", "By line, aligned by its text", "By module"):
        assert title in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_one_table_in_full_as_a_document_and_as_markdown(traces: Path) -> None:
    document = diff("before.tally", "after.tally", "--by", "op", "--json", cwd=traces)
    rows = json.loads(document.stdout)["rows"]
    assert rows
    assert {"seconds_change", "flops_change", "operator"} <= rows[0].keys()
    markdown = diff("before.tally", "after.tally", "--format", "markdown", cwd=traces)
    assert "| run | step |" in markdown.stdout


def test_a_trace_that_is_none_is_said_by_its_name(traces: Path) -> None:
    (traces / "broken.tally").write_text("no trace")
    done = diff("before.tally", "broken.tally", cwd=traces)
    assert done.returncode != 0
    assert "broken.tally" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.thorough
def test_columns_sort_and_filter_of_one_table(traces: Path) -> None:
    words = ("before.tally", "after.tally", "--by", "line")
    done = diff(*words, "--filter", "flops_change>0", "--filter", "source~x", "--sort",
                "count_change", "--columns", "line,count_change", "--json", cwd=traces)  # fmt: skip
    document = json.loads(done.stdout)
    counts = [row["count_change"] for row in document["rows"]]
    assert counts == sorted(counts, reverse=True)
    assert [column["name"] for column in document["columns"]] == ["line", "count_change"]
    assert "flops_change>0 and source~x" in document["note"]
    for wrong, said in ((("--filter", "flops_change>0"), "--by line"),
                        ((*words[2:], "--filter", "flop>0"), "Did you mean")):  # fmt: skip
        done = diff(*words[:2], *wrong, cwd=traces)
        assert done.returncode == 2
        assert said in done.stderr
