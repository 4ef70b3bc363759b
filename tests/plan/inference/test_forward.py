"""Seconds of a forward pass: floors of physics, laws, and sums over bytes."""

from dataclasses import replace

import pytest

from tests.plan.inference.builders import generator
from torchtally.errors import UsageError
from torchtally.plan.inference.draft import Draft
from torchtally.plan.inference.engines import at_best, engine
from torchtally.plan.inference.forward import Generator, NewTokens
from torchtally.plan.inference.memory import longest_context, most_sequences, serving_memory
from torchtally.plan.inference.placement import Placement
from torchtally.plan.inference.serving import Serving, compute_bound_sequences
from torchtally.plan.inference.weights import model_bytes
from torchtally.plan.kv_cache import kv_cache_bytes

LLAMA = generator("llama-3-8b", "H100-SXM")
BANDWIDTH = 3.35e12


def seconds(who: Generator, tokens: NewTokens) -> float:
    return float(who.forward(tokens).total.value)


def test_a_token_takes_as_long_as_its_bytes_at_least() -> None:
    """All weights but the embedding, and the cache, once over the promised bandwidth."""
    table = 128256 * 4096 * 2
    weights = model_bytes(LLAMA.model, LLAMA.weights).value - table
    cache = kv_cache_bytes(LLAMA.model, 4096, 8).value
    floor_s = (weights + cache) / BANDWIDTH
    pass_s = seconds(replace(LLAMA, engine=at_best(LLAMA.engine)), NewTokens(8, 1, 4096))
    assert floor_s < pass_s < 1.4 * floor_s


def test_a_prompt_takes_as_long_as_its_flops_at_least() -> None:
    """2 FLOPs for each parameter but the embedding's and the head's, at the promised rate."""
    layers = LLAMA.model.kinds[0]
    assert layers.count == 32
    floor_s = 2 * 6.98e9 * 4096 / 989.4e12
    pass_s = seconds(replace(LLAMA, engine=at_best(LLAMA.engine)), NewTokens(1, 4096, 4096))
    assert floor_s < pass_s < 2 * floor_s


@pytest.mark.parametrize(
    "more",
    [NewTokens(9, 1, 4096), NewTokens(8, 2, 4096), NewTokens(8, 1, 8192), NewTokens(64, 1, 4096)],
)
def test_more_takes_longer(more: NewTokens) -> None:
    assert seconds(LLAMA, more) > seconds(LLAMA, NewTokens(8, 1, 4096))


def test_sequences_together_are_cheaper_than_one_by_one() -> None:
    assert seconds(LLAMA, NewTokens(64, 1, 512)) < 8 * seconds(LLAMA, NewTokens(1, 1, 512))


@pytest.mark.parametrize("name", ["fp8", "int8", "awq", "q4_K_M", "mxfp4-all"])
def test_fewer_bytes_are_faster(name: str) -> None:
    small = generator("llama-3-8b", "H100-SXM", weights=name)
    assert seconds(small, NewTokens(1, 1, 512)) < seconds(LLAMA, NewTokens(1, 1, 512))


def test_chips_share_the_time_of_a_token_but_not_its_messages() -> None:
    one, eight = (generator("llama-3-70b", f"{n}xH200-SXM") for n in (1, 8))
    alone, shared = (who.forward(NewTokens(1, 1, 512)) for who in (one, eight))
    assert alone.communication.value == 0
    assert 0 < shared.communication.value < shared.total.value
    assert alone.products.value / 8 < shared.products.value < alone.products.value / 5


def test_parts_are_the_whole() -> None:
    total = LLAMA.forward(NewTokens(8, 1, 4096))
    assert sum(part.value for _, part in total.parts) == pytest.approx(total.total.value)


def test_a_mixture_reads_the_experts_that_tokens_choose() -> None:
    """Mixtral: 2 of 8 for one token, nearly all for 64."""
    mixture = generator("mixtral-8x7b", "2xH100-SXM")
    (kind,) = mixture.model.kinds
    block = kind.feed_forward
    one, many = (mixture.placement.expert_rows(block, rows) for rows in (1, 64))  # type: ignore[arg-type]
    assert one == pytest.approx((2, 1))
    assert many[0] == pytest.approx(8, rel=1e-6)
    assert many[0] * many[1] == pytest.approx(64 * 2)


