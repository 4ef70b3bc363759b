"""Master copies and averages of a model's weights: state of the optimizer, no parameters."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.traces import accounted
from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.trace import Phase
from torchtally.views.parameters import parameters_of

B, D = 64, 128
WEIGHT = 4 * D * D
"""Bytes in float32."""


def network() -> nn.Module:
    return nn.Sequential(*(nn.Linear(D, D, bias=False) for _ in range(2))).cuda()


def held(ledger: Ledger) -> dict[Category, int]:
    """Bytes at the peak, without counters of steps (512 a tensor)."""
    sizes = ledger.memory.alive_at_peak
    return {
        category: sum(s.bytes for s, own in sizes if own is category and s.bytes > 512)
        for category in Category
    }


def elements(ledger: Ledger) -> int:
    parameters = parameters_of(ledger)
    assert parameters is not None
    return parameters.elements


def phases_of(ledger: Ledger, name: str) -> set[Phase]:
    """Of an operator of the reported step."""
    return {entry.op.phase for entry in ledger.reported if entry.call.name == name}


# Master copies.


def copied_one_by_one(model: nn.Module) -> tuple[list[Tensor], Callable[[], None]]:
    """As Apex does it at its level O2."""
    weights = list(model.parameters())
    masters = [weight.detach().clone().float().requires_grad_() for weight in weights]

    def copy_back() -> None:
        for weight, master in zip(weights, masters, strict=True):
            weight.data.copy_(master)

    return masters, copy_back


def copied_without_autograd(model: nn.Module) -> tuple[list[Tensor], Callable[[], None]]:
    """As Megatron-LM does it: gradients are given by hand, and none is required."""
    masters, copy_back = copied_one_by_one(model)
    return [master.requires_grad_(False) for master in masters], copy_back


def copied_as_lists(model: nn.Module) -> tuple[list[Tensor], Callable[[], None]]:
    masters, _ = copied_one_by_one(model)

    def copy_back() -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(model.parameters()), masters)

    return masters, copy_back


def copied_by_a_cast(model: nn.Module) -> tuple[list[Tensor], Callable[[], None]]:
    masters, _ = copied_one_by_one(model)

    def copy_back() -> None:
        for weight, master in zip(model.parameters(), masters, strict=True):
            weight.data.copy_(master.detach().bfloat16())

    return masters, copy_back


def copied_flat(model: nn.Module) -> tuple[list[Tensor], Callable[[], None]]:
    """As ZeRO does it: one flat master of all weights, which are views of a flat one, too."""
    weights = list(model.parameters())
    flat = torch.cat([weight.detach().flatten() for weight in weights])
    for weight, part in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
        weight.data = part.view_as(weight)
    master = nn.Parameter(flat.clone().float())
    return [master], lambda: flat.data.copy_(master.data)


MASTERS = [
    copied_one_by_one,
    copied_without_autograd,
    copied_as_lists,
    copied_by_a_cast,
    copied_flat,
]


@pytest.mark.parametrize("make", MASTERS)
def test_master_copies_are_optimizer_state(make):
    """Two bfloat16 weights: 2 x 2 bytes an element; their masters and Adam's two moments in
    float32: 2 x 3 x 4.
    """

    def script() -> None:
        model = network().bfloat16()
        masters, copy_back = make(model)
        optimizer = torch.optim.Adam(masters, fused=True)
        for _ in range(2):
            x = torch.rand(B, D, device="cuda", dtype=torch.bfloat16)
            model(x).float().sum().backward()
            gradients = [weight.grad.float().flatten() for weight in model.parameters()]
            whole = torch.cat(gradients)
            parts = whole.split([master.numel() for master in masters])
            for master, part in zip(masters, parts, strict=True):
                master.grad = part.view_as(master)
            model.zero_grad()
            optimizer.step()
            copy_back()

    ledger = accounted(script)
    memory = held(ledger)
    assert elements(ledger) == 2 * D * D
    assert memory[Category.PARAMETERS] == 2 * WEIGHT // 2
    assert memory[Category.OPTIMIZER_STATE] == 3 * 2 * WEIGHT
    assert phases_of(ledger, "aten.copy_") <= {Phase.OPTIMIZER}
    assert ledger.course.steps[1].like == 1


# Averages.


def by_hand(model: nn.Module) -> Callable[[], None]:
    average = copy.deepcopy(model).requires_grad_(False)

    def update() -> None:
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.mul_(0.9).add_(weight.detach(), alpha=0.1)

    return update


def by_lerp(model: nn.Module) -> Callable[[], None]:
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def update() -> None:
        for name, weight in model.state_dict().items():
            average[name].lerp_(weight, 0.1)

    return update


def by_differences(model: nn.Module) -> Callable[[], None]:
    """As torch_ema: of copies that came from the host."""
    average = [weight.detach().cpu().cuda() for weight in model.parameters()]

    def update() -> None:
        with torch.no_grad():
            for mean, weight in zip(average, model.parameters(), strict=True):
                mean.sub_(0.1 * (mean - weight))

    return update


def by_products(model: nn.Module) -> Callable[[], None]:
    average = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad
    def update() -> None:
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.copy_(mean * 0.9 + weight * 0.1)

    return update


def by_torch(model: nn.Module) -> Callable[[], None]:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return lambda: average.update_parameters(model)


def not_yet(model: nn.Module) -> Callable[[], None]:
    """An average that begins after some hundred steps."""
    average = copy.deepcopy(model)
    return lambda: average.training and None


AVERAGES = [by_hand, by_lerp, by_differences, by_products, by_torch, not_yet]


def trained_beside(make: Callable[[nn.Module], Callable[[], None]]) -> Callable[[], None]:
    def script() -> None:
        model = network()
        update = make(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.rand(B, D, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            update()

    return script


@pytest.mark.parametrize("make", AVERAGES)
def test_averages_of_weights_are_optimizer_state(make):
    ledger = accounted(trained_beside(make))
    memory = held(ledger)
    assert elements(ledger) == 2 * D * D
    assert memory[Category.PARAMETERS] == 2 * WEIGHT
    assert memory[Category.OPTIMIZER_STATE] == 2 * WEIGHT
    assert memory[Category.INPUTS] == 4 * B * D


@pytest.mark.parametrize("make", AVERAGES[:-1])
def test_averaging_is_work_of_the_optimizer(make):
    """What the forward pass multiplies and adds is that of the model alone."""
    plain = accounted(trained_beside(lambda model: lambda: None))
    averaged = accounted(trained_beside(make))
    forward = [
        sum(entry.cost.flops for entry in ledger.reported if entry.op.phase is Phase.FORWARD)
        for ledger in (plain, averaged)
    ]
    # `mean * 0.9` reads no weight: two products of D x D may stay where they are.
    assert forward[1] - forward[0] in (0, 2 * D * D)


def test_an_average_that_evaluation_runs_adds_no_parameters():
    """A diffusion model samples from its EMA now and then, and trains without it."""

    def script() -> None:
        model = network()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.rand(B, D, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight.detach(), 0.1)
            with torch.no_grad():
                average(torch.rand(B, D, device="cuda")).relu()

    ledger = accounted(script)
    assert elements(ledger) == 2 * D * D
    assert held(ledger)[Category.OPTIMIZER_STATE] == 2 * WEIGHT
    samples = [op for op in ledger.trace.ops if ledger.trace.calls[op.call].name == "aten.relu"]
    assert {op.phase for op in samples} <= {Phase.EVALUATION, Phase.FORWARD}
    assert ledger.trace.ops[-1].phase is not Phase.BACKWARD
    assert Phase.EVALUATION in {op.phase for op in samples}


# What is none of both.


def test_a_network_that_follows_another_and_computes_has_parameters():
    """A target network, as DQN's: it is averaged, and each step reads it."""

    def script() -> None:
        online, target = network(), network().requires_grad_(False)
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.rand(B, D, device="cuda")
            (online(x) - target(x)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for mean, weight in zip(target.parameters(), online.parameters(), strict=True):
                mean.lerp_(weight.detach(), 0.1)

    ledger = accounted(script)
    assert elements(ledger) == 4 * D * D
    assert held(ledger)[Category.OPTIMIZER_STATE] == 0


def test_a_batch_that_is_kept_is_an_input():
    """Of the weights' shape, and copied into as CUDA graphs want it."""

    def script() -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.zeros(D, D, device="cuda")
        for _ in range(3):
            batch.copy_(torch.rand(D, D, device="cuda"))
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert held(accounted(script))[Category.OPTIMIZER_STATE] == 0


def test_weights_that_are_masked_stay_parameters():
    """Pruning: a mask of the weight's shape multiplies it after each step."""

    def script() -> None:
        model = network()
        masks = [torch.ones_like(weight) for weight in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.rand(B, D, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for weight, mask in zip(model.parameters(), masks, strict=True):
                weight.data.mul_(mask)

    ledger = accounted(script)
    assert elements(ledger) == 2 * D * D
    assert held(ledger)[Category.OPTIMIZER_STATE] == 0


def test_a_parameter_that_is_cast_and_computed_with_is_the_models():
    """The model's own float32 weights, of which a bfloat16 copy is made for each step."""

    def script() -> None:
        weight = nn.Parameter(torch.rand(D, D, device="cuda"))
        small = torch.empty(D, D, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            x = torch.rand(B, D, device="cuda", dtype=torch.bfloat16)
            (x @ small.detach().copy_(weight)).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert elements(accounted(script)) == D * D


def test_weights_that_a_penalty_pulls_to_are_no_average() -> None:
    """L2-SP: the loss reads the anchors at each step."""

    def train() -> None:
        model = network()
        anchors = [weight.detach().clone() for weight in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            loss = model(torch.randn(B, D, device="cuda")).square().mean()
            pairs = zip(model.parameters(), anchors, strict=True)
            (loss + sum(((a - b) ** 2).sum() for a, b in pairs)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert held(accounted(train))[Category.OPTIMIZER_STATE] == 2 * 2 * WEIGHT  # AdamW's alone


class WithIdleWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(D, D, bias=False).requires_grad_(False)
        self.used = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def test_a_frozen_weight_that_is_sent_with_others_is_no_master_copy() -> None:
    """DDP sends all weights as one tensor at its start, and copies them back."""

    def train() -> None:
        model = WithIdleWeight().cuda()
        weights = list(model.parameters())
        with torch.no_grad():
            flat = torch.cat([weight.reshape(-1) for weight in weights])
            for weight, part in zip(weights, flat.split(D * D), strict=True):
                weight.copy_(part.view(D, D))
        optimizer = torch.optim.AdamW(model.used.parameters())
        for _ in range(3):
            model(torch.randn(B, D, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    ledger = accounted(train)
    assert held(ledger)[Category.PARAMETERS] == 3 * WEIGHT
    assert held(ledger)[Category.OPTIMIZER_STATE] == 2 * 2 * WEIGHT
