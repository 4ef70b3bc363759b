"""Which names of torch's the package needs, and what stops working without them."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed

from torchtally.errors import UnsupportedError
from torchtally.torch_private.releases import tested_versions

MODULES = tuple(
    """
    torch._library.custom_ops torch.distributed torch.jit._builtins torch.library torch.overrides
    torch.utils._device torch.utils._foreach_utils torch.utils._python_dispatch torch.utils._pytree
    torch.utils.data._utils.fetch
    """.split()
)
"""Modules with some of the names; `import torch` has loaded most of them."""

NEEDS = {
    "running what custom operators run, and kernels of the script": """
        torch._library.custom_ops.OPDEFS torch.cuda._compile_kernel""",
    "running operators on the simulated GPU": """
        torch._C.DispatchKey torch._C.DispatchKeySet torch._C.TensorBase.device
        torch._C.TensorBase.is_meta torch._C.StorageBase torch._C._AutoDispatchBelowAutograd
        torch._C._dispatch_has_kernel_for_dispatch_key torch._C._functorch
        torch._C._only_lift_cpu_tensors torch._C._set_only_lift_cpu_tensors
        torch._ops.HigherOrderOperator torch._ops.OpOverload torch._ops._higher_order_ops
        torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS torch._neg_view
        torch.library.Library._destroy torch.ops.aten._to_copy.default
        torch.utils._python_dispatch.TorchDispatchMode
        torch.utils._python_dispatch._disable_current_modes
        torch.utils._python_dispatch.is_traceable_wrapper_subclass torch.utils._pytree.TreeSpec
        torch.utils._pytree.tree_flatten torch.utils._pytree.tree_leaves
        torch.utils._pytree.tree_map torch.utils._pytree.tree_map_only
        torch.utils._pytree.tree_unflatten""",
    "charging backward operators to the forward line that made them": """
        torch._C._autograd._get_sequence_nr torch._C._current_autograd_node
        torch.autograd.graph.Node._input_metadata torch.autograd.graph.Node._sequence_nr
        torch.autograd.Variable._execution_engine torch.autograd.graph._engine_run_backward""",
    "following memory from birth to death": """
        torch._C._storage_Use_Count torch.Tensor._is_view torch.Tensor._use_count
        torch.UntypedStorage._cdata""",
    "tensors that say cuda, on factories, copies and default devices": """
        torch.Generator._cdata torch.Tensor._make_wrapper_subclass torch._C._get_accelerator
        torch._C._nn._parse_to torch._C._swap_tensor_impl torch._GLOBAL_DEVICE_CONTEXT
        torch._has_compatible_shallow_copy_type torch.jit._builtins._builtin_table
        torch.jit._builtins._get_builtin_table torch.overrides._get_current_function_mode_stack
        torch.utils._device.DeviceContext torch.utils._device._device_constructors""",
    "autocast": """
        torch._C.DispatchKey.AutocastPrivateUse1 torch._C._ExcludeDispatchKeyGuard
        torch._C._IncludeDispatchKeyGuard torch._C._dispatch_get_registrations_for_dispatch_key""",
    "choosing attention's kernels, and the precision of products": """
        torch._C._get_fp32_precision_getter torch._C._get_sdp_priority_order
        torch.ops.aten._fused_sdp_choice.default torch.ops.mkldnn._is_mkldnn_bf16_supported
        torch.ops.mkldnn._is_mkldnn_fp16_supported""",
    "optimizers and clipping by foreach kernels": """
        torch._C._group_tensors_by_device_and_dtype
        torch.utils._foreach_utils._get_foreach_kernels_supported_devices""",
    "saving and loading, with the user's files left alone": """
        torch._C.PyTorchFileReader torch._C.PyTorchFileWriter torch._C.ScriptModule.save
        torch._C._autograd._ProfilerResult.save torch._C.import_ir_module
        torch._utils._rebuild_tensor""",
    "measuring DataLoaders": """
        torch.utils.data._utils.fetch._IterableDatasetFetcher.fetch
        torch.utils.data._utils.fetch._MapDatasetFetcher.fetch""",
    "sparse tensors": "torch.Tensor._indices torch.Tensor._values",
    "flex_attention": """
        torch._higher_order_ops.flex_attention torch._higher_order_ops.flex_attention_backward""",
    "torch.cuda, its memory's history and snapshots": """
        torch.cuda._initialized torch.cuda._lazy_call torch.cuda._lazy_init torch.cuda._sleep
        torch.cuda.memory._dump_snapshot torch.cuda.memory._record_memory_history
        torch.cuda.memory._set_memory_metadata torch.cuda.memory._snapshot""",
}
"""Names by what they are for. Attributes that only an object of torch's has are in no class."""


