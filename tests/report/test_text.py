"""The text report: numbers whole, names harmless, lines no wider than asked for."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from rich.cells import cell_len

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, unknown_call
from tests.strategies import traces
from tests.timing.calibration.machines import H100 as MEASURED
from tests.views.stopwatch import AT_ONCE, DATASHEET, MS, NOBODY_KNOWS, stopwatch, without_peak
from torchtally.chips import chip, known_chips
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.grid import table_lines
from torchtally.report.plain import cut_left, cut_right, printable
from torchtally.report.terminal import table_text
from torchtally.report.text import summary_text, verdict
from torchtally.table import Column, Table
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.trace import Ending, Note, Phase, Placeholder, Role, Trace, Use
from torchtally.units import Unit
from torchtally.views import VIEWS, by
from torchtally.views.chips import chip_table
from torchtally.views.steps import RunShare
from torchtally.views.summary import judge, summarise

pytestmark = pytest.mark.one_case_in(2)

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
    builder = TraceBuilder()
    weight = builder.run(factory_call(1024, 1024), role=Role.PARAMETER, name=name)
    for _ in range(2):
        out = builder.run(mm_call(512, 1024, 1024), (weight, weight), site=where)
        builder.run(mm_call(512, 1024, 1024), (out, weight), site=where, phase=Phase.BACKWARD)
        builder.run(unknown_call(name or "op"), (out,), site=where)
        builder.free(out)
        builder.end_step()
    return builder.build(
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
    assert re.match(r"fits H100-SXM\n  peak memory  1[0-9.]+ MiB  of 79\.\d+ GiB, reserved; ", page)
    assert "CUDA context" in " ".join(page.split())


def test_the_page_says_all_that_matters() -> None:
    page = " ".join(summary_text(summarise(account(realistic())), file="run.tally").split())
    for said in (
        "per steady-state step 2",
        "1.05 M parameters",
        "attention counted in full",
        "The script failed; the report covers what ran before.",
        "logits = self.lm_head(x)",
        "h.0.mlp",
        "NOT counted, missing from all totals: 1.",
        "h.0.mlp x 1 (no rule)",
        "train.py:9",
        "gave 1.0, 7 times",
        "Most is allocated in step 2, forward of train.py:41.",
        "and 3 more",
        "Differences from a real GPU:",
        "tally show run.tally --by module",
    ):
        assert said in page, said


@pytest.mark.parametrize(
    ("message", "is_named"),
    [("ModuleNotFoundError: No module named 'tqdm'", True), ("ValueError: No module", False)],
)
def test_the_remedy_for_a_module_that_is_not_installed(message: str, is_named: bool) -> None:
    builder = TraceBuilder()
    builder.run(factory_call(4), site=site(frame("train.py", 1, "x = ...")))
    trace = builder.build(ending=Ending("exception", message))
    page = " ".join(summary_text(summarise(account(trace))).split())
    assert ("install what the script needs there" in page) == is_named


def test_the_beginning_of_a_step_is_no_evaluation() -> None:
    summary = summarise(account(realistic()))
    shares = [RunShare(0.0, 0.0009), RunShare(0.0, 0.001), RunShare(0.01, None)]
    pages = [
        summary_text(replace(summary, run=replace(summary.run, evaluation=share)))
        for share in shares
    ]
    assert ["Evaluation, outside of all steps" in " ".join(page.split()) for page in pages] == [
        False, True, True,
    ]  # fmt: skip


def test_conditions_on_placeholders_come_first_and_prints_last() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(4), site=site(frame("train.py", 1, "x = ...")))
    uses = [(1, Use.PRINT, 900), (2, Use.NUMBER, 50), (3, Use.BRANCH, 1), (4, Use.BRANCH, 2)]
    trace = builder.build(
        placeholders=[
            Placeholder(frame("train.py", line, "..."), "aten.nonzero", BALANCED, count, use)
            for line, use, count in uses
        ]
    )
    page = " ".join(summary_text(summarise(account(trace))).split())
    places = [page.index(f"train.py:{line} ... (") for line in (4, 3, 2)]
    assert places == sorted(places)
    assert "train.py:4 ... (branch: aten.nonzero assumed: balanced routing, 2 times)" in page
    assert "train.py:2 ... (aten.nonzero assumed: balanced routing, 50 times)" in page
    assert "train.py:1 ... (" not in page
    assert "and 1 more" in page


BALANCED = "assumed: balanced routing"


def test_the_page_fits_fifty_lines() -> None:
    assert summary_text(summarise(account(realistic())), file="run.tally").count("\n") <= 50


def test_what_does_not_fit_is_said_first() -> None:
    builder = TraceBuilder()
    builder.allocate(100 << 30)
    answer = judge(account(builder.build()))
    assert answer.fits is False
    assert verdict(answer).startswith("does not fit H100-SXM: peak 100.00 GiB of ")


def test_what_does_not_fit_is_laid_at_the_lines_that_hold_it() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(30 << 30), site=site(frame("big.py", 7, "x = torch.zeros(n)")))
    page = summary_text(summarise(account(builder.build())))
    assert "by the line that allocated it" in page
    assert "big.py:7" in page


def test_a_run_without_the_gpu_is_told_so() -> None:
    page = summary_text(summarise(account(TraceBuilder().build())))
    assert page.startswith("nothing was allocated on the H100-SXM\n")
    assert "--device cuda" in page


def test_a_chip_that_no_table_knows_gets_no_verdict() -> None:
    answer = judge(account(structs.replace(realistic(), chip="Z9000")))
    assert answer.fits is None
    assert verdict(answer).endswith("on Z9000, whose memory is unknown")


def test_interrupted_and_early_ends_are_named() -> None:
    trace = structs.replace(realistic(), ending=Ending("interrupted", "SIGTERM"))
    assert "Interrupted; the report covers what ran before. SIGTERM" in summary_text(
        summarise(account(trace))
    )
    trace = structs.replace(realistic(), ending=Ending("exit"), step_ends=())
    assert "ended by itself before a training step" in summary_text(summarise(account(trace)))


# Time on the page ------------------------------------------------------------------------------


def page(roofline: Roofline | None, trace: Trace | None = None) -> str:
    """The page as one line of words, after it was seen to keep to eighty columns."""
    text = summary_text(summarise(account(trace or realistic(), roofline=roofline)), file="r.tally")
    assert max(map(cell_len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_after_the_verdict_the_page_says_how_long_a_step_takes() -> None:
    """Two float32 products of 1.07 GFLOPs in 2 ms: 1.07 TFLOP/s of 66.9 (67.5 by some)."""
    said = page(stopwatch())
    assert (
        "fits H100-SXM peak memory 10.00 MiB of 79.19 GiB, reserved; 10.00 MiB allocated "
        "step 2.00 ms 1.8 ms to 2.3 ms in nine of ten, by published rates samples/s"
    ) in said
    assert "Time: 100.0 % compute." in said
    peak = chip("H100-SXM").peaks["float32"].flop_per_s
    percent = 100 * 2 * 512 * 1024 * 1024 / MS / peak
    rate = f"{percent:.1f} % of {peak / 1e12:.2f} TFLOP/s dense float32"
    assert f"MFU {rate}, without FLOPs of h.0.mlp" in said
    assert "512 K samples/s" not in said
    assert "samples/s 256.00 K (by aten.mm in train.py:41)" in said


def test_a_time_by_the_rates_of_a_sibling_says_so() -> None:
    """Nobody measured an MI350X; a GB200's products were, and a B200's memory."""
    assert ", by MI355X's rates " in page(replace(stopwatch(), chip=chip("MI350X")))
    assert ", by published rates, some of them B200's " in page(
        replace(stopwatch(), chip=chip("GB200"))
    )


def test_what_time_goes_into_is_said_largest_first() -> None:
    kernels = {"mm": Kernel(3 * MS, Bound.MEMORY)}
    assert "Time: 100.0 % memory" in page(stopwatch(**kernels))


def test_a_host_that_is_too_slow_is_named_with_what_helps() -> None:
    """A step is two products of a millisecond, and three operators that take 4 ms to issue."""
    slow = structs.replace(AT_ONCE, forward_s=4 * MS, backward_s=4 * MS)
    said = page(stopwatch(host=slow))
    assert "100.0 % overhead" in said
    assert "The GPU stands idle 83.3 % of the time, since the host issues operators slower" in said
    assert "a larger batch, a fused optimizer, torch.compile or CUDA graphs help." in said


def test_kernels_that_are_too_small_are_named() -> None:
    said = page(stopwatch(mm=Kernel(2e-6, Bound.OVERHEAD)))
    assert "Many kernels are too small to fill the GPU: a larger batch" in said
    assert "stands idle" not in said


def test_a_fast_step_needs_no_advice() -> None:
    said = page(stopwatch())
    assert "a larger batch" not in said


def test_a_calibrated_time_says_by_what_and_how_much_of_it() -> None:
    measured = Kernel(MS, Bound.COMPUTE, is_calibrated=True)
    said = page(stopwatch(calibration=MEASURED, mm=measured))
    assert (
        "step 2.00 ms 1.5 ms to 2.8 ms in nine of ten, calibrated (measured on NVIDIA H100 80GB "
        "HBM3, 2026-11-21; operators measured there make 100.0 % of kernels' time) "
    ) in said


def test_without_a_roofline_the_page_says_why_and_nothing_else_of_time() -> None:
    said = page(None, structs.replace(realistic(), chip="Z9000"))
    assert "No time: Z9000 is not in the chip table, so its speed is unknown." in said
    assert "MFU" not in said
    assert " time " not in said.replace("No time:", "").replace("Out of time", "")


def test_without_a_peak_the_page_says_why_there_is_no_mfu() -> None:
    said = page(stopwatch(without_peak("float32")))
    assert "step 2.00 ms" in said
    assert "No MFU: most products are in float32, for which the chip has no peak." in said


def test_operators_without_a_time_are_listed_like_those_without_a_rule() -> None:
    said = page(stopwatch(mm=NOBODY_KNOWS))
    assert "Time unknown, missing from all totals, of 2 operators:" in said
    assert "aten.mm x 2 (nobody knows how long aten.mm takes)" in said
    assert "Time unknown" not in page(stopwatch())


def test_what_the_time_is_of_is_said() -> None:
    whole = structs.replace(realistic(), step_ends=())
    assert "whole run 4.00 ms" in page(stopwatch(), whole)
    first = structs.replace(realistic(), step_ends=realistic().step_ends[:1])
    assert "step 1, with all before it " in page(stopwatch(), first)


def test_the_page_with_times_is_little_longer() -> None:
    trace = realistic()
    with_times, without = (
        summary_text(summarise(account(trace, roofline=roofline))).count("\n")
        for roofline in (DATASHEET, None)
    )
    assert with_times <= without + 7


def test_lines_on_the_page_have_their_time() -> None:
    text = summary_text(summarise(account(realistic(), roofline=stopwatch())))
    header, row = text.split("By line of your code\n")[1].splitlines()[:2]
    assert header.split()[0] == "time"
    assert row.split()[:2] == ["2.00", "ms"]


# Strangers' names ------------------------------------------------------------------------------


def is_harmless(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_no_harm(name: str, width: int) -> None:
    text = everything(account(realistic(name, name, name), roofline=DATASHEET), width)
    assert is_harmless(text)
    assert "1.07 G" in text  # 2 * 512 * 1024 * 1024 FLOPs, whole
    assert "4.00 MiB" in text


@pytest.mark.thorough
@given(name=st.text(), width=st.integers(40, 150))
def test_any_name_does_no_harm(name: str, width: int) -> None:
    ledger = account(realistic(name, name, name), roofline=DATASHEET)
    assert is_harmless(everything(ledger, width))


@given(trace=traces(), width=st.sampled_from(WIDTHS), is_timed=st.booleans())
def test_any_trace_can_be_reported(trace: Trace, width: int, is_timed: bool) -> None:
    ledger = account(trace, roofline=DATASHEET if is_timed else None)
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
@pytest.mark.parametrize("roofline", [None, DATASHEET], ids=["untimed", "timed"])
def test_tables_keep_to_the_width(roofline: Roofline | None, key: str, width: int) -> None:
    table = by(account(realistic(), roofline=roofline), key)
    lines = table_text(table, width=width).splitlines()
    assert max(map(cell_len, lines)) <= max(width, LEAST_WIDTHS.get(key, 60))


LEAST_WIDTHS = {"rank": 74, "utilisation": 75}
"""Where numbers alone are wider than the least terminal."""


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
    hidden = "Hidden columns (use --columns or a wider terminal): "
    assert hidden in " ".join(narrow.split())
    assert "bytes_allocated" in narrow


def test_columns_that_are_asked_for_are_all_shown() -> None:
    table = by(account(realistic()), "line").only(["bytes_allocated", "flops_forward"])
    assert table_text(table, width=50).splitlines()[1].split() == [
        "allocated", "fwd", "FLOPs", "line", "source"
    ]  # fmt: skip
    assert by(account(realistic()), "line").only(["line"]).columns[0].title == "line"
    with pytest.raises(UsageError, match="Did you mean flops_forward"):
        table.only(["flops_forwrd"])


def test_the_chips_fit_eighty_columns() -> None:
    lines = table_text(chip_table(known_chips())).splitlines()
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
