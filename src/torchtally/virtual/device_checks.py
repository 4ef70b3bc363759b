"""PyTorch's errors for calls that mix devices, raised where meta tensors would not."""

import torch

from torchtally import torch_private as private
from torchtally.virtual.generators import is_on_device
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import Home

MIXES_DEVICES = frozenset(
    """
    aten.copy_ aten._to_copy aten.set_ aten.is_same_size
    aten.index aten.index_put aten.index_put_ aten._index_put_impl_
    aten._foreach_copy aten._foreach_copy_ aten._foreach_addcdiv aten._foreach_addcdiv_
    aten._foreach_addcmul aten._foreach_addcmul_
    aten._fused_adam_ aten._fused_adamw_ aten._fused_sgd_ aten._fused_adagrad_
    aten._pack_padded_sequence aten._pack_padded_sequence_backward aten._ctc_loss
    aten._ctc_loss_backward
    """.split()
)
"""Operators that take host tensors of any shape beside device tensors."""


def check_same_device(call: Invocation) -> None:
    """Raise PyTorch's own error when a call mixes devices and may not."""
    if call.operator.name in MIXES_DEVICES:
        return
    devices: dict[str, None] = {}
    takes_scalars = not call.operator.name.startswith("aten._foreach")
    for tensor, virtual in zip(call.inputs, call.virtuals, strict=True):
        if virtual is None and private.is_meta(tensor):
            continue
        device = private.true_device(tensor) if virtual is None else virtual.home.device
        if device.type == "cpu" and tensor.dim() == 0 and takes_scalars:
            continue  # a scalar may come from the host
        devices[str(device)] = None
    if len(devices) > 1:
        first, second, *_ = devices
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{first} and {second}! (when running {call.operator.name})"
        )


def check_generator(generator: torch.Generator, home: Home) -> None:
    """Raise PyTorch's own error for a generator of another device."""
    expected = home.device.type
    actual = "cuda" if is_on_device(generator) else "cpu"
    if expected != actual:
        raise RuntimeError(
            f"Expected a '{expected}' device type for generator but found '{actual}'"
        )
