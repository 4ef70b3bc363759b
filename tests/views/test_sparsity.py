"""What 2:4 sparse weights would bring, of products that can take it and of those that cannot."""

import pytest
import torch
from torch import nn

import torchtally
from torchtally.cli import main
from torchtally.cli.run_options import RunOptions
from torchtally.ledger import Ledger
from torchtally.views import by

TOKENS, WIDTH = 8192, 4096


def ledger_of(dtype: torch.dtype, gpu: str = "A100-SXM", *, is_autocast: bool = False) -> Ledger:
    """A step of a layer that can be sparse, a product of two activations, and a narrow layer."""

    def train() -> None:
        layer = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=dtype)
        narrow = nn.Linear(WIDTH, 24, bias=False, device="cuda", dtype=dtype)
        optimizer = torch.optim.SGD([*layer.parameters(), *narrow.parameters()], lr=0.1)
        for _ in range(2):
            rows = torch.randn(TOKENS, WIDTH, device="cuda", dtype=dtype)
            with torch.autocast("cuda", torch.bfloat16, enabled=is_autocast):
                hidden = layer(rows)
                scores = hidden @ rows.T
                loss = narrow(hidden).float().sum() + scores.float().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = torchtally.run(train, gpu=gpu, steps=2)
    return torchtally.account(trace, roofline=torchtally.roofline(gpu), step=2)


@pytest.mark.parametrize("is_autocast", [False, True], ids=["bf16", "autocast"])
def test_a_layers_forward_pass_alone_is_sparse(is_autocast: bool) -> None:
    """Of 4096 x 4096 weights in 16 bits 9/16 stay; by the published rate 0.643 of 624 TFLOP/s, the
    product takes 2 * 8192 * 4096**2 / 401e12 s and its kernel's 1.5 us. Sides of 24, products of
    activations and the backward pass are not among them.
    """
    dtype = torch.float32 if is_autocast else torch.bfloat16
    table = by(ledger_of(dtype, is_autocast=is_autocast), "sparsity")
    (row,) = table.rows
    cells = dict(zip([column.name for column in table.columns], row, strict=True))
    seconds = 2 * TOKENS * WIDTH**2 / (2 * 312e12 * 0.643) + 1.5e-6
    assert cells["sparse_s"] == pytest.approx(seconds)
    assert cells["saved_s"] == cells["dense_s"] - cells["sparse_s"] > 0  # type: ignore[operator]
    assert cells["weight_bytes"] == 2 * WIDTH**2
    assert cells["sparse_weight_bytes"] == 2 * WIDTH**2 * 9 // 16
    assert "layer(rows)" in str(cells["source"])
    assert table.total("saved_s") == cells["saved_s"]


def test_products_in_float32_stay_dense() -> None:
    assert by(ledger_of(torch.float32), "sparsity").rows == ()


def test_a_chip_without_published_rates_has_no_rows() -> None:
    table = by(ledger_of(torch.float16, "T4"), "sparsity")
    assert table.rows == ()
    assert table.note == "No rates of 2:4 products are known of this chip."


def test_sparsity_is_asked_with_a_run_and_does_not_change_it() -> None:
    options = RunOptions(script="x.py", what_ifs=("compile", "sparsity=2:4"))
    assert options.asks_sparsity
    assert options.changes == ("compile",)
    assert not RunOptions(script="x.py").asks_sparsity


def test_a_run_is_refused_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["run", "--gpu", "T4", "--what-if", "sparsity=2:4", "-c", "raise SystemExit(9)"]) == 2
    )
    assert "no rates of such products" in capsys.readouterr().err
