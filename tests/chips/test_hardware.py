"""The table agrees with physics and with its sources; names find their own chip and no other."""

import ast
import json
import re
import sys
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from subprocess import run
from textwrap import indent

import pytest

import torchtally
from torchtally import chips as hardware
from torchtally.chips import (
    OWN_CHIP,
    USERS_TABLE,
    Chip,
    Peak,
    chip,
    cluster,
    family_variant,
    find_chip,
    known_chips,
    load_chips,
)
from torchtally.chips.capabilities import BFLOAT16_SINCE, FLOAT8_SINCE
from torchtally.chips.capabilities import capability as row_of
from torchtally.chips.families import DEFAULT, plain_name
from torchtally.cli import main
from torchtally.cli.gpus import EPILOG
from torchtally.errors import UnknownChipError, UnsupportedError, UsageError
from torchtally.report.chip import chip_text
from torchtally.report.documents.chips import chips_document
from torchtally.report.keys import dumps
from torchtally.views.chips import facts

ALL = pytest.mark.parametrize("one", known_chips(), ids=lambda one: one.name)


# Physics ------------------------------------------------------------------------------------------


def ratio(one: Chip, dtype: str, other: str) -> float | None:
    if dtype not in one.peaks or other not in one.peaks:
        return None
    return one.peak_flop_per_s(dtype) / one.peak_flop_per_s(other)


WORK_A_CYCLE = {
    # FLOPs of one multiprocessor in one cycle: (vectors in float32, matrix unit in 16 bits). From
    # the vendors' architecture papers; an FMA is two. GeForce halves the matrix unit when it sums
    # in float32, and so, by its datasheet, does the L40.
    "Pascal GP100": (128, 0),
    "Pascal GP102": (256, 0),
    "Volta": (128, 1024),
    "Turing": (128, 1024),
    "Turing TU102": (128, 1024),
    "Ampere GA100": (128, 2048),
    "Ampere GA102": (256, 1024),
    "Ampere GA104": (256, 1024),
    "Ampere GA106": (256, 1024),
    "Ampere GA10B": (256, 2048),
    "Ada AD102": (256, 1024),
    "Ada AD103": (256, 1024),
    "Ada AD104": (256, 1024),
    "Ada AD106": (256, 1024),
    "Hopper GH100": (256, 4096),
    "Blackwell GB202": (256, 1024),
    "Blackwell GB203": (256, 1024),
    "Blackwell GB205": (256, 1024),
    "Blackwell GB206": (256, 1024),
    "CDNA2 gfx90a": (256, 1024),
    "CDNA3 gfx942": (256, 2048),
    "CDNA4 gfx950": (256, 4096),
}
HALVED = ("L40", "L20")
"""Besides every GeForce."""


def is_of_geforce(one: Chip) -> bool:
    """Of two cards that the driver calls the same, one row alone has the driver's name."""
    return "GeForce" in one.device_name or "GeForce" in one.note


def clocked(one: Chip) -> dict[str, float]:
    """The dense rates that multiprocessors x work a cycle x clock give, where all are known.

    AMD's float32 is that of its matrix unit, or of two vectors at a time: not compared.
    """
    if None in (one.multiprocessors, one.boost_clock_hz) or one.architecture not in WORK_A_CYCLE:
        return {}
    vector, matrix = WORK_A_CYCLE[one.architecture]
    if one.name in HALVED or is_of_geforce(one):
        matrix //= 2
    rates = {"float16": one.multiprocessors * matrix * (one.tensor_clock_hz or one.boost_clock_hz)}
    if one.vendor == "NVIDIA":
        rates["float32"] = one.multiprocessors * vector * one.boost_clock_hz
    return rates


def faults(one: Chip) -> list[str]:
    """What no chip of its kind can be: an empty list for a sound row."""
    expected: dict[tuple[str, str], float] = {}
    if one.vendor == "NVIDIA":
        is_geforce = is_of_geforce(one)
        expected = {
            ("bfloat16", "float16"): 1,  # one multiplier array serves both
            ("bfloat16", "tf32"): 2,  # half the bits, twice the rate
            ("float8_e4m3fn", "bfloat16"): 2,
            ("float16_accumulate_float16", "float16"): 2 if is_geforce else 1,
            ("float4_e2m1fn_x2", "float8_e4m3fn"): 2,
        }
        if is_geforce:
            expected["float4_e2m1fn_x2", "float8_e4m3fn"] = 4  # fp8 sums are halved, fp4's are not
        if one.compute_capability == (10, 3):
            expected["float4_e2m1fn_x2", "float8_e4m3fn"] = 3  # Blackwell Ultra
        if one.architecture == "Rubin":
            expected["float8_e4m3fn", "bfloat16"] = 4.375  # 1260 beside 288 PFLOP/s of the rack
    mistakes = [
        f"{dtype} is {actual:.2f} x {other}, not {times} x"
        for (dtype, other), times in expected.items()
        if (actual := ratio(one, dtype, other)) is not None and abs(actual / times - 1) > 0.03
    ]
    for dtype, rate in clocked(one).items():
        if dtype in one.peaks and abs(one.peak_flop_per_s(dtype) / rate - 1) > 0.015:
            mistakes.append(f"{dtype} is not {rate:.4g}: multiprocessors x work a cycle x clock")
    for dtype, peak in one.peaks.items():
        if not 1e12 <= peak.flop_per_s <= 5e16:
            mistakes.append(f"{dtype}: {peak.flop_per_s:g} FLOP/s is out of this world")
        # Below a third of its promise a measurement is of something else: a T4 has 37 % at 70 W.
        if not 0.35 <= (peak.achieved_flop_per_s or peak.flop_per_s) / peak.flop_per_s <= 1:
            mistakes.append(f"{dtype}: measured faster than it is, or far too slow")
    reached = one.achieved_bandwidth_bytes_per_s
    if reached is not None and not 0.6 <= reached / one.memory_bandwidth_bytes_per_s <= 1:
        mistakes.append("memory was measured faster than it is, or far too slow")
    if not 2e11 <= one.memory_bandwidth_bytes_per_s <= 3e13:
        mistakes.append("memory bandwidth")
    if not 0.85 <= one.memory_bytes / (one.memory_label_bytes or one.memory_bytes) <= 1.1:
        mistakes.append("memory is not what the label says")
    if one.memory_label_bytes and one.memory_bytes > one.memory_label_bytes / 1e9 * 2**30:
        mistakes.append("the driver sees more than the label says, even in GiB")
    if one.total_memory_bytes > one.memory_bytes:
        mistakes.append("a program is told more than there is")
    return mistakes


