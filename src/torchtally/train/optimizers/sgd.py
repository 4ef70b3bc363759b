"""Stochastic gradient descent, with momentum and Nesterov's momentum."""

from torch.optim.optimizer import ParamsT

from torchtally.torch_private import foreach_add, foreach_add_
from torchtally.train.optimizers.foreach import (
    ForeachOptimizer,
    Form,
    ParameterBatch,
    ParameterGroup,
    scale,
)


class SGD(ForeachOptimizer):
    """Gradient descent; with `momentum` the heavy ball, with `nesterov` the look-ahead.

    Without momentum (Robbins and Monro 1951), with learning rate η and weight decay λ:

        g_t = ∇f(θ_{t-1}) + λ θ_{t-1}
        θ_t = θ_{t-1} - η g_t

    With momentum μ, the heavy ball (Polyak 1964), from b_0 = 0:

        b_t = μ b_{t-1} + g_t
        θ_t = θ_{t-1} - η b_t

    Nesterov's, in the form of Sutskever et al. 2013, with the gradient at the present parameters:

        θ_t = θ_{t-1} - η (g_t + μ b_t)

    b is a running sum: 1 / (1 - μ) times the running mean. State: none, or with momentum one
    tensor, `momentum_buffer`, 4 bytes per parameter in float32. Equal to torch.optim.SGD with
    dampening 0.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        hyperparameters = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
        }
        super().__init__(parameters, hyperparameters)

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return Form(("momentum_buffer",) if group["momentum"] else ())

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        θ, g = batch.parameters, batch.gradients
        η, λ = group["lr"], group["weight_decay"]
        if λ:
            g = list(foreach_add(g, θ, alpha=λ))
        if group["momentum"]:
            (b,) = batch.moments
            scale(b, group["momentum"])
            foreach_add_(b, g, alpha=1)
            g = list(foreach_add(g, b, alpha=group["momentum"])) if group["nesterov"] else b
        foreach_add_(θ, g, alpha=-η)
