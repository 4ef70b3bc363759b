"""The text report: numbers whole, names harmless, lines no wider than asked for."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, unknown_call
from tests.strategies import traces
from torchtally.hardware import chips
from torchtally.ledger import Ledger, account
from torchtally.record import Ending, Note, Phase, Placeholder, Role, Trace
from torchtally.report.grid import table_lines
from torchtally.report.plain import cut_left, cut_right, printable
from torchtally.report.text import summary_text, table_text, verdict
from torchtally.views import VIEWS, Column, Table, Unit, by
from torchtally.views.chips import chip_table
from torchtally.views.summary import judge, summarise

HOSTILE = (
    "[/x][bold red]boo[/]",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "x" * 10_000,
    "\u202eevil\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "line\nbreak\r\ttab\x00nul\x85nel\u2028sep",
    "\x9b31mC1 \x7f",
    "\udcff surrogate",
    "漢字" * 50,
    "",
)
WIDTHS = (60, 80, 120)


def realistic(file: str = "train.py", text: str = "", name: str = "h.0.mlp") -> Trace:
    """A step with all that a report can speak of."""
    text = text or "logits = self.lm_head(x)"
    where = site(frame(file, 41, text), module=name, module_class=name[-50:])
    made = TraceBuilder()
    weight = made.run(factory_call(1024, 1024), role=Role.PARAMETER, name=name)
    for _ in range(2):
        out = made.run(mm_call(512, 1024, 1024), (weight, weight), site=where)
        made.run(mm_call(512, 1024, 1024), (out, weight), site=where, phase=Phase.BACKWARD)
        made.run(unknown_call(name or "op"), (out,), site=where)
        made.free(out)
        made.end_step()
    return made.build(
        script=file,
        ending=Ending("exception", text),
        placeholders=[Placeholder(frame(file, 9, text), "aten._local_scalar_dense", "1.0", 7)] * 6,
        notes=[Note(text, 2)],
    )


def everything(ledger: Ledger, width: int) -> str:
    tables = [table_text(by(ledger, key), width=width) for key in VIEWS]
    page = summary_text(summarise(ledger), file=ledger.trace.script, width=width)
    return "\n".join([page, *tables])


# The page --------------------------------------------------------------------------------------


def test_the_first_line_is_the_verdict() -> None:
    page = summary_text(summarise(account(realistic())), file="run.tally")
    assert re.match(r"fits H100-SXM: peak 1[0-9.]+ MiB of 79\.\d+ GiB\n", page)
    assert "CUDA context" in " ".join(page.split())


def test_the_page_says_all_that_matters() -> None:
    page = " ".join(summary_text(summarise(account(realistic())), file="run.tally").split())
    for said in (
        "per steady-state step 2",
        "1.05 M parameters",
        "attention counted in full",
        "The script failed; this is the account of what ran before.",
        "logits = self.lm_head(x)",
        "h.*.mlp",
        "NOT counted, in no total: 1.",
        "h.0.mlp x 1 (no rule)",
        "train.py:9",
        "gave 1.0, 7 times",
        "allocated at most, in step 2, forward of train.py:41.",
        "and 3 more",
        "Done otherwise than on a real GPU:",
        "tally show run.tally --by line",
    ):
        assert said in page, said


def test_the_page_fits_fifty_lines() -> None:
    assert summary_text(summarise(account(realistic())), file="run.tally").count("\n") <= 50


def test_what_does_not_fit_is_said_first() -> None:
    made = TraceBuilder()
    made.allocate(100 << 30)
    found = judge(account(made.build()))
    assert found.fits is False
    assert verdict(found).startswith("does not fit H100-SXM: peak 100.00 GiB of ")


def test_what_does_not_fit_is_laid_at_the_lines_that_hold_it() -> None:
    made = TraceBuilder()
    made.run(factory_call(30 << 30), site=site(frame("big.py", 7, "x = torch.zeros(n)")))
    page = summary_text(summarise(account(made.build())))
    assert "by the line that allocated it" in page
    assert "big.py:7" in page


def test_a_run_without_the_gpu_is_told_so() -> None:
    page = summary_text(summarise(account(TraceBuilder().build())))
    assert page.startswith("nothing was put on the H100-SXM\n")
    assert "--device cuda" in page


def test_a_chip_that_no_table_knows_gets_no_verdict() -> None:
    found = judge(account(replace(realistic(), chip="Z9000")))
    assert found.fits is None
    assert verdict(found).endswith("on Z9000, whose memory is not known")


def test_interrupted_and_early_ends_are_named() -> None:
    trace = replace(realistic(), ending=Ending("interrupted", "SIGTERM"))
    assert "Interrupted; this is the account of what ran before. SIGTERM" in summary_text(
        summarise(account(trace))
    )
    trace = replace(realistic(), ending=Ending("exit"), step_ends=())
    assert "ended by itself before a training step" in summary_text(summarise(account(trace)))


# Strangers' names ------------------------------------------------------------------------------


def is_harmless(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_no_harm(name: str, width: int) -> None:
    text = everything(account(realistic(name, name, name)), width)
    assert is_harmless(text)
    assert "1.07 G" in text  # 2 * 512 * 1024 * 1024 FLOPs, whole
    assert "4.00 MiB" in text


@given(name=st.text(), width=st.integers(40, 150))
@settings(deadline=None, max_examples=60)
def test_any_name_does_no_harm(name: str, width: int) -> None:
    assert is_harmless(everything(account(realistic(name, name, name)), width))


@given(trace=traces(), width=st.sampled_from(WIDTHS))
@settings(deadline=None, max_examples=60)
def test_any_trace_can_be_reported(trace: Trace, width: int) -> None:
    ledger = account(trace)
    assert is_harmless(everything(ledger, width))


def test_colour_adds_only_its_own_escapes() -> None:
    ledger = account(realistic(HOSTILE[1], HOSTILE[1], HOSTILE[1]))
    coloured = summary_text(summarise(ledger), is_coloured=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == summary_text(summarise(ledger))


def test_markup_is_printed_as_it_is() -> None:
    text = table_text(by(account(realistic(text="x[/x][red]")), "line"), is_coloured=True)
    assert "x[/x][red]" in text


# Tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [50, *WIDTHS, 200])
@pytest.mark.parametrize("key", VIEWS)
def test_tables_keep_to_the_width(key: str, width: int) -> None:
    lines = table_text(by(account(realistic()), key), width=width).splitlines()
    assert max(map(cell_len, lines)) <= max(width, 60)


def numbers_of(table: Table, width: int) -> list[str]:
    lines = [line.plain for line in table_lines(table, width)]
    return re.findall(r"\d+\.\d+ [KMGTPEZY]?i?B?", "\n".join(lines[2:]))


HUGE = Table(
    title="Huge",
    columns=(
        *(Column(f"n{n}", f"number {n}", Unit.BYTES) for n in range(9)),
        Column("where", "where", Unit.PLACE),
    ),
    rows=((*[(1 << 69) - 1] * 9, "a/b/c.py:1"),),
    totals=(*[(1 << 69) - 1] * 9, None),
)


@pytest.mark.parametrize("width", [1, 20, 60, 500])
def test_numbers_are_whole_at_any_width(width: int) -> None:
    assert numbers_of(HUGE, width) == numbers_of(HUGE, 10_000)
    assert len(numbers_of(HUGE, width)) == 18


def test_where_there_is_no_room_the_least_columns_go_and_are_named() -> None:
    table = by(account(realistic()), "line")
    narrow, wide = table_text(table, width=70), table_text(table, width=200)
    assert "allocated" in wide.splitlines()[1]
    assert "allocated" not in narrow.splitlines()[1]
    assert "No room for:" in narrow
    assert "allocated" in narrow


def test_the_chips_fit_eighty_columns() -> None:
    lines = table_text(chip_table(chips())).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[0] == "H100-SXM" for line in lines)


def test_cutting_keeps_the_end_of_a_path_and_the_beginning_of_a_source() -> None:
    assert cut_left("a/very/long/path.py:41", 10) == "…ath.py:41"
    assert cut_right("x = self.c_fc(x)", 10) == "x = self.…"
    assert cut_left("short", 10) == cut_right("short", 10) == "short"
    assert cut_left("漢字漢字", 5) == "…漢字"
    assert cut_right("anything", 0) == ""


def test_what_cannot_be_printed_is_dropped_or_a_space() -> None:
    assert printable("a\x1b[0m\nb\u202ec\x9bd") == "a[0m bcd"