@ALL
def test_no_row_breaks_physics(one):
    assert faults(one) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"peaks": {"float8_e4m3fn": Peak(3958e12, ""), "bfloat16": Peak(989e12, "")}},  # sparse
        {"peaks": {"bfloat16": Peak(989.4, "")}},  # TFLOP/s where FLOP/s belong
        {"memory_bandwidth_bytes_per_s": 3350.0},
        {"memory_bytes": 80},
        {"memory_bytes": 86 * 10**9},  # 80 GiB are 85.9e9
        {"program_memory_bytes": 10**12},
        {"multiprocessors": 144},  # of the full die
        {"tensor_clock_hz": None},  # 1.98 GHz for all
        {"boost_clock_hz": 1.83e9},
        {"achieved_bandwidth_bytes_per_s": 3.36e12},
        {"peaks": {"bfloat16": Peak(989.4e12, "", achieved_flop_per_s=1000e12)}},
        {"peaks": {"bfloat16": Peak(989.4e12, "", achieved_flop_per_s=79.4e12)}},
    ],
)
def test_the_check_of_physics_can_fail(broken):
    assert faults(replace(chip("H100-SXM"), **broken))


def test_most_chips_are_their_multiprocessors_times_their_clock():
    checked = [one.name for one in known_chips() if any(name in one.peaks for name in clocked(one))]
    assert len(checked) >= 24
    assert {"V100-SXM-16GB", "T4", "A100-SXM", "H100-SXM", "RTX-4090", "MI300X"} <= set(checked)


def test_hopper_doubles_its_rate_with_every_halving_of_the_bits():
    for name in ("H100-SXM", "H100-PCIe", "H100-NVL", "H200", "GH200"):
        peak = chip(name).peak_flop_per_s
        assert peak("float8_e4m3fn") == pytest.approx(2 * peak("bfloat16"), rel=1e-3)
        assert peak("bfloat16") == pytest.approx(2 * peak("tf32"), rel=1e-3)


def test_h100_sxm_is_its_multiprocessors_times_its_clock():
    h100 = chip("H100-SXM")
    tensor_cores, fma_a_cycle = 132 * 4, 512
    assert h100.multiprocessors == 132
    assert h100.tensor_clock_hz == 1.83e9
    assert h100.peak_flop_per_s("bfloat16") == pytest.approx(
        tensor_cores * fma_a_cycle * 2 * h100.tensor_clock_hz, rel=1e-3
    )
    assert h100.peak_flop_per_s("bfloat16") == pytest.approx(1979e12 / 2, rel=1e-3)
    assert h100.memory_bandwidth_bytes_per_s == 3.35e12


def test_float32_on_the_h100_is_67_and_not_67_5():
    """NVIDIA prints 67 (product page) and 66.9 (architecture paper), which is its arithmetic.

    67.5 stands in Stanford CS336's lecture notes and in torch/_inductor/analysis/device_info.py,
    which both refer to NVIDIA's pages; those do not print it, and no clock of the card gives it.
    """
    h100 = chip("H100-SXM")
    assert 132 * 128 * 2 * h100.boost_clock_hz == pytest.approx(66.9e12, rel=1e-3)
    assert h100.peak_flop_per_s("float32") == 67e12 != 67.5e12
    assert "67.5" in h100.note


@pytest.mark.parametrize(
    ("name", "dtype", "achieved"),
    [
        ("A100-SXM", "bfloat16", 271.2e12),
        ("A100-PCIe", "bfloat16", 252.9e12),
        ("H100-SXM", "bfloat16", 794.5e12),
        ("H100-SXM", "float8_e4m3fn", 1402.6e12),
        ("B200", "bfloat16", 1745e12),
        ("MI300X", "bfloat16", 668.4e12),
    ],
)
def test_what_was_reached_stands_beside_what_was_promised(name, dtype, achieved):
    peak = chip(name).peak(dtype)
    assert peak.achieved_flop_per_s == achieved < peak.flop_per_s
    assert "ml-engineering" in peak.achieved_source


