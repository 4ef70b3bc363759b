"""Adam, and AdamW with decoupled weight decay."""

from math import sqrt

from jaxtyping import Float
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtally.torch_private import (
    foreach_add,
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_div_,
    foreach_lerp_,
    foreach_sqrt,
)
from torchtally.train.optimizers.foreach import (
    ForeachOptimizer,
    Form,
    ParameterBatch,
    ParameterGroup,
    scale,
)

ADAM_FORM = Form(("exp_avg", "exp_avg_sq"), counts_steps=True)


class Adam(ForeachOptimizer):
    """Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1), by element:

        g_t = ∇f(θ_{t-1}) + λ θ_{t-1}
        m_t = β₁ m_{t-1} + (1 - β₁) g_t
        v_t = β₂ v_{t-1} + (1 - β₂) g_t²
        θ_t = θ_{t-1} - η (m_t / (1 - β₁ᵗ)) / (√(v_t / (1 - β₂ᵗ)) + ε)

    State: two tensors, `exp_avg` (m) and `exp_avg_sq` (v): 8 bytes per parameter in float32, and a
    step counter (t) per tensor on the host. Equal to torch.optim.Adam.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        hyperparameters = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, hyperparameters)

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return ADAM_FORM

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        θ, g = batch.parameters, batch.gradients
        λ = group["weight_decay"]
        if λ:
            g = list(foreach_add(g, θ, alpha=λ))
        adam_step(batch, g, group)


class AdamW(ForeachOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2).

    m, v and their corrections are those of Adam, without the decay; by element:

        θ_t = θ_{t-1} - η λ θ_{t-1} - η (m_t / (1 - β₁ᵗ)) / (√(v_t / (1 - β₂ᵗ)) + ε)

    where the paper's schedule multiplier η_t and its α are both in the learning rate η. State: as
    Adam, 8 bytes per parameter in float32. Equal to torch.optim.AdamW.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        hyperparameters = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, hyperparameters)

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return ADAM_FORM

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        adamw_step(batch, group)


def adamw_step(batch: ParameterBatch, group: ParameterGroup) -> None:
    """AdamW's equation, in place."""
    if group["weight_decay"]:
        scale(batch.parameters, 1 - group["lr"] * group["weight_decay"])
    adam_step(batch, batch.gradients, group)


def adam_step(batch: ParameterBatch, g: list[Float[Tensor, "..."]], group: ParameterGroup) -> None:
    """Adam's equation with these gradients, without weight decay, in place."""
    η, (β1, β2), ε = group["lr"], group["betas"], group["eps"]
    m, v = batch.moments
    foreach_lerp_(m, g, weight=1 - β1)
    scale(v, β2)
    foreach_addcmul_(v, g, g, value=1 - β2)
    root = foreach_sqrt(v)
    foreach_div_(root, [sqrt(1 - β2**t) for t in batch.steps])
    foreach_add_(root, ε)
    foreach_addcdiv_(batch.parameters, m, root, [-η / (1 - β1**t) for t in batch.steps])
