"""What was measured beside what is promised: shares that can be worked out by hand."""

import json

import pytest

from tests import calibrations
from torchtally.chips import chip
from torchtally.chips.processor import estimated_flop_per_s, model_name
from torchtally.report.bench import bench_report
from torchtally.report.formats import render
from torchtally.report.report import Look
from torchtally.table import Table
from torchtally.views.bench import BenchView, bench_view
from torchtally.views.plot import Basis

CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2.00GHz
cpu MHz\t\t: 2000.000
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx avx2 fma

processor\t: 1
model name\t: Some CPU @ 2.00GHz
cpu MHz\t\t: 2000.000
physical id\t: 0
core id\t\t: 1
flags\t\t: fpu avx avx2 fma
"""


def table(view: BenchView, name: str) -> Table:
    return dict(view.tables)[name]


def test_half_of_the_promise_is_half() -> None:
    shown_table = table(bench_view(calibrations.gpu()), "products")
    assert shown_table.column("dtype") == ("float32", "bfloat16")
    assert shown_table.column("limit_flop_per_s") == (67e12, 989.4e12)
    assert shown_table.column("mfu") == pytest.approx((0.5, 0.5))
    assert shown_table.column("shape")[1] == "1024x1024x1024 (NN)"


def test_the_best_shape_counts() -> None:
    slow, fast = (calibrations.product(n, n, n, n * 1e9) for n in (256, 512))
    shown_table = table(bench_view(calibrations.gpu(fast, slow)), "products")
    rates = dict(
        zip(shown_table.column("dtype"), shown_table.column("achieved_flop_per_s"), strict=True)
    )
    assert rates["bfloat16"] == pytest.approx(512e9)


def test_both_dtypes_stand_side_by_side_on_the_shape_they_share() -> None:
    shown_table = table(bench_view(calibrations.gpu()), "same_shapes")
    assert shown_table.column("shape") == ("1024x1024x1024",)
    (times,) = shown_table.column("times")
    assert times == pytest.approx(494.7 / 33.5, rel=1e-2)
    assert shown_table.column("float32_mfu") == pytest.approx((0.5,))
    assert shown_table.column("bfloat16_mfu") == pytest.approx((0.5,))


def test_a_dtype_alone_has_nothing_beside_it() -> None:
    alone = calibrations.gpu(calibrations.product(64, 64, 64, 1e12))
    assert "same_shapes" not in dict(bench_view(alone).tables)


def test_the_cubest_shape_of_as_much_work_is_chosen() -> None:
    shapes = ((256, 256, 256), (4096, 64, 64))
    samples = [
        calibrations.product(*shape, 1e12, d) for shape in shapes for d in ("float32", "bfloat16")
    ]
    shown_table = table(bench_view(calibrations.gpu(*samples)), "same_shapes")
    assert shown_table.column("shape") == ("256x256x256",)


def test_bandwidths() -> None:
    """3.015 of 3.35 TB/s, 31.5 of 63 GB/s."""
    shown_table = table(bench_view(calibrations.gpu()), "bandwidth")
    rows = dict(zip(shown_table.column("transfer"), shown_table.column("peak_share"), strict=True))
    link = chip("H100-SXM").host_link
    assert link is not None
    assert link.bytes_per_s_per_direction is not None
    assert rows["memory, read and written"] == pytest.approx(0.9)
    assert rows["host to device, pinned"] == pytest.approx(31.5e9 / link.bytes_per_s_per_direction)
    assert len(rows) == 3


def test_copies_by_size_and_way() -> None:
    shown_table = table(bench_view(calibrations.gpu()), "copies")
    assert shown_table.column("bytes") == (2**20,)
    assert shown_table.column("host_to_device_pinned_bytes_per_s") == pytest.approx((31.5e9,))
    assert shown_table.column("device_to_host_pageable_bytes_per_s") == pytest.approx((6.3e9,))
    assert shown_table.column("host_to_device_pageable_bytes_per_s") == (None,)


def test_attention_is_counted_in_full() -> None:
    """16384 FLOPs in a nanosecond; 2.5 times as many in two."""
    shown_table = table(bench_view(calibrations.gpu()), "attention")
    assert shown_table.column("shape") == ("4x8x16",)
    assert shown_table.column("forward_flop_per_s") == pytest.approx((16384e9,))
    assert shown_table.column("causal_backward_flop_per_s") == pytest.approx((2.5 * 16384e9 / 2,))
    assert shown_table.column("backward_flop_per_s") == (None,)


def test_the_issue_rate() -> None:
    shown_table = table(bench_view(calibrations.gpu()), "issue")
    assert shown_table.column("operators_per_s") == (100_000, 125_000, 200_000, 1_000_000, 500_000)
    on_cpu = table(bench_view(calibrations.cpu()), "issue")
    assert "each further kernel" not in on_cpu.column("operator")


def test_a_cpu_is_promised_nothing() -> None:
    view = bench_view(calibrations.cpu())
    assert table(view, "products").column("limit_flop_per_s") == (None, None)
    assert view.plot.curves == ()
    assert "copies" not in dict(view.tables)


def test_an_estimate_says_so() -> None:
    """64 GFLOP/s of 2 cores x 2 GHz x 32."""
    view = bench_view(calibrations.cpu(), estimated_flop_per_s(CPUINFO, 2))
    shown_table = table(view, "products")
    assert shown_table.columns[2].title == "estimated"
    single, half = shown_table.column("mfu")
    assert single == pytest.approx(0.5)
    assert half is None
    assert [curve.basis for curve in view.plot.curves] == [Basis.ESTIMATED]


def test_a_gpu_of_no_table_is_promised_nothing() -> None:
    view = bench_view(calibrations.gpu(device="Nvidia Nothing 1"))
    assert set(table(view, "products").column("mfu")) == {None}


def test_the_plot_has_the_best_of_each_size_and_the_promises() -> None:
    plot = bench_view(calibrations.gpu()).plot
    assert {(mark.x, mark.detail) for mark in plot.marks} == {
        (2 * 1024**3, "bfloat16"), (2 * 1024**3, "float32"), (1024**3, "bfloat16"),
    }  # fmt: skip
    assert [curve.limit for curve in plot.curves] == [989.4e12, 67e12]
    assert {curve.basis for curve in plot.curves} == {Basis.PROMISED}


def test_the_text_and_the_document() -> None:
    view = bench_view(calibrations.gpu())
    text = render(bench_report(view), "text", Look())
    assert max(map(len, text.splitlines())) <= 80
    for said in ("50.0 %", "989.40 TFLOP/s", "90.0 %", "1980 MHz", "f float32, b bfloat16"):
        assert said in text, said
    document = json.loads(render(bench_report(view), "json", Look()))
    assert document["tables"]["products"]["rows"][0]["dtype"] == "float32"
    assert document["tables"]["issue"]["rows"][0] == {
        "operator": "forward",
        "seconds": 1e-5,
        "operators_per_s": 100_000,
    }


# What a CPU could do ---------------------------------------------------------------------------


def test_cores_times_clock_times_flops_per_cycle() -> None:
    assert estimated_flop_per_s(CPUINFO) == 2 * 2e9 * 32
    assert estimated_flop_per_s(CPUINFO, threads=1) == 2e9 * 32
    assert estimated_flop_per_s(CPUINFO, threads=9) == 2 * 2e9 * 32
    assert estimated_flop_per_s(CPUINFO.replace("fma", "fma avx512f")) == 2 * 2e9 * 64


def test_two_threads_of_one_core_are_one_core() -> None:
    assert estimated_flop_per_s(CPUINFO.replace("core id\t\t: 1", "core id\t\t: 0")) == 2e9 * 32


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", CPUINFO.replace("2000.000", "?"), CPUINFO.replace("avx avx2 fma", "sse"),
     CPUINFO.replace("cpu MHz", "BogoMIPS")],
)  # fmt: skip
def test_what_nothing_tells_is_not_estimated(text: str) -> None:
    assert estimated_flop_per_s(text) is None


def test_the_name_of_the_cpu() -> None:
    assert model_name(CPUINFO) == "Some CPU @ 2.00GHz"
    assert model_name("") == ""
