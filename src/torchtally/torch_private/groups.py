"""Of `torch.distributed`, where a build has it: groups of processes, collectives, DTensor."""

import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed

from torchtally.torch_private.places import PrivateName


def distributed_module() -> ModuleType:
    """Where `torch.distributed` has its functions from."""
    return torch.distributed.distributed_c10d


def make_idle_backend(rank: int, size: int) -> Any:
    """A backend of a process group that communicates with nobody (FakeProcessGroup.hpp)."""
    return torch._C._distributed_c10d.FakeProcessGroup._create_internal(rank, size)


def forget_process_groups() -> None:
    """Take back what `init_process_group` has set; a script may end without destroying it."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
        sys.excepthook = sys.__excepthook__


def group_names() -> dict[str, PrivateName]:
    """What torch calls while it makes a process group, besides the backend itself."""
    module = distributed_module()
    idle_backend = torch._C._distributed_c10d.FakeProcessGroup
    return {
        "split": PrivateName(idle_backend, "split"),
        "leave_split": PrivateName(idle_backend, "perform_nocolor_split"),
        "number": PrivateName(idle_backend, "_set_sequence_number_for_group"),
        "barrier": PrivateName(module, "_store_based_barrier"),
        "wrap_for_debugging": PrivateName(module, "_create_process_group_wrapper"),
    }


def coalescing_names() -> dict[str, PrivateName]:
    """What issues several collectives of a group together."""
    group = torch.distributed.ProcessGroup
    return {
        "start": PrivateName(group, "_start_coalescing"),
        "end": PrivateName(group, "_end_coalescing"),
        "is_supported": PrivateName(torch._C._distributed_c10d.Backend, "supports_coalescing"),
    }


def process_group(group: Any) -> Any:
    """The process group that an operator was given: by its name, as itself, or as an object of
    TorchScript.
    """
    native = torch.distributed.ProcessGroup
    if isinstance(group, str):
        resolve: Any = torch._C._distributed_c10d._resolve_process_group
        return resolve(group)
    return group if isinstance(group, native) else native.unbox(group)


def functional_collectives() -> ModuleType:
    """Collectives that return new tensors (`torch.distributed._functional_collectives`)."""
    import torch.distributed._functional_collectives as module

    return module


WRAP_FUNCTIONAL = "_maybe_wrap_tensor"
"""There: makes a tensor of a collective one that waits when it is first used."""


def dtensor_shapes() -> PrivateName:
    """What makes the fake tensors on which DTensor finds the shapes of a result."""
    import torch.distributed.tensor._op_schema as module

    return PrivateName(module, "_rebuild_tensor_from_dtensor_meta")


def dtensor_propagation() -> PrivateName:
    """What finds the shape of a DTensor operator's result, on fake tensors."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    return PrivateName(ShardingPropagator, "_propagate_tensor_meta_non_cached")


DTENSOR_RANDOM = "run_dtensor_rng_op"
"""The higher-order operator that runs a random one with the generator's state of a shard."""
