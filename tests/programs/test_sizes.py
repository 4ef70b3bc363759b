"""Numbers are named by the primes in them."""

from math import prod

import pytest

from torchtally.programs.labels import head_dim_primes, recordings_for
from torchtally.programs.sizes import Point, labelled, size_of, text, value, with_shares

UNITS = {"b": 1, "s": 64, "h": 8}
POINTS = [
    labelled(UNITS, {"b": 17, "s": 19, "h": 23}),
    labelled(UNITS, {"b": 19, "s": 23, "h": 29}),
    labelled(UNITS, {"b": 23, "s": 29, "h": 17}),
]


def of(formula: str) -> list[int]:
    return [eval(formula, {}, dict(point.values)) for point in POINTS]


@pytest.mark.parametrize(
    ("formula", "spelled"),
    [
        ("7", "7"),
        ("0", "0"),
        ("b", "b"),
        ("2 * b * s * h", "2*b*h*s"),
        ("h * h // 4", "1/4*h^2"),
        ("b * (s + 1)", "b*s + b"),
        ("s * (s + 1) // 2", "1/2*s^2 + 1/2*s"),
        ("(b + 2) * h", "b*h + 2*h"),
        ("s - 1", "s + -1"),
        ("s - h", "s + -1*h"),
        ("h * s - h * (h - 1) // 2", "h*s + -1/2*h^2 + 1/2*h"),
    ],
)
def test_a_number_is_an_expression(formula: str, spelled: str) -> None:
    size = size_of(of(formula), POINTS)
    assert size is not None
    assert text(size) == spelled
    assert value(size, {"b": 2, "s": 128, "h": 10}) == eval(
        formula, {}, {"b": 2, "s": 128, "h": 10}
    )


@pytest.mark.parametrize("formula", ["b + s + h", "2 ** b", "b % 3"])
def test_what_is_no_product_is_not_guessed(formula: str) -> None:
    assert size_of(of(formula), POINTS) is None


def test_a_label_is_of_one_symbol() -> None:
    with pytest.raises(ValueError, match="17 labels b, and divides b, s"):
        labelled({"b": 1, "s": 17}, {"b": 17, "s": 19})


def test_a_broken_number_is_no_number() -> None:
    size = size_of(of("s // 64"), POINTS)
    assert size is not None
    with pytest.raises(ValueError, match=r"1/64\*s is 3/2"):
        value(size, {"s": 96})


def test_sizes_of_one_are_recorded_as_they_are() -> None:
    plan = recordings_for({"batch": 1, "sequence": 1000, "head_dim": 64, "kv_heads": 4})
    assert plan.fixed == {"batch": 1}
    assert plan.units == {"sequence": 8, "head_dim": 8, "kv_heads": 1}  # 1000 is 8 x 125
    assert all(isinstance(point, Point) and "batch" not in point.values for point in plan.points)


def test_a_size_that_is_kept_is_in_every_recording() -> None:
    plan = recordings_for({"batch": 2, "kv_heads": 12}, kept={"kv_heads"})
    assert plan.fixed == {"kv_heads": 12}


def test_a_window_that_a_sequence_fills_is_as_long_in_every_recording() -> None:
    plan = recordings_for({"batch": 2, "sequence": 4096, "window": 4096})
    assert all(point.values["window"] == point.values["sequence"] for point in plan.points)
    shorter = recordings_for({"batch": 2, "sequence": 4096, "window": 1024})
    assert all(point.values["window"] < point.values["sequence"] for point in shorter.points)


@pytest.mark.parametrize("symbols", [3, 4, 11])
def test_no_product_is_the_same_in_all_recordings(symbols: int) -> None:
    plan = recordings_for({f"size {n}": 2 for n in range(symbols)})
    assert len({prod(point.values.values()) for point in plan.points}) == 3


def test_a_vocabulary_is_above_its_tokens() -> None:
    plan = recordings_for({"vocabulary": 32064, "batch": 2}, {"vocabulary": 32000})
    assert all(point.values["vocabulary"] > 32000 for point in plan.points)
    assert len({point.values["vocabulary"] for point in plan.points}) == 3


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(64, 0, 128), (128, 0, 128), (192, 128, 256), (512, 256, 1 << 20)]
)
def test_head_dims_take_the_kernel_of_the_one_asked_for(asked: int, least: int, most: int) -> None:
    assert all(least < 8 * prime <= most for prime in head_dim_primes(asked, 8))


SHARED = [
    Point(with_shares(point.values), point.primes, point.shared)
    for point in (
        labelled(
            {"v": 8, "h": 8, "vocabulary": 8, "ranks": 1},
            {"v": 17, "h": first, "vocabulary": second, "ranks": ranks},
            ("h",),
        )
        for first, second, ranks in ((19, 23, 3), (23, 29, 5), (29, 31, 7))
    )
]


@pytest.mark.parametrize(
    ("formula", "spelled", "at_8"),
    [
        ("h // ranks", "h*ranks^-1", 16),
        ("v * h // ranks", "h*ranks^-1*v", 2176),
        ("(h + 8) * h // ranks", "h^2*ranks^-1 + 8*h*ranks^-1", 2176),
        ("-(-vocabulary // ranks)", "vocabulary/ranks", 13),
        ("-(-vocabulary // ranks) * h", "h*vocabulary/ranks", 1664),
        ("-(-vocabulary // ranks) * ranks", "ranks*vocabulary/ranks", 104),
    ],
)
def test_a_share_of_ranks_is_an_expression(formula: str, spelled: str, at_8: int) -> None:
    """FSDP2 gives each rank as many rows, rounded up: of 101 by 8 ranks 13."""
    numbers = [eval(formula, {}, dict(point.values)) for point in SHARED]
    size = size_of(numbers, SHARED)
    assert size is not None
    assert text(size) == spelled
    sizes = with_shares({"v": 136, "h": 128, "vocabulary": 101, "ranks": 8})
    assert value(size, sizes) == at_8
