"""AdaGrad with eps under the root, which torch.optim.Adagrad does not have."""

from torch.optim.optimizer import ParamsT

from torchtally.torch_private import (
    foreach_add,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_sqrt_,
)
from torchtally.train.optimizers.foreach import (
    ForeachOptimizer,
    Form,
    ParameterBatch,
    ParameterGroup,
)


class RootEpsAdaGrad(ForeachOptimizer):
    """AdaGrad (Duchi, Hazan and Singer 2011, JMLR 12), with ε added to the sum of squares.

    With learning rate η, weight decay λ and all operations by element:

        g_t = ∇f(θ_{t-1}) + λ θ_{t-1}
        G_t = G_{t-1} + g_t²
        θ_t = θ_{t-1} - η g_t / √(G_t + ε)

    torch.optim.Adagrad divides by √G_t + ε; the two differ in the first steps and for gradients
    near √ε. State: one tensor, `sum`: 4 bytes a parameter in float32, and a step counter for each
    tensor on the host, as torch.optim.Adagrad.
    """

    def __init__(
        self, parameters: ParamsT, lr: float = 1e-2, *, eps: float = 1e-5, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

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
        root = foreach_add(G, ε)
        foreach_sqrt_(root)
        foreach_addcdiv_(θ, g, root, value=-η)
