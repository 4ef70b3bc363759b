"""RMSProp: AdaGrad with a running mean."""

from torch.optim.optimizer import ParamsT

from torchtally.torch_private import (
    foreach_add,
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_sqrt,
)
from torchtally.train.optimizers.foreach import (
    ForeachOptimizer,
    Form,
    ParameterBatch,
    ParameterGroup,
    scale,
)


class RMSProp(ForeachOptimizer):
    """RMSProp (Tieleman and Hinton 2012, Neural Networks for Machine Learning, lecture 6e).

    AdaGrad with a running mean of decay α instead of the sum; by element:

        g_t = ∇f(θ_{t-1}) + λ θ_{t-1}
        v_t = α v_{t-1} + (1 - α) g_t²
        θ_t = θ_{t-1} - η g_t / (√v_t + ε)

    State: one tensor, `square_avg`, 4 bytes per parameter in float32, and a step counter per
    tensor on the host. Equal to torch.optim.RMSprop (neither centered nor with momentum), whose α
    is 0.99 where the lecture's is 0.9.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-2,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        hyperparameters = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, hyperparameters)

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return Form(("square_avg",), counts_steps=True)

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        θ, g = batch.parameters, batch.gradients
        η, λ, α, ε = group["lr"], group["weight_decay"], group["alpha"], group["eps"]
        (v,) = batch.moments
        if λ:
            g = list(foreach_add(g, θ, alpha=λ))
        scale(v, α)
        foreach_addcmul_(v, g, g, value=1 - α)
        root = foreach_sqrt(v)
        foreach_add_(root, ε)
        foreach_addcdiv_(θ, g, root, value=-η)
