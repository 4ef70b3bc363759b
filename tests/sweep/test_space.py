"""What is tried: grids, draws and all their combinations."""

from collections import Counter
from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.sweep.space import (
    Choice,
    Interval,
    fixed_choice,
    grid,
    points,
    random_choice,
    split,
)


def test_a_grid_has_values_of_its_fields_type() -> None:
    assert grid("optimizer.lr=1e-4,1") == Choice("optimizer.lr", (1e-4, 1.0))
    assert grid("model.layers=2, 4").values == (2, 4)
    assert grid("optimizer.betas=[0.9,0.95],none").values == ((0.9, 0.95), None)
    assert grid('data.text=["a,b.txt"],["c"]').values == (("a,b.txt",), ("c",))
    assert grid("checkpoint.at_end=true,false").values == (True, False)
    assert grid("precision=fp32,bf16").values == ("fp32", "bf16")


def test_a_fixed_value_keeps_its_commas() -> None:
    assert fixed_choice("sampling.prompt=one, two") == Choice("sampling.prompt", ("one, two",))


def test_all_combinations_in_order() -> None:
    grid_points = points([grid("seed=1,2"), grid("batch=8,16")], [], 0, 1)
    assert grid_points == (
        (("seed", 1), ("batch", 8)),
        (("seed", 1), ("batch", 16)),
        (("seed", 2), ("batch", 8)),
        (("seed", 2), ("batch", 16)),
    )


def test_each_draw_is_at_each_point_of_the_grid() -> None:
    grid_points = points([grid("seed=1,2")], [random_choice("optimizer.lr=log:1e-5..1e-1")], 3, 7)
    assert len(grid_points) == 6
    of_seed = {
        seed: [dict(each)["optimizer.lr"] for each in grid_points if each[0] == ("seed", seed)]
        for seed in (1, 2)
    }
    assert of_seed[1] == of_seed[2]
    assert len(set(of_seed[1])) == 3


def test_the_same_point_is_run_once() -> None:
    assert len(points([grid("seed=1,1,2")], [], 0, 1)) == 2
    assert len(points([], [random_choice("batch=8,16")], 50, 1)) == 2


def test_one_is_not_true() -> None:
    assert len(points([grid("optimizer.lr=1,1.0,0")], [], 0, 1)) == 2


def test_more_draws_and_other_keys_leave_those_there_were() -> None:
    rates = random_choice("optimizer.lr=0..1")
    few = points([], [rates], 3, 1)
    assert points([], [rates], 5, 1)[:3] == few
    both = points([], [rates, random_choice("batch=1..1000000")], 3, 1)
    assert [point[:1] for point in both] == list(few)
    assert points([], [rates], 3, 2) != few


def test_draws_are_as_they_have_always_been() -> None:
    """A sweep's seed means the same draws in every version."""
    grid_points = points([], [random_choice("optimizer.lr=log:1e-5..1e-1")], 2, 1)
    assert grid_points == ((("optimizer.lr", 0.0003148),), (("optimizer.lr", 0.0004341),))


@pytest.mark.thorough
def test_draws_are_even() -> None:
    rates = random_choice("optimizer.lr=log:1e-4..1")
    rates_drawn = [dict(point)["optimizer.lr"] for point in points([], [rates], 4000, 1)]
    decades = Counter(int(-log10(each)) for each in rates_drawn if each < 1)
    assert all(850 < decades[number] < 1100 for number in range(4))
    whole = [
        dict(point) for point in points([grid("seed=1")], [random_choice("batch=1..4")], 4000, 1)
    ]
    assert {point["batch"] for point in whole} == {1, 2, 3, 4}
    shares = Counter(random_choice("batch=1..4").draw(n / 1000) for n in range(1000))
    assert set(shares.values()) == {250}


@given(
    st.floats(1e-30, 1e30), st.floats(1.001, 1e6), st.floats(0, 1, exclude_max=True), st.booleans()
)
def test_a_draw_is_within_its_ends(
    low: float, factor: float, share: float, is_logarithmic: bool
) -> None:
    drawn = Interval("optimizer.lr", low, low * factor, is_logarithmic, False).draw(share)
    assert low <= drawn <= low * factor


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
def test_a_whole_draw_is_within_its_ends(low: int, more: int, share: float) -> None:
    for is_logarithmic in (True, False):
        drawn = Interval("batch", low, low + more, is_logarithmic, True).draw(share)
        assert isinstance(drawn, int)
        assert low <= drawn <= low + more


@given(st.lists(st.sampled_from(["1", "[1,2]", '"a,b"', "'c'", "word", "1e-4"]), min_size=1))
def test_values_joined_by_commas_are_split_again(values: list[str]) -> None:
    assert split(",".join(values), "key") == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr=1", "lr: unknown key. Did you mean optimizer.lr?"),
        ("optimizer.lrr=1", "Did you mean optimizer.lr"),
        ("nothing.like.it=1", "tally train CONFIG --help"),
        ("model=1", "is a section. It has: model.layers"),
        ("log.folder=x", "its own folder below"),
        (
            "optimizer.lr=fast",
            "optimizer.lr: expected a finite number, 0 or more, or none, got 'fast'.",
        ),
        ("model.layers=1.5", "model.layers: expected a whole number"),
        ("on_spike=x", "on_spike: expected note, skip, stop, got 'x'."),
        ("optimizer.betas=0.9", "an array such as [0.9, 0.95], of numbers"),
        ("optimizer.betas=[0.9", "cannot be read as a TOML value"),
        ("seed=1,,2", "a value is empty"),
        ("seed", "has no values"),
        ("seed=", "has no values"),
    ],
)
def test_a_value_that_cannot_be_names_key_and_value(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        grid(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optimizer.lr=log:0..1", "above 0"),
        ("optimizer.lr=1..1", "must be below"),
        ("optimizer.lr=2..1", "must be below"),
        ("optimizer.lr=0..inf", "expected a finite number"),
        ("optimizer.lr=nan..1", "expected a finite number"),
        ("optimizer.lr=none..1", "must be below"),
        ("optimizer.lr=log:1e-5", "is not an interval"),
        ("optimizer.lr=1..2..3", "is not an interval"),
        ("precision=log:1..2", "is not an interval"),
    ],
)
def test_an_interval_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        random_choice(text)
    assert said in str(caught.value)


def test_a_key_asked_for_twice_and_too_many_runs() -> None:
    with pytest.raises(UsageError, match="seed: is given twice"):
        points([grid("seed=1")], [random_choice("seed=1..2")], 1, 1)
    many = "seed=" + ",".join(map(str, range(1, 401)))
    with pytest.raises(UsageError, match="got 160000"):
        points([grid(many), grid(many.replace("seed", "batch"))], [], 0, 1)
