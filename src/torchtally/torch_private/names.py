"""torch's private names: those of tensors, autograd, dispatch and storage.

No other room may write one.
`tests/test_torch_private.py` has a test for every name here, so an upgrade of torch that changes
what one does fails there, by name; `tests/layers.py` finds private names anywhere else.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed
import torch.jit._builtins as jit_builtins
import torch.overrides
import torch.utils._device
import torch.utils._foreach_utils
import torch.utils.data._utils.fetch
from torch._C import DispatchKey, DispatchKeySet
from torch._library.custom_ops import OPDEFS as _CUSTOM
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import TreeSpec as TreeSpec
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

from torchtally.torch_private.places import PrivateName as PrivateName

PARSE_TO = PrivateName(torch._C._nn, "_parse_to")
HAS_COMPATIBLE_TYPE = PrivateName(torch, "_has_compatible_shallow_copy_type")
REBUILD_TENSOR = PrivateName(torch._utils, "_rebuild_tensor")
GROUP_TENSORS = PrivateName(torch._C, "_group_tensors_by_device_and_dtype")
GET_ACCELERATOR = PrivateName(torch._C, "_get_accelerator")
DEVICE_CONSTRUCTORS = PrivateName(torch.utils._device, "_device_constructors")
BUILTIN_TABLE = PrivateName(jit_builtins, "_builtin_table")
FETCHES = (
    PrivateName(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch"),
    PrivateName(torch.utils.data._utils.fetch._IterableDatasetFetcher, "fetch"),
)
"""What makes a DataLoader's batch of its dataset, in the script's process or in a worker."""
MAKE_WRAPPER = PrivateName(torch.Tensor, "_make_wrapper_subclass")


class NativeFile(NamedTuple):
    """A function or class of torch's C++ that opens a file by its path."""

    owner: Any
    name: str
    place: int
    """Of the path among its arguments; `self` counts."""
    keyword: str
    is_written: bool


NATIVE_FILES = (
    NativeFile(torch._C, "PyTorchFileWriter", 0, "file_name", True),
    NativeFile(torch._C, "PyTorchFileReader", 0, "file_name", False),
    NativeFile(torch._C.ScriptModule, "save", 1, "filename", True),
    NativeFile(torch._C, "import_ir_module", 1, "filename", False),
    NativeFile(torch._C._autograd._ProfilerResult, "save", 1, "path", True),
)
MAPPED_FILES = (torch.UntypedStorage, torch)
"""What has a function `from_file`, which maps a file into memory."""


def jagged_attention() -> ModuleType:
    """Module in which `scaled_dot_product_attention` of jagged nested tensors chooses a kernel."""
    import torch.nested._internal.sdpa as module

    return module


DYNAMO, DYNAMO_FRAMES = "torch._dynamo", "torch._dynamo.eval_frame"
DYNAMO_CONVERTERS, DYNAMO_TYPES = "torch._dynamo.convert_frame", "torch._dynamo.types"
"""Modules of the compiler: looked up among the loaded ones, never imported here (1.3 s)."""

AUTOCAST_KEY: Any = DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
"""Meta tensors carry no autocast key of their own; this backend's is free (no such device)."""
_AUTOCAST_KEYS = DispatchKeySet(AUTOCAST_KEY)

ACCUMULATE_GRAD_SEQUENCE = 2**64 - 1
"""The sequence number of `AccumulateGrad` nodes: UINT64_MAX (torch/csrc/autograd/functions)."""


