"""Muon: orthogonalised momentum for hidden matrices, AdamW for all other parameters."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from torchtally.checkpoints.shards import gather_whole, local_part, part_like
from torchtally.errors import UsageError
from torchtally.train.optimizers.config import LearningRateAdjustment
from torchtally.train.optimizers.own import OwnOptimizer, ParameterGroup

FUSED_ON = ("cpu", "cuda")
"""Devices for which torch has a fused AdamW."""
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan et al.: the quintic that is steepest at 0 and whose fifth iterate stays near 1."""
NS_EPS = 1e-7


class Muon(OwnOptimizer):
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
    `orthogonalise` false (embeddings, head, norms, biases) take torch's AdamW, fused where it is,
    with their `betas` and `eps`.

    State: for a matrix one tensor, `momentum_buffer`, 4 bytes per parameter in float32; for the
    rest AdamW's two, 8 bytes, and a step counter per tensor. Equal to torch.optim.Muon and
    torch.optim.AdamW on their parts.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: LearningRateAdjustment = "original",
        orthogonalise: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        hyperparameters = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn, "orthogonalise": orthogonalise,
            "betas": betas, "eps": eps,
        }  # fmt: skip
        super().__init__(parameters, hyperparameters)

    def add_param_group(self, param_group: ParameterGroup) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        # By it torch puts step counters that are loaded on the device, where fused kernels read
        # them, or leaves them on the host (torch/optim/optimizer.py, load_state_dict).
        added["fused"] = all(param.device.type in FUSED_ON for param in added["params"])
        wrong = [tuple(param.shape) for param in added["params"] if param.ndim != 2]
        if added["orthogonalise"] and wrong:
            raise UsageError(
                f"Muon orthogonalises matrices, but {len(wrong)} of these parameters are not "
                f"matrices; the first has shape {wrong[0]}. Put them in a group with "
                "orthogonalise=False, or use torchtally.train.optimizers.build."
            )

    def _step(self) -> None:
        for group in self.param_groups:
            if group["orthogonalise"]:
                self._muon_step(group)
            else:
                self._adamw_step(group)

    def _muon_step(self, group: ParameterGroup) -> None:
        """One matrix at a time: the products of each are enough to fill a device. Sharded matrices
        are gathered and orthogonalised on every rank, since the result depends on all rows.
        """
        η, λ, μ = group["lr"], group["weight_decay"], group["momentum"]
        for θ in self._with_gradients(group):
            G, M = θ.grad, self._moment(θ, "momentum_buffer")
            assert G is not None
            M.lerp_(G, 1 - μ)
            update = G.lerp(M, μ) if group["nesterov"] else M
            gathered = gather_whole(update.bfloat16())
            direction = newton_schulz(gathered, group["ns_steps"])
            part = local_part(θ)
            if λ:
                part.mul_(1 - η * λ)
            factor = adjustment(group["adjust_lr_fn"], θ.shape)
            part.add_(part_like(direction, θ), alpha=-η * factor)

    def _adamw_step(self, group: ParameterGroup) -> None:
        trained = self._with_gradients(group)
        if not trained:
            return
        for θ in trained:
            if "step" not in self.state[θ]:
                counter_device = θ.device if group["fused"] else "cpu"
                self.state[θ]["step"] = torch.zeros((), device=counter_device)
        β1, β2 = group["betas"]
        adamw(
            [local_part(θ) for θ in trained],
            [local_part(θ.grad) for θ in trained if θ.grad is not None],
            [local_part(self._moment(θ, "exp_avg")) for θ in trained],
            [local_part(self._moment(θ, "exp_avg_sq")) for θ in trained],
            [],
            [self.state[θ]["step"] for θ in trained],
            fused=group["fused"],
            amsgrad=False, beta1=β1, beta2=β2, lr=group["lr"], weight_decay=group["weight_decay"],
            eps=group["eps"], maximize=False,
        )  # fmt: skip


def adjustment(kind: LearningRateAdjustment | None, shape: torch.Size) -> float:
    """The factor of the learning rate for a matrix of this shape. None, which torch.optim.Muon's
    state dicts may contain, is "original".
    """
    A, B = shape
    if kind == "match_rms_adamw":
        return 0.2 * sqrt(max(A, B))
    return sqrt(max(1.0, A / B)) if B else 1.0


def newton_schulz(
    matrix: Float[Tensor, "rows columns"], steps: int = 5
) -> Float[Tensor, "rows columns"]:
    """Approximately U V^T of the singular value decomposition U S V^T, in bfloat16.

    Newton-Schulz iteration X <- a X + (b X X^T + c (X X^T)²) X from X = matrix / |matrix|: an odd
    polynomial applied to every singular value. Five steps with the standard coefficients bring them
    to about 0.7 to 1.2, except those that start below about 0.01.
    """
    a, b, c = NS_COEFFICIENTS
    is_tall = matrix.size(0) > matrix.size(1)
    X = matrix.bfloat16()
    X = X.T if is_tall else X  # the Gram matrix X X^T is then the smaller of the two
    X = X / X.norm().clamp(min=NS_EPS)
    for _ in range(steps):
        gram = X @ X.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        X = torch.addmm(X, polynomial, X, beta=a)
    return X.T if is_tall else X
