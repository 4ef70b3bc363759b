"""Names of `torch.distributed`, where a build has it: groups of processes, collectives, DTensor."""

import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed

from torchtally.torch_private.places import PrivateName


def distributed_module() -> ModuleType:
    """Module from which `torch.distributed` has its functions."""
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
    if "torch.distributed.tensor" in sys.modules:
        forget_shardings()


def forget_shardings() -> None:
    """What DTensor has found out: it knows meshes by their shapes, and keeps them with their
    groups, which end with the run.
    """
    import torch.distributed.tensor._redistribute as module
    from torch.distributed.tensor import DTensor

    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
    module.clear_redistribute_planner_cache()
    module._gen_transform_infos.cache_clear()


def group_names() -> dict[str, PrivateName]:
    """What torch calls while it makes a process group, besides the backend itself."""
    module = distributed_module()
    idle_backend = torch._C._distributed_c10d.FakeProcessGroup
    return {
        "make": PrivateName(module, "_new_process_group_helper"),
        "split": PrivateName(idle_backend, "split"),
        "leave_split": PrivateName(idle_backend, "perform_nocolor_split"),
        "set_timeout": PrivateName(idle_backend, "_set_default_timeout"),
        "group_start": PrivateName(idle_backend, "_group_start"),
        "group_end": PrivateName(idle_backend, "_group_end"),
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


def is_tracing_collectives() -> bool:
    """A compiler traces them: nothing is under way."""
    return bool(functional_collectives()._are_we_tracing())


WRAP_FUNCTIONAL = "_maybe_wrap_tensor"
"""There: makes a tensor of a collective one that waits when it is first used."""


def done_future(tensors: list[torch.Tensor]) -> Any:
    """A future that is done, of C++'s type of such a list; those made in Python are of `object`."""
    if tensors:
        return torch._C.fork(lambda: tensors)
    future: Any = torch.futures.Future()  # the type of an empty list is none
    future.set_result(tensors)
    return future


CHECKPOINT_RANKS = "_DistWrapper"
"""There: what ranks tell each other of a distributed checkpoint."""


def checkpoint_coordination() -> ModuleType:
    """Module in which ranks agree on what each writes (`torch.distributed.checkpoint.utils`)."""
    import torch.distributed.checkpoint.utils as module

    return module


def wrapped_exception(error: BaseException) -> Any:
    """An exception as ranks send it to each other."""
    return checkpoint_coordination()._wrap_exception(error)


def checkpoint_validation() -> PrivateName:
    """The check that the plans of all ranks cover every tensor once: (plans, metadata) to errors.

    Older releases say whether they do.
    """
    import torch.distributed.checkpoint.default_planner as module

    return PrivateName(module, "_validate_global_plan")


def valid_plan() -> Any:
    """What that check says of plans without errors."""
    from torch.distributed.checkpoint.metadata import Metadata

    return getattr(*checkpoint_validation())([], Metadata({}))


def checkpoint_stager() -> PrivateName:
    """What copies a tensor to the host for `async_save`."""
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    return PrivateName(StateDictStager, "_offload_tensor")


def symmetric_memory() -> ModuleType:
    """Memory that ranks read of each other (`torch.distributed._symmetric_memory`)."""
    import torch.distributed._symmetric_memory as module

    return module


FUSED_COLLECTIVES = (
    "fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter",
    "_low_contention_all_gather",
    "_low_contention_reduce_scatter",
)
"""Operators of `symm_mem` that torch composes, in Python, of copies between GPUs and products."""


def composition(name: str) -> Any:
    """The function that one of these runs on CUDA."""
    return getattr(symmetric_memory(), f"_{name.removeprefix('_')}")


SYMMETRIC_COLLECTIVES = (
    "one_shot_all_reduce",
    "one_shot_all_reduce_out",
    "one_shot_all_reduce_copy",
    "one_shot_all_reduce_copy_out",
    "two_shot_all_reduce_",
    "two_shot_all_reduce_out",
    "multimem_all_reduce_",
    "multimem_one_shot_all_reduce",
    "multimem_one_shot_all_reduce_out",
    "multimem_all_gather_out",
    "reduce_scatter_out",
)
"""Its operators that are one kernel, on tensors in symmetric memory."""


SYMMETRIC_STATE = ("_group_name_to_store", "_group_name_to_workspace_tensor", "_backend_streams")
"""What those functions keep from one call to the next, by group or priority."""


def symmetric_handle() -> PrivateName:
    """What gives a rank the memory of the others."""
    return PrivateName(torch._C._distributed_c10d, "_SymmetricMemory")


def registry_of_works() -> PrivateName:
    """What tells `wait_tensor` what a tensor waits for."""
    return PrivateName(torch._C._distributed_c10d, "_register_work")


def parameter_verification() -> PrivateName:
    """DDP's check that all ranks have the same parameters."""
    return PrivateName(torch.distributed, "_verify_params_across_processes")


def object_tensors(value: Any, group: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes that an object is sent as in a group, and their number."""
    module: Any = distributed_module()
    device = module._get_object_coll_device(group)
    own, length = module._object_to_tensor(value, device, group)
    return own, length


def ddp_statistics() -> PrivateName:
    """Name by which DDP takes the times of a step, with a clock for CPU and CUDA alone."""
    return PrivateName(torch._C._distributed_c10d.Logger, "set_runtime_stats_and_log")


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


ZERO_OPTIMIZER = "torch.distributed.optim.zero_redundancy_optimizer"
BROADCAST_OBJECT = "_broadcast_object"
"""What sends the state of one rank's part of it to all."""

FSDP_OPTIMIZERS = "torch.distributed.fsdp._optim_utils"
OPTIMIZER_KEYS = "_map_param_key_to_optim_keys"
"""What finds the parameters that an optimizer has states of."""

SHARDED_TENSORS = "torch.distributed._shard.sharded_tensor.api"
SHARDED_METADATA = "build_global_metadata"
"""What checks and joins what each rank says of its shards."""


def zero_partition(optimizer: Any) -> list[list[dict[str, Any]]]:
    """The parameter groups of every rank."""
    partition: list[list[dict[str, Any]]] = optimizer._partition_parameters()
    return partition


def shard_placement(device: torch.device, rank: int) -> Any:
    """Placement of a shard: a rank, and a device there."""
    from torch.distributed.remote_device import _remote_device

    return _remote_device(f"rank:{rank}/{device}")
