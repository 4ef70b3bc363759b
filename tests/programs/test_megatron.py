"""A step of Megatron-Core's own GPT that is written out is the step that runs."""

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.plan.parallel.builders import llama, mixture
from tests.programs.families import GPU
from tests.programs.test_shipped import WITHOUT_TORCH
from tests.programs.test_written import figures
from torchtally.chips import chip
from torchtally.cli import main, parsed, plan
from torchtally.cli.plan_megatron import STACK, megatron_step
from torchtally.errors import ProgramError, UsageError
from torchtally.ledger import account
from torchtally.memory import Category
from torchtally.models.gpt_symbols import GptSymbols, gpt_symbols
from torchtally.models.megatron import MegatronMode, gpt, recorded_gpt
from torchtally.models.recorded import CHECK_LAYERS, record
from torchtally.plan.architecture.known import known_model
from torchtally.programs import RunProgram, write
from torchtally.programs.checked import differences
from torchtally.programs.plain import plain as in_order
from torchtally.programs.shipped import key_of, shipped_programs
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


def shipped(ranks: int) -> Trace:
    """Llama 3 8B by the shipped program, whose answer the command line prints."""
    words = ("plan", "llama-3-8b", "--micro-batch", "2", "--stack", "megatron")
    request = plan.asked_of(parsed([*words, "--gpus", f"{ranks}x{GPU}"]))
    return megatron_step(request, "plan")


def test_a_shipped_step_has_the_models_weights() -> None:
    """In bfloat16, and for each a gradient, a master weight and two moments in float32; of two
    ranks all but norms is halved.
    """
    parameters, norms = 8_030_261_248, 65 * 4096
    for ranks in (1, 2):
        trace = shipped(ranks)
        held = (parameters - norms) // ranks + norms
        named = [each for each in trace.storages if each.is_trained]
        assert sum(each.requested_bytes for each in named) == 2 * held
        memory = dict(account(trace).memory.at_peak)
        assert memory[Category.GRADIENTS] == pytest.approx(4 * held, rel=0.05)
        assert memory[Category.OPTIMIZER_STATE] == pytest.approx(12 * held, rel=1e-4)


def test_a_shipped_step_multiplies_every_weight_thrice() -> None:
    weights = 8_030_261_248 - 65 * 4096 - 128256 * 4096
    products = [account(shipped(ranks)).by_kind()[Kind.PRODUCT].flops for ranks in (1, 2)]
    assert products[0] == 6 * 2 * 8192 * weights == 2 * products[1]


@needs_megatron
def test_what_is_shipped_runs_today() -> None:
    model = known_model("Llama 3 8B")
    for ranks in (1, 2):
        symbols = gpt_symbols(model, ranks)
        sizes = symbols.step_sizes(2, 4096, ranks)
        programs = shipped_programs(STACK)
        assert programs is not None
        program = programs.program(key_of(symbols.variant, STACK, chip(GPU), sizes))
        assert program is not None
        mode = MegatronMode(batch=2, ranks=ranks)
        run = record(gpt, symbols, Point({}, {}), sizes, CHECK_LAYERS, mode, chip(GPU))
        world = World(ranks, mode.gpus(chip(GPU)).node_size)
        wrote = write(program, sizes, CHECK_LAYERS, world)
        assert list(differences(wrote, in_order(run.trace))) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", f"2x{GPU}", "--layout", "dp 2"), "Write it so: --layout 'tp 2'"),
        (("--recompute", "full"), "of which --recompute changes nothing"),
        (("--gpus", f"8x{GPU}", "--sequence", "4100"), "--sequence 4104"),
    ],
)
def test_what_was_not_recorded_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "llama-3-8b", "--stack", "megatron", *words, "-o", "plan.tally"]
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_shipped_step_needs_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "plan.tally"
    words = ["plan", "llama-3-8b", "--micro-batch", "2", "--stack", "megatron", "-o", str(file)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "32 layers of GPTModel (torch" in done.stderr


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
