"""Operators on lists of tensors: a few kernels on a GPU, whatever the number of tensors."""

from collections.abc import Callable

import torch

Tensors = tuple[torch.Tensor, ...] | list[torch.Tensor]

foreach_add: Callable[..., Tensors] = torch._foreach_add
foreach_add_: Callable[..., None] = torch._foreach_add_
foreach_addcdiv_: Callable[..., None] = torch._foreach_addcdiv_
foreach_addcmul_: Callable[..., None] = torch._foreach_addcmul_
foreach_div_: Callable[..., None] = torch._foreach_div_
foreach_lerp: Callable[..., Tensors] = torch._foreach_lerp
foreach_lerp_: Callable[..., None] = torch._foreach_lerp_
foreach_mul_: Callable[..., None] = torch._foreach_mul_
foreach_norm: Callable[..., Tensors] = torch._foreach_norm
foreach_sign_: Callable[..., None] = torch._foreach_sign_
foreach_sqrt: Callable[..., Tensors] = torch._foreach_sqrt
foreach_sqrt_: Callable[..., None] = torch._foreach_sqrt_
