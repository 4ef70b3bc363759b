"""The formats of reports: each one file, all of the same tables."""

import csv
import html
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.test_text import HOSTILE, realistic
from tests.views.stopwatch import stopwatch
from torchtally.ledger import Ledger, account
from torchtally.report import formats
from torchtally.report.formats import format_names, render
from torchtally.report.ledger import ledger_report, roofline_report, view_report
from torchtally.report.report import Look, Report, table_report
from torchtally.table import Column, Table
from torchtally.units import Unit
from torchtally.views import by

LOOK = Look()
TABLE = Table(
    "Storages",
    (Column("name", "name", Unit.TEXT), Column("bytes", "held", Unit.BYTES)),
    (("weight", 2048), ("a|b", None)),
    (None, 2048),
    left_out=1,
    note="A note.",
)
REPORT = Report(title="run", facts=("On a chip.",), tables=(("storages", TABLE),))


def test_the_formats() -> None:
    assert format_names()[0] == "text"
    assert {"text", "csv", "html", "json", "markdown"} <= {*format_names()}


def test_text() -> None:
    assert render(REPORT, "text", LOOK).splitlines() == [
        "Storages",
        "      held  name",
        "  2.00 KiB  weight",
        "         -  a|b",
        "  2.00 KiB  total",
        "  1 more row (--top). A note.",
    ]


def test_json() -> None:
    document = json.loads(render(REPORT, "json", LOOK))
    assert (document["schema"], document["title"]) == ("page/1", "run")
    assert document["tables"]["storages"] == {
        "title": "Storages",
        "note": "A note.",
        "columns": [{"name": "name", "unit": "text"}, {"name": "bytes", "unit": "bytes"}],
        "rows": [{"name": "weight", "bytes": 2048}, {"name": "a|b", "bytes": None}],
        "rows_left_out": 1,
        "rows_filtered_out": 0,
        "totals": {"name": None, "bytes": 2048},
    }


def test_csv_has_plain_numbers_below_the_names_of_columns() -> None:
    assert render(REPORT, "csv", LOOK) == "name,bytes\nweight,2048\na|b,\n"
    two = Report(title="run", tables=(("one", TABLE), ("two", TABLE)))
    assert [line for line in render(two, "csv", LOOK).splitlines() if line[:1] in ("#", "")] == [
        "# one", "", "# two",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cell"), [("=1+2", "'=1+2"), ("@SUM(A1)", "'@SUM(A1)"), ("-", "-"), ("a=1", "a=1")]
)
def test_a_spreadsheet_computes_no_name(name: str, cell: str) -> None:
    table = Table("Names", (Column("name", "name", Unit.TEXT),), ((name,),), (None,))
    assert render(table_report(table), "csv", LOOK) == f"name\n{cell}\n"


def test_markdown() -> None:
    assert render(REPORT, "markdown", LOOK).splitlines() == [
        "# run",
        "",
        "On a chip.",
        "",
        "## Storages",
        "",
        "| name | held |",
        "| :--- | ---: |",
        "| weight | 2.00 KiB |",
        "| a\\|b | - |",
        "| **total** | **2.00 KiB** |",
        "",
        "1 more row. A note.",
    ]


def test_html() -> None:
    page = render(REPORT, "html", LOOK)
    assert "<h1>run</h1>" in page
    assert '<td class="number">2.00 KiB</td>' in page


@pytest.mark.parametrize("page", [ledger_report, roofline_report])
@pytest.mark.parametrize("format", ["markdown", "html"])
def test_a_page_about_a_run_says_what_the_terminal_says(
    format: str, page: Callable[[Ledger], Report]
) -> None:
    """The verdict, the peak, the step and its MFU: all that a gate is about."""
    ledger = account(realistic(), roofline=stopwatch())
    facts = ledger_report(ledger).facts
    told = render(ledger_report(ledger), "text", Look(width=10_000)).splitlines()
    page_text = html.unescape(render(page(ledger), format, LOOK)).replace("\\", "")
    assert "fits H100-SXM" in told
    for name in ("peak memory", "step", "samples/s", "MFU", "cost"):
        [line] = [line for line in told if line.startswith(f"  {name} ")]
        value, _, remark = line.removeprefix(f"  {name} ").strip().partition("  ")
        title = name[0].upper() + name[1:]
        [sentence] = [each for each in facts if each.startswith(f"{title}: {value}")]
        assert sentence.endswith(f"{remark}.")
        assert sentence in page_text, sentence


@pytest.mark.parametrize("format", format_names())
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(format: str, name: str) -> None:
    ledger = account(realistic(name, name, name))
    for report in (ledger_report(ledger), view_report(by(ledger, "line"), ledger)):
        text = render(report, format, LOOK)
        assert all(char.isprintable() for char in text.replace("\n", ""))
        if format == "markdown":
            assert "[/x]" not in text


def test_csv_of_a_hostile_name_reads_back_in_whole_rows() -> None:
    ledger = account(realistic("a,b\n=c.py", 'say "x", 1'))
    text = render(view_report(by(ledger, "line"), ledger), "csv", LOOK)
    names, row = csv.reader(io.StringIO(text))
    assert dict(zip(names, row, strict=True))["source"] == 'say "x", 1'


def test_a_new_format_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(formats.__file__).parent
    for file in folder.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "titles.py").write_text("def render(report, look):\n    return report.title\n")
    monkeypatch.setattr(formats, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(formats, "__path__", [str(tmp_path)])
    assert "titles" in format_names()
    assert render(REPORT, "titles", LOOK) == "run"
