"""The optimizers' equations, one tensor at a time: the oracle of every implementation.

θ: parameter. g: gradient. η: learning rate (lr). λ: weight decay. Each equation returns the new θ,
and keeps its moments in `state`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Equation = Callable[..., Tensor]
State = dict[str, Any]


class ByEquation(torch.optim.Optimizer):
    """Steps one parameter after the other by an equation."""

    def __init__(self, parameters: Any, equation: Equation, **values: Any) -> None:
        super().__init__(parameters, values)
        self.equation = equation

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            values = {key: group[key] for key in self.defaults}
            for θ in group["params"]:
                if θ.grad is not None:
                    θ.copy_(self.equation(θ.clone(), θ.grad, self.state[θ], **values))


def sgd(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 0.0,
    momentum: float = 0.0, nesterov: bool = False,
) -> Tensor:  # fmt: skip
    """Robbins and Monro 1951; momentum: Polyak 1964; nesterov: Sutskever et al. 2013."""
    g = g + weight_decay * θ
    b = state["b"] = momentum * state.get("b", 0.0) + g
    return θ - lr * (g + momentum * b if nesterov else b)


def adagrad(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 0.0,
    eps: float = 1e-10,
) -> Tensor:  # fmt: skip
    """Duchi, Hazan and Singer 2011, JMLR 12, the diagonal form of figure 1."""
    g = g + weight_decay * θ
    G = state["G"] = state.get("G", 0.0) + g**2
    return θ - lr * g / (G.sqrt() + eps)


def root_eps_adagrad(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 0.0, eps: float = 1e-5
) -> Tensor:
    g = g + weight_decay * θ
    G = state["G"] = state.get("G", 0.0) + g**2
    return θ - lr * g / (G + eps).sqrt()


def rmsprop(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 0.0,
    alpha: float = 0.99, eps: float = 1e-8,
) -> Tensor:  # fmt: skip
    """Tieleman and Hinton 2012, Neural Networks for Machine Learning, lecture 6e."""
    g = g + weight_decay * θ
    v = state["v"] = alpha * state.get("v", 0.0) + (1 - alpha) * g**2
    return θ - lr * g / (v.sqrt() + eps)


def adam(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
) -> Tensor:  # fmt: skip
    """Kingma and Ba 2015, arXiv 1412.6980, algorithm 1."""
    g = g + weight_decay * θ
    β1, β2 = betas
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = β1 * state.get("m", 0.0) + (1 - β1) * g
    v = state["v"] = β2 * state.get("v", 0.0) + (1 - β2) * g**2
    return θ - lr * (m / (1 - β1**t)) / ((v / (1 - β2**t)).sqrt() + eps)


def adamw(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 1e-2, **others: Any
) -> Tensor:
    """Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2."""
    return adam(θ - lr * weight_decay * θ, g, state, lr=lr, **others)


def lion(
    θ: Tensor, g: Tensor, state: State, *, lr: float, weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.99),
) -> Tensor:  # fmt: skip
    """Chen et al. 2023, arXiv 2302.06675, algorithm 2."""
    β1, β2 = betas
    m = state.get("m", torch.zeros_like(θ))
    state["m"] = β2 * m + (1 - β2) * g
    return θ - lr * ((β1 * m + (1 - β1) * g).sign() + weight_decay * θ)