def test_a100_as_on_its_datasheet():
    a100 = chip("A100-SXM")
    assert a100.peak_flop_per_s("bfloat16") == 312e12
    assert a100.peak_flop_per_s("tf32") == 156e12
    assert a100.peak_flop_per_s("float32") == 19.5e12
    assert a100.memory_bandwidth_bytes_per_s == 2.039e12
    assert chip("A100-SXM-40GB").memory_bandwidth_bytes_per_s == 1.555e12


def test_geforce_halves_sums_in_float32_and_workstation_cards_do_not():
    for name, times in {"RTX-3090": 2, "RTX-4090": 2, "RTX-5090": 2, "RTX-A6000": 1}.items():
        assert ratio(chip(name), "float16_accumulate_float16", "float16") == pytest.approx(
            times, rel=1e-3
        )


def test_one_mi250x_device_is_half_of_its_package():
    die = chip("AMD Instinct MI250X")
    assert die.peak_flop_per_s("bfloat16") == 383e12 / 2
    assert die.memory_bytes == 64 * 10**9


# Numbers that other projects have had wrong -------------------------------------------------------


INDUCTOR = "pytorch torch/_inductor/analysis/device_info.py"
LIGHTNING = "lightning fabric/utilities/throughput.py"
TITAN = "torchtitan tools/utils.py get_peak_flops"
NANOCHAT = "nanochat common.py get_peak_flops"
LLM_C = "llm.c llmc/mfu.h"
LLMQ = "llmq src/utilities/sol.cpp"
CS336 = "Stanford CS336 (2025) lecture_02.py get_promised_flop_per_sec"
OLMO = "OLMo-core train/callbacks/speed_monitor.py"


@pytest.mark.parametrize(
    ("where", "name", "dtype", "right", "wrong"),
    [
        # with sparsity, which no dense product has
        (INDUCTOR, "NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12, 1979e12),
        (INDUCTOR, "NVIDIA H100 80GB HBM3", "float8_e4m3fn", 1978.9e12, 3958e12),
        (INDUCTOR, "NVIDIA L4", "bfloat16", 121e12, 242e12),
        (INDUCTOR, "NVIDIA L4", "tf32", 60e12, 120e12),
        (INDUCTOR, "NVIDIA L4", "float8_e4m3fn", 242.5e12, 485e12),
        (LLMQ, "NVIDIA H200", "bfloat16", 989.4e12, 1979e12),
        (LLMQ, "NVIDIA H200", "float8_e4m3fn", 1978.9e12, 3958e12),
        # a dense figure halved for the sparsity that it does not have
        (f"{OLMO} @07b9e85", "NVIDIA A100-SXM4-80GB", "bfloat16", 312e12, 156e12),
        # of two chips, sold as a pair
        (f"{OLMO} @ecfd2d0", "NVIDIA H100 NVL", "bfloat16", 835.5e12, 1979e12),
        (LIGHTNING, "NVIDIA H100 NVL", "bfloat16", 835.5e12, 1978.8e12),
        (LIGHTNING, "NVIDIA H100 NVL", "float32", 60e12, 133.8e12),
        (NANOCHAT, "AMD Instinct MI250X", "bfloat16", 191.5e12, 383e12),
        # of another chip
        (INDUCTOR, "NVIDIA H100 80GB HBM3", "tf32", 494.7e12, 156e12),  # an A100's
        (LIGHTNING, "NVIDIA A10G", "bfloat16", 70e12, 125e12),  # an A10's
        (LLM_C, "Tesla V100-PCIE-32GB", "float16", 112e12, 125e12),  # the SXM card's
        (CS336, "NVIDIA H100 PCIe", "bfloat16", 756e12, 989.5e12),  # the SXM card's
        (TITAN, "NVIDIA H200 NVL", "bfloat16", 835.5e12, 989e12),  # the SXM card's
        # by a name that begins alike
        (NANOCHAT, "NVIDIA L40", "bfloat16", 181e12, 121e12),  # "l4" is in it
        (LIGHTNING, "NVIDIA L40", "bfloat16", 181e12, 121e12),  # "l4" too, but for "tesla"
        (LIGHTNING, "NVIDIA L40S", "bfloat16", 362.05e12, 121e12),
        ("any table in the wrong order", "NVIDIA GB200", "bfloat16", 2500e12, 2250e12),  # "B200"
        # by no name at all, so an A100's
        (TITAN, "NVIDIA L40S", "bfloat16", 362.05e12, 312e12),  # asks for "l40s"
        (TITAN, "NVIDIA GeForce RTX 4090", "bfloat16", 165.2e12, 312e12),
        (TITAN, "Tesla T4", "float16", 65e12, 312e12),
        (f"{OLMO} @07b9e85", "NVIDIA H200", "bfloat16", 989.4e12, 156e12),
        # float32's rate, where it is 16 bits that were asked for
        (LIGHTNING, "NVIDIA GeForce RTX 3090", "bfloat16", 71e12, 35.6e12),
        (LIGHTNING, "NVIDIA GeForce RTX 4090", "bfloat16", 165.2e12, 82.6e12),
        (LIGHTNING, "NVIDIA RTX A6000", "bfloat16", 154.8e12, 38.7e12),
        # GeForce's halving, forgotten, or done to a workstation's card
        ("the box", "NVIDIA GeForce RTX 4090", "float16", 165.2e12, 330.3e12),
        (LLM_C, "NVIDIA RTX A6000", "bfloat16", 154.8e12, 77.4e12),
        (LLM_C, "NVIDIA RTX A6000", "tf32", 77.4e12, 38.7e12),
        # misread
        (INDUCTOR, "NVIDIA H100 80GB HBM3", "float32", 67e12, 67.5e12),
        (CS336, "NVIDIA H100 80GB HBM3", "float32", 67e12, 67.5e12),
        (INDUCTOR, "NVIDIA A100-SXM4-80GB", "bfloat16", 312e12, 312.5e12),
    ],
)
def test_known_mistakes_of_other_tables(where, name, dtype, right, wrong):
    assert where
    assert chip(name).peak_flop_per_s(dtype) == right != wrong


@pytest.mark.parametrize(
    ("where", "name", "right", "wrong"),
    [
        (INDUCTOR, "NVIDIA L4", 300e9, 3350e9),  # an H100's
        ("nanochat common.py get_peak_bandwidth", "NVIDIA A100-SXM4-40GB", 1555e9, 2000e9),
    ],
)
def test_known_mistakes_of_other_tables_in_bandwidth(where, name, right, wrong):
    assert where
    assert chip(name).memory_bandwidth_bytes_per_s == right != wrong


@pytest.mark.parametrize(
    ("where", "name", "dtype"),
    [
        (LLM_C, "Tesla V100-SXM2-16GB", "tf32"),  # 125: Volta has no such unit
        (INDUCTOR, "NVIDIA L4", "float64"),  # 15.1: "this is a guess"
    ],
)
def test_known_inventions_of_other_tables(where, name, dtype):
    assert where
    with pytest.raises(UsageError, match="has no peak"):
        chip(name).peak(dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("V100-SXM-16GB", "bfloat16"),
        ("V100-SXM-16GB", "tf32"),
        ("T4", "bfloat16"),
        ("A100-SXM", "float8_e4m3fn"),
        ("TPU-v5e", "float32"),
        ("H100-SXM", "float4_e2m1fn_x2"),
        ("B300", "int8"),  # sources disagree
        ("H100-SXM", "complex64"),
    ],
)
def test_a_missing_number_is_an_error_that_lists_what_is_there(name, dtype):
    with pytest.raises(UsageError, match=f"{name} has no peak for {dtype}.*It has .*16"):
        chip(name).peak_flop_per_s(dtype)