def test_a_window_bounds_the_time_of_a_long_context() -> None:
    mistral = generator("mistral-7b", "H100-SXM")
    short, long = (seconds(mistral, NewTokens(8, 1, n)) for n in (8192, 65536))
    assert short == long


def test_an_eager_host_is_waited_for() -> None:
    eager = generator("llama-3-8b", "H100-SXM", who="eager")
    total = eager.forward(NewTokens(1, 1, 512))
    assert total.overhead.value > total.total.value / 4


# Memory ---------------------------------------------------------------------------------------


def test_what_fits_fits_and_one_more_does_not() -> None:
    most = most_sequences(LLAMA, 1024, 8192)
    assert serving_memory(LLAMA, most, 1024, 8192).fits
    assert not serving_memory(LLAMA, most + 1, 1024, 8192).fits


def test_the_longest_context_fits_and_one_page_more_does_not() -> None:
    longest = longest_context(LLAMA, 4, 1024)
    assert serving_memory(LLAMA, 4, 1024, longest).fits
    assert not serving_memory(LLAMA, 4, 1024, longest + 1).fits


def test_an_engine_takes_no_more_sequences_than_it_has_slots() -> None:
    assert most_sequences(LLAMA, 10, 16) == engine("serving").most_sequences


def test_a_head_of_keys_is_on_several_chips_where_there_are_more_chips() -> None:
    """Llama 3 8B: 8 heads of keys; on 16 chips each has one."""
    eight, sixteen = (generator("llama-3-8b", f"{n}xH100-SXM") for n in (8, 16))
    held = [serving_memory(who, 1, 16, 4096).cache.value for who in (eight, sixteen)]
    assert held[0] == held[1] == kv_cache_bytes(LLAMA.model, 4096).value / 8


def test_chips_of_a_replica_hold_the_model_together() -> None:
    """Norms on each chip, and all else once."""
    whole = model_bytes(LLAMA.model, LLAMA.weights).value
    eight = generator("llama-3-8b", "8xH100-SXM")
    norms = 2 * 65 * 4096
    assert 8 * serving_memory(eight, 1, 16, 16).weights.value == whole + 7 * norms


@pytest.mark.parametrize(
    ("at", "match"),
    [
        (Placement(tensor=3, replicas=1), "8"),
        (Placement(tensor=8, expert=8), "needs a mixture of experts"),
        (Placement(tensor=1, replicas=8, expert=3), "needs a mixture of experts"),
    ],
)
def test_placements_that_do_not_divide(at: Placement, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        at.check(LLAMA.model, generator("llama-3-8b", "8xH100-SXM").cluster)


# Serving --------------------------------------------------------------------------------------


def test_prompts_in_between_cost_tokens() -> None:
    served = Serving(LLAMA, 32, 1024, 128)
    assert served.tokens_per_s.value < served.decode_tokens_per_s.value


def test_replicas_serve_in_parallel() -> None:
    two = generator("llama-3-8b", "2xH100-SXM", at=Placement(replicas=2))
    assert Serving(two, 8, 512, 128).tokens_per_s.value == pytest.approx(
        2 * float(Serving(LLAMA, 8, 512, 128).tokens_per_s.value)
    )


def test_good_guesses_are_faster_and_bad_ones_slower() -> None:
    big, small = generator("llama-3-70b", "2xH100-SXM"), generator("llama-3-8b", "2xH100-SXM")
    plain = Serving(big, 1, 512, 128)
    good, bad = (
        Serving(big, 1, 512, 128, Draft(small, 4, acceptance)) for acceptance in (0.9, 0.01)
    )
    assert good.token_s.value < plain.token_s.value < bad.token_s.value


def test_ranges_are_in_order() -> None:
    served = Serving(LLAMA, 8, 512, 128)
    typical = served.token_s
    assert served.best.token_s.value < typical.value < served.slow(typical).value


def test_decode_turns_compute_bound_at_the_ridge() -> None:
    """bfloat16 on an H100: about half the ridge of FLOPs over bytes, 2 bytes for 2 FLOPs."""
    ridge = compute_bound_sequences(LLAMA).value
    assert 0.5 * 989.4e12 / BANDWIDTH < ridge < 1.3 * 989.4e12 / BANDWIDTH
    fp8 = generator("llama-3-8b", "H100-SXM", weights="fp8")
    assert compute_bound_sequences(fp8).value == pytest.approx(ridge, rel=0.3)
