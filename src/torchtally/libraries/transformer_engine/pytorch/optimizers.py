"""transformer_engine.pytorch.optimizers: FusedAdam, and kernels for many tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators.optimizers import Adam

Lists = Sequence[Sequence[Tensor]]


class FusedAdam(Adam):
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        set_grad_none: bool | None = None,
        **options: Any,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        others = {"capturable": capturable, "master_weights": master_weights, **options}
        for name, value in others.items():
            if value not in (False, torch.float32):
                raise NotImplementedError(
                    f"tally does not know {name}={value!r} of Transformer Engine's FusedAdam"
                )
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, adam_w_mode)


class FusedSGD:
    def __init__(self, *args: Any, **options: Any) -> None:
        raise NotImplementedError("tally does not know Transformer Engine's FusedSGD")


def multi_tensor_applier(
    op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Lists, *args: Any
) -> Any:
    return op(2048 * 32, noop_flag_buffer, tensor_lists, *args)


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, lists: Lists, scale: float) -> None:
    torch.ops.apex.multi_tensor_scale(*lists, float(scale))


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, lists: Lists, per_tensor: bool | None = False
) -> tuple[Tensor, Tensor]:
    """(norm of all, norm of each)."""
    whole, each = torch.ops.apex.multi_tensor_l2norm(*lists, bool(per_tensor))
    return whole, each
