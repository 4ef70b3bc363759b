"""The slowest of many GPUs, beside what chance makes of them."""

import random
from math import fsum

import pytest

import torchtally
from torchtally.timing.roofline import Bound
from torchtally.timing.stragglers import DEVIATION, slowest_of
from torchtally.trace import Call, TensorSpec, World
from torchtally.work import cost_of


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 8, 128])
def test_the_slowest_is_as_chance_has_it(count: int) -> None:
    chance = random.Random(1)
    trials = [max(chance.gauss(1, DEVIATION) for _ in range(count)) for _ in range(4000)]
    mean = fsum(trials) / len(trials)
    assert slowest_of(count) - 1 == pytest.approx(mean - 1, rel=0.06)


def test_it_grows_with_the_ranks_and_one_is_the_mean() -> None:
    assert slowest_of(1) == 1
    assert 1.008 < slowest_of(2) < slowest_of(8) < slowest_of(1024) < 1.06
    assert slowest_of(1024) < slowest_of(2**63) < 1.2


def test_a_rank_computes_as_the_slowest_does() -> None:
    """And communicates as all do."""
    matrix = TensorSpec("self", (4096, 4096), (4096, 1), "bfloat16", "cuda:0", 0)
    product = Call("aten.mm", "", (matrix, matrix), (matrix,))
    alone = torchtally.roofline("H100-SXM")
    one_of_many = alone.within(World(128, 8, 0), ())
    seconds = [each.kernel(product, *cost_of(product)).seconds for each in (alone, one_of_many)]
    assert seconds[1] == pytest.approx(seconds[0] * slowest_of(128))
    gather = Call("_c10d_functional.all_gather_into_tensor", "", (matrix,), (matrix,))
    kernels = [each.kernel(gather, *cost_of(gather)) for each in (alone, one_of_many)]
    assert {kernel.bound for kernel in kernels} == {Bound.NETWORK}
    assert kernels[0].seconds == kernels[1].seconds
