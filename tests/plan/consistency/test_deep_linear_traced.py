"""The deep linear model, traced: every figure of its closed forms to the last byte and FLOP."""

import pytest
import torch
from torch import Tensor, nn

from tests.plan.consistency.traced import Traced
from torchtally import account, run
from torchtally.memory import is_alive
from torchtally.plan.deep_linear import (
    deep_linear_activation_bytes,
    deep_linear_flops,
    deep_linear_weights,
)
from torchtally.plan.memory import states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import recipe
from torchtally.trace import Role
from torchtally.views.matrix_work import needed_flops, works_of
from torchtally.work.convention import Convention

OPTIMIZERS = {"adagrad": torch.optim.Adagrad, "adamw": torch.optim.AdamW}


class DeepLinear(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.randn(width, width) for _ in range(layers))
        self.final = nn.Parameter(torch.randn(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.layers:
            x = x @ weight
        return x @ self.final


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("sizes", [(8, 128, 2), (64, 96, 5), (16, 32, 1)])
@pytest.mark.parametrize("recipe_name", ["fp32", "amp", "bf16"])
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_the_deep_linear_model(
    sizes: tuple[int, int, int], recipe_name: str, optimizer_name: str
) -> None:
    """The loss is the mean, which keeps nothing: all that is kept is the layers' and itself."""
    B, D, L = sizes
    how = recipe(recipe_name)
    dtype = getattr(torch, how.weights)

    def script() -> None:
        model = DeepLinear(D, L).to(dtype).cuda()
        stepper = OPTIMIZERS[optimizer_name](model.parameters(), lr=0.01)
        for _ in range(2):
            batch = torch.randn(B, D, device="cuda", dtype=dtype)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=how.is_autocast):
                loss = model(batch).mean()
            loss.backward()
            stepper.step()
            stepper.zero_grad()

    ledger = account(run(script, gpu="H100-SXM"))
    end = ledger.trace.step_ends[-1] - 1
    alive = [storage for storage in ledger.memory.storages if is_alive(storage, end)]

    def held(role: Role) -> int:
        return sum(storage.requested_bytes for storage in alive if storage.role is role)

    # In its own dtype the first product keeps the batch, under autocast a cast of it.
    batch_bytes = 0 if how.is_autocast else B * D * how.weight_bytes
    planned = states(deep_linear_weights(D, L), how, optimizer(optimizer_name))
    kept = deep_linear_activation_bytes(D, L, B, how)
    assert planned.parameters.value == held(Role.PARAMETER)
    assert planned.gradients.value == held(Role.GRADIENT)
    # Adagrad has a step counter on the host for each tensor, as Adam.
    assert planned.optimizer.value == held(Role.OPTIMIZER_STATE)
    loss_bytes = Traced(ledger).kept_bytes - batch_bytes - kept.value
    assert loss_bytes == how.activation_bytes
    flops = deep_linear_flops(D, L, B)
    assert flops.total.value == needed_flops(works_of(ledger.reported), Convention.FULL)
