"""What `flex_attention` is made of: its operator, its composition, and how a mask is laid out."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from torchtally.torch_private.places import PrivateName

_forward: Any = torch._higher_order_ops.flex_attention
_backward: Any = torch._higher_order_ops.flex_attention_backward

FlexAttention: Any = type(_forward)
"""The class of the higher-order operator: what `flex_attention` calls, compiled or not."""

dense_flex_attention: Callable[..., Any]
dense_flex_attention_backward: Callable[..., Any]
dense_flex_attention, dense_flex_attention_backward = (
    operator.py_kernels[DispatchKey.CompositeExplicitAutograd] for operator in (_forward, _backward)
)
"""Compositions of torch's, which write out all scores: `sdpa_dense` and its backward."""

RUNS_UNCOMPILED = PrivateName(
    import_module("torch.nn.attention.flex_attention"), "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
)
"""Whether `flex_attention` calls its operator itself, without a warning that it is not compiled."""

KV_NUM_BLOCKS, Q_INDICES, MASK_MOD = 2, 7, -1
"""Places in what `BlockMask.as_tuple` gives."""
FORWARD_BLOCKS, BACKWARD_BLOCKS, BLOCK_SIZES = slice(2, 6), slice(2, 10), slice(-3, -1)


def indexing_by_tensors() -> AbstractContextManager[Any]:
    """Lets a tensor without dimensions be an index whose value is not read."""
    module = import_module("torch._dynamo._trace_wrapped_higher_order_op")
    context: AbstractContextManager[Any] = module.TransformGetItemToIndex()
    return context


def over_indices(mask_mod: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of four indices as one of their vectors: (b), (h), (q), (k) give (b, h, q, k)."""
    module = import_module("torch.nn.attention.flex_attention")
    over: Callable[..., Tensor] = module._vmap_for_bhqkv(mask_mod, prefix=())
    return over
