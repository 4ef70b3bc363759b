"""Optimizers of `torch.optim` on a traced Llama: their state on the device, to the byte."""

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from tests.plan.consistency.references import REFERENCES, model_of
from tests.plan.consistency.traced import Steppers, train
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.memory import states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import recipe
from torchtally.trace import Role

Optimizers = Iterable[torch.optim.Optimizer]


def sgd(model: nn.Module) -> Optimizers:
    return [torch.optim.SGD(model.parameters(), lr=1e-4)]


def momentum(model: nn.Module) -> Optimizers:
    return [torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)]


def rmsprop(model: nn.Module) -> Optimizers:
    return [torch.optim.RMSprop(model.parameters(), lr=1e-4)]


def amsgrad(model: nn.Module) -> Optimizers:
    return [torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True)]


def adafactor(model: nn.Module) -> Optimizers:
    return [torch.optim.Adafactor(model.parameters(), lr=1e-4)]


def muon(model: nn.Module) -> Optimizers:
    """Its author's advice: AdamW for embedding, head and vectors."""
    named = list(model.named_parameters())
    inner = [parameter for name, parameter in named if parameter.ndim == 2 and ".layers." in name]
    others = [
        parameter for name, parameter in named if parameter.ndim != 2 or ".layers." not in name
    ]
    return [torch.optim.Muon(inner, lr=1e-4), torch.optim.AdamW(others, lr=1e-4)]


STEPPERS: dict[str, Steppers] = {
    "sgd": sgd,
    "momentum": momentum,
    "rmsprop": rmsprop,
    "amsgrad": amsgrad,
    "adafactor": adafactor,
    "muon": muon,
}


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize(
    ("name", "recipe_name"),
    [("sgd", "fp32"), ("momentum", "bf16"), ("rmsprop", "fp32"), ("amsgrad", "bf16"),
     ("adafactor", "fp32"), ("adafactor", "bf16"), ("muon", "bf16")],
)  # fmt: skip
def test_the_state_of_an_optimizer(name: str, recipe_name: str) -> None:
    how = recipe(recipe_name)
    traced = train(REFERENCES["llama"], how, steppers=STEPPERS[name])
    held = states(weights_of(model_of("llama")), how, optimizer(name))
    assert held.optimizer.value == traced.bytes_of(Role.OPTIMIZER_STATE)
    other = states(weights_of(model_of("llama")), how, optimizer("adamw"))
    assert other.optimizer.value != traced.bytes_of(Role.OPTIMIZER_STATE)
