"""Lion: the sign of an interpolated momentum."""

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtally.checkpoints.shards import local_part
from torchtally.torch_private import (
    foreach_add_,
    foreach_lerp,
    foreach_lerp_,
    foreach_mul_,
    foreach_sign_,
)
from torchtally.train.optimizers.own import OwnOptimizer, ParameterGroup, pack

BATCH_ELEMENTS = 2**26
"""At once: enough to keep a GPU busy, while temporaries of 256 MiB in float32 are small beside the
parameters of a model that fills it."""
CPU_THREAD_ELEMENTS = 2**17
"""Per thread on the CPU: tensors then stay in its cache between operations."""


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
            for θ, g, m in self._batches(group):
                c = foreach_lerp(m, g, weight=1 - β1)
                foreach_sign_(c)
                if λ:
                    scale(θ, 1 - η * λ)
                foreach_add_(θ, c, alpha=-η)
                foreach_lerp_(m, g, weight=1 - β2)

    def _batches(self, group: ParameterGroup) -> Iterator[tuple[list[Tensor], ...]]:
        """Lists of parameters, gradients and momenta, alike in device and dtype; of shards, the
        part of this rank.
        """
        alike: dict[object, list[tuple[Tensor, ...]]] = defaultdict(list)
        for θ in self._trained(group):
            assert θ.grad is not None
            tensors = tuple(map(local_part, (θ, θ.grad, self._moment(θ, "exp_avg"))))
            alike[θ.device, θ.dtype, θ.grad.dtype].append(tensors)
        for members in alike.values():
            limit = batch_elements(members[0][0].device)
            pieces = (piece for tensors in members for piece in _pieces(tensors, limit))
            for packed in pack(pieces, lambda piece: piece[0].numel(), limit):
                yield tuple(map(list, zip(*packed, strict=True)))


def _pieces(tensors: tuple[Tensor, ...], elements: int) -> Iterator[tuple[Tensor, ...]]:
    """Views of at most this many elements; the tensors themselves where their layouts differ."""
    if tensors[0].numel() <= elements or not all(tensor.is_contiguous() for tensor in tensors):
        return iter([tensors])
    return zip(*(tensor.detach().view(-1).split(elements) for tensor in tensors), strict=True)


def scale(tensors: list[Tensor], factor: float) -> None:
    """Multiply the tensors by a number, in place."""
    # On the CPU foreach is a loop as well, but rounds the factor to the tensors' dtype first: in
    # bfloat16 a decay of 0.999 would be 1 (aten/src/ATen/native/ForeachOpsKernels.cpp).
    if tensors and tensors[0].device.type == "cpu":
        for tensor in tensors:
            tensor.mul_(factor)
    else:
        foreach_mul_(tensors, factor)


def batch_elements(device: torch.device) -> int:
    is_host = device.type == "cpu"
    return CPU_THREAD_ELEMENTS * torch.get_num_threads() if is_host else BATCH_ELEMENTS
