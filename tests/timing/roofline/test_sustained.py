"""What chips sustain within their power, held to published rates that gave no constant."""

from dataclasses import replace

import pytest

from tests.timing.roofline.chips import toy
from torchtally.chips import Chip, chip
from torchtally.timing.constants import SHARE_OF_PEAK
from torchtally.timing.roofline.sustained import sustained_flop_per_s

PUBLISHED = (
    # RTX A4000 and A2000, 8192 cubed: zzc0721/torch-performance-test-data issues 97 and 72. They
    # are not in the table: here an A6000 with their promise and power.
    ("RTX-A6000", "float32", 19.2e12, 140, 11.90e12),
    ("RTX-A6000", "bfloat16", 76.7e12, 140, 56.10e12),
    ("RTX-A6000", "float32", 8.0e12, 70, 4.92e12),
    ("RTX-A6000", "bfloat16", 31.9e12, 70, 28.77e12),
    # The same repository's issues 120 and 108, chsasank/device-benchmarks' README and issue 15,
    # pytorch/ao pull request 3342.
    ("L4", "float32", 30.3e12, 72, 10.66e12),
    ("L4", "bfloat16", 121e12, 72, 59.40e12),
    ("A10", "float32", 31.2e12, 150, 14.0e12),
    ("A10", "bfloat16", 125e12, 150, 56.0e12),
    ("RTX-A6000", "float32", 38.7e12, 300, 24.38e12),
    ("A100-PCIe-40GB", "float32", 19.5e12, 250, 17.56e12),
    ("A100-PCIe-40GB", "bfloat16", 312e12, 250, 215.26e12),
    ("A100-PCIe-40GB", "tf32", 156e12, 250, 97.32e12),
    ("H100-PCIe", "bfloat16", 756e12, 350, 433.0e12),
)
"""(chip, dtype, promised FLOP/s, watts, FLOP/s that somebody published)."""


@pytest.mark.parametrize(("name", "dtype", "promised", "watts", "published"), PUBLISHED)
def test_a_familys_joules_give_what_others_measured(
    name: str, dtype: str, promised: float, watts: float, published: float
) -> None:
    sustained = sustained_flop_per_s(dtype, promised, replace(chip(name), tdp_watts=watts))
    assert sustained == pytest.approx(published, rel=0.16)
    unlimited = replace(chip(name), tdp_watts=None)
    assert sustained <= sustained_flop_per_s(dtype, promised, unlimited)


def test_the_limit_of_power_is_what_makes_them_right() -> None:
    """Without it they are 1.2 times too fast in the middle, one twice: the test above can fail."""
    ratios = sorted(
        sustained_flop_per_s(dtype, promised, replace(chip(name), tdp_watts=None)) / published
        for name, dtype, promised, _, published in PUBLISHED
    )
    assert ratios[len(ratios) // 2] == pytest.approx(1.2, rel=0.03)
    assert ratios[-1] == pytest.approx(1.9, rel=0.05)


def test_half_the_power_is_half_the_rate_where_power_is_the_limit() -> None:
    whole, half = chip("L4"), replace(chip("L4"), tdp_watts=36)
    assert rate(whole) == 2 * rate(half)


def rate(one: Chip) -> float:
    return sustained_flop_per_s("float32", one.peak_flop_per_s("float32"), one)


def test_a_chip_of_no_known_family_reaches_the_estimate() -> None:
    assert sustained_flop_per_s("float16", 100.0, toy()) == 100 * SHARE_OF_PEAK
    assert sustained_flop_per_s("float64", 100.0, chip("H100-SXM")) == 100 * SHARE_OF_PEAK


def test_geforce_keeps_the_promise_of_its_halved_rate() -> None:
    for name in ("RTX-3090", "RTX-4090", "RTX-5090"):
        promised = chip(name).peak_flop_per_s("float16")
        assert sustained_flop_per_s("float16", promised, chip(name)) == promised
    full = chip("RTX-6000-Ada")
    assert sustained_flop_per_s("float16", 364.2e12, full) < 0.7 * 364.2e12