def test_dtypes_are_spelled_as_torch_spells_them():
    h100 = chip("H100-SXM")
    assert h100.peak_flop_per_s("torch.bfloat16") == h100.peak_flop_per_s("bfloat16")
    assert h100.peak_flop_per_s("float8_e5m2") == h100.peak_flop_per_s("float8_e4m3fn")
    assert chip("TPU-v4").peak_flop_per_s("bfloat16") == 275e12


# Sources ------------------------------------------------------------------------------------------


@ALL
def test_every_number_has_a_source(one):
    assert re.match(r"https://\S+$", one.source)
    assert all(peak.source for peak in one.peaks.values())
    assert one.peaks
    assert set(one.sources) <= {f.name for f in fields(Chip)}
    for fact, source in one.sources.items():
        assert getattr(one, fact) is not None, f"a source for {fact}, which is absent"
        assert len(source) > 10
    if one.price is not None:
        assert len({offer.source for offer in one.price.offers}) == len(one.price.offers)
        for offer in one.price.offers:
            assert "http" in offer.source
            assert re.fullmatch(r"20[2-9]\d(-[01]\d)?(-[0-3]\d)?", offer.as_of)
    if one.node is not None:
        assert "https://" in one.node.source
    for peak in one.peaks.values():
        assert (peak.achieved_flop_per_s is None) == (peak.achieved_source == "")
    for fact in ("achieved_bandwidth_bytes_per_s", "boost_clock_hz", "tensor_clock_hz"):
        assert (getattr(one, fact) is None) == (fact not in one.sources), f"{fact} needs its own"


@ALL
def test_a_sparse_rate_stands_beside_its_dense_half_only(one):
    for peak in one.peaks.values():
        if peak.sparse_flop_per_s is not None:
            assert peak.flop_per_s == pytest.approx(peak.sparse_flop_per_s / 2, rel=0.01)


def test_memory_says_whether_it_is_the_label():
    assert chip("H100-SXM").memory_bytes == 81559 * 2**20
    assert not chip("H100-SXM").is_memory_estimated
    assert chip("TPU-v4").memory_bytes == 32 * 10**9
    assert chip("TPU-v4").is_memory_estimated


def test_source_of_a_fact_is_its_own_or_the_rows():
    h100 = chip("H100-SXM")
    assert "hopper-architecture" in h100.source_of("multiprocessors")
    assert h100.source_of("memory_bandwidth_bytes_per_s") == h100.source


# Names --------------------------------------------------------------------------------------------


@ALL
def test_every_name_leads_back_to_its_chip(one):
    for name in (one.name, *one.aliases, *one.driver_names):
        assert chip(name) is one
        assert chip(name.lower().replace("-", "_")) is one
        assert chip(name.upper().replace("-", " ")) is one


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM"),
        ("A100-SXM4-40GB", "A100-SXM-40GB"),  # as older drivers say it
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("GeForce RTX 3090", "RTX-3090"),
        ("Tesla T4", "T4"),
        ("Apple M4 Max", "M4-Max"),
        ("Tesla V100-SXM2-32GB", "V100-SXM-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GeForce RTX 4090 D", "RTX-4090-D"),
        ("GeForce GTX 1080 Ti", "GTX-1080-Ti"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe"),
        ("NVIDIA GB10", "GB10"),
        ("Apple M5 Max", "M5-Max"),
        ("Huawei Ascend910B2", "Ascend-910B2"),
    ],
)
def test_driver_names(driver_name, name):
    assert chip(driver_name).name == name


