"""A step of Megatron-Core's own GPT that is written out is the step that runs."""

from functools import cache
from importlib.util import find_spec

import pytest

from tests.plan.parallel.builders import llama, mixture
from tests.programs.families import GPU
from tests.programs.test_written import figures
from torchtally.chips import chip
from torchtally.errors import ProgramError, UsageError
from torchtally.ledger import account
from torchtally.models.megatron import GptSymbols, MegatronMode, gpt, gpt_symbols, recorded_gpt
from torchtally.models.recorded import record
from torchtally.programs import RunProgram, write
from torchtally.programs.sizes import RANKS, Point
from torchtally.trace import Trace, World
from torchtally.work import Kind

LAYERS, BATCH, SEQUENCE = 6, 2, 512
MODEL = llama(width=1024, layers=LAYERS, heads=16, kv_heads=8, ffn=1536, vocabulary=5000)
needs_megatron = pytest.mark.skipif(find_spec("megatron") is None, reason="no megatron-core")


def asked(ranks: int) -> dict[str, int]:
    """Sizes of a step on a rank."""
    several = {RANKS: ranks} if ranks > 1 else {}
    return {"batch": BATCH, "sequence": SEQUENCE // ranks, **several}


@cache
def program(is_shared: bool) -> RunProgram:
    ranks = 2 if is_shared else 1
    mode = MegatronMode(batch=BATCH, ranks=ranks)
    return recorded_gpt(gpt_symbols(MODEL, ranks), asked(ranks), mode, chip(GPU))


def written(symbols: GptSymbols, ranks: int) -> Trace:
    world = World(ranks, MegatronMode(ranks=ranks).gpus(chip(GPU)).node_size)
    return write(program(ranks > 1), {**symbols.sizes, **asked(ranks)}, LAYERS, world)


def run_of(symbols: GptSymbols, ranks: int) -> Trace:
    """All layers of Megatron-Core's GPT, at sizes that no recording had together."""
    sizes = {**symbols.sizes, **asked(ranks)}
    mode = MegatronMode(batch=BATCH, ranks=ranks)
    return record(gpt, symbols, Point({}, {}), sizes, LAYERS, mode, chip(GPU)).trace


@needs_megatron
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_it_is_the_run_of_all_layers(ranks: int) -> None:
    symbols = gpt_symbols(MODEL, ranks)
    one, own = figures(written(symbols, ranks)), figures(run_of(symbols, ranks))
    assert one == pytest.approx(own, rel=1e-6)


@needs_megatron
def test_ranks_divide_the_products() -> None:
    """All but norms and what is done with them: half of a layer's work is each of two's."""
    whole, half = (
        account(written(gpt_symbols(MODEL, ranks), ranks)).total.flops for ranks in (1, 2)
    )
    assert half == pytest.approx(whole / 2, rel=0.005)


@needs_megatron
def test_the_products_are_six_for_each_weight_and_token() -> None:
    sizes = gpt_symbols(MODEL).sizes
    heads = sizes["kv_heads"] * sizes["group"] * sizes["head_dim"]
    layer = sizes["width"] * (2 * heads + 2 * sizes["kv_heads"] * sizes["head_dim"])
    layer += 3 * sizes["width"] * sizes["ffn"]
    weights = LAYERS * layer + sizes["vocabulary"] * sizes["width"]
    products = account(written(gpt_symbols(MODEL), 1)).by_kind()[Kind.PRODUCT]
    assert products.flops == 6 * BATCH * SEQUENCE * weights


def test_the_vocabulary_is_padded_for_the_ranks() -> None:
    assert gpt_symbols(MODEL).sizes["vocabulary"] == 5120
    assert gpt_symbols(MODEL, 4).sizes["vocabulary"] == 1280
    assert gpt_symbols(MODEL, 8).sizes["vocabulary"] == 640


@needs_megatron
def test_one_head_on_each_rank_is_another_program() -> None:
    """Copies are views then."""
    with pytest.raises(ProgramError, match="multiples of 1 from 2 on for kv_heads, got 1"):
        written(gpt_symbols(MODEL, 8), 8)


def test_ranks_divide_heads() -> None:
    with pytest.raises(UsageError, match="16 GPUs of tensor parallelism do not divide 8 heads"):
        gpt_symbols(MODEL, 16)


def test_a_mixture_is_refused() -> None:
    with pytest.raises(UsageError, match="the dense ones like Llama are recorded"):
        gpt_symbols(mixture())
