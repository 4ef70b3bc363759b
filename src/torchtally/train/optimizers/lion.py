"""Lion: the sign of an interpolated momentum."""

from torch.optim.optimizer import ParamsT

from torchtally.torch_private import foreach_add_, foreach_lerp, foreach_lerp_, foreach_sign_
from torchtally.train.optimizers.foreach import (
    ForeachOptimizer,
    Form,
    ParameterBatch,
    ParameterGroup,
    scale,
)


class Lion(ForeachOptimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), by element:

        c_t = β₁ m_{t-1} + (1 - β₁) g_t
        θ_t = θ_{t-1} - η (sign(c_t) + λ θ_{t-1})
        m_t = β₂ m_{t-1} + (1 - β₂) g_t

    Every element moves by η, so the paper (section 5) uses learning rates 3 to 10 times smaller
    than AdamW's and λ larger by as much. State: one tensor, `exp_avg` (m), 4 bytes per parameter in
    float32.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return Form(("exp_avg",))

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        θ, g = batch.parameters, batch.gradients
        η, λ, (β1, β2) = group["lr"], group["weight_decay"], group["betas"]
        (m,) = batch.moments
        c = foreach_lerp(m, g, weight=1 - β1)
        foreach_sign_(c)
        if λ:
            scale(θ, 1 - η * λ)
        foreach_add_(θ, c, alpha=-η)
        foreach_lerp_(m, g, weight=1 - β2)