TYPED = {
    "2080Ti": "RTX-2080-Ti", "4080S": "RTX-4080-SUPER", "A6000": "RTX-A6000", "v5e": "TPU-v5e",
    "TPU v7": "TPU7x", "DGX Spark": "GB10", "AGX Orin": "Jetson-AGX-Orin", "910B": "Ascend-910B2",
    "Huawei Ascend 910B": "Ascend-910B2", "MI250X": "MI250X-GCD", "PVC": "Max-1550",
}  # fmt: skip
"""What people call a chip."""


@pytest.mark.parametrize("name", TYPED)
def test_names_that_people_type(name):
    assert chip(name).name == TYPED[name]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA H100", ["H100-SXM", "H100-PCIe", "H100-NVL"]),  # said by no driver
        ("NVIDIA A100", ["A100-PCIe-40GB", "A100-PCIe", "A100-SXM-40GB", "A100-SXM"]),
        ("h100-smx", ["H100-SXM"]),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", ["RTX-4090"]),  # another die
        ("NVIDIA GeForce RTX 4070 Ti", ["RTX-4070"]),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ["H100-SXM"]),  # a seventh of one
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", ["A100-SXM"]),
        ("NVIDIA GeForce RTX 3090 Ti", ["RTX-3090"]),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ["RTX-PRO-6000"]),
        ("H2", ["H200-SXM", "H200-NVL", "H20"]),
        ("banana", []),
        ("", []),
        ("NVIDIA", []),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_near_ones(name, near):
    with pytest.raises(UnknownChipError) as caught:
        chip(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "`tally gpus`" in message
    for each in near:
        assert each in message
    assert near or "Did you mean" not in message
    assert indent(OWN_CHIP, "  ") in message


def test_the_chip_that_the_error_shows_is_one(tmp_path):
    """Of the seven values that the error speaks of, and as `tally gpus --help` shows it."""
    (mine,) = load_chips(written(tmp_path, OWN_CHIP))
    assert mine.peak_flop_per_s("bfloat16") == 100e12
    assert len(re.findall(r"^\w+ = ", OWN_CHIP, re.M)) == 7
    assert indent(OWN_CHIP, "  ") in EPILOG


# Families -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("H100", "H100-SXM"),
        ("h100", "H100-SXM"),
        ("A100", "A100-SXM"),
        ("a100_40gb", "A100-SXM-40GB"),
        ("V100", "V100-SXM-16GB"),
        ("H200", "H200-SXM"),
        ("4090", "RTX-4090"),
        ("A6000", "RTX-A6000"),
        ("6000 Ada", "RTX-6000-Ada"),
        ("MI300", "MI300X"),
        ("TPU-v7", "TPU7x"),
        ("A5000", "RTX-A5000"),
        ("3080", "RTX-3080"),
        ("4080 super", "RTX-4080-SUPER"),
        ("RTX 8000", "Quadro-RTX-8000"),
        ("DGX Spark", "GB10"),
        ("P100", "P100-PCIe"),
        ("MI450X", "MI455X"),
        ("B580", "Arc-B580"),
        ("L40", "L40"),  # a chip of its own, beside the L40S
    ],
)
def test_a_family_is_its_commonest_variant(family, name):
    assert chip(family).name == name
    assert torchtally.chip(family).name == name


def test_a_family_says_which_chips_it_could_be():
    h100 = family_variant("H100")
    assert (h100.chip.name, h100.others) == ("H100-SXM", ("H100-SXM-96GB", "H100-PCIe", "H100-NVL"))
    assert family_variant("a100").others == ("A100-PCIe-40GB", "A100-PCIe", "A100-SXM-40GB")
    assert family_variant("H200").others == ("H200-NVL",)
    assert family_variant("4090").others == ()
    for own in ("H100-SXM", "L40", "NVIDIA H200", "RTX-A6000", "banana"):
        assert family_variant(own) is None


def test_every_family_is_one_chip():
    names = {plain_name(one.name) for one in known_chips()}
    for one in known_chips():
        for family in one.families:
            assert chip(family) is one
            assert plain_name(family) not in names
    assert chip(DEFAULT).compute_capability is not None  # scripts run on it


def test_two_chips_of_a_family_cannot_both_be_its_commonest(tmp_path):
    one = MINE.replace("[chip.peaks]", 'families = ["Mine"]\n[chip.peaks]')
    with pytest.raises(UsageError, match=r"Mine-1 and Mine-2 share the name 'mine'"):
        load_chips(written(tmp_path, one + one.replace("Mine-1", "Mine-2")))


def test_a_driver_never_means_a_family():
    assert find_chip("A100") is None  # what a trace or a calibration names is one chip


def test_a_chip_of_the_users_own_may_have_a_familys_name(tmp_path, monkeypatch):
    own = MINE.replace("Mine-1", "H100")
    monkeypatch.setenv(USERS_TABLE, str(written(tmp_path, own)))
    assert chip("H100").name == "H100"
    assert family_variant("H100") is None
    assert chip("A100").name == "A100-SXM"


# Clusters -----------------------------------------------------------------------------------------