DISTRIBUTED = {
    "groups of processes": """
        torch._C._distributed_c10d.Backend
        torch._C._distributed_c10d.FakeProcessGroup._create_internal
        torch._C._distributed_c10d.FakeProcessGroup._set_sequence_number_for_group
        torch._C._clear_DTensor_sharding_propagator_cache
        torch._C._distributed_c10d._resolve_process_group torch._C.fork
        torch.distributed._verify_params_across_processes
        torch.distributed.distributed_c10d._create_process_group_wrapper
        torch.distributed.distributed_c10d._get_object_coll_device
        torch.distributed.distributed_c10d._new_process_group_helper
        torch.distributed.distributed_c10d._object_to_tensor
        torch.distributed.distributed_c10d._store_based_barrier
        torch._C._distributed_c10d.Logger.set_runtime_stats_and_log"""
}
"""The same in a build that has torch.distributed."""

COMPILING = {
    "torch.compile": """
        torch._C.DispatchKey.AutogradMeta torch._C.DispatchKey.CompositeImplicitAutograd
        torch._C.DispatchKey.Meta torch._C._dispatch_get_all_op_names
        torch._C._dispatch_has_kernel_for_dispatch_key torch._C._len_torch_dispatch_stack
        torch._dynamo.assume_constant_result
        torch._dynamo.config.patch torch._dynamo.eval_frame.skip_code
        torch._dynamo.exc.InternalTorchDynamoError torch._dynamo.exc.RestartAnalysis
        torch._dynamo.reset
        torch._dynamo.substitute_in_graph torch._from_functional_tensor
        torch._guards.TracingContext.extract_stack"""
}
"""Names of the compiler's, which is imported when a script compiles: without them what it compiles
runs eagerly, and the report says so."""

LATER = {
    "torch.nested._internal.sdpa": "attention of jagged nested tensors",
    "torch.distributed._functional_collectives": "collectives that return new tensors",
    "torch.distributed.checkpoint._state_dict_stager": "distributed checkpoints",
    "torch.distributed.checkpoint.default_planner": "distributed checkpoints",
    "torch.distributed.checkpoint.utils": "distributed checkpoints",
    "torch.distributed._symmetric_memory.__init__": "asynchronous tensor parallelism",
    "torch.distributed.tensor._op_schema": "DTensor",
    "torch.distributed.tensor._redistribute": "DTensor",
    "torch.distributed.tensor._sharding_prop": "DTensor",
    "torch.utils.checkpoint": "recomputation",
    "torch.nn.attention.flex_attention": "flex_attention",
    "torch._dynamo._trace_wrapped_higher_order_op": "flex_attention",
}
"""Modules that are imported when they are needed: only their files are looked for."""


def file_of(module: str) -> Path:
    """File of a module of torch's, whether it is there or not."""
    return Path(torch.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


def has(name: str) -> bool:
    """Whether torch, with the modules above, has something by this dotted name."""
    value: object = torch
    for part in name.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            return False
    return True


def missing(needs: Mapping[str, str] = NEEDS) -> Iterator[tuple[str, str]]:
    """(name, what stops working without it) of each name that torch does not have."""
    for use, names in needs.items():
        for name in names.split():
            if not has(name):
                yield name, use


def check_names(needs: Mapping[str, str] = NEEDS) -> None:
    """Raise UnsupportedError, with all names that are missing."""
    for module in MODULES:
        try:
            import_module(module)
        except ModuleNotFoundError:
            continue  # its names are missing
    lost = list(missing(needs))
    if needs is NEEDS:
        lost += missing(DISTRIBUTED) if torch.distributed.is_available() else ()
        lost += [(name, use) for name, use in LATER.items() if not file_of(name).exists()]
    if lost:
        raise UnsupportedError(lost_names(lost))


def lost_names(lost: list[tuple[str, str]]) -> str:
    """The message for names that torch no longer has."""
    lines = [f"  {name}: {use}" for name, use in lost]
    return "\n".join(
        [
            f"tally cannot run with PyTorch {torch.__version__}, which lacks what it needs for:",
            *lines,
            f"It is tested with PyTorch {tested_versions()}: install one of these, or a newer "
            "tally.",
        ]
    )
