"""Muon: orthogonalised momentum for hidden matrices, AdamW for all other parameters."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtally.errors import UsageError
from torchtally.torch_private import (
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_div_,
    foreach_lerp,
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
from torchtally.train.optimizers.hyperparameters import LearningRateAdjustment
from torchtally.train.shards import gather_whole, local_part, part_like

MUON_FORM = Form(("momentum_buffer",), is_elementwise=False)
ADAM_FORM = Form(("exp_avg", "exp_avg_sq"), counts_steps=True)
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan et al.: the quintic that is steepest at 0 and whose fifth iterate stays near 1."""
NS_EPS = 1e-7


class Muon(ForeachOptimizer):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), and AdamW beside it.

    For a hidden matrix of shape (A, B), in groups with `orthogonalise` true:

        M_t = μ M_{t-1} + (1 - μ) G_t
        U_t = (1 - μ) G_t + μ M_t             nesterov; else U_t = M_t
        O_t = NewtonSchulz(U_t)               about U V^T of the singular value decomposition
        θ_t = θ_{t-1} - η λ θ_{t-1} - η s O_t
        s = √max(1, A/B)                      adjust_lr_fn "original"
        s = 0.2 √max(A, B)                    "match_rms_adamw": Liu et al. 2025, arXiv 2502.16982

    The post sums gradients (M = μ M + G); only their direction matters to Newton-Schulz. With
    "match_rms_adamw" an update's root mean square is AdamW's, so AdamW's η and λ serve. Groups with
    `orthogonalise` false (embeddings, head, norms, biases) take AdamW's step with their `betas` and
    `eps`.

    State: for a matrix one tensor, `momentum_buffer`, 4 bytes per parameter in float32; for the
    rest AdamW's two, 8 bytes, and a step counter per tensor on the host. Equal to torch.optim.Muon
    and torch.optim.AdamW on their parts.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = NS_COEFFICIENTS,
        ns_steps: int = 5,
        adjust_lr_fn: LearningRateAdjustment = "original",
        orthogonalise: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        hyperparameters = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "orthogonalise": orthogonalise,
            "betas": betas,
            "eps": eps,
        }
        super().__init__(parameters, hyperparameters)

    @staticmethod
    def form(group: ParameterGroup) -> Form:
        return MUON_FORM if group["orthogonalise"] else ADAM_FORM

    def add_param_group(self, param_group: ParameterGroup) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        wrong = [tuple(param.shape) for param in added["params"] if param.ndim != 2]
        if added["orthogonalise"] and wrong:
            raise UsageError(
                f"Muon orthogonalises matrices, but {len(wrong)} of these parameters are not "
                f"matrices; the first has shape {wrong[0]}. Put them in a group with "
                "orthogonalise=False, or use torchtally.train.optimizers.build."
            )

    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        if group["orthogonalise"]:
            muon_step(batch, group)
        else:
            adamw_step(batch, group)


def adamw_step(batch: ParameterBatch, group: ParameterGroup) -> None:
    """torch.optim.AdamW's equation, in place."""
    η, λ, (β1, β2), ε = group["lr"], group["weight_decay"], group["betas"], group["eps"]
    m, v = batch.moments
    if λ:
        scale(batch.parameters, 1 - η * λ)
    foreach_lerp_(m, batch.gradients, weight=1 - β1)
    scale(v, β2)
    foreach_addcmul_(v, batch.gradients, batch.gradients, value=1 - β2)
    root = foreach_sqrt(v)
    foreach_div_(root, [sqrt(1 - β2**t) for t in batch.steps])
    foreach_add_(root, ε)
    foreach_addcdiv_(batch.parameters, m, root, [-η / (1 - β1**t) for t in batch.steps])


def muon_step(batch: ParameterBatch, group: ParameterGroup) -> None:
    """Muon's equation for matrices, in place."""
    θ, G = batch.parameters, batch.gradients
    (M,) = batch.moments
    η, λ, μ = group["lr"], group["weight_decay"], group["momentum"]
    foreach_lerp_(M, G, weight=1 - μ)
    updates = foreach_lerp(G, M, weight=μ) if group["nesterov"] else M
    if λ:
        scale(θ, 1 - η * λ)
    # One matrix at a time: the products of each are enough to fill a device. Sharded matrices are
    # gathered and orthogonalised on every rank, since the result depends on all rows.
    for matrix, update in zip(θ, updates, strict=True):
        gathered = gather_whole(update.bfloat16())
        direction = newton_schulz(gathered, group["ns_coefficients"], group["ns_steps"])
        local_part(matrix).add_(
            part_like(direction, matrix), alpha=-η * adjustment(group["adjust_lr_fn"], matrix.shape)
        )


def adjustment(kind: LearningRateAdjustment | None, shape: torch.Size) -> float:
    """The factor of the learning rate for a matrix of this shape. None, which torch.optim.Muon's
    state dicts may contain, is "original".
    """
    A, B = shape
    if kind == "match_rms_adamw":
        return 0.2 * sqrt(max(A, B))
    return sqrt(max(1.0, A / B)) if B else 1.0


def newton_schulz(
    matrix: Float[Tensor, "rows columns"],
    coefficients: tuple[float, float, float] = NS_COEFFICIENTS,
    steps: int = 5,
) -> Float[Tensor, "rows columns"]:
    """Approximately U V^T of the singular value decomposition U S V^T, in bfloat16.

    Newton-Schulz iteration X <- a X + (b X X^T + c (X X^T)²) X from X = matrix / |matrix|: an odd
    polynomial applied to every singular value. Five steps with the standard coefficients bring them
    to about 0.7 to 1.2, except those that start below about 0.01.
    """
    a, b, c = coefficients
    is_tall = matrix.size(0) > matrix.size(1)
    X = matrix.bfloat16()
    X = X.T if is_tall else X  # the Gram matrix X X^T is then the smaller of the two
    X = X / X.norm().clamp(min=NS_EPS)
    for _ in range(steps):
        gram = X @ X.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        X = torch.addmm(X, polynomial, X, beta=a)
    return X.T if is_tall else X
