"""The search against all combinations, its front, and what bounds leave out."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.chips import cluster
from torchtally.tune.knobs import Knob, Settings, parse_knob
from torchtally.tune.points import TunePoint, cheapest, cost_of, front
from torchtally.tune.search import TuneSearch, groups_of

TOKENS = 10**6


def point(
    step_s: float, *, gpus: str = "T4", settings: Settings = (), reserved: int = 1,
    usd: float | None = 1.0, batch: int = 1,
) -> TunePoint:  # fmt: skip
    return TunePoint(
        gpus, settings, ran_on=gpus, step_s=step_s, batch=batch, peak_reserved_bytes=reserved,
        gpus_usd_per_hour=usd, watts=1.0,
    )  # fmt: skip


def test_a_training_is_whole_steps() -> None:
    """Ten tokens in steps of four: three steps of two seconds."""
    cost = cost_of(point(2.0, batch=4, usd=3600.0), 10)
    assert cost is not None
    assert (cost.seconds, cost.cost_usd, cost.energy_joules) == (6.0, 6.0, 6.0)


def test_the_front_is_what_nothing_faster_beats() -> None:
    fast, small, worse = point(1.0, reserved=8), point(2.0, reserved=4), point(3.0, reserved=4)
    alike = point(1.001, reserved=8)
    unpriced = point(4.0, reserved=9, usd=None)
    shown = front(
        [worse, alike, small, fast, unpriced, TunePoint("T4", (), "T4", failure="OOM")], 1
    )
    assert shown == [fast, small, unpriced]  # which may be cheaper


def test_the_cheapest_meets_the_deadline() -> None:
    fast, cheap = point(1.0, usd=7200.0), point(3.0, usd=600.0)
    assert cheapest([fast, cheap], 1, None) is cheap
    assert cheapest([fast, cheap], 1, 2.0) is fast
    assert cheapest([fast, cheap], 1, 0.5) is None


def run(search: TuneSearch, step_s: dict[Settings, float | None]) -> int:
    """Run a search to its end on one chip; the number of runs."""
    count = 0
    while candidates := search.next_candidates(2):
        for each in candidates:
            count += 1
            seconds = step_s.get(each.settings)
            made = point(seconds or 0.0, gpus=each.gpus, settings=each.settings)
            if seconds is None:
                made = TunePoint(each.gpus, each.settings, each.gpus, failure="OOM")
            search.learn(each, [made])
    return count


KNOBS = (parse_knob("--batch={1..64}"), parse_knob("--a={x,y,z}"), parse_knob("{,--compile}"))
EVERY = list(product(*(knob.values for knob in KNOBS)))


def search_of(
    knobs: tuple[Knob, ...], most_runs: int, gpus: tuple[str, ...] = ("T4",)
) -> TuneSearch:
    groups = groups_of((name, cluster(name)) for name in gpus)
    return TuneSearch(knobs, groups, most_runs, TOKENS, dict.fromkeys(gpus, 1.0))


@given(st.lists(st.floats(0.5, 2.0), min_size=12, max_size=12))
def test_the_best_of_separable_settings_is_found_without_all_runs(factors: list[float]) -> None:
    """Times that are a product of a factor for each knob have one best, and no other valley where
    batches only help.
    """
    batch = {value: 1 / (n + 1) for n, value in enumerate(KNOBS[0].values)}
    other = dict(zip([*KNOBS[1].values, *KNOBS[2].values], factors, strict=False))
    times: dict[Settings, float | None] = {
        each: batch[each[0]] * other[each[1]] * other[each[2]] for each in EVERY
    }
    search = search_of(KNOBS, len(EVERY) - 1)
    assert run(search, times) < len(EVERY)
    best = min(each.step_s or 0.0 for each in search.points.values())
    assert best <= min(each for each in times.values() if each is not None) * 1.05


def test_few_combinations_are_all_run() -> None:
    search = search_of(KNOBS, len(EVERY))
    assert run(search, dict.fromkeys(EVERY, 1.0)) == len(EVERY)
    assert not search.is_cut


def test_an_open_knob_ends_at_memory() -> None:
    """Powers of two up to 32 fit: 64 was run and failed, and 128 was not."""
    knob = parse_knob("--batch={}")
    search = search_of((knob,), 50)
    run(search, {(str(1 << n),): 1 / (n + 1) for n in range(6)})
    fitting = [int(each.settings[0]) for each in search.points.values() if not each.failure]
    assert max(fitting) == 32
    assert ("T4", ("64",)) in search.points
    assert ("T4", ("128",)) not in search.points


def test_the_limit_of_runs_is_said() -> None:
    search = search_of((parse_knob("--batch={}"), KNOBS[1]), 3)
    assert run(search, {(str(1 << n), a): 1.0 for n in range(8) for a in "xyz"}) == 3
    assert search.is_cut


def test_gpus_that_run_the_same_operators_are_one_group() -> None:
    names = ("L4", "RTX-4090", "H100-SXM", "8xH100-SXM", "8xH200-SXM")
    groups = groups_of((name, cluster(name)) for name in names)
    assert {group.gpus for group in groups} == {
        ("8xH200-SXM", "8xH100-SXM"), ("H100-SXM",), ("RTX-4090", "L4")
    }  # fmt: skip


@pytest.mark.parametrize(("floor_s", "is_run"), [(2.0, False), (0.5, True)])
def test_what_the_roofline_excludes_is_not_run(floor_s: float, is_run: bool) -> None:
    """One second on an H100 for a dollar an hour: on a T4 at the same price, two at least."""
    search = search_of((), 10, ("H100-SXM", "T4"))
    (first,) = search.next_candidates(1)
    known = replace(point(1.0, gpus="H100-SXM"), peak_allocated_bytes=1)
    search.learn(first, [replace(known, floor_s={"H100-SXM": 1.0, "T4": floor_s})])
    assert bool(search.next_candidates(1)) is is_run
    assert bool(search.pruned) is not is_run


def test_points_of_other_chips_runs_are_proved() -> None:
    search = search_of((), 10, ("RTX-4090", "L4"))
    (first,) = search.next_candidates(1)
    mine, other = point(1.0, gpus="RTX-4090"), point(9.0, gpus="L4", usd=0.01)
    search.learn(first, [mine, replace(other, ran_on="RTX-4090")])
    (proof,) = search.unproved()
    assert proof.gpus == "L4"
    search.prove(other)
    assert not search.unproved()
