"""Chips of one family are ordered as their data sheets order them, whatever was measured on which.

Where a chip is at least as good in every number that a class of kernels depends on, and better in
one, it is not slower.
"""

from collections.abc import Mapping
from itertools import permutations

import pytest

from benchmarks.published_times import call, seconds, tensor
from torchtally.chips import Chip, chip, known_chips
from torchtally.trace import Call

PAIRS = (
    ("MI350X", "MI355X"),
    ("B200", "GB200"),
    ("B300", "GB300"),
    ("H100-SXM", "H200-SXM"),
    ("H800-SXM", "H100-SXM"),
    ("H800-SXM", "H200-SXM"),
)
"""Slower and faster, by their data sheets."""


def family(member: Chip) -> str:
    """Chips of data centers whose dies were designed together; "" of all others."""
    if member.gcn_architecture:
        return member.gcn_architecture
    design = member.sm.design.replace("GB110", "GB100")
    return design if design in ("GA100", "GH100", "GB100") else ""


def products(dtype: str) -> tuple[Call, ...]:
    shapes = (
        (1, 4096, 4096), (16, 512, 7168), (193, 256, 3072), (512, 3072, 768), (2048, 2048, 2048),
        (4096, 14336, 4096), (8192, 8192, 8192),
    )  # fmt: skip
    return tuple(
        call(
            "aten.linear",
            (
                tensor(M, K, argument="input", dtype=dtype),
                tensor(N, K, argument="weight", dtype=dtype),
            ),
            (tensor(M, N, dtype=dtype),),
        )
        for M, N, K in shapes
    )


def streams() -> tuple[Call, ...]:
    found = []
    for size in (2**12, 2**20, 2**24, 2**28):
        x = tensor(size, argument="self", dtype="bfloat16")
        found.append(call("aten.mul", (x, x), (tensor(size, dtype="bfloat16"),)))
    return tuple(found)


def softmax() -> tuple[Call, ...]:
    return tuple(
        call(
            "aten._softmax",
            (tensor(rows, columns, argument="self", dtype="float32"),),
            (tensor(rows, columns, dtype="float32"),),
            dim=-1,
        )
        for rows, columns in ((64, 512), (8192, 1024), (4096, 32000))
    )


def attention() -> tuple[Call, ...]:
    found = []
    for B, S, H, D in ((1, 512, 8, 64), (4, 2048, 32, 128), (1, 16384, 32, 128)):
        operands = tuple(
            tensor(B, S, H, D, argument=argument, dtype="bfloat16")
            for argument in ("query", "key", "value")
        )
        output = tensor(B, S, H, D, dtype="bfloat16")
        found.append(call("aten._flash_attention_forward", operands, (output,), is_causal=True))
    return tuple(found)


NOISE = 0.03
"""By which a last wave of tiles, or two measurements of one promise, may be off."""

OF_MEMORY = ("memory_bandwidth_bytes_per_s",)
OF_ALL = (*OF_MEMORY, "multiprocessors", "boost_clock_hz", "tdp_watts")
CLASSES: Mapping[str, tuple[tuple[str, ...], tuple[Call, ...]]] = {
    "bfloat16": (OF_ALL, products("bfloat16")),
    "float16": (OF_ALL, products("float16")),
    "float8_e4m3fn": (OF_ALL, products("float8_e4m3fn")),
    "float32": (OF_ALL, products("float32")),
    "streams": (OF_MEMORY, streams()),
    "softmax": ((*OF_MEMORY, "multiprocessors"), softmax()),
    "attention": (OF_ALL, attention()),
}
"""Numbers of data sheets that a class depends on, besides the peak of its dtype; its calls."""


def is_better(one: Chip, other: Chip, name: str) -> bool:
    """In every number that both data sheets state, and in one strictly."""
    fields, _ = CLASSES[name]
    pairs = [
        (getattr(one, field), getattr(other, field))
        for field in fields
        if field not in one.inherited and field not in other.inherited
    ]
    dtype = "bfloat16" if name == "attention" else name
    if dtype in one.peaks and dtype in other.peaks:
        pairs.append((one.peak_flop_per_s(dtype), other.peak_flop_per_s(dtype)))
    known = [(mine, its) for mine, its in pairs if mine is not None and its is not None]
    return all(mine >= its for mine, its in known) and any(mine > its for mine, its in known)


@pytest.mark.parametrize("name", CLASSES)
def test_a_family_is_in_the_order_of_its_data_sheets(name: str) -> None:
    met = 0
    for one, other in permutations(known_chips(), 2):
        is_family = family(one) == family(other) != ""
        if not is_family or not is_better(one, other, name):
            continue
        for each in CLASSES[name][1]:
            met += 1
            faster, slower = seconds(each, one.name), seconds(each, other.name)
            assert faster <= slower * (1 + NOISE), f"{one.name} after {other.name}: {each}"
    assert met > 0


@pytest.mark.parametrize(("slower", "faster"), PAIRS)
def test_pairs_that_are_named(slower: str, faster: str) -> None:
    """Of one family, and in this order in what most of a training is."""
    assert family(chip(slower)) == family(chip(faster)) != ""
    for each in (*CLASSES["bfloat16"][1], *CLASSES["streams"][1], *CLASSES["attention"][1]):
        assert seconds(each, faster) <= seconds(each, slower) * (1 + NOISE), each


def test_large_products_of_a_cooler_chip_take_longer() -> None:
    """MI350X: 1000 of 1400 W, 1.4 times as long; by its promise alone it would be 1.09."""
    large = products("bfloat16")[-1]
    assert seconds(large, "MI350X") / seconds(large, "MI355X") == pytest.approx(1.4, rel=0.02)
