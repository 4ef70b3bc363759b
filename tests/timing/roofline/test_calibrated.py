"""Corrections between measurements, by hand."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import mm_call
from tests.timing.calibration.machines import H100, HOST, add_call
from torchtally.chips import chip
from torchtally.timing.calibration import Sample
from torchtally.timing.constants import GAP_S
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.roofline.calibrated import Corrections
from torchtally.timing.targets import host_chip
from torchtally.trace import Call
from torchtally.work import cost_of


def by_bytes(call, kind, cost):
    """A nanosecond a byte."""
    return Kernel(cost.bytes * 1e-9, Bound.MEMORY)


def factor(corrections: Corrections, call: Call) -> tuple[float, bool]:
    return corrections.factor(call, *cost_of(call))


SLOWER = (Sample(add_call(100), 2 * 1200e-9), Sample(add_call(10_000), 8 * 120_000e-9))
"""Twice as long as modelled, and eight times."""


def test_what_was_measured_is_what_is_predicted():
    corrections = Corrections(SLOWER, by_bytes)
    assert factor(corrections, add_call(100)) == (pytest.approx(2), True)
    assert factor(corrections, add_call(10_000)) == (pytest.approx(8), True)


def test_half_way_between_them_is_their_geometric_mean():
    """1000 is half way from 100 to 10000 in logarithms, 4 from 2 to 8."""
    assert factor(Corrections(SLOWER, by_bytes), add_call(1000)) == (pytest.approx(4), True)


def test_beyond_the_last_its_correction_stands():
    corrections = Corrections(SLOWER, by_bytes)
    assert factor(corrections, add_call(1)) == (pytest.approx(2), True)
    assert factor(corrections, add_call(10**9)) == (pytest.approx(8), True)


def test_an_operator_nobody_measured_is_like_those_of_its_kind():
    corrections = Corrections(SLOWER, by_bytes)
    other = structs.replace(add_call(1000), name="aten.hypot")
    assert factor(corrections, other) == (pytest.approx(4), False)
    assert factor(corrections, mm_call(8, 8, 8)) == (1.0, False)


@pytest.mark.parametrize("name", ["aten.hypot", "aten._foreach_add_"])
def test_a_rule_says_more_than_other_operators_and_layouts_do(name):
    """Of a CPU, which has no rules, a list counts as what its tensors are."""
    call = structs.replace(add_call(1000), name=name)
    assert factor(Corrections(SLOWER, by_bytes), call)[0] == pytest.approx(4)
    assert factor(Corrections(SLOWER, by_bytes, has_rules=True), call) == (1.0, False)
    measured = Corrections(SLOWER, by_bytes, has_rules=True)
    assert factor(measured, add_call(1000)) == (pytest.approx(4), True)


def test_a_layout_that_nobody_measured_is_like_one_of_its_dtype():
    def column(dtype):
        call = add_call(100)
        inputs = (
            structs.replace(call.inputs[0], shape=(10, 10), stride=(1, 10), dtype=dtype),
            structs.replace(call.inputs[1], shape=(10, 10), stride=(10, 1), dtype=dtype),
        )
        output = structs.replace(call.outputs[0], shape=(10, 10), stride=(10, 1), dtype=dtype)
        return structs.replace(call, inputs=inputs, outputs=(output,))

    def row(dtype):
        call = column(dtype)
        first = structs.replace(call.inputs[0], stride=(10, 1))
        return structs.replace(call, inputs=(first, call.inputs[1]))

    samples = [Sample(row("bfloat16"), 5 * 600e-9), Sample(row("float32"), 3 * 1200e-9)]
    corrections = Corrections(samples, by_bytes)
    assert factor(corrections, column("bfloat16"))[0] == pytest.approx(5)
    assert factor(corrections, column("float32"))[0] == pytest.approx(3)


@given(st.integers(1, 10**8))
def test_a_correction_lies_between_those_that_were_measured(n):
    correction, _ = factor(Corrections(SLOWER, by_bytes), add_call(n))
    assert 2 - 1e-9 <= correction <= 8 + 1e-9


@given(st.tuples(*[st.integers(1, 4096)] * 3))
def test_so_it_does_in_many_dimensions(sides):
    shapes = ((1, 1, 1), (64, 64, 64), (4096, 64, 1), (4096, 4096, 4096), (8, 512, 8))
    samples = [Sample(mm_call(m, k, n), 1e-9 * (m + 1) * k * n) for m, k, n in shapes]
    corrections = Corrections(samples, by_bytes)
    measured = [factor(corrections, sample.call)[0] for sample in samples]
    correction, _ = factor(corrections, mm_call(*sides))
    assert min(measured) * (1 - 1e-9) <= correction <= max(measured) * (1 + 1e-9)


def test_a_cpu_runs_at_its_measured_rates():
    """The samples of the made-up machine come back as they are, its copy from the host but one:
    where host and device are one there is none.
    """
    cpu = Roofline(host_chip(HOST), HOST)
    *samples, copied = HOST.samples
    assert cpu.kernel(copied.call, *cost_of(copied.call)).seconds == 0
    for sample in samples:
        timed_kernel = cpu.kernel(sample.call, *cost_of(sample.call))
        assert timed_kernel.seconds == pytest.approx(sample.seconds)
        assert timed_kernel.is_calibrated


def test_between_two_products_of_a_cpu():
    """(256, 256, 256) lies half way between 64 and 1024: the middle of both corrections."""
    cpu = Roofline(host_chip(HOST), HOST)
    small, large = (2 * n**3 / 2e11 for n in (64, 1024))
    correction = sqrt(1e-5 / small * (2e-2 / large))
    call = mm_call(256, 256, 256)
    assert cpu.kernel(call, *cost_of(call)).seconds == pytest.approx(2 * 256**3 / 2e11 * correction)


def test_no_calibration_lets_a_product_exceed_the_promised_peak():
    """A mistaken measurement: 8192 cubed in a microsecond."""
    call = mm_call(8192, 8192, 8192, "bfloat16")
    gpu = Roofline(chip("H100-SXM"), structs.replace(H100, samples=(Sample(call, 1e-6),)))
    timed_kernel = gpu.kernel(call, *cost_of(call))
    assert timed_kernel.seconds == pytest.approx(
        2 * 8192**3 / chip("H100-SXM").peak_flop_per_s("bfloat16")
    )


def test_what_a_gpu_was_measured_at_in_a_queue_has_its_gap_in_it():
    """As fast as the model with its gap, so the kernel by itself is as modelled."""
    call, plain = add_call(10**8), Roofline(chip("H100-SXM"))
    priced = call, *cost_of(call)
    kernel_s, gap_s = plain.kernel(*priced).seconds, plain.gap_s(*priced)
    assert gap_s == GAP_S
    samples = (Sample(call, kernel_s + gap_s),)
    queued = Roofline(chip("H100-SXM"), structs.replace(H100, samples=samples))
    assert queued.kernel(*priced).seconds == pytest.approx(kernel_s)
    profiled = Roofline(chip("H100-SXM"), structs.replace(H100, samples=samples, reach=0.7))
    assert profiled.kernel(*priced).seconds == pytest.approx(kernel_s + gap_s)


def test_no_chip_of_amds_is_known_to_have_a_gap():
    call = add_call(10**8)
    assert Roofline(chip("MI300X")).gap_s(call, *cost_of(call)) == 0


def test_fresh_memory_is_paid_for_once_it_is_large():
    """32 MiB of results and more come from the operating system each time."""
    cpu = Roofline(host_chip(HOST), structs.replace(HOST, samples=()))
    small, large = add_call(8 * 2**20 - 1), add_call(8 * 2**20)
    difference = (
        cpu.kernel(large, *cost_of(large)).seconds - cpu.kernel(small, *cost_of(small)).seconds
    )
    assert difference == pytest.approx(32 * 2**20 * 2.5e-10, rel=1e-3)
