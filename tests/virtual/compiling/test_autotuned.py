"""mode="max-autotune" compiles, keeps the libraries' products and says so."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.traces import names, traced
from torchtally.ledger import account
from torchtally.virtual.compiling.events import CAPTURED

WIDTH = 256


class Wide(nn.Module):
    """Products with something behind them, which templates would take in."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(F.gelu(self.up(x)))
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return torch.bmm(x, torch.bmm(x.transpose(1, 2), x))


@pytest.mark.parametrize(
    ("mode", "is_graphed"), [("max-autotune-no-cudagraphs", False), ("max-autotune", True)]
)
def test_the_modes_that_tune_compile(mode: str, is_graphed: bool) -> None:
    def script() -> None:
        model = Wide().cuda()
        run = torch.compile(model, mode=mode)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            run(torch.randn(8, 128, WIDTH, device="cuda")).float().sum().backward()

    trace = traced(script)
    notes = [note.text for note in trace.notes]
    assumed = [text for text in notes if text.startswith('mode="max-autotune": assumed')]
    # 8 x 128 tokens of 256 by the weight of `up`; the tokens of each sequence by themselves.
    assert any("of inductor for 1024x256 by 256x1024" in text for text in assumed)
    assert any(
        "bmm of the library" in text and "8x256x128 by 8x128x256" in text for text in assumed
    )
    assert (CAPTURED in notes) == is_graphed
    assert not any("eagerly" in text for text in notes)
    ran = names(trace)
    # up, down and the two products of tokens, before those of the backward pass.
    assert sum(name.endswith("mm") for name in ran) > 4
    assert any("convolution" in name for name in ran)
    assert any("triton" in name for name in ran)


def test_two_products_that_are_added_are_two_of_the_library() -> None:
    """inductor has an operator for both, which ATen has not."""

    def script() -> None:
        a, b = (torch.randn(512, WIDTH, device="cuda") for _ in range(2))
        c, d = (torch.randn(WIDTH, 128, device="cuda") for _ in range(2))
        run = torch.compile(lambda a, b, c, d: a @ c + b @ d, mode="max-autotune-no-cudagraphs")
        run(a, b, c, d)

    trace = traced(script)
    assert [name for name in names(trace) if "mm" in name] == ["aten.mm", "aten.addmm_"]
    assert any("_mm_plus_mm of the library" in note.text for note in trace.notes)
    assert account(trace).total.flops_matmul == 2 * 2 * 512 * WIDTH * 128