def test_clusters():
    assert (cluster("8xH100-SXM").count, cluster("8xH100-SXM").chip.name) == (8, "H100-SXM")
    assert cluster("1024 x h100_sxm").count == 1024
    assert cluster("A100-SXM").count == 1
    assert cluster("NVIDIA A100-SXM4-80GB").chip.name == "A100-SXM"
    for text in ("0xH100-SXM", "2x0xH100-SXM", "", "  ", "8x"):
        with pytest.raises(UsageError):
            cluster(text)
    with pytest.raises(UsageError, match="4x2xH100-SXM"):
        cluster("0xH100-SXM")
    assert (cluster("8xH100").count, cluster("8xH100").chip.name) == (8, "H100-SXM")
    with pytest.raises(UnknownChipError, match="H100-SXM"):
        cluster("8xH100-SXN")


@pytest.mark.parametrize(
    ("text", "count", "node_size", "nodes"),
    [
        ("H100-SXM", 1, 8, 1),
        ("8xH100-SXM", 8, 8, 1),
        ("9xH100-SXM", 9, 8, 2),
        ("1024xH100-SXM", 1024, 8, 128),
        ("128xGB200", 128, 72, 2),
        ("4x2xA100-PCIe", 8, 2, 4),
        ("2x16xH100-SXM", 32, 16, 2),
        ("T4", 1, 1, 1),
    ],
)
def test_a_cluster_stands_in_nodes(text, count, node_size, nodes):
    chips = cluster(text)
    assert (chips.count, chips.node_size, chips.nodes) == (count, node_size, nodes)
    assert chips.is_one_node == (nodes == 1)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("2xV100-SXM-16GB", 150e9),  # NVLink2: 300 GB/s in both directions
        ("8xA100-SXM", 300e9),
        ("16xA100-SXM", 200e9 / 8),  # 200 Gbit/s for each
        ("8xH100-SXM", 450e9),
        ("1024xH100-SXM", 400e9 / 8),
        ("16xB300", 800e9 / 8),
        ("72xGB200", 900e9),
        ("16xV100-SXM-32GB", 4 * 100e9 / 8 / 8),  # four ports for eight chips
        ("8xMI300X", 448e9),
        ("16xGaudi2", 3 * 100e9 / 8),
        ("1x2xA100-PCIe", 300e9),  # a bridge joins two
        ("1x8xA100-PCIe", 31.5e9),  # and no more: the rest is PCIe
        ("1x4xRTX-4090", 31.5e9),
    ],
)
def test_the_link_of_a_cluster_is_its_slowest(text, bytes_per_s):
    assert cluster(text).link.bytes_per_s_per_direction == bytes_per_s


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("8xRTX-4090", "How many RTX-4090 share one node.*1x8xRTX-4090"),
        ("2x4xRTX-4090", "network speed between nodes of RTX-4090"),
        ("16xMI350X", "network speed between nodes of MI350X"),
        ("8xTrainium1", r"between two Trainium1 of one node \(NeuronLink-v2\)"),
    ],
)
def test_a_wire_that_no_source_gives_is_an_error_that_names_it(text, missing):
    chips = cluster(text)
    with pytest.raises(UsageError, match=missing):
        _ = chips.link


# What torch would say -----------------------------------------------------------------------------


def test_properties_answer_as_torch_does():
    properties = chip("H100-SXM").properties
    assert properties.name == "NVIDIA H100 80GB HBM3"
    assert (properties.major, properties.minor) == (9, 0)
    assert properties.multi_processor_count == 132
    assert properties.L2_cache_size == 50 * 2**20
    assert 79 * 2**30 < properties.total_memory < chip("H100-SXM").memory_bytes


def test_only_cuda_devices_have_cuda_properties():
    for one in known_chips():
        assert (one.compute_capability is not None) == (one.vendor == "NVIDIA")
    with pytest.raises(UnsupportedError, match="TPU-v4 is not a CUDA device"):
        _ = chip("TPU-v4").properties


# Chips of the user's own --------------------------------------------------------------------------

