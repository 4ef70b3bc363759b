"""The roofline plot: places that can be worked out by hand, and shares that sum to the step."""

from dataclasses import replace
from math import isclose

import pytest

from tests import calibrations
from tests.builders import TraceBuilder, attention_call, factory_call, frame, mm_call, site
from tests.timing.calibration.machines import add_call
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.ledger import account
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace
from torchtally.units import Unit
from torchtally.views.plot import Axis, Basis, Plot, Scale, span
from torchtally.views.roofline_plot import LETTERS, dtype_of, roofline_plot

H100 = Roofline(chip("H100-SXM"))


def step(*sizes: int, dtype: str = "bfloat16") -> Trace:
    builder = TraceBuilder()
    for n in sizes:
        where = site(frame(line=n))
        builder.run(mm_call(n, n, n, dtype), (0, 0), site=where)
    builder.run(factory_call(4096, name="aten.zeros"), site=site(frame(line=9)))
    builder.end_step()
    return builder.build()


def plotted(trace: Trace, roofline: Roofline | None = H100) -> Plot:
    ledger = account(trace, roofline=roofline)
    ledger.check()
    return roofline_plot(ledger)


def test_a_square_product_stands_at_a_third_of_its_side() -> None:
    """2 n^3 FLOPs over 3 n^2 elements of 2 bytes."""
    plot = plotted(step(3072))
    (mark,) = plot.marks
    assert mark.x == 2 * 3072**3 / (3 * 3072**2 * 2) == 1024
    assert (mark.name, mark.place, mark.symbol) == ("aten.mm", "train.py:3072", "A")
    assert plot.series[mark.series] == "compute"
    assert mark.y < 989.4e12


def test_speed_is_flops_over_the_kernel_not_over_the_idle_time() -> None:
    ledger = account(step(1024), roofline=H100)
    (mark,) = roofline_plot(ledger).marks
    entry = ledger.reported[0]
    slot = ledger.slot(entry)
    assert mark.y == entry.cost.flops / slot.kernel_s
    assert slot.seconds > slot.kernel_s


def test_operators_of_one_call_are_one_mark() -> None:
    plot = plotted(step(3072, 3072, 2048))
    assert [mark.detail.split()[0] for mark in plot.marks] == ["2", "1"]


def test_a_call_from_two_lines_names_the_costlier_and_counts_the_other() -> None:
    builder = TraceBuilder()
    call = mm_call(2048, 2048, 2048, "bfloat16")
    for line in (7, 8, 8):
        builder.run(call, (0, 0), site=site(frame(line=line)))
    builder.end_step()
    assert plotted(builder.build()).marks[0].place == "train.py:8 +1"


def test_shares_sum_to_the_step() -> None:
    plot = plotted(step(4096, 2048, 1024, 64))
    drawn = sum(mark.weight for mark in plot.marks)
    assert isclose(drawn + sum(share for _, share in plot.left_out), 1.0)
    assert "operators without FLOPs" in dict(plot.left_out)
    assert "the device idle" in dict(plot.left_out)


def test_what_is_missing_from_the_shares_would_show() -> None:
    plot = plotted(step(4096, 2048))
    short = replace(plot, marks=plot.marks[1:])
    drawn = sum(mark.weight for mark in short.marks)
    assert not isclose(drawn + sum(share for _, share in short.left_out), 1.0)


def test_the_roof_meets_at_its_ridge() -> None:
    """989.4 TFLOP/s over 3.35 TB/s are 295 FLOPs a byte."""
    promised = [curve for curve in plotted(step(4096)).curves if curve.basis is Basis.PROMISED]
    slope, ceiling = promised
    assert slope.unit is Unit.BYTE_PER_S
    assert (slope.limit, ceiling.limit) == (3.35e12, 989.4e12)
    assert slope.points[-1] == ceiling.points[0]
    assert isclose(ceiling.points[0][0], 989.4 / 3.35)
    for x, y in slope.points:
        assert isclose(y, 3.35e12 * x)


