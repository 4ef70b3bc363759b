"""What a GPU does when: moments that sum to what operators are charged."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.timing.moments import Moment, Occupation, moments
from torchtally.timing.ranks import Span
from torchtally.timing.streams import Covered, charges


def test_a_step_by_hand() -> None:
    """A product 1 to 4, a collective 2 to 9 of which two seconds wait, a product 6 to 7."""
    spans = [Span(1, 4), Span(2, 9, waiting_s=3), Span(6, 7)]
    listed = sorted(moments(spans, [False, True, False]), key=lambda moment: moment.start_s)
    assert listed == [
        Moment(0, Occupation.IDLE, 0, 1),
        Moment(0, Occupation.COMPUTING, 1, 4),
        Moment(1, Occupation.WAITING, 4, 5),
        Moment(1, Occupation.NETWORK, 5, 6),
        Moment(2, Occupation.COMPUTING, 6, 7),
        Moment(1, Occupation.NETWORK, 7, 9),
    ]


drawn_spans = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=20
)


@given(drawn_spans)
def test_moments_sum_to_what_operators_are_charged(drawn: list[tuple[int, int, int, bool]]) -> None:
    spans = [
        Span(start, start + length, min(waiting, length) if is_network else 0)
        for start, length, waiting, is_network in drawn
    ]
    is_network = [is_network for *_, is_network in drawn]
    listed = sorted(moments(spans, is_network), key=lambda moment: moment.start_s)
    now_s = 0.0
    sums: dict[tuple[int, Occupation], float] = defaultdict(float)
    for moment in listed:
        assert moment.start_s == now_s < moment.end_s
        now_s = moment.end_s
        sums[moment.place, moment.occupation] += moment.end_s - moment.start_s
    assert now_s == max((span.end_s for span in spans if span.end_s > span.start_s), default=0)
    for place, charge in enumerate(charges(spans, is_network)):
        assert sums[place, Occupation.IDLE] == pytest.approx(charge.idle_s)
        assert sums[place, Occupation.WAITING] == pytest.approx(charge.waiting_s)
        at_work_s = sums[place, Occupation.COMPUTING] + sums[place, Occupation.NETWORK]
        assert at_work_s == pytest.approx(charge.own_s - charge.waiting_s)


def test_the_gaps_of_a_union() -> None:
    covered = Covered()
    for span in (Span(1, 3), Span(5, 6), Span(6, 8)):
        covered.add(span)
    assert list(covered.gaps(0, 10)) == [(0, 1), (3, 5), (8, 10)]
    assert list(covered.gaps(2, 7)) == [(3, 5)]
    assert list(covered.gaps(5, 8)) == []
