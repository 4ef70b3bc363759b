"""Products beside kernels that wait for memory: what those leave of the chip's power, by hand."""

from dataclasses import replace

import pytest

from tests.timing.roofline.chips import add, kernel_of, mm
from tests.timing.roofline.test_sustained import rate
from tests.work.calls import call, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline import Roofline
from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.rates import limited_byte_s
from torchtally.timing.roofline.shared_power import (
    Draw,
    SharedPower,
    seconds_at,
    shares_power,
    waiting_draw,
)
from torchtally.timing.roofline.sustained import byte_joules
from torchtally.trace import Call
from torchtally.work import cost_of

L4 = chip("L4")
UNLIMITED = replace(L4, tdp_watts=None)
FLOP_JOULES = 275 / 35.88e12
"""An L20's, 7.66 pJ; a byte takes 14 of them."""


def draw_of(one: Call, name: str = "L4") -> Draw | None:
    roofline = Roofline(chip(name))
    kind, cost = cost_of(one)
    return roofline.draw(one, kind, cost, roofline.kernel(one, kind, cost))


def test_a_byte_takes_the_power_of_fourteen_flops() -> None:
    """Which an L4 has 72 W for: 1.49 ps; and nothing where power is no limit."""
    assert byte_joules(L4) == pytest.approx(14 * FLOP_JOULES)
    assert limited_byte_s("float32", L4) == pytest.approx(14 * FLOP_JOULES / 72)
    assert limited_byte_s("bfloat16", L4) == limited_byte_s("float32", L4)
    assert limited_byte_s("float32", UNLIMITED) == 0
    # A GeForce card reaches its halved rate with power to spare.
    assert limited_byte_s("float16", chip("RTX-4090")) == 0


def test_a_product_at_the_limit_pays_for_its_bytes() -> None:
    """Cubes of 8192: at 72 W whole tiles of FLOPs, and 3 * 256 MiB at 1.49 ps each."""
    cube = mm(8192, 8192, 8192, "float32")
    bytes_s = 3 * (256 << 20) * 14 * FLOP_JOULES / 72
    assert kernel_of(cube, L4).seconds == pytest.approx(2 * 8192**3 / rate(L4) + bytes_s, rel=0.02)
    assert kernel_of(cube, UNLIMITED).seconds < 0.6 * kernel_of(cube, L4).seconds


def test_a_kernel_that_waits_for_memory_leaves_power() -> None:
    """A second of 235 GB at 107 pJ draws 25 of 72 J: 0.65 s of rated power are left."""
    draw = waiting_draw(Kernel(1.0, Bound.MEMORY), L4)
    assert not draw.is_at_limit
    assert draw.spared_s == pytest.approx(1 - 235e9 * 14 * FLOP_JOULES / 72)
    assert draw.spared_s == pytest.approx(0.65, abs=0.005)
    # What computes besides leaves less, and what does not wait for memory leaves nothing.
    assert waiting_draw(Kernel(1.0, Bound.MEMORY), L4, 36.0).spared_s == pytest.approx(
        0.15, abs=5e-3
    )
    assert waiting_draw(Kernel(1.0, Bound.MEMORY), L4, 72.0).spared_s == 0
    assert waiting_draw(Kernel(1.0, Bound.COMPUTE), L4).spared_s == 0


def test_products_take_what_others_leave() -> None:
    """Ten seconds at the limit, three times two that leave a second each: seven tenths."""
    power = SharedPower()
    power.add(Draw(10.0, 4.0))
    power.add(Draw(2.0, 2.0, 1.0), times=3)
    power.add(None)
    assert power.pace == pytest.approx(0.7)
    assert seconds_at(power.pace, 10.0, Draw(10.0, 4.0)) == pytest.approx(7.0)
    # None is faster than its clocks allow, and others take as long as they do.
    assert seconds_at(power.pace, 10.0, Draw(10.0, 8.0)) == 8.0
    assert seconds_at(power.pace, 2.0, Draw(2.0, 2.0, 1.0)) == 2.0


def test_nobody_leaves_more_than_all() -> None:
    power = SharedPower()
    assert power.pace == 1.0
    power.add(Draw(1.0, 0.4))
    power.add(Draw(9.0, 9.0, 5.0))
    assert power.pace == 0.0


def test_draws_of_calls() -> None:
    product, addition = draw_of(mm(4096, 4096, 4096, "float32")), draw_of(add(1 << 26))
    assert product is not None
    assert product.is_at_limit
    assert product.spared_s == 0
    assert product.least_s == kernel_of(mm(4096, 4096, 4096, "float32"), UNLIMITED).seconds
    assert addition is not None
    # 3 * 256 MiB take 3.4 ms, which streams all along but for the kernel's own start.
    assert addition.spared_s == pytest.approx(0.65 * (3 * (256 << 20) / 235e9 + KERNEL_S), rel=0.01)
    # One row by a matrix waits for memory.
    row = draw_of(mm(1, 8192, 8192, "float32"))
    assert row is not None
    assert not row.is_at_limit
    assert row.spared_s > 0


def test_convolutions_share_as_products_do() -> None:
    """128 images of 256 channels, 28 x 28, filters of 3 x 3: at the limit, and paying for bytes."""
    image = given("input", 128, 256, 28, 28, dtype="float16")
    weight = given("weight", 256, 256, 3, 3, dtype="float16")
    result = spec(128, 256, 28, 28, dtype="float16")
    one = call("aten.convolution", [image, weight], result, stride=(1, 1), groups=1)
    draw = draw_of(one)
    assert draw is not None
    assert draw.is_at_limit
    assert draw.least_s == kernel_of(one, UNLIMITED).seconds
    moved_bytes = image.bytes + weight.bytes + result.bytes
    less = replace(L4, memory_type="HBM2")  # the same, but bytes take no power
    assert kernel_of(one, L4).seconds - kernel_of(one, less).seconds == pytest.approx(
        moved_bytes * limited_byte_s("float16", L4)
    )


def test_only_chips_with_gddr_and_known_joules_share() -> None:
    assert all(map(shares_power, map(chip, ("L4", "A10", "RTX-6000-Ada"))))
    for name in ("H100-SXM", "A100-PCIe-40GB", "T4", "RTX-5090"):
        assert not shares_power(chip(name))
        assert draw_of(add(1 << 26), name) is None
