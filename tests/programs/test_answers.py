"""An answer written out of recordings of three layers is the class's own `generate`."""

from typing import Any

import pytest
import torch

from tests.programs.families import FAMILIES, GPU
from torchtally import account, run
from torchtally.chips import chip
from torchtally.models.answering import AnswerMode
from torchtally.models.config_symbols import symbols_of
from torchtally.models.recorded import exact_training
from torchtally.programs import write
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace

PROMPT, TOKENS = 128, 4
MODE = AnswerMode(weight_dtype=torch.bfloat16, batch=2, tokens=TOKENS)


def figures(trace: Trace) -> tuple[float, ...]:
    """Operators, FLOPs, bytes, peak and seconds of the whole answer."""
    ledger = account(trace, roofline=Roofline(chip(GPU)))
    total = ledger.total
    return total.count, total.flops, total.bytes, ledger.memory.peak_bytes, ledger.step_s


def written(name: str) -> Trace:
    family = FAMILIES[name]
    symbols = symbols_of(family.configuration)
    sizes = {"batch": MODE.batch, "sequence": PROMPT}
    program = exact_training(family.on_meta, symbols, sizes, MODE, chip(GPU))
    return write(program, program.fixed, symbols.layers)


def generated(name: str) -> Trace:
    family = FAMILIES[name]

    def script() -> None:
        model: Any = family.build(family.configuration)
        model = model.to(torch.bfloat16).to("cuda").eval()
        ids = torch.randint(0, 1000, (MODE.batch, PROMPT), device="cuda")
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)

    return run(script, gpu=GPU)


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gemma2-windows"])
def test_it_is_what_generate_runs(name: str) -> None:
    assert figures(written(name)) == pytest.approx(figures(generated(name)), rel=1e-6)
