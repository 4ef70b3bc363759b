"""What objects show by themselves in a notebook: forms, size, hostile names, a page's frame."""

import re
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import torchtally
from tests.builders import TraceBuilder, frame, mm_call, site
from tests.report.test_html import CORPUS, HARMLESS, injected
from tests.report.test_text import realistic
from torchtally.chips import chip
from torchtally.gates import check, parse_limits
from torchtally.ledger import account
from torchtally.plan.questions import Answer
from torchtally.report.notebook import MOST_ROWS, STYLE
from torchtally.table import Column, Table
from torchtally.table.shown import MIME_TYPES
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace
from torchtally.units import Unit
from torchtally.views import by

pytestmark = pytest.mark.one_case_in(3)

H100 = Roofline(chip("H100-SXM"))


def shown_things(trace: Trace, name: str) -> dict[str, Any]:
    """One of everything, with a stranger's name in it."""
    ledger = account(trace, roofline=H100)
    column = Column("name", "name", Unit.TEXT)
    return {
        "trace": trace,
        "ledger": ledger,
        "table": by(ledger, "line"),
        "findings": check(ledger, parse_limits(["peak < 1B", "step < 1h"])),
        "answer": Answer(
            question="q", headline=(name,), assumptions=(name,), unknown=(name,), next=(name,),
            tables=(Table(name, (column,), ((name,),), note=name),),
        ),
        "formats": torchtally.dtypes("0.1"),
    }  # fmt: skip


THINGS = shown_things(realistic(), HARMLESS)


@pytest.mark.parametrize("kind", THINGS)
def test_every_form_is_there_and_the_text_is_what_print_shows(kind: str) -> None:
    bundle = THINGS[kind]._repr_mimebundle_()
    assert list(bundle) == list(MIME_TYPES)
    assert bundle["text/plain"] == str(THINGS[kind])
    assert bundle["text/html"] == THINGS[kind]._repr_html_()
    assert bundle["text/markdown"].startswith("# ")
    assert all(type(text) is str for text in bundle.values())


def test_forms_can_be_chosen() -> None:
    table = THINGS["table"]
    assert list(table._repr_mimebundle_(include={"text/html"})) == ["text/html"]
    assert list(table._repr_mimebundle_(exclude={"text/html"})) == ["text/plain", "text/markdown"]


@pytest.mark.parametrize("kind", THINGS)
def test_html_is_static_and_styles_nothing_around_it(kind: str) -> None:
    html = THINGS[kind]._repr_html_()
    assert html.startswith('<div class="tally"><style>')
    forbidden = r"<script|<link|<img|<iframe|\son\w+=|javascript:|url\(|@import|://"
    assert not re.search(forbidden, html)
    rules = re.findall(r"([^{}]+)\{[^}]*\}", STYLE)
    selectors = [each.strip() for rule in rules for each in rule.split(",")]
    assert all(each.startswith(".tally.tally") for each in selectors), selectors
    assert len(html) < 50_000


@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_no_name_becomes_markup(text: str) -> None:
    def html(name: str) -> str:
        things = shown_things(realistic(name, name, name), name)
        return "".join(value._repr_html_() for value in things.values()).replace(STYLE, "")

    short = text[:200]  # long ones leave no room for the rows of later tables
    assert injected(html(short), html(HARMLESS)) == []


def test_long_names_leave_rows_out_instead_of_growing() -> None:
    name = "<b>" * 2000
    for value in shown_things(realistic(name, name, name), name).values():
        assert len(value._repr_html_()) < 400_000


@pytest.mark.thorough
def test_a_long_table_is_cut_and_says_so() -> None:
    column, count = Column("n", "n", Unit.COUNT), Column("name", "name", Unit.TEXT)
    table = Table("Many", (count, column), tuple((f"x{n}" * 20, n) for n in range(10_000)))
    html = table._repr_html_()
    assert html.count("<tr>") == 1 + MOST_ROWS
    assert f"{10_000 - MOST_ROWS} more rows." in html
    assert f"{10_000 - MOST_ROWS} more rows." in table._repr_mimebundle_()["text/markdown"]
    assert len(html) < 50_000


