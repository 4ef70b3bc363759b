"""Small models, losses and batches, and the stepper over them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtally.train.models.presets import preset
from torchtally.train.models.transformer import Transformer
from torchtally.train.optimizers.build import build
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.precision import precision
from torchtally.train.step import Stepper

ROWS, SEQUENCE = 6, 16
CONFIG = preset("llama-1m", context=SEQUENCE, layers=2, width=32, ffn=48)
ADAMW = OptimizerConfig(name="adamw", lr=1e-3)


def language_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return model.loss(inputs, targets)  # type: ignore[operator]


def square_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(model(inputs), targets)


def tokens(step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 256, (ROWS, SEQUENCE + 1), generator=generator)


def stepper(
    micro_batch: int = ROWS,
    *,
    model: nn.Module | None = None,
    loss: Callable[..., Tensor] = language_loss,
    name: str = "fp32",
    optimizer: OptimizerConfig = ADAMW,
    **options: Any,
) -> Stepper:
    torch.manual_seed(0)
    how = precision(name)
    model = how.prepare(Transformer(CONFIG) if model is None else model, "cpu")
    wrapped = how.wrap(build(model, optimizer))
    return Stepper(
        model, loss, wrapped, precision=how, device="cpu", micro_batch=micro_batch, **options
    )


def everything(stepper: Stepper) -> list[Tensor]:
    """Weights and optimizer state, copied."""
    state = [v for kept in stepper.optimizer.state.values() for v in kept.values()]
    return [v.detach().clone() for v in (*stepper.model.parameters(), *state)]


def are_equal(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(
        torch.equal(*pair) for pair in zip(before, after, strict=True)
    )
