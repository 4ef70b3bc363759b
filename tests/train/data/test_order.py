"""The order of windows: pure, exact over an epoch, the same for any number of ranks."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.train.data.order import Mixture, Order, OrderName, feistel, rows_of_rank
from torchtally.train.data.seeds import Source, seed_of

NAMES = st.sampled_from(OrderName)
SEEDS = st.integers(0, 2**64)
COUNTS = st.integers(1, 3000)


@given(COUNTS, st.integers(1, 70), SEEDS, st.integers(0, 5))
@example(1, 7, 0, 0)
@example(2, 3, 0, 1)
def test_an_epoch_has_every_window_once(windows: int, batch: int, seed: int, epoch: int) -> None:
    """Whatever the batch: epochs begin and end inside of batches, too."""
    order = Order(OrderName.SHUFFLED, windows, batch, seed)
    begin, end = epoch * windows, (epoch + 1) * windows
    first = begin // batch
    drawn = order.windows_of(first, -(-end // batch) - first).reshape(-1)
    of_epoch = drawn[begin - first * batch :][:windows]
    assert sorted(of_epoch.tolist()) == list(range(windows))


@given(NAMES, COUNTS, st.integers(1, 70), SEEDS, st.integers(0, 10**9), st.integers(1, 20))
def test_any_step_by_itself_is_that_of_the_uninterrupted_run(
    name: OrderName, windows: int, batch: int, seed: int, step: int, steps: int
) -> None:
    order = Order(name, windows, batch, seed)
    together = order.windows_of(step, steps)
    assert together.shape == (steps, batch)
    assert ((together >= 0) & (together < windows)).all()
    one_by_one = [Order(name, windows, batch, seed).windows_of(step + at)[0] for at in range(steps)]
    assert (together == np.stack(one_by_one)).all()


@given(st.integers(0, 12), st.integers(0, 2**64 - 1))
def test_the_network_permutes_its_whole_domain(bits: int, key: int) -> None:
    domain = np.arange(1 << bits, dtype=np.uint64)
    permuted = feistel(domain, bits, np.full(len(domain), key, np.uint64))
    assert sorted(permuted.tolist()) == domain.tolist()


@pytest.mark.parametrize("name", [OrderName.SHUFFLED, OrderName.RANDOM])
def test_seeds_and_epochs_differ(name: OrderName) -> None:
    orders = {
        tuple(Order(name, 1000, 1000, seed).windows_of(epoch)[0])
        for seed in range(20)
        for epoch in range(5)
    }
    assert len(orders) == 100


def test_sequential() -> None:
    order = Order(OrderName.SEQUENTIAL, 5, 3, seed=9)
    assert order.windows_of(0, 4).tolist() == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_random_comes_again_and_leaves_out() -> None:
    """With replacement 1/e of the windows are not seen in as many draws as there are windows."""
    windows = Order(OrderName.RANDOM, 10_000, 10_000, 3).windows_of(0)
    unseen = 1 - len(np.unique(windows)) / 10_000
    assert abs(unseen - np.exp(-1)) < 0.01


def chi_squared(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def is_uniform(counts: np.ndarray) -> bool:
    """Within five standard deviations of chi squared: k - 1, and the root of twice that."""
    freedom = counts.size - 1
    return abs(chi_squared(counts) - freedom) < 5 * np.sqrt(2 * freedom)


def test_every_window_is_anywhere_equally_often() -> None:
    """37 windows over 9000 epochs: which comes first, which last, and which after window 0."""
    orders = Order(OrderName.SHUFFLED, 37, 37, 1).windows_of(0, 9000)
    for column in (0, 17, 36):
        assert is_uniform(np.bincount(orders[:, column], minlength=37))
    follows = np.roll(orders, -1, axis=1)[orders == 0]
    assert is_uniform(np.bincount(follows, minlength=37)[1:])
    assert not is_uniform(np.bincount(np.sort(orders)[:, 0], minlength=37))


def test_all_permutations_of_few_windows_are_equally_likely() -> None:
    steps = Order(OrderName.SHUFFLED, 4, 4, seed=5).windows_of(0, 24 * 400)
    counts = Counter(map(tuple, steps.tolist()))
    assert set(counts) == set(permutations(range(4)))
    assert is_uniform(np.array(list(counts.values())))


def test_neighbours_are_no_closer_than_by_chance() -> None:
    """The mean distance of two random points of a line of length N is N / 3."""
    windows = Order(OrderName.SHUFFLED, 2**20 + 1, 50_000, 8).windows_of(0)[0]
    assert abs(np.abs(np.diff(windows)).mean() / 2**20 - 1 / 3) < 0.005
    assert abs(np.corrcoef(windows[1:], windows[:-1])[0, 1]) < 0.02


def test_a_trillion_windows_take_no_memory() -> None:
    order = Order(OrderName.SHUFFLED, 10**12, 512, 1)
    windows = order.windows_of(10**9)[0]
    assert len(set(windows.tolist())) == 512
    assert windows.max() > 9 * 10**11


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_out_one_global_batch(ranks: int) -> None:
    order = Order(OrderName.SHUFFLED, 1000, 12, 7)
    for step in (0, 83, 84):
        whole = order.windows_of(step)[0]
        parts = [whole[rows_of_rank(12, rank, ranks)] for rank in range(ranks)]
        assert {len(part) for part in parts} == {12 // ranks}
        assert np.concatenate(parts).tolist() == whole.tolist()


def test_parts_that_would_not_be_equal() -> None:
    for batch, rank, ranks in ((12, 0, 5), (12, 2, 2), (12, -1, 2)):
        with pytest.raises(UsageError, match="cannot be divided equally"):
            rows_of_rank(batch, rank, ranks)
    with pytest.raises(UsageError, match="1 or more"):
        Order(OrderName.SHUFFLED, 0, 4, 1)


def test_this_order_is_a_promise() -> None:
    """A run that is resumed with a later version goes on with the same windows."""
    seed = seed_of(Source.ORDER, 1337)
    few = Order(OrderName.SHUFFLED, 10, 10, seed).windows_of(0, 2)
    assert few.tolist() == [[0, 6, 4, 5, 1, 3, 7, 2, 9, 8], [8, 1, 4, 9, 6, 0, 3, 5, 2, 7]]
    many = Order(OrderName.SHUFFLED, 1000, 5, seed).windows_of(10**6)
    assert many.tolist() == [[387, 511, 753, 505, 317]]
    random = Order(OrderName.RANDOM, 1000, 5, seed).windows_of(10**6)
    assert random.tolist() == [[121, 455, 673, 724, 888]]


def test_each_source_has_a_seed_of_its_own() -> None:
    seeds = {seed_of(source, seed) for source in Source for seed in range(100)}
    assert len(seeds) == 100 * len(Source)
    assert all(0 <= seed < 2**63 for seed in seeds)
    by_hand = np.random.SeedSequence(1337, spawn_key=(111, 114, 100, 101, 114))
    assert seed_of(Source.ORDER, 1337) == int(by_hand.generate_state(1, np.uint64)[0]) // 2


def mixture(*weights: float, batch: int = 8) -> Mixture:
    sizes = (50, 700, 9)[: len(weights)]
    sources = tuple(Order(OrderName.SHUFFLED, size, batch, at) for at, size in enumerate(sizes))
    return Mixture(sources, weights, batch, seed=3)


def test_sources_are_mixed_by_weights() -> None:
    """Of 4096 rows a quarter is the first source's: 1024 = 20 x 50 + 24, so that 24 of its windows
    came 21 times, and the others 20 times; none came again before all were there.
    """
    mixed = mixture(1.0, 3.0)
    assert mixed.rows() == (1024, 3072)
    windows = mixed.windows_of(0, 512).reshape(-1)
    first = windows[windows < 50]
    assert len(first) == 1024
    assert sorted(np.bincount(first)) == [20] * 26 + [21] * 24
    assert sorted(first[:50]) == list(range(50))
    assert sorted(windows[windows >= 50][:700]) == list(range(50, 750))


@pytest.mark.thorough
@given(st.integers(0, 10**7), st.integers(1, 9))
def test_a_step_of_a_mixture_is_a_function_of_the_step(step: int, steps: int) -> None:
    mixed = mixture(0.2, 0.7, 0.1)
    together = mixed.windows_of(step, steps)
    alone = [mixed.windows_of(step + at)[0] for at in range(steps)]
    assert np.array_equal(together, alone)
    assert ((together >= 0) & (together < 759)).all()


def test_a_weight_too_small_to_be_read_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data\.weights: 1e-05 is less than one part in 4096"):
        mixture(1e-5, 1.0)
