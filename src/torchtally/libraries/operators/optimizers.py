"""Kernels for many tensors (apex: csrc/multi_tensor_*.cu), also Transformer Engine's, and Adam."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators.registry import define


@define(
    "apex",
    "multi_tensor_adam(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, bool adam_w_mode) -> ()",
)
def multi_tensor_adam(*arguments: object) -> None:
    """Parameters and states are written to."""


@define("apex", "multi_tensor_scale(Tensor[] xs, Tensor(a!)[] outs, float scale) -> ()")
def multi_tensor_scale(*arguments: object) -> None:
    """Results are written to."""


@define("apex", "multi_tensor_l2norm(Tensor[] xs, bool per_tensor) -> (Tensor, Tensor)")
def multi_tensor_l2norm(xs: list[Tensor], per_tensor: bool) -> tuple[Tensor, Tensor]:
    """(norm of all, norm of each), in float32."""
    norm = xs[0].new_empty(1, dtype=torch.float32)
    return norm, norm.new_empty(len(xs) if per_tensor else 0)


class Adam(torch.optim.Optimizer):
    """Adam by one kernel for all tensors of a dtype, without a step for each parameter."""

    def __init__(
        self,
        params: Any,
        lr: float,
        bias_correction: bool,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        adam_w_mode: bool,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **unused: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            by_dtype: dict[torch.dtype, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
                by_dtype.setdefault(parameter.dtype, []).append(parameter)
            for parameters in by_dtype.values():
                torch.ops.apex.multi_tensor_adam(
                    [parameter.grad for parameter in parameters],
                    parameters,
                    [self.state[parameter]["exp_avg"] for parameter in parameters],
                    [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
                    self.adam_w_mode,
                )
        return loss
