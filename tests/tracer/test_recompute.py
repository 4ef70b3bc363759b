"""Checkpointed regions run their forward again: a phase of its own, on the forward's lines."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.traces import accounted, ops, sources, traced
from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.trace import Phase

pytestmark = pytest.mark.one_case_in(2)

B, D = 64, 128
PRODUCT = 2 * B * D * D


class Block(nn.Module):
    """Two products with a nonlinearity between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(D, D, bias=False)
        self.second = nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.second(hidden)


Region = Callable[[nn.Module, Tensor], Tensor]


def plain(block: nn.Module, x: Tensor) -> Tensor:
    return block(x)


def reentrant(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)


def modern(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


class HandWritten(torch.autograd.Function):
    """A checkpoint as people wrote it themselves, and some libraries still do."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.block(x)
        torch.autograd.backward(out, gradient)
        return None, x.grad


def handwritten(block: nn.Module, x: Tensor) -> Tensor:
    return HandWritten.apply(block, x)


REGIONS: dict[str, tuple[Region, int]] = {
    "reentrant": (reentrant, 2),
    # It stops as soon as all that backward wants is there: the last product's inputs are.
    "not reentrant": (modern, 1),
    "by hand": (handwritten, 2),
}
"""Each kind, and the products of a block that it runs again."""


def training(region: Region, blocks: int = 2, batch: int = B) -> Callable[[], None]:
    def train() -> None:
        model = nn.ModuleList(Block() for _ in range(blocks)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.rand(batch, D, device="cuda", requires_grad=True)
            for block in model:
                x = region(block, x)
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


@pytest.mark.parametrize("name", REGIONS)
def test_flops_of_each_phase(name: str):
    """Two blocks, each 2 products forward, 4 backward, and some again, with the relu between."""
    region, again = REGIONS[name]
    total = accounted(training(region)).total
    assert total.flops_matmul == 2 * (2 + 4 + again) * PRODUCT
    assert total.flops_recompute == 2 * (again * PRODUCT + B * D)


def test_without_checkpoints_nothing_is_recomputed():
    total = accounted(training(plain)).total
    assert total.flops_matmul == 2 * (2 + 4) * PRODUCT
    assert total.flops_recompute == 0


@pytest.mark.parametrize("name", REGIONS)
def test_recomputed_products_stand_on_their_own_lines(name: str):
    region, again = REGIONS[name]
    places = sources(ops(traced(training(region, blocks=1)), "aten.mm", Phase.RECOMPUTE))
    lines = ["hidden = self.first(x).relu()", "return self.second(hidden)"]
    assert places == lines[:again] * 2


@pytest.mark.parametrize("name", REGIONS)
def test_backward_of_the_recomputed_stands_there_too(name: str):
    """The graph that backward walks is the second forward's."""
    trace = traced(training(REGIONS[name][0], blocks=1))
    products = ops(trace, "aten.mm", Phase.BACKWARD)
    assert len(products) == 2 * 4
    assert set(sources(products)) == {"hidden = self.first(x).relu()", "return self.second(hidden)"}


def saved(region: Region) -> int:
    """Bytes held from forward to backward, of one step."""
    return accounted(training(region, blocks=4)).total.bytes_saved


@pytest.mark.parametrize("name", REGIONS)
def test_a_checkpoint_saves_its_input_alone(name: str):
    """In full each block holds its input's successor, the hidden state and what relu kept."""
    activation = 4 * B * D
    assert saved(REGIONS[name][0]) <= 4 * activation
    assert saved(plain) >= 7 * activation


@pytest.mark.parametrize("name", REGIONS)
def test_the_peak_is_lower(name: str):
    def peak(region: Region) -> int:
        ledger: Ledger = accounted(training(region, blocks=8, batch=64 * D))
        held = dict(ledger.memory.at_peak)
        return ledger.memory.peak_bytes - held[Category.WORKSPACES]

    assert peak(REGIONS[name][0]) < 0.75 * peak(plain)


def test_modules_of_recomputed_operators_are_named():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    def script() -> None:
        model = Model().cuda()
        model(torch.rand(B, D, device="cuda")).sum().backward()

    trace = traced(script)
    assert [op.site.module for op in ops(trace, "aten.mm", Phase.FORWARD)] == [
        f"blocks.{n}.{name}" for n in range(2) for name in ("first", "second")
    ]
    assert [op.site.module for op in ops(trace, "aten.mm", Phase.RECOMPUTE)] == [
        "blocks.1.first",
        "blocks.0.first",
    ]


def test_checkpoint_sequential():
    def script() -> None:
        model = nn.Sequential(*[nn.Linear(D, D, bias=False) for _ in range(4)]).cuda()
        x = torch.rand(B, D, device="cuda", requires_grad=True)
        checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()

    ledger = accounted(script)
    # Of the first segment its first product; the last segment is not checkpointed.
    assert len(ops(ledger.trace, "aten.mm", Phase.RECOMPUTE)) == 1


def test_nested_checkpoints():
    def script() -> None:
        block = Block().cuda()

        def inner(x: Tensor) -> Tensor:
            return checkpoint(block, x, use_reentrant=False)

        x = torch.rand(B, D, device="cuda", requires_grad=True)
        checkpoint(inner, x, use_reentrant=False).sum().backward()

    ledger = accounted(script)
    assert len(ops(ledger.trace, "aten.mm", Phase.FORWARD)) == 2
    assert len(ops(ledger.trace, "aten.mm", Phase.BACKWARD)) == 4
    assert len(ops(ledger.trace, "aten.mm", Phase.RECOMPUTE)) >= 1


def test_dropout_in_a_checkpoint_is_the_same_dropout():
    """The random state is put back, on the device as on the host."""

    def script() -> None:
        masks: list[list[float]] = []

        def region(x: Tensor) -> Tensor:
            dropped = nn.functional.dropout(x, 0.5)
            masks.append(dropped.tolist())
            return dropped * dropped

        x = torch.ones(64, device="cuda", requires_grad=True)
        checkpoint(region, x, use_reentrant=False).sum().backward()
        assert len(masks) == 2
        assert masks[0] == masks[1]
        assert 0 in masks[0]

    traced(script)


def test_checkpoints_under_autocast_recompute_in_the_same_dtype():
    def script() -> None:
        block = Block().cuda()
        x = torch.rand(B, D, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = checkpoint(block, x, use_reentrant=False)
        out.float().sum().backward()

    trace = traced(script)
    products = ops(trace, "aten.mm")
    assert {spec.dtype for op in products for spec in op.call.inputs} == {"bfloat16"}
    assert len(ops(trace, "aten.mm", Phase.RECOMPUTE)) == 1


def test_selective_checkpointing_saves_what_the_policy_says():
    """Products are saved, so only the cheap operators run again."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx, op, *args, **kwargs):
        if op is torch.ops.aten.mm.default:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def script() -> None:
        block = Block().cuda()
        x = torch.rand(B, D, device="cuda", requires_grad=True)
        checkpoint(
            block, x, use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),
        ).sum().backward()  # fmt: skip

    trace = traced(script)
    assert ops(trace, "aten.mm", Phase.RECOMPUTE) == []
    assert len(ops(trace, "aten.relu", Phase.RECOMPUTE)) == 1
    assert len(ops(trace, "aten.mm", Phase.BACKWARD)) == 4