def sparse_values(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a sparse tensor, coalesced or not. No dispatch mode sees the question."""
    with _disable_current_modes(), torch.no_grad():
        return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def sparse_indices(tensor: torch.Tensor) -> torch.Tensor:
    """The indices of a COO tensor, coalesced or not."""
    with _disable_current_modes(), torch.no_grad():
        return tensor._indices()


true_device: Callable[[torch.Tensor], torch.device] = torch._C.TensorBase.device.__get__
"""The device of the TensorImpl, whatever `Tensor.device` is replaced by."""
is_meta: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]
"""Whether a TensorImpl is on the meta device, whatever `Tensor.is_meta` is replaced by."""

current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node the autograd engine is evaluating on this thread, or None."""

_OWNERS, STORAGE_OWNERS = 4, 2
"""What a tensor counts in a dispatch mode that only one variable outside holds; see the test."""


def _references(thing: object) -> int:
    return sys.getrefcount(thing)


def _references_of_counting() -> int:
    """What `_references` itself adds: none from Python 3.14 on, which lends arguments."""
    thing = object()
    return _references(thing) - 1


_COUNTING = _references_of_counting()


def storage_owners(tensor: torch.Tensor) -> int:
    """How many tensors and other C++ variables hold a tensor's storage, this call's among them."""
    storage: Any = tensor.untyped_storage()
    owners: int = torch._C._storage_Use_Count(storage._cdata)
    return owners


def is_held_once(tensor: torch.Tensor, references: int) -> bool:
    """An operator's argument that one C++ variable holds, and Python only so often, by the caller.

    The caller gives a name that it has for it, and counts it.
    Such a tensor could be overwritten with its storage, unobserved.
    """
    return (
        sys.getrefcount(tensor) == references + 1 + _COUNTING
        and tensor._use_count() == _OWNERS  # type: ignore[attr-defined]
        and storage_owners(tensor) == STORAGE_OWNERS
    )


next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""What the next autograd node made on this thread will carry."""

below_autograd: Callable[[], AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd


def include_autocast_key() -> AbstractContextManager[None]:
    """Dispatch through the autocast kernels registered for the virtual GPU, on this thread."""
    guard: AbstractContextManager[None] = torch._C._IncludeDispatchKeyGuard(AUTOCAST_KEY)
    return guard


def exclude_autocast_key() -> AbstractContextManager[None]:
    guard: AbstractContextManager[None] = torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS)
    return guard


def autocast_operators() -> list[str]:
    """Operators ("aten::mm") that have a CUDA autocast kernel in this build of torch."""
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    return names


def has_composite_kernel(operator: OpOverload) -> bool:
    """The operator is only a composition of others (CompositeImplicitAutograd)."""
    is_composite: bool = torch._C._dispatch_has_kernel_for_dispatch_key(
        operator.name(), DispatchKey.CompositeImplicitAutograd
    )
    return is_composite


@contextmanager
def lift_cpu_tensors_only() -> Iterator[None]:
    """Let `torch.tensor(..., device=...)` reach dispatch modes, not the device's own guard."""
    was: bool = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(was)


PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
"""Classes whose tensors hold data and no other tensors."""

make_wrapper: Callable[..., torch.Tensor] = torch.Tensor._make_wrapper_subclass
"""A tensor of a subclass that has shape and device, and holds other tensors instead of data."""


def tensors_inside(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a wrapper subclass holds, at any depth; a plain tensor itself."""
    if type(tensor) in PLAIN_TENSORS or not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    held_tensors = (held for held in inner if isinstance(held, torch.Tensor))  # no device mesh
    return [plain for held in held_tensors for plain in tensors_inside(held)]


def names_inside(tensor: torch.Tensor) -> list[str]:
    """Attributes in which a wrapper subclass holds its tensors, and its device mesh."""
    if not is_traceable_wrapper_subclass(tensor):
        return []
    names: list[str] = tensor.__tensor_flatten__()[0]
    return names


def with_inside(
    tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """A tensor of the same class that holds other tensors; a plain one is another itself."""
    if type(tensor) in PLAIN_TENSORS or not is_traceable_wrapper_subclass(tensor):
        return function(tensor)
    names, context = tensor.__tensor_flatten__()
    held = {name: getattr(tensor, name) for name in names}
    inner = {
        name: with_inside(value, function) if isinstance(value, torch.Tensor) else value
        for name, value in held.items()
    }
    result: torch.Tensor = type(tensor).__tensor_unflatten__(
        inner, context, tensor.shape, tensor.stride()
    )
    return result


def unwrap(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below `torch.func` transforms' wrappers, itself when there are none."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def engine_code() -> Any:
    """Code of the frame under which the autograd engine runs: below it is backward."""
    return torch.autograd.graph._engine_run_backward.__code__


AUTOGRAD_ENGINE = PrivateName(torch.autograd.Variable, "_execution_engine")


def run_engine(
    tensors: Any, grad_tensors: Any, keep_graph: bool, create_graph: bool, inputs: Any = (),
    allow_unreachable: bool = False, accumulate_grad: bool = False,
) -> Any:  # fmt: skip
    """The engine's `run_backward` (torch/csrc/autograd/python_engine.cpp), within that frame."""
    return torch.autograd.graph._engine_run_backward(
        tensors,
        *(grad_tensors, keep_graph, create_graph, inputs),
        allow_unreachable=allow_unreachable,
        accumulate_grad=accumulate_grad,
    )


def recompute_codes() -> tuple[Any, ...]:
    """Code under which `torch.utils.checkpoint`, either kind, runs a forward again."""
    import torch.utils.checkpoint as checkpoint

    # Which function it is defined in depends on the version.
    recompute = [
        code
        for function in vars(checkpoint).values()
        if isinstance(function, FunctionType)
        for code in function.__code__.co_consts
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

    Calls the CPU's kernel by its dispatch key. It reads shapes and strides and no data, so it works
    on meta tensors.
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
"""Kinds of devices on which optimizers default to `foreach`."""

group_tensors: Callable[..., Any] = torch._C._group_tensors_by_device_and_dtype


@contextmanager
def autocast_on_backend() -> Iterator[None]:
    """Autocast keys are excluded unless autocast is on: turn it on for this backend.

    See `default_excluded_set` in c10/core/impl/LocalDispatchKeySet.h.
    """
    was = torch.is_autocast_enabled("privateuseone")
    torch.set_autocast_enabled("privateuseone", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("privateuseone", was)


@contextmanager
def keep_default_device() -> Iterator[None]:
    """Undo a default device set inside (`torch.set_default_device("cuda")`)."""
    context: Any = torch._GLOBAL_DEVICE_CONTEXT
    before = getattr(context, "device_context", None)
    try:
        yield
    finally:
        if getattr(context, "device_context", None) is not before:
            torch.set_default_device(None if before is None else before.device)


@contextmanager
def let_higher_order_operators_reach_modes() -> Iterator[None]:
    """Have operators on functions (`flex_attention`, `cond`) pass our autocast key by.

    They look for a kernel for every key that is not registered as a fallthrough (torch/_ops.py).
    """
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


has_compatible_type: Callable[[torch.Tensor, torch.Tensor], bool] = (
    torch._has_compatible_shallow_copy_type
)
"""Whether `.data` of one tensor may be set to the other."""

neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
"""The tensor with its negative bit flipped: the same storage."""

rebuild_tensor: Callable[..., torch.Tensor] = torch._utils._rebuild_tensor

to_copy: Callable[..., torch.Tensor] = torch.ops.aten._to_copy.default


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows the tensor as a view of another."""
    return tensor._is_view()


def storage_identity(tensor: torch.Tensor) -> int:
    """The address of a tensor's StorageImpl: the same for all Python objects of one storage."""
    return int(tensor.untyped_storage()._cdata)


def generator_identity(generator: torch.Generator) -> int:
    """The address of a GeneratorImpl: operators get it in another Python object."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def untyped_storage(storage: Any) -> torch.UntypedStorage:
    """The bytes below a TypedStorage, without the warning that its public property gives."""
    storage_bytes: torch.UntypedStorage = storage._untyped_storage
    return storage_bytes


def device_of_gradient(shape: torch.Size) -> torch.device | None:
    """The true device that the engine expects of a gradient of the node being evaluated.

    That of the first forward input of this shape; None where no input has it.
    """
    node = current_autograd_node()
    for next_node, number in () if node is None else node.next_functions:
        if next_node is not None:
            metadata = next_node._input_metadata[number]
            if tuple(metadata.shape) == tuple(shape):
                return metadata.device  # type: ignore[no-any-return]
    return None


def sequence_number(node: Any) -> int:
    """The number of an autograd node, in the order in which this thread's forward made them."""
    return int(node._sequence_nr())


def schema(overload: OpOverload) -> Any:
    return overload._schema


def overload_name(overload: OpOverload) -> str:
    return str(overload._overloadname)


def function_of_custom_operator(name: str, device_type: str) -> Callable[..., Any] | None:
    """The Python function of "namespace::name" for a device; None of an operator that is none of
    `torch.library.custom_op`, or has none.
    """
    definition = _CUSTOM.get(name.split(".")[0])
    if definition is None:
        return None
    functions: dict[str | None, Callable[..., Any]] = definition._backend_fns
    return functions.get(device_type) or functions.get(None)


def higher_order_name(operator: HigherOrderOperator) -> str:
    return str(operator._name)


def destroy(library: torch.library.Library) -> None:
    """Take a library's kernels out of the dispatcher now, not when it is collected."""
    library._destroy()


def run_composite_kernel(overload: OpOverload, *args: Any) -> Any:
    """The C++ composition of an operator, which `decompose` would pass over for one in Python."""
    return overload._op_dk(DispatchKey.CompositeImplicitAutograd, *args)


def onednn_has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def onednn_has_float16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def default_device() -> torch.device | None:
    """The device of the innermost `with torch.device(...)`; None outside of any."""
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            device: torch.device = mode.device
            return device
    return None


device_constructors: Any = torch.utils._device._device_constructors
"""The factories that `with torch.device(...)` knows, by identity; `cache_clear` forgets them."""


def builtin_table() -> dict[int, str]:
    """Operators by the id of the Python function, as TorchScript compiles them."""
    table: dict[int, str] = jit_builtins._get_builtin_table()
    return table


def compiler_frames() -> ModuleType | None:
    """`torch._dynamo.eval_frame` where something has imported it."""
    return sys.modules.get(DYNAMO_FRAMES)


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether it was compiled, by `torch.compile(module)`, or in place by `module.compile()`."""
    frames = compiler_frames()
    is_wrapper = frames is not None and isinstance(module, frames.OptimizedModule)
    return is_wrapper or module._compiled_call_impl is not None


def original_module(module: torch.nn.Module) -> torch.nn.Module | None:
    """What `torch.compile(module)` was called with; None for a module that it did not return."""
    frames = compiler_frames()
    if frames is None or not isinstance(module, frames.OptimizedModule):
        return None
    original: torch.nn.Module = module._orig_mod
    return original


def frame_converters() -> tuple[PrivateName, ...]:
    """What compiles a frame of a function that was decorated for it, where Dynamo is loaded."""
    module: Any = sys.modules.get(DYNAMO_CONVERTERS)
    return () if module is None else (PrivateName(module.CatchErrorsWrapper, "__call__"),)


def frame_left_alone() -> Any:
    """The answer of a converter for a frame that runs as it is."""
    module: Any = sys.modules[DYNAMO_TYPES]
    return module.ConvertFrameReturn()


def is_torchs_own(module: torch.nn.Module) -> bool:
    """A class of torch.nn, whose frames Dynamo does not convert: its `compile` does nothing."""
    return type(module).forward.__module__.startswith("torch.nn.")


def compile_in_place(module: torch.nn.Module) -> None:
    """`torch.compile(module)`, in place."""
    if not is_torchs_own(module):
        module.compile()
        return
    from torch._dynamo.external_utils import wrap_inline

    module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl))


def module_compiled_in_place(function: Any) -> torch.nn.Module | None:
    """That whose `compile` hands this to torch.compile."""
    owner = getattr(function, "__self__", None)
    is_call = getattr(function, "__name__", "") == "_call_impl"
    return owner if is_call and isinstance(owner, torch.nn.Module) else None


def scale_in_step(optimizer: torch.optim.Optimizer) -> None:
    """Tell GradScaler that the optimizer's kernel unscales gradients itself, as fused ones do."""
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def has_dispatch_modes() -> bool:
    """Whether an operator of this thread meets any."""
    return bool(torch._C._len_torch_dispatch_stack())


def without_dispatch_modes() -> AbstractContextManager[Any]:
    modes: AbstractContextManager[Any] = _disable_current_modes()
    return modes


FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Attributes of a module with the hooks of its forward."""
