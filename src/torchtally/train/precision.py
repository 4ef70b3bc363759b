"""The precisions of a training, as one table: what is kept, what is multiplied, what it needs.

Use: `model = mode.prepare(model, device)`, build the optimizer, `optimizer = mode.wrap(optimizer)`,
`scaler = mode.scaler(device)`, and run every forward pass within `mode.autocast(device)`.
"""

import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchtally.chips.capabilities import BFLOAT16_SINCE, FLOAT8_SINCE
from torchtally.errors import UnsupportedError, UsageError, check_choice, needed_package
from torchtally.plan.recipes import RECIPES, Recipe
from torchtally.train.wide_update import Keeping, WideUpdate

FP8 = "float8_e4m3fn"
FP8_MULTIPLE = 16
"""torch._scaled_mm takes matrices whose sides are multiples of it."""
SINCE = {"tf32": BFLOAT16_SINCE, "bfloat16": BFLOAT16_SINCE, FP8: FLOAT8_SINCE}
"""The oldest CUDA devices that multiply in this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A row of the table. What a training loop has to do for it follows from its recipe."""

    name: str
    effect: str
    """Its effect on memory and speed compared with fp32, in one sentence."""
    recipe: Recipe
    """The same precision in `torchtally.plan`, whose figures plan it."""
    instead: str = ""
    """The precision to use where the device lacks this one."""

    @property
    def weight_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.recipe.weights)
        return dtype

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        return getattr(torch, self.recipe.activations) if self.recipe.is_autocast else None

    @property
    def keeping(self) -> Keeping | None:
        """How updates of bfloat16 weights are kept."""
        if self.recipe.weights == "float32":
            return None
        return "stochastic" if self.recipe.master is None else "master"

    @property
    def is_shardable(self) -> bool:
        """Goes with FSDP2: weights and optimizer state are plain float32 shards. The others keep
        bfloat16 weights and update them in float32, scale losses, or replace layers.
        """
        return self.recipe.weights == "float32" and self.recipe.products not in ("float16", FP8)

    def check(self, device: torch.device | str) -> None:
        """Raises UsageError where this device lacks it, or where torchao is missing."""
        if lack := self.lack(torch.device(device)):
            raise UsageError(f"precision {self.name} {lack}. Use {self.instead}.")
        if self.recipe.products == FP8:
            _torchao_float8()

    def lack(self, device: torch.device) -> str:
        """What the device lacks, as the end of a sentence; "" where it lacks nothing."""
        least = SINCE.get(self.recipe.products)
        is_everywhere = self.recipe.products == "bfloat16"  # but on older GPUs
        capability = capability_of(device)
        if least is None or (capability is None and is_everywhere):
            return ""
        if capability is None:
            name = "a simulated CPU" if device.type == "cuda" else device
            return (
                f"needs an NVIDIA GPU of the {least.generation} generation or newer; "
                f"{name} is not one"
            )
        if least.is_no_newer_than(capability):
            return ""
        needed, own = (".".join(map(str, version)) for version in (least.version, capability))
        return (
            f"needs compute capability {needed} ({least.generation}) or newer; "
            f"{torch.cuda.get_device_name(device)} has {own}"
        )

    def prepare(
        self, model: nn.Module, device: torch.device | str, *, moves: bool = True
    ) -> nn.Module:
        """The model on the device, with weights in the dtype of training; call it first.

        Initialise or load the model before. With `moves` false the weights stay on the host, to be
        sharded from there. Also sets the process's precision of float32 products. Raises UsageError
        where the device lacks this precision: none is substituted silently.
        """
        self.check(device)
        products = self.recipe.products
        torch.set_float32_matmul_precision("high" if products == "tf32" else "highest")
        model = model.to(device=device if moves else None, dtype=self.weight_dtype)
        if self.weight_dtype is not torch.float32:  # with float32 weights, autocast casts inputs
            model.register_forward_pre_hook(partial(cast_inputs, self.weight_dtype))
        return convert_to_fp8(model) if products == FP8 else model

    def autocast(self, device: torch.device | str) -> AbstractContextManager[object]:
        """The context of each forward pass and its loss; the backward pass runs outside of it."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(torch.device(device).type, dtype=self.autocast_dtype)

    def wrap(self, optimizer: torch.optim.Optimizer, *, seed: int = 0) -> torch.optim.Optimizer:
        """The optimizer to step: the one given, or one that updates its weights in float32.

        `seed` is the run's; the seed of stochastic rounding is derived from it.
        """
        if self.keeping is None:
            return optimizer
        return WideUpdate(optimizer, self.keeping, seed=seed)

    def scaler(self, device: torch.device | str) -> torch.amp.GradScaler | None:
        """The loss scaler, which also searches for the scale; None without loss scaling."""
        is_scaled = self.recipe.products == "float16"  # small gradients would underflow to 0
        return torch.amp.GradScaler(torch.device(device).type) if is_scaled else None


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a CUDA device; None of a host, of a simulated one, too."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.get_device_capability(device)
    except UnsupportedError:
        return None


def cast_inputs(dtype: torch.dtype, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a model of bfloat16 weights its floats in their dtype."""
    return tuple(
        each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for each in inputs
    )


def precision(name: str) -> Precision:
    """The precision of this name. Raises UsageError for any other."""
    check_choice("unknown precision", name, PRECISIONS)
    return PRECISIONS[name]


def _read() -> dict[str, Precision]:
    rows = tomllib.loads(Path(__file__).with_name("precisions.toml").read_text(encoding="utf-8"))
    for row in rows.values():
        row["recipe"] = replace(RECIPES[row["recipe"]], **row.pop("unlike_recipe", {}))
    return {name: Precision(name=name, **row) for name, row in rows.items()}


PRECISIONS: Mapping[str, Precision] = _read()


def is_fp8_shaped(module: nn.Module) -> bool:
    """Whether it is a linear layer whose matrix the chip can multiply in float8."""
    return (
        isinstance(module, nn.Linear)
        and module.in_features % FP8_MULTIPLE == 0
        and module.out_features % FP8_MULTIPLE == 0
    )


def convert_to_fp8(model: nn.Module, *, is_emulated: bool = False) -> nn.Module:
    """The model with linear layers that multiply in float8, by torchao; the same parameters.

    Layers whose sides are no multiples of 16 stay. Emulated: float8's rounding on any device, but
    not its speed. Raises UsageError without torchao, and where no layer fits.
    """
    float8 = _torchao_float8()
    if not any(is_fp8_shaped(module) for module in model.modules()):
        raise UsageError(
            f"precision fp8 found no linear layer whose sides are multiples of {FP8_MULTIPLE}. "
            "Choose such widths, or use bf16."
        )
    converted: nn.Module = float8.convert_to_float8_training(
        model,
        config=float8.Float8LinearConfig(emulate=is_emulated),
        module_filter_fn=lambda module, _: is_fp8_shaped(module),
    )
    return converted


def _torchao_float8() -> Any:
    return needed_package("torchao.float8", "precision fp8", "fp8", ", or use bf16")