def test_bars_are_shares_of_the_total() -> None:
    columns = Column("name", "name", Unit.TEXT), Column("b", "moved", Unit.BYTES)
    table = Table("T", columns, (("a", 3), ("b", 1), ("c", None)), totals=(None, 4))
    html = table._repr_html_()
    assert re.findall(r'class="number bar-(\d+)"', html) == ["15", "5"]  # twentieths
    without = Table("T", columns, (("a", 3),))._repr_html_()
    assert "bar-" not in without.replace(STYLE, "")


def test_what_is_not_counted_is_said() -> None:
    html = THINGS["ledger"]._repr_html_()
    assert "What is counted, assumed or unknown" in html
    assert "Operators counted:" in html


def test_the_verdict_comes_first() -> None:
    html = THINGS["ledger"]._repr_html_()
    assert re.search(r'<p class="title">([^<]*)<', html)[1] == "fits H100-SXM"  # type: ignore[index]


def test_an_empty_run_is_shown() -> None:
    trace = TraceBuilder().build(script="nothing")
    assert "nothing was allocated" in account(trace)._repr_html_()
    assert "nothing, traced on" in trace._repr_html_()
    with pytest.raises(torchtally.TallyError, match="no operator ran"):
        trace.show()


def test_a_page_is_a_frame_whose_scripts_reach_nothing(tmp_path: Path) -> None:
    page = THINGS["ledger"].show(height=500)
    frame_ = page._repr_html_()
    assert frame_.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert "height:500px" in frame_
    (document,) = re.findall(r'srcdoc="([^"]*)"', frame_)
    assert unescape(document) == page.html
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page.html
    assert "<iframe" not in repr(page)


def test_the_page_of_a_cell_has_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtally.integrations.notebook.page import cell_texts
    from torchtally.tracer.texts import compile_text

    compile_text("\nx @ w\n", "cell [7]")
    builder = TraceBuilder()
    builder.run(mm_call(2, 3, 4), (builder.allocate(24), builder.allocate(48)),
             site=site(frame(file="/work/cell [7]", line=2, text="x @ w")))  # fmt: skip
    builder.end_step()
    assert cell_texts(account(builder.build())) == {"/work/cell [7]": "\nx @ w\n"}


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("gpus H100-SXM", "H100-SXM"),
        (["tensor", "x.T", "--let", "x=3x4"], "x.T"),
        ("plan llama-3-8b", "Llama 3 8B"),
        ("dtypes 0.1", "Number formats"),
    ],
)
def test_a_command_returns_its_report(line: str | list[str], title: str) -> None:
    report = torchtally.tally(line)
    assert title in report.title
    assert str(report)
    assert "tally" in report._repr_html_()


def test_what_a_command_prints_besides_is_a_remark() -> None:
    limit = ["plan", "llama-3-8b", "--gpus", "8xH100-SXM", "--assert", "memory < 1GiB"]
    report = torchtally.tally(limit)
    assert any("DOES NOT HOLD" in remark for remark in report.remarks)
    assert "DOES NOT HOLD" in report._repr_html_()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "tally has no command ''"),
        ("shwo run.tally", "Did you mean show?"),
        ("gpus --nope", "unknown option --nope"),
        ("gpus X1000", "No chip is called 'X1000'"),
        ("show nowhere.tally", "nowhere.tally"),
    ],
)
def test_a_command_that_fails_raises_its_message(line: str, error: str) -> None:
    with pytest.raises(torchtally.TallyError, match=re.escape(error)):
        torchtally.tally(line)


render = partial(re.sub, r"(?s)<style>.*?</style>", "")


def test_a_table_alone_has_one_title() -> None:
    assert render(THINGS["table"]._repr_html_()).count("By line of your code") == 1
