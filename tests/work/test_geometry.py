"""Who attends to whom, counted one by one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.work.geometry import Geometry, causal


def points(geometry: Geometry) -> set[tuple[int, int]]:
    """All (query, key) that attend, by the definition."""
    shift = geometry.keys - geometry.queries if geometry.is_end_aligned else 0
    return {
        (query, key)
        for query in range(geometry.queries)
        for key in range(geometry.keys)
        if (geometry.before is None or key >= query + shift - geometry.before)
        and (geometry.after is None or key <= query + shift + geometry.after)
        and (geometry.chunk is None or query // geometry.chunk == key // geometry.chunk)
    }


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    size, reach = st.integers(1, 24), st.none() | st.integers(0, 30)
    queries = draw(size)
    chunk = draw(st.none() | st.integers(1, 30))
    return Geometry(
        queries=queries,
        keys=draw(size) if chunk is None else queries,
        before=draw(reach),
        after=draw(reach),
        chunk=chunk,
        is_end_aligned=draw(st.booleans()),
    )


@given(geometry=geometries())
def test_the_area_is_the_points_but_for_half_of_each_edge(geometry: Geometry) -> None:
    """A band of n points in each row has n - 1/2 to n + 1/2 of its area there."""
    area = geometry.full_pairs * geometry.attended_share
    assert abs(area - len(points(geometry))) <= geometry.queries
    assert 0 <= geometry.attended_share <= 1


@given(geometry=geometries())
def test_no_query_attends_to_more_than_the_most(geometry: Geometry) -> None:
    rows = [0] * geometry.queries
    for query, _ in points(geometry):
        rows[query] += 1
    assert max(rows) <= geometry.most_keys <= geometry.keys


@given(geometry=geometries(), block=st.sampled_from([1, 4, 8]))
def test_a_kernel_computes_what_is_attended_and_never_more_than_all(
    geometry: Geometry, block: int
) -> None:
    computed = geometry.computed_share(block) * geometry.queries * geometry.keys
    attended = geometry.full_pairs * geometry.attended_share
    assert attended - 1e-9 <= computed <= geometry.queries * geometry.keys + 1e-9
    assert geometry.computed_share(block) <= geometry.computed_share(2 * block) + 1e-12


def test_by_hand() -> None:
    """Eight tokens. Causal: 8 * 8 / 2. A window of 3: 8 * 3, less a triangle of 3 * 3 / 2 at the
    start. Chunks of 3: two of 3 * 3 / 2, and one of 2 * 2 / 2.
    """
    whole, window, chunks = causal(8), causal(8, 3), causal(8, 3, is_chunked=True)
    assert [geometry.full_pairs for geometry in (whole, window, chunks)] == [64, 24, 24]
    assert whole.full_pairs * whole.attended_share == 32
    assert window.full_pairs * window.attended_share == 19.5
    assert chunks.full_pairs * chunks.attended_share == 11


def test_blocks_beyond_the_edges() -> None:
    """Blocks of 2: half a block for each query at the causal edge, and for each of the five whose
    window of 3 begins after the first key.
    """
    assert causal(8).computed_share(2) == (32 + 8) / 64
    assert causal(8, 3).computed_share(2) == (19.5 + 8 + 5) / 64
    assert Geometry(queries=8, keys=8).computed_share(2) == 1


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_window_as_long_as_the_sequence_is_none(is_chunked: bool) -> None:
    assert causal(8, 8, is_chunked=is_chunked) == causal(8)


def test_flash_attention_aligns_the_last_query_with_the_last_key() -> None:
    """Two queries of eight keys, causal: the first sees 7 and the second 8, or 1 and 2."""
    first = Geometry(queries=2, keys=8, after=0)
    last = replace(first, is_end_aligned=True)
    assert (len(points(first)), len(points(last))) == (3, 15)
    assert first.full_pairs * first.attended_share == 2 * 2 / 2
    assert last.full_pairs * last.attended_share == 2 * 8 - 2 * 2 / 2
