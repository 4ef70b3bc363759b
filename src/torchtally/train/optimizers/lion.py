"""Lion: the sign of an interpolated momentum."""

from torch.optim.optimizer import ParamsT

from torchtally.checkpoints.shards import local_part
from torchtally.train.optimizers.own import OwnOptimizer


class Lion(OwnOptimizer):
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

    def _step(self) -> None:
        for group in self.param_groups:
            η, λ, (β1, β2) = group["lr"], group["weight_decay"], group["betas"]
            for parameter in self._with_gradients(group):
                assert parameter.grad is not None
                θ, g = local_part(parameter), local_part(parameter.grad)
                m = local_part(self._moment(parameter, "exp_avg"))
                c = m.lerp(g, 1 - β1).sign_()
                if λ:
                    θ.mul_(1 - η * λ)
                θ.add_(c, alpha=-η)
                m.lerp_(g, 1 - β2)
