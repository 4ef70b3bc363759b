"""In which formats a model is trained: what is kept, what is multiplied, what is rounded how.

    fp32         everything float32
    tf32         float32, products on the matrix unit in TF32
    bf16         float32 weights, products in bfloat16 by autocast
    fp16         float32 weights, products in float16 by autocast, scaled losses
    bf16-master  bfloat16 weights and gradients, float32 master weights and optimizer state
    pure-bf16    bfloat16 weights, gradients and optimizer state, rounded stochastically
    fp8          float32 weights, products of linear layers in float8, the others as bf16

Use: `model = it.prepare(model, device)`, build the optimizer, `optimizer = it.wrapped(optimizer)`,
`scaler = it.scaler(device)`, and every forward pass in `with it.autocast(device)`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module

import torch
from torch import nn

from torchtally.errors import UsageError
from torchtally.plan.recipes import RECIPES, Recipe
from torchtally.train.wide_update import Keeping, WideUpdate

FP8_CAPABILITY = (8, 9)
"""Ada; torch._scaled_mm's documentation and checks."""
FP8_MULTIPLE = 16
"""torch._scaled_mm takes matrices whose sides are multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One way to train, and all that a training loop has to do for it."""

    name: str
    effect: str
    """What it does to memory and speed, in one sentence, beside fp32."""
    recipe: Recipe
    """The same for `torchtally.plan`, by whose figures it is planned."""
    autocast_dtype: torch.dtype | None = None
    keeping: Keeping | None = None
    """How updates of bfloat16 weights are kept."""
    is_scaled: bool = False
    """Losses are scaled, since small gradients would be 0 in float16."""
    is_fp8: bool = False

    @property
    def weight_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.recipe.weights)
        return dtype

    def check(self, device: torch.device | str) -> None:
        """Raises UsageError where this device, or what is installed, cannot do it."""
        _CHECKS.get(self.name, _nothing)(torch.device(device))

    def prepare(
        self, model: nn.Module, device: torch.device | str, *, moves: bool = True
    ) -> nn.Module:
        """The model on the device with weights as they are trained; call it before all else.

        Where it does not move, weights stay where they are: on the host, to be sharded there.

        Initialise or load it before. Sets the process's float32 products to TF32 or to full
        precision. Raises UsageError where the device cannot do it: there is no other precision
        that would be taken silently.
        """
        self.check(device)
        torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
        model = model.to(device=device if moves else None, dtype=self.weight_dtype)
        return convert_to_fp8(model) if self.is_fp8 else model

    def autocast(self, device: torch.device | str) -> AbstractContextManager[object]:
        """Around each forward pass with its loss; backward stands outside."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(torch.device(device).type, dtype=self.autocast_dtype)

    def wrap(self, optimizer: torch.optim.Optimizer, *, seed: int = 0) -> torch.optim.Optimizer:
        """The optimizer to step: the one given, or one that updates its weights in float32.

        `seed` is the run's; rounding has a seed of its own made from it.
        """
        if self.keeping is None:
            return optimizer
        return WideUpdate(optimizer, self.keeping, seed=seed)

    def scaler(self, device: torch.device | str) -> torch.amp.GradScaler | None:
        """What scales losses, and looks for the scale, where small gradients need it."""
        return torch.amp.GradScaler(torch.device(device).type) if self.is_scaled else None


def precision(name: str) -> Precision:
    """The precision of this name. Raises UsageError for any other."""
    listed = PRECISIONS.get(name)
    if listed is None:
        raise UsageError(f"There is no precision {name!r}. There are: {', '.join(PRECISIONS)}.")
    return listed


_LISTED = (
    Precision(
        name="fp32",
        effect="Everything in float32: the most exact, and the slowest on matrix units.",
        recipe=RECIPES["fp32"],
    ),
    Precision(
        name="tf32",
        effect="Memory as fp32; products round their operands to 10 bits of mantissa, at up to 8 "
        "times the speed of float32's on an A100 or H100.",
        recipe=RECIPES["tf32"],
    ),
    Precision(
        name="bf16",
        effect="Parameters, gradients and optimizer state as fp32, half of most activations and "
        "a bfloat16 copy of each matrix; products at up to 16 times the speed of float32's.",
        recipe=RECIPES["amp"],
        autocast_dtype=torch.bfloat16,
    ),
    Precision(
        name="fp16",
        effect="Memory and speed as bf16, for chips without bfloat16; steps are lost while the "
        "loss scale is looked for.",
        recipe=RECIPES["amp-fp16"],
        autocast_dtype=torch.float16,
        is_scaled=True,
    ),
    Precision(
        name="bf16-master",
        effect="Bytes a parameter as fp32, 16 with AdamW, of which gradients are 2; half of the "
        "activations, no copies of weights, and products at the speed of bf16's.",
        recipe=RECIPES["mixed"],
        keeping="master",
    ),
    Precision(
        name="pure-bf16",
        effect="Half of fp32's memory, 8 bytes a parameter with AdamW; the speed of bf16 with "
        "half the bytes in the update, whose stochastic rounding adds noise.",
        recipe=RECIPES["bf16"],
        keeping="stochastic",
    ),
    Precision(
        name="fp8",
        effect="Memory as bf16 without the copies of linear layers' matrices; their products at up "
        "to twice the speed of bf16's, worth it for widths of thousands, compiled.",
        recipe=replace(
            RECIPES["amp"],
            name="amp-fp8",
            summary="torch.autocast: float32 weights, linear layers' products in float8",
            products="float8_e4m3fn",
            source="torchao.float8, tensorwise dynamic scaling",
        ),
        autocast_dtype=torch.bfloat16,
        is_fp8=True,
    ),
)
PRECISIONS: Mapping[str, Precision] = {listed.name: listed for listed in _LISTED}


def is_fp8_shaped(module: nn.Module) -> bool:
    """A linear layer whose matrix the chip can multiply in float8."""
    return (
        isinstance(module, nn.Linear)
        and module.in_features % FP8_MULTIPLE == 0
        and module.out_features % FP8_MULTIPLE == 0
    )


def convert_to_fp8(model: nn.Module, *, is_emulated: bool = False) -> nn.Module:
    """Linear layers of fitting shape multiply in float8; the same parameters, by torchao.

    Emulated, float8's rounding on any device, and no speed. Raises UsageError without torchao, and
    where no layer fits.
    """
    float8 = _torchao_float8()
    if not any(is_fp8_shaped(module) for module in model.modules()):
        raise UsageError(
            "The precision fp8 found no linear layer whose sides are multiples of "
            f"{FP8_MULTIPLE}. Choose such widths, or the precision bf16."
        )
    converted: nn.Module = float8.convert_to_float8_training(  # type: ignore[attr-defined]
        model,
        config=float8.Float8LinearConfig(emulate=is_emulated),  # type: ignore[attr-defined]
        module_filter_fn=lambda module, _: is_fp8_shaped(module),
    )
    return converted


def _torchao_float8() -> object:
    try:
        return import_module("torchao.float8")
    except ImportError as error:
        raise UsageError(
            f"The precision fp8 needs torchao, which cannot be imported ({error}). Install "
            "torchtally[fp8], or take the precision bf16."
        ) from error


def _nothing(device: torch.device) -> None:
    pass


def _check_tf32(device: torch.device) -> None:
    if device.type != "cuda" or not torch.cuda.is_tf32_supported():
        raise UsageError(
            f"The precision tf32 is one of NVIDIA's GPUs since Ampere, and {device} is none. Take "
            "fp32."
        )


def _check_bf16(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"{torch.cuda.get_device_name(device)} has no products in bfloat16 and would emulate "
            "them. Take the precision fp16."
        )


def _check_fp8(device: torch.device) -> None:
    if device.type != "cuda":
        raise UsageError(f"The precision fp8 needs a GPU, and the device is {device}. Take bf16.")
    has = torch.cuda.get_device_capability(device)
    if has < FP8_CAPABILITY:
        raise UsageError(
            f"{torch.cuda.get_device_name(device)} has compute capability {has[0]}.{has[1]}, and "
            f"float8 needs {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]}. Take the precision bf16."
        )
    _torchao_float8()


_CHECKS = {
    "tf32": _check_tf32,
    "bf16": _check_bf16,
    "bf16-master": _check_bf16,
    "pure-bf16": _check_bf16,
    "fp8": _check_fp8,
}