def test_a_ceiling_for_each_dtype_of_the_products() -> None:
    builder = TraceBuilder()
    for call in (
        mm_call(2048, 2048, 2048, "bfloat16"),
        mm_call(2048, 2048, 2048),
        mm_call(2048, 2048, 2048, allow_tf32=True),
        mm_call(2048, 2048, 2048, "float16"),
    ):
        builder.run(call, (0, 0))
    builder.end_step()
    names = [
        curve.name for curve in plotted(builder.build()).curves if curve.basis is Basis.PROMISED
    ]
    assert names == ["memory", "bfloat16, float16", "tf32", "float32"]


def test_what_was_measured_comes_before_what_was_published() -> None:
    published = [
        curve.limit for curve in plotted(step(4096)).curves if curve.basis is Basis.ACHIEVED
    ]
    peak = chip("H100-SXM").peaks["bfloat16"].achieved_flop_per_s
    assert peak in published
    here = Roofline(chip("H100-SXM"), calibrations.gpu())
    measured = [
        curve.limit for curve in plotted(step(4096), here).curves if curve.basis is Basis.ACHIEVED
    ]
    assert measured == [3.015e12, 494.7e12]


def test_nobody_promises_anything_of_a_cpu() -> None:
    from torchtally.timing.targets import host_chip

    machine = calibrations.cpu()
    plot = plotted(step(512, dtype="float32"), Roofline(host_chip(machine), machine))
    assert {curve.basis for curve in plot.curves} == {Basis.ACHIEVED}
    assert [curve.limit for curve in plot.curves] == [1e10, 64e9]
    assert "issuing operators" in dict(plot.left_out)


def test_letters_go_to_the_heaviest() -> None:
    plot = plotted(step(*range(1024, 1024 + 128 * 12, 128)))
    weights = [mark.weight for mark in plot.marks]
    assert weights == sorted(weights, reverse=True)
    assert "".join(mark.symbol for mark in plot.marks) == LETTERS
    assert len(plot.marks) == 12
    assert plot.listed == plot.marks[: len(LETTERS)]


def test_everything_lies_between_the_ends_of_the_axes() -> None:
    plot = plotted(step(4096, 64, 512))
    for mark in plot.marks:
        assert plot.x.low < mark.x < plot.x.high
        assert plot.y.low < mark.y < plot.y.high


def test_causal_attention_in_full_is_remarked_on() -> None:
    builder = TraceBuilder()
    builder.run(attention_call(True, "aten._scaled_dot_product_flash_attention"), (0, 0, 0))
    builder.end_step()
    assert "half of it is not computed" in plotted(builder.build()).note
    assert plotted(step(512)).note == ""


def test_what_the_l2_cache_holds_is_remarked_on_where_it_stands_above_the_roof() -> None:
    """24 MB go at 3.9 of an H100's promised 3.35 TB/s, the kernel's own time included, and 1.2 GB
    below it.
    """
    for elements, is_above in ((2 * 10**6, True), (10**8, False)):
        builder = TraceBuilder()
        builder.run(add_call(elements), (0, 1))
        builder.end_step()
        note = plotted(builder.build(), roofline=H100).note
        assert ("L2 cache" in note) is is_above


def test_without_a_roofline_there_is_no_plot() -> None:
    with pytest.raises(UsageError, match="H100-SXM"):
        plotted(step(64), None)


def test_a_step_without_flops_has_a_roof_and_no_marks() -> None:
    plot = plotted(step())
    assert not plot.marks
    assert plot.curves


def test_dtypes_are_spelled_as_peaks_are() -> None:
    assert dtype_of(mm_call(2, 2, 2, allow_tf32=True)) == "tf32"
    assert dtype_of(mm_call(2, 2, 2, "int8")) == "int8"
    assert dtype_of(factory_call(2)) == "float32"


def test_an_axis() -> None:
    axis = Axis("", Scale.FLOPS, 1.0, 1e4)
    assert [axis.share(value) for value in (1.0, 100.0, 1e4)] == [0.0, 0.5, 1.0]
    assert axis.ticks() == (1.0, 10.0, 100.0, 1e3, 1e4)
    assert Axis("", Scale.FLOPS, 1.0, 12.0).ticks() == (1.0, 2.0, 5.0, 10.0)


def test_a_span_holds_its_values_and_two_decades() -> None:
    assert span([]) == (1.0, 100.0)
    low, high = span([5.0, 0.0, float("inf")])
    assert low < 5.0 < high
    assert isclose(high / low, 100.0)
    assert span([1.0, 1e6], margin=2.0) == (0.5, 2e6)
