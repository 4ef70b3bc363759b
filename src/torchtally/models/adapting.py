"""Adapters put into a model by PEFT."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from torch import nn

from torchtally.errors import UsageError
from torchtally.models.recorded import Adapt
from torchtally.plan.adapters import ALL


def adapters(rank: int, targets: Sequence[str], *, dropout: float, has_magnitude: bool) -> Adapt:
    """What puts LoRA adapters into the modules of these names, as the class has them (q_proj).

    Raises UsageError where PEFT is missing.
    """
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise UsageError(
            f"A step with adapters is PEFT's, which cannot be imported ({error}).\n"
            "Install it: pip install peft"
        ) from error
    config = peft.LoraConfig(
        r=rank,
        target_modules=ALL if list(targets) == [ALL] else list(targets),
        lora_dropout=dropout,
        use_dora=has_magnitude,
        task_type="CAUSAL_LM",
    )
    return partial(adapted, peft.get_peft_model, config)


def adapted(
    wrap: Callable[[nn.Module, object], nn.Module], config: object, model: nn.Module
) -> nn.Module:
    """The model with adapters. Raises UsageError for targets that PEFT does not find."""
    try:
        return wrap(model, config)
    except ValueError as error:
        raise UsageError(f"--lora-targets: PEFT rejects them: {str(error)[:300]}") from error
