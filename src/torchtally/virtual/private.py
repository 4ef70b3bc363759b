"""Every private call into torch that the virtual GPU needs, in one place.

`tests/virtual/test_private.py` names the torch versions these were seen to work on, so that an
upgrade which moves one of them fails there, by name, and not somewhere in a user's script.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.utils._foreach_utils
from torch._C import DispatchKey, DispatchKeySet

AUTOCAST_KEY: Any = DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
"""Meta tensors carry no autocast key of their own; this backend's is free (no such device)."""
AUTOCAST_KEYS = DispatchKeySet(AUTOCAST_KEY)

ACCUMULATE_GRAD_SEQUENCE = 2**64 - 1
"""What `AccumulateGrad` nodes answer as their sequence number: they have none."""

true_device: Callable[[torch.Tensor], torch.device] = torch._C.TensorBase.device.__get__
"""The device torch itself knows, whatever Python is shown."""
is_meta: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]
"""Whether a tensor is on torch's meta device, whatever Python is shown."""

current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node the autograd engine is evaluating on this thread, or None."""

OWNERS, STORAGE_OWNERS, REFERENCES = 4, 2, 3
"""What a tensor counts in a dispatch mode that only one variable outside holds; see the test."""


def storage_owners(tensor: torch.Tensor) -> int:
    """How many tensors and other C++ variables hold a tensor's storage, this call's among them."""
    storage: Any = tensor.untyped_storage()
    owners: int = torch._C._storage_Use_Count(storage._cdata)
    return owners


def is_held_once(tensor: torch.Tensor, references: int) -> bool:
    """An operator's argument that one C++ variable holds, and Python only so often, by the caller.

    Such a tensor, with its storage, could be overwritten: nobody would see it.
    """
    return (
        sys.getrefcount(tensor) == references + REFERENCES
        and tensor._use_count() == OWNERS  # type: ignore[attr-defined]
        and storage_owners(tensor) == STORAGE_OWNERS
    )


next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""What the next autograd node made on this thread will carry."""

below_autograd: Callable[[], AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd


def autocast_key_included() -> AbstractContextManager[None]:
    """Dispatch through the autocast kernels registered for the virtual GPU, on this thread."""
    guard: AbstractContextManager[None] = torch._C._IncludeDispatchKeyGuard(AUTOCAST_KEY)
    return guard


def autocast_key_excluded() -> AbstractContextManager[None]:
    guard: AbstractContextManager[None] = torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS)
    return guard


def autocast_operators() -> list[str]:
    """Operators ("aten::mm") that have a CUDA autocast kernel in this build of torch."""
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    return names


def has_composite_kernel(operator: torch._ops.OpOverload) -> bool:
    """The operator is only a composition of others (CompositeImplicitAutograd)."""
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(
        operator.name(), DispatchKey.CompositeImplicitAutograd
    )
    return found


@contextmanager
def lifting_cpu_tensors_only() -> Iterator[None]:
    """Let `torch.tensor(..., device=...)` reach dispatch modes, not the device's own guard."""
    was: bool = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(was)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below `torch.func` transforms' wrappers, itself when there are none."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def engine_code() -> Any:
    """Code of the frame under which the autograd engine runs: below it is backward."""
    return torch.autograd.graph._engine_run_backward.__code__


def recompute_codes() -> tuple[Any, ...]:
    """Code under which `torch.utils.checkpoint`, either kind, runs a forward again."""
    import torch.utils.checkpoint as checkpoint

    recompute = [
        code
        for code in checkpoint._checkpoint_without_reentrant_generator.__code__.co_consts
        if getattr(code, "co_name", "") == "recompute_fn"
    ]
    return (checkpoint.CheckpointFunction.backward.__code__, *recompute)


def swap_contents(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two Python tensors stand for; each keeps its identity and class."""
    torch._C._swap_tensor_impl(tensor, other)


sdp_priority_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order
"""Numbers of `torch.nn.attention.SDPBackend` in the order in which they are tried."""


def host_chooses_flash(*args: Any, **kwargs: Any) -> bool:
    """Whether `scaled_dot_product_attention` of these tensors would take flash on the CPU.

    The CPU's own choice is asked by its dispatch key: it looks at shapes and strides, never at
    data, so meta tensors do.
    """
    choose = torch.ops.aten._fused_sdp_choice.default
    flash = torch.nn.attention.SDPBackend.FLASH_ATTENTION.value
    return bool(choose._op_dk(DispatchKey.CPU, *args, **kwargs) == flash)


fp32_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
"""How a backend ("cuda") computes a kind of float32 product ("matmul", "conv", "rnn").

"tf32" is one answer. All settings meet here, the older ones too, and those of a whole backend or of
all of them. Their own getters raise when a script has used old and new ones together; CUDA's
kernels ask this.
"""

parse_to: Callable[..., Any] = torch._C._nn._parse_to
"""The arguments of `Tensor.to` as (device, dtype, non_blocking, memory_format)."""

StorageBase: Any = torch._C.StorageBase

devices_with_foreach: Callable[[], list[str]] = (
    torch.utils._foreach_utils._get_foreach_kernels_supported_devices
)
"""Kinds of devices on which optimizers work in lists unless told otherwise."""

group_tensors: Callable[..., Any] = torch._C._group_tensors_by_device_and_dtype


@contextmanager
def autocast_on_backend() -> Iterator[None]:
    """Autocast keys are excluded unless autocast is on: keep this backend's from being so."""
    was = torch.is_autocast_enabled("privateuseone")
    torch.set_autocast_enabled("privateuseone", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("privateuseone", was)


@contextmanager
def default_device_kept() -> Iterator[None]:
    """A default device set inside (`torch.set_default_device("cuda")`) does not outlive us."""
    context: Any = torch._GLOBAL_DEVICE_CONTEXT
    before = getattr(context, "device_context", None)
    try:
        yield
    finally:
        if getattr(context, "device_context", None) is not before:
            torch.set_default_device(None if before is None else before.device)


@contextmanager
def higher_order_operators_reach_modes() -> Iterator[None]:
    """Operators on functions (`flex_attention`, `cond`) know no kernel for our autocast key."""
    operators: Any = torch._ops._higher_order_ops
    defaults: Any = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    defaults.append(AUTOCAST_KEY)
    for operator in operators.values():
        operator.fallthrough(AUTOCAST_KEY)
    try:
        yield
    finally:
        defaults.remove(AUTOCAST_KEY)
        for operator in operators.values():
            operator.non_fallthrough_keys = operator.non_fallthrough_keys.add(AUTOCAST_KEY)
