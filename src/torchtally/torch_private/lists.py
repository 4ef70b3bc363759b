"""Operators on lists of tensors: a few kernels on a GPU, whatever the number of tensors."""

from collections.abc import Callable

import torch

Tensors = tuple[torch.Tensor, ...] | list[torch.Tensor]

foreach_add_: Callable[..., None] = torch._foreach_add_
foreach_lerp: Callable[..., Tensors] = torch._foreach_lerp
foreach_lerp_: Callable[..., None] = torch._foreach_lerp_
foreach_mul_: Callable[..., None] = torch._foreach_mul_
foreach_norm: Callable[..., Tensors] = torch._foreach_norm
foreach_sign_: Callable[..., None] = torch._foreach_sign_
