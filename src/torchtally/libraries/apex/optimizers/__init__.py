"""apex.optimizers: FusedAdam, whose states are those of Adam without a step for each parameter."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators import optimizers  # noqa: F401 (defines the operators)


class FusedAdam(torch.optim.Optimizer):
    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, adam_w_mode: bool = True,
        weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool = True,
        capturable: bool = False, master_weights: bool = False,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
                    "weight_decay": weight_decay}  # fmt: skip
        super().__init__(params, defaults)
        self.adam_w_mode, self.set_grad_none = adam_w_mode, set_grad_none

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=self.set_grad_none)

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