MINE = """
[[chip]]
name = "Mine-1"
vendor = "Me"
architecture = "One"
memory_bytes = 64_000_000_000
memory_bandwidth_bytes_per_s = 1e12
source = "https://example.com/mine"
[chip.peaks]
bfloat16 = 100e12
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_chip_of_the_users_own(tmp_path):
    (mine,) = load_chips(written(tmp_path, MINE))
    assert mine.peak_flop_per_s("bfloat16") == 100e12
    assert chip("mine_1", among=(mine, *known_chips())) is mine
    assert cluster("4xMine-1", among=[mine]).count == 4
    assert chip("T4", among=(mine, *known_chips())).name == "T4"
    with pytest.raises(UnknownChipError):
        chip("Mine-1")  # the table itself is unchanged


def test_chips_of_the_environments_file_are_known_too(tmp_path, monkeypatch):
    monkeypatch.setenv(USERS_TABLE, str(written(tmp_path, MINE)))
    assert chip("mine-1").peak_flop_per_s("bfloat16") == 100e12
    assert cluster("1x4xMine-1").node_size == 4
    assert [gpu.name for gpu in known_chips()][:2] == ["Mine-1", "V100-SXM-16GB"]
    assert chip("T4").vendor == "NVIDIA"
    written(tmp_path, MINE.replace("100e12", "200e12"))
    assert chip("mine-1").peak_flop_per_s("bfloat16") == 200e12


def test_a_chip_of_the_users_own_takes_the_place_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv(USERS_TABLE, str(written(tmp_path, MINE.replace("Mine-1", "h100_sxm"))))
    assert chip("H100-SXM").vendor == "Me"
    assert [gpu.vendor for gpu in known_chips() if gpu.name.lower().startswith("h100")].count(
        "Me"
    ) == 1
    assert "H100-SXM" not in [gpu.name for gpu in known_chips()]


def test_a_mistake_in_the_environments_file_is_an_error(tmp_path, monkeypatch):
    path = written(tmp_path, MINE.replace("memory_bytes", "memory_byte"))
    monkeypatch.setenv(USERS_TABLE, str(path))
    with pytest.raises(UsageError, match=r"mine\.toml: Mine-1: memory_byte: no such key"):
        known_chips()


def test_the_chip_in_the_help_works(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["gpus", "--help"])
    shown = capsys.readouterr().out.partition("  [[chip]]\n")[2].partition("\n\nIt may")
    more = shown[2].partition("other things:\n")[2].replace('InfiniBand",\n', 'InfiniBand", ')
    text = f"[[chip]]\n{shown[0]}".replace("  [chip.peaks]", f"{more}\n[chip.peaks]")
    text = text.replace('"InfiniBand",\n', '"InfiniBand", ')
    (mine,) = load_chips(written(tmp_path, text))
    assert mine.peak_flop_per_s("bfloat16") == 100e12
    assert mine.node is not None
    assert mine.price is not None
    assert hardware.__doc__ is not None
    assert "TALLY_CHIPS" in hardware.__doc__


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "Mine-1"', "", "chip 1: name: is missing"),
        ('name = "Mine-1"', "name = 7", "chip 1: name: expected a string, found 7"),
        ("memory_bytes =", "memory_byte =", "memory_byte: no such key; did you mean memory_bytes?"),
        ("memory_bytes = 64_000_000_000", "", "memory_bytes: is missing"),
        ("64_000_000_000", '"64 GB"', "memory_bytes: expected a whole number above zero"),
        ("64_000_000_000", "true", "memory_bytes: expected a whole number above zero"),
        ("= 1e12", "= -1e12", "memory_bandwidth_bytes_per_s: expected a number above zero"),
        ("= 1e12", "= nan", "memory_bandwidth_bytes_per_s: expected a number above zero"),
        ("[chip.peaks]\nbfloat16 = 100e12", "", "Mine-1: peaks: is missing"),
        ("bfloat16 = 100e12", "bf16 = 100e12", "peaks: bf16: no such key; did you mean bfloat16?"),
        ("bfloat16 = 100e12", "zzz = 100e12", "peaks: zzz: no such key; keys are float64"),
        ("bfloat16 = 100e12", 'bfloat16 = "100 T"', "peaks: bfloat16: expected a number"),
        (
            "100e12",
            "{ flop_per_s = 200e12, sparse_flop_per_s = 200e12 }",
            "peaks: bfloat16: sparse_flop_per_s: 2e+14 is not twice flop_per_s",
        ),
        ("[chip.peaks]", "compute_capability = 9.0\n[chip.peaks]", "in [9, 0], found 9.0"),
        ("[chip.peaks]", "aliases = 'M1'\n[chip.peaks]", "aliases: expected a list of strings"),
        ("[chip.peaks]", "link = 'NVLink'\n[chip.peaks]", "link: expected a table"),
        (
            "[chip.peaks]",
            "link = { name = 'X', mesh = 'cube' }\n[chip.peaks]",
            "Mine-1: link: mesh: no such mesh; expected one of hybrid cube",
        ),
        (
            "[chip.peaks]",
            "link = { name = 'X', has_multicast = 1 }\n[chip.peaks]",
            "Mine-1: link: has_multicast: expected true or false, found 1",
        ),
        ("[chip.peaks]", "price = {}\n[chip.peaks]", "Mine-1: price: usd_per_hour: is missing"),
        (
            "[chip.peaks]",
            "price = { usd_per_hour = 1, source = 'us', as_of = 'May' }\n[chip.peaks]",
            "Mine-1: price: as_of: expected a day as in 2026-06-30, or 2026, found 'May'",
        ),
        (
            "[chip.peaks]",
            "price = { usd_per_hour = 1, source = 'us' }\n[chip.peaks]",
            "Mine-1: price: as_of: is missing",
        ),
        (
            "[chip.peaks]",
            "price = [{ usd_per_hour = 1, source = 'us', as_of = '2026' }, {}]\n[chip.peaks]",
            "Mine-1: price 2: usd_per_hour: is missing",
        ),
        ("[chip.peaks]", "price = []\n[chip.peaks]", "Mine-1: price: expected a table or a list"),
        ("[chip.peaks]", "node = { name = 'N' }\n[chip.peaks]", "Mine-1: node: gpus: is missing"),
        ("[chip.peaks]", "node = { gpus = 8.5 }\n[chip.peaks]", "gpus: expected a whole number"),
        (
            "[chip.peaks]",
            "node = { gpus = 8, name = 'N', network = 'IB' }\n[chip.peaks]",
            "Mine-1: node: network: expected a table",
        ),
        ("[chip.peaks]", "boost_clock_hz = 0\n[chip.peaks]", "boost_clock_hz: expected a number"),
        (
            "[chip.peaks]",
            "achieved_bandwidth_bytes_per_s = 2e12\n[chip.peaks]",
            "2e+12 is above memory_bandwidth_bytes_per_s = 1e+12",
        ),
        (
            "100e12",
            "{ flop_per_s = 100e12, achieved_flop_per_s = 101e12, achieved_source = 'us' }",
            "peaks: bfloat16: achieved_flop_per_s: 1.01e+14 is above flop_per_s = 1e+14",
        ),
        (
            "100e12",
            "{ flop_per_s = 100e12, achieved_flop_per_s = 99e12 }",
            "peaks: bfloat16: achieved_source: is missing",
        ),
        ("[[chip]]", "[chip]", "Each starts with a line [[chip]]"),
        ("[[chip]]", "[[chip", "cannot be read as a table of chips"),
    ],
)
def test_errors_name_the_file_the_chip_and_the_key(tmp_path, old, new, complaint):
    assert old in MINE
    path = written(tmp_path, MINE.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(complaint)) as caught:
        load_chips(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_two_chips_of_one_name_are_an_error(tmp_path):
    with pytest.raises(UsageError, match="Mine-1 and mine_1 share the name 'mine1'"):
        load_chips(written(tmp_path, MINE + MINE.replace("Mine-1", "mine_1")))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.toml"):
        load_chips(tmp_path / "absent.toml")


# One chip, told in full ---------------------------------------------------------------------------


@ALL
def test_the_page_of_a_chip_fits_eighty_columns_and_names_every_source(one):
    page = chip_text(one)
    assert max(map(len, page.splitlines())) <= 80
    together = "".join(page.split())
    for fact in facts(one):
        assert fact.source
        assert "".join(fact.source.split()) in together


def test_every_number_of_a_chip_is_a_fact_of_its_page():
    h100 = chip("H100-SXM")
    told = {fact.value for fact in facts(h100)}
    numbers = {
        h100.memory_bytes, h100.program_memory_bytes, h100.memory_bandwidth_bytes_per_s,
        h100.achieved_bandwidth_bytes_per_s, h100.l2_cache_bytes, h100.multiprocessors,
        h100.boost_clock_hz, h100.tensor_clock_hz, h100.tdp_watts, h100.price.usd_per_hour,
        h100.link.bytes_per_s_per_direction, h100.host_link.bytes_per_s_per_direction,
        h100.node.gpus, h100.node.network.bytes_per_s_per_direction,
    }  # fmt: skip
    rates = ((peak.flop_per_s, peak.achieved_flop_per_s) for peak in h100.peaks.values())
    assert numbers | set(chain.from_iterable(rates)) - {None} <= told


def test_the_document_has_every_field_of_a_chip():
    (row,) = json.loads(dumps(chips_document([chip("H100-SXM")])))["chips"]
    spelled = {"price": "offers"}
    assert {spelled.get(f.name, f.name) for f in fields(Chip)} <= set(row)
    assert row["peaks"]["bfloat16"]["achieved_flop_per_s"] == 794.5e12
    assert row["node"]["network"]["bytes_per_s_per_direction"] == 50e9


def test_tally_gpus_tells_of_one_chip(capsys, tmp_path, monkeypatch):
    assert main(["gpus", "NVIDIA H100 80GB HBM3"]) == 0
    page = capsys.readouterr().out
    assert "989.40 TFLOP/s  dense bfloat16 [" in page
    assert "$3.62/h  price [" in page
    with pytest.raises(SystemExit):
        main(["gpus", "H1000"])
    assert "No chip is called 'H1000'" in capsys.readouterr().err
    monkeypatch.setenv(USERS_TABLE, str(written(tmp_path, MINE)))
    assert main(["gpus"]) == 0
    assert "Mine-1" in capsys.readouterr().out


# The module itself --------------------------------------------------------------------------------


def test_the_table_loads_without_torch_or_anything_else_heavy():
    code = "import sys, torchtally.chips as h; h.known_chips(); print(*sys.modules)"
    loaded = run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "rich", "msgspec"} & set(loaded.split())


def test_no_chip_is_named_in_the_code():
    """A chip is a row. A name in the code (outside documentation) would be a special case."""
    for path in Path(hardware.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        assert not [f"{path}: {node}" for node in ast.walk(tree) if _names_a_chip(node)]
    assert [node for node in ast.walk(ast.parse('x = "H100-SXM"')) if _names_a_chip(node)]


def _names_a_chip(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in {one.name for one in known_chips()}


def test_a_compute_capability_without_a_row_is_the_newest_older_one() -> None:
    assert [row_of(version).generation for version in ((5, 2), (8, 7), (10, 3), (12, 1))] == [
        "Maxwell",
        "Ampere",
        "Blackwell",
        "Blackwell",
    ]
    assert row_of((9, 0)).blas_workspace_bytes == 32 * 1024 * 1024
    assert row_of((8, 0)).blas_workspace_bytes == 2 * 4096 * 1024 + 8 * 16 * 1024


def test_capabilities_agree_with_the_chips_that_have_them() -> None:
    """A chip has a peak for bfloat16 and float8 where its row says so, and only there."""
    assert (BFLOAT16_SINCE.version, FLOAT8_SINCE.version) == ((8, 0), (8, 9))
    for known in known_chips():
        if known.compute_capability is not None:
            row = row_of(known.compute_capability)
            assert ("bfloat16" in known.peaks) == row.has_bfloat16, known.name
            assert "float8_e4m3fn" not in known.peaks or row.has_float8, known.name
