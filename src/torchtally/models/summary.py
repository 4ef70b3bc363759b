"""`torchtally.summary`: what a model costs, by one call."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.ledger import account
from torchtally.models.inputs import Inputs
from torchtally.models.optimizers import MakeOptimizer
from torchtally.models.precision import step_precision
from torchtally.models.step import STEP, Loss, StepRequest, run_step
from torchtally.timing.roofline import Roofline
from torchtally.timing.targets import roofline
from torchtally.views.model_summary import ModelSummary, model_summary


def summary(
    model: nn.Module | Callable[[], nn.Module],
    *inputs: Any,
    optimizer: str | MakeOptimizer | None = "adamw",
    precision: str = "bf16",
    gpu: str | Chip = "H100-SXM",
    training: bool = True,
    loss: Loss | None = None,
    named_inputs: Mapping[str, Any] | None = None,
) -> ModelSummary:
    """What one training step of a model costs on a GPU, module by module.

    A copy of the model takes the step on a simulated GPU. The model itself, its gradients, its
    mode, its device and the random generators stay as they are; it may be on the host, on the meta
    device or on a GPU.

    Args:
        model: a module, or a function that builds one: of a model that this machine cannot hold.
        inputs: what it is called with: tensors of any device, or texts like "4x512:int64"
            (shape and dtype; without a dtype of floats).
        optimizer: one of torch.optim by its name in lower case, a function of the parameters that
            makes one, or None for forward and backward alone.
        precision: "bf16" and "fp16" (float32 weights under autocast), "fp32", "tf32", "pure-bf16"
            (all in bfloat16) or "as-is" (weights as they are, no autocast).
        gpu: the chip, by any name `tally gpus` lists, or a `Chip`.
        training: False: a forward pass in evaluation mode without gradients.
        loss: a function from what the model returns to a scalar. Without it, the `loss` of a model
            of transformers; else the backward pass begins with a gradient of the output.
        named_inputs: more inputs, by their names.

    Raises UsageError for what is none of these, and whatever the model itself raises.
    """
    if not callable(model):
        raise UsageError(
            f"expected a torch.nn.Module or a function that builds one, got {type(model).__name__}."
        )
    target = Roofline(gpu) if isinstance(gpu, Chip) else roofline(gpu)
    request = StepRequest(
        model=model,
        inputs=Inputs.of(inputs, named_inputs or {}),
        optimizer=optimizer,
        precision=step_precision(precision),
        is_training=training,
        loss=loss,
    )
    return summarise(request, target)


def summarise(request: StepRequest, target: Roofline) -> ModelSummary:
    """The step, run on the virtual GPU and accounted by modules."""
    trace, run = run_step(request, target)
    ledger = account(trace, roofline=target, step=STEP)
    chosen, is_training = request.optimizer, request.is_training
    named = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", "optimizer")
    step = f"training step, {'no optimizer' if chosen is None else named}"
    return model_summary(
        ledger,
        run.modules,
        inputs=run.inputs,
        how=f"{step if is_training else 'forward pass'}, {request.precision.effect}",
        is_training=is_training,
    )
