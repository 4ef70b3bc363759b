"""AdaGrad: a learning rate per element, from the sum of its squared gradients."""

from typing import Any

from torch.optim.optimizer import ParamsT

from torchtally.torch_private import (
    foreach_add,
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_sqrt,
    foreach_sqrt_,
)
from torchtally.train.optimizers.foreach import (
    ForeachOptimizer,
    Form,
    ParameterBatch,
    ParameterGroup,
)

EPS_OUTSIDE_ROOT = 1e-10
"""torch.optim.Adagrad's."""
EPS_INSIDE_ROOT = 1e-5


class AdaGrad(ForeachOptimizer):
    """AdaGrad (Duchi, Hazan and Singer 2011, JMLR 12, the diagonal form of figure 1).

    With learning rate η, weight decay λ and all operations by element:

        g_t = ∇f(θ_{t-1}) + λ θ_{t-1}
        G_t = G_{t-1} + g_t²
        θ_t = θ_{t-1} - η g_t / (√G_t + ε)        ε = 1e-10, the paper's δ and torch.optim's eps
        θ_t = θ_{t-1} - η g_t / √(G_t + ε)        eps_inside_root, ε = 1e-5

    The two forms differ only in the first steps and for gradients near √ε. State: one tensor,
    `sum`, 4 bytes per parameter in float32, and a step counter per tensor on the host. Equal to
    torch.optim.Adagrad with lr_decay 0.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-2,
        *,
        eps: float | None = None,
        eps_inside_root: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        hyperparameters: dict[str, Any] = {
            "lr": lr,
            "eps": default_eps(eps_inside_root) if eps is None else eps,
            "eps_inside_root": eps_inside_root,
            "weight_decay": weight_decay,
        }
        super().__init__(parameters, hyperparameters)

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return Form(("sum",), counts_steps=True)

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        θ, g = batch.parameters, batch.gradients
        η, λ, ε = group["lr"], group["weight_decay"], group["eps"]
        (G,) = batch.moments
        if λ:
            g = list(foreach_add(g, θ, alpha=λ))
        foreach_addcmul_(G, g, g, value=1)
        if group["eps_inside_root"]:
            root = foreach_add(G, ε)
            foreach_sqrt_(root)
        else:
            root = foreach_sqrt(G)
            foreach_add_(root, ε)
        foreach_addcdiv_(θ, g, root, value=-η)


def default_eps(eps_inside_root: bool) -> float:
    """The ε of each form: inside the root it is added to squares, and therefore larger."""
    return EPS_INSIDE_ROOT if eps_inside_root else EPS_OUTSIDE_ROOT
