"""What the compiler is made of: Dynamo, AOTAutograd and inductor. Imported by the first script that
compiles, and by nothing else: it takes seconds.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.compiled_autograd as compiled_autograd
import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.device_interface as device_interface
import torch._dynamo.pgo as pgo
import torch._dynamo.repro.after_aot as after_aot
import torch._dynamo.symbolic_convert as symbolic_convert
import torch._dynamo.trace_rules as trace_rules
import torch._dynamo.types as dynamo_types
import torch._dynamo.utils as dynamo_utilities
import torch._dynamo.variables.builder as dynamo_builder
import torch._dynamo.variables.optimizer as dynamo_optimizer
import torch._dynamo.variables.torch as dynamo_torch
import torch._inductor.codecache as codecache
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
import torch._inductor.cpp_builder as cpp_builder
import torch._inductor.cudagraph_trees as cudagraph_trees
import torch._inductor.fx_passes.joint_graph as joint_graph
import torch._inductor.fx_passes.pad_mm as pad_mm
import torch._inductor.fx_passes.post_grad as post_grad
import torch._inductor.graph as lowering
import torch._inductor.ir as ir
import torch._inductor.output_code as output_code
import torch._inductor.runtime.coordinate_descent_tuner as coordinate_descent_tuner
import torch._inductor.runtime.hints as hints
import torch._inductor.scheduler as scheduling
import torch._inductor.select_algorithm as select_algorithm
import torch._inductor.utils as inductor_utils
import torch._subclasses.fake_tensor as fake_tensor
import torch._subclasses.functional_tensor as functional_tensor
import torch.fx.experimental.proxy_tensor as proxy_tensor
import torch.utils._python_dispatch as python_dispatch
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch.utils import _triton as triton_utilities

from torchtally.torch_private import accesses
from torchtally.torch_private.places import PrivateName

FakeTensor, FunctionalTensor = fake_tensor.FakeTensor, functional_tensor.FunctionalTensor
GraphLowering = lowering.GraphLowering
NopNode = scheduling.NopKernelSchedulerNode
ExternNode = scheduling.ExternKernelSchedulerNode

TRACED = (FakeTensor, FunctionalTensor)
"""Classes of the tensors that the compiler traces a program with."""

kernel_analysis = accesses.analysis

MAKE_SUBCLASS = PrivateName(torch.Tensor, "_make_subclass")
CONV_MEMORY_FORMAT = PrivateName(torch._C, "_conv_determine_backend_memory_format")
JOINT_GRAPH_PASSES = PrivateName(compile_fx, "_recursive_joint_graph_passes")
LAZY_INITS = (PrivateName(joint_graph, "lazy_init"), PrivateName(post_grad, "lazy_init"))
PADDING_KEY = PrivateName(pad_mm, "should_pad_bench_key")
CACHED_PADDING = PrivateName(pad_mm, "get_cached_should_pad")
"""Asked with the key of a product, before it is measured with padding and without."""
BENCHMARK = PrivateName(type(benchmarker), "benchmark_gpu")
AVOID_DEVICE_INIT = PrivateName(fake_tensor.FakeTensorMode, "avoid_device_init")
INIT_CONTEXT = PrivateName(fake_tensor, "init_gpu_context")
ENTER_NODE = PrivateName(scheduling.Scheduler, "enter_context")
COMPILE = PrivateName(compile_fx, "compile_fx")
CONVERTERS = (
    PrivateName(convert_frame.ConvertFrame, "__call__"),
    PrivateName(convert_frame.CatchErrorsWrapper, "__call__"),
)
"""What is called with a frame of the script, to compile it."""
COMPILE_GRAPH = PrivateName(compile_fx, "_compile_fx_inner")
RULES = PrivateName(trace_rules, "get_torch_obj_rule_map")
"""What Dynamo does with each of torch's functions, by identity; read once, and again when a process
group is made."""
GRAPH_BREAK = PrivateName(symbolic_convert.InstructionTranslatorBase, "log_graph_break")
RECOMPILE = PrivateName(convert_frame, "get_and_maybe_log_recompilation_reasons")
CAPTURES = (
    PrivateName(output_code, "cudagraph_post_compile"),
    PrivateName(output_code, "cudagraph_partition_post_compile"),
)
"""What makes a CUDA graph of a compiled one (`mode="reduce-overhead"`)."""
CAPTURE_SKIPS = tuple(
    PrivateName(module, "log_cudagraph_skip_and_bump_counter")
    for module in (output_code, cudagraph_trees, compile_fx)
)
TREE_CALLS = {
    name: PrivateName(torch._C, private_name)
    for name, private_name in {
        "begin_in_thread": "_cuda_beginAllocateCurrentThreadToPool",
        "end": "_cuda_endAllocateToPool",
        "release": "_cuda_releasePool",
        "get_state": "_cuda_getCheckpointState",
        "set_state": "_cuda_setCheckpointPoolState",
        "check_live": "_cuda_checkPoolLiveAllocations",
        "new_storage": "_construct_storage_from_data_pointer",
        "new_tensor": "_construct_CUDA_Tensor_From_Storage_And_Metadata",
        "free": "_free_And_Remove_DeleterFn",
        "are_at": "_tensors_data_ptrs_at_indices_equal",
        "set_tensor_error": "_set_storage_access_error_msg",
        "set_storage_error": "_set_storage_data_ptr_access_error_msg",
        "owns": "_has_Standard_Deleter",
        "get_conv_cache": "_cuda_get_conv_benchmark_empty_cache",
        "set_conv_cache": "_cudnn_set_conv_benchmark_empty_cache",
    }.items()
}
"""What trees of CUDA graphs ask C++ for (torch/csrc/cuda/Module.cpp)."""
CHOICES = PrivateName(select_algorithm.AlgorithmSelectorCache, "benchmark_choices")
BENCHMARK_INPUTS = PrivateName(select_algorithm.AlgorithmSelectorCache, "get_inputs")
"""Returns the tensors that choices are timed on."""
PRECOMPILE = PrivateName(select_algorithm.AlgorithmSelectorCache, "make_precompile_fn")
"""Returns what compiles templates before they are timed."""
COMPILE_NODES = PrivateName(scheduling.Scheduler, "compile_kernel")
BENCHMARK_NODES = PrivateName(scheduling.Scheduler, "benchmark_fused_nodes")
BENCHMARK_MODULE = PrivateName(scheduling.Scheduler, "benchmark_codegened_module")
"""How inductor times a product with what follows it fused, and that by itself."""
SPLIT_SIZE = PrivateName(coordinate_descent_tuner.CoordescTuner, "autotune_single_field")
"""Tries other sizes of a reduction's parts than the one that it is given."""
EXTERN_CHOICE = select_algorithm.ExternKernelCaller
EXTERN_KERNELS: Any = select_algorithm.extern_kernels
"""What a program calls of libraries, and functions of inductor's own among it: `bias_addmm`."""
PROGRAMS_ASKED = (
    PrivateName(after_aot, "_cuda_system_info_comment"),
    PrivateName(triton_utilities, "triton_hash_with_backend"),
    PrivateName(codecache, "triton_key"),
)
"""Functions that start nvcc and ptxas, for their versions, and that read all of Triton: text for
comments and keys of caches."""
PIPELINED = ("pipeline_max_autotune_gemm",)
"""Settings by which other processes time products (torch 2.13)."""
CPP_COMPILER = PrivateName(cpp_builder, "get_cpp_compiler")
"""It looks for one by starting it."""
DECOMPOSITIONS = (
    PrivateName(functional_tensor, "autograd_would_have_decomposed"),
    PrivateName(proxy_tensor, "autograd_would_have_decomposed"),
)
PROFILE_KEY = PrivateName(pgo, "get_cache_key")
EXCHANGES = (
    PrivateName(torch.cuda, "_exchange_device"),
    PrivateName(torch.cuda, "_maybe_exchange_device"),
)
OPTIMIZER_ARGUMENTS = PrivateName(dynamo_optimizer.OptimizerVariable, "get_python_args")
STEPS_TO_GPU = PrivateName(dynamo_optimizer.OptimizerVariable, "move_step_if_cpu")
"""Dynamo has an optimizer make its state, and moves the state's counters."""
InternalError = torch._dynamo.exc.InternalTorchDynamoError
"""Dynamo failed, and not the script."""
Restart = torch._dynamo.exc.RestartAnalysis
"""Dynamo wants to trace the function again, knowing more."""
RATES = tuple(PrivateName(module, "get_device_tflops") for module in (inductor_utils, scheduling))
BANDWIDTHS = tuple(
    PrivateName(module, "get_gpu_dram_gbps") for module in (inductor_utils, scheduling)
)
"""In 10^12 FLOP/s and 10^9 bytes/s: by nvidia-smi, and kept for the process."""
INTERFACE = device_interface.CudaInterface
INTERFACE_WORKER = device_interface.CudaInterface.Worker


def device_of_fakes(on_meta: torch.device) -> list[tuple[PrivateName, Any]]:
    """A fake tensor on "meta" is on this device: C++ takes the device that it was told for it."""

    def told(device: Any) -> torch.device:
        asked = torch.device(device)
        return on_meta if asked.type == "meta" else asked

    if hasattr(FakeTensor, "_normalize_fake_device"):  # torch 2.13
        native = FakeTensor._normalize_fake_device
        name = PrivateName(FakeTensor, "_normalize_fake_device")
        return [(name, staticmethod(lambda device: native(told(device))))]

    def get(tensor: Any) -> Any:
        return tensor.__dict__["_told_device"]

    def put(tensor: Any, device: Any) -> None:
        tensor.__dict__["_told_device"] = told(device)

    return [(PrivateName(FakeTensor, "fake_device"), property(get, put))]


@contextmanager
def decomposing_as_on_gpu() -> Iterator[None]:
    """Decompose composite operators of tensors whose keys have both CUDA's and meta's.

    The Python dispatcher asks for the kernel of the higher one, meta's, and where Python has a
    shape function for that it does not decompose (`resolve_key`, torch/_ops.py): the operator's
    gradient would be lost, with a warning of C++ at most.
    """
    key = torch._C.DispatchKey.AutogradMeta
    operators = [each for each in composites() if not each.has_kernel_for_dispatch_key(key)]
    for operator in operators:
        operator.py_kernels[key] = operator.decompose
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator in operators:
            del operator.py_kernels[key]
            operator._dispatch_cache.clear()


def composites() -> Iterator[Any]:
    """ATen's operators that decompose above autograd, and have shape functions in Python: those
    among the overloads that Python has made an object of.
    """
    keys = torch._C.DispatchKey
    for packet in list(vars(torch.ops.aten).values()):
        for overload in list(getattr(packet, "__dict__", {}).values()):
            if not isinstance(overload, OpOverload) or keys.Meta not in overload.py_kernels:
                continue
            if overload.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd):
                yield overload


def functional_device(tensor: Any) -> torch.device:
    inner = torch._from_functional_tensor(tensor.elem)
    return inner.device


def has_host_kernel(operator: Any) -> bool:
    """The operator has a kernel of its own on the CPU; then it has one on a GPU."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")


_modes_off: list[list[Any]] = []
"""The dispatch modes that were taken off this thread, innermost last."""


@contextmanager
def without_modes() -> Iterator[None]:
    """Take the dispatch modes off this thread, in which the compiler would see itself."""
    modes = []
    while torch._C._len_torch_dispatch_stack():
        modes.append(python_dispatch._pop_mode())
    _modes_off.append(modes)
    try:
        yield
    finally:
        for mode in reversed(_modes_off.pop()):
            python_dispatch._push_mode(mode)


def is_without_modes() -> bool:
    """Whether this is within `without_modes`."""
    return bool(_modes_off)


@contextmanager
def with_modes() -> Iterator[None]:
    """Context within `without_modes`: for what the compiler has run for real."""
    modes = _modes_off[-1] if _modes_off else []
    for mode in reversed(modes):
        python_dispatch._push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            python_dispatch._pop_mode()


def skip_modules(names: Sequence[str]) -> None:
    """Dynamo does not look into their frames."""
    for name in names:
        trace_rules.add(name)


_taken: dict[int, Callable[..., Any]] = {}
"""Functions that Dynamo knows by their ids, which are therefore kept."""


FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
"""They make a tensor on the host, and move it in C++."""


def current_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


torch._dynamo.assume_constant_result(current_gpu)


def take_for(stand_in: Callable[..., Any], native: Callable[..., Any]) -> None:
    """Dynamo takes a function for what it stands for, from now on: it cannot forget."""
    if id(stand_in) in _taken:
        return
    _taken[id(stand_in)] = stand_in

    def inlined(*args: Any, **kwargs: Any) -> Any:
        return native(*args, **kwargs)

    def inlined_on_device(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        # "cuda" without a number: C++ would ask a GPU for the current one.
        if device is not None:
            device = torch.device(device)
            if device.type == "cuda" and device.index is None:
                device = current_gpu()
        return native(*args, device=device, **kwargs)

    inlined = inlined_on_device if native in FROM_DATA else inlined
    torch._dynamo.substitute_in_graph(stand_in, skip_signature_check=True)(inlined)


FOLDED: tuple[Any, ...] = (
    dynamo_torch.constant_fold_functions,
    dynamo_torch.constant_fold_functions_need_guards,
)
"""Functions that Dynamo calls while it traces; their answers are constants of the graph."""


def is_folded(function: Any) -> bool:
    return any(function in table for table in FOLDED)


@contextmanager
def folding_too(pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Context in which what stands in such a function's stead is called then as well."""
    added = [(table, stand_in) for native, stand_in in pairs for table in FOLDED if native in table]
    for table, stand_in in added:
        table[stand_in] = None
    try:
        yield
    finally:
        for table, stand_in in added:
            table.pop(stand_in, None)


def take_for_constants(kind: type) -> None:
    """Objects of this type are constants of a graph, as a device and its properties are."""
    dynamo_utilities.common_constant_types.add(kind)
    builder: Any = dynamo_builder.SourcelessBuilder
    builder._type_handlers[kind] = builder._type_handlers[torch.device]


class Stepped:
    """Optimizers that compiled functions have stepped."""

    optimizers: tuple[torch.optim.Optimizer, ...] = ()


_stepped = Stepped()


def make_state(optimizer: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
    """An optimizer's state, of one group of parameters."""
    optimizer._init_group(*arguments, **named)


def step_begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Told that a step begins; of a graph nothing is done."""


def step_ends(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """An assignment, which Dynamo has the function make after its graph has run."""
    _stepped.optimizers = (*_stepped.optimizers, optimizer)


def take_stepped() -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers stepped since this was last asked."""
    optimizers, _stepped.optimizers = _stepped.optimizers, ()
    return optimizers


def skip_function(function: Callable[..., Any]) -> None:
    torch._dynamo.eval_frame.skip_code(function.__code__)


def skip_whole(function: Callable[..., Any]) -> None:
    """Dynamo looks into nothing that runs below it."""
    types: Any = dynamo_types
    frames: Any = torch._dynamo.eval_frame
    skip = types.FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, types.FrameExecStrategy(skip, skip))


OF_DEVICE = ("is_big_gpu", "get_max_num_sms", "using_b200", "get_backend_num_stages")
"""Functions of inductor's that keep what they have asked of the GPU, where a release has them."""


def forget_answers() -> None:
    """Torch keeps what it has found out about triton and the GPU."""
    of_device = [getattr(inductor_utils, name, None) for name in OF_DEVICE]
    properties = getattr(hints.DeviceProperties.create, "__func__", None)
    for answer in (*vars(triton_utilities).values(), *of_device, properties):
        if hasattr(answer, "cache_clear"):
            answer.cache_clear()


def reset() -> None:
    """Forget all that was compiled."""
    forget_answers()
    codecache.CacheBase.get_system.cache_clear()
    torch._dynamo.reset()


def reset_graphs() -> None:
    """Forget all CUDA graphs."""
    cudagraph_trees.reset_cudagraph_trees()


def begin_step() -> None:
    """What follows belongs to another iteration, as the script says."""
    cudagraph_trees.mark_step_begin()


def storage_of(reference: int) -> Any:
    """The storage of a weak reference to one that lives."""
    storages: Any = torch.UntypedStorage
    return storages._new_with_weak_ptr(reference)


def place_of_break(error: Any) -> tuple[str, int] | None:
    """(file, line) of the script where Dynamo ends a graph."""
    stack: Any = getattr(error, "real_stack", None) or torch._guards.TracingContext.extract_stack()
    return (stack[-1].filename, stack[-1].lineno) if stack else None


CACHE = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def settings() -> Iterator[None]:
    """Read and write no cache of the user's, and compile nothing in other processes."""
    folder = tempfile.mkdtemp(prefix="torchtally-inductor-")
    before = os.environ.get(CACHE)
    os.environ[CACHE] = folder
    quiet = {"automatic_dynamic_local_pgo": False, "automatic_dynamic_remote_pgo": False}
    with (
        inductor_config.patch(
            {
                "force_disable_caches": True,
                "compile_threads": 1,
                "fx_graph_cache": False,
                # It would build a program for each set of vector instructions, to try it; what
                # is written for the host is not built either (virtual/compiling/host.py).
                "cpp.vec_isa_ok": False,
                # What is fused behind a template is decided by times, which are predicted here
                # (virtual/compiling/choices.py); without them inductor would compile the kernel,
                # and look at its registers. Both need no processes that time on their own.
                "benchmark_epilogue_fusion": True,
                "autotune_in_subproc": False,
                **{name: False for name in PIPELINED if hasattr(inductor_config, name)},
            }
        ),
        torch._dynamo.config.patch(quiet),
    ):
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.environ.pop(CACHE)
            if before is not None:
                os.environ[CACHE] = before


@contextmanager
def triton_driver(driver: Any) -> Iterator[None]:
    """Have Triton ask this one; its own looks for a GPU. Raises ImportError without triton."""
    config: Any = import_module("triton.runtime").driver
    before = config._active
    config.set_active(driver)
    try:
        yield
    finally:
        config._active = before


def alignment(operand: torch.Tensor) -> int:
    """The number of elements that inductor pads to a multiple of."""
    return pad_mm.get_alignment_size(operand)


def padding(size: int, to_multiple: int) -> int:
    return pad_mm.get_padded_length(size, to_multiple)


def is_made_padded(match: Any, operand: str) -> bool:
    """Whether who computes this operand of a product can leave room for the padding."""
    return pad_mm.should_exclude_padding_time(match, operand)


def is_of_compiled_autograd() -> bool:
    """The graph that is lowered or run now was made of a whole backward pass by the engine."""
    return compiled_autograd.in_compiled_autograd_region


def number(size: Any) -> int:
    """Number that a size that is left open had when the graph was compiled."""
    sizes: Any = V.graph.sizevars
    hint = getattr(sizes, "optimization_hint", None) or sizes.size_hint  # torch 2.11
    return int(hint(size, fallback=0))


def operations_of_element(node: Any) -> Counter[str]:
    """How often a node of the scheduler computes what, by inductor's names, for each element that
    it goes over; a reduction by its kind. Nothing of a template.
    """
    body = getattr(node, "_body", None)
    if body is None:
        return Counter()
    counts = Counter(body.op_counts)
    # One reduction may have several results, which share its loop and have a node each.
    if counts.pop("reduction", 0) and not getattr(node.node.data, "output_index", 0):
        counts[str(node.node.get_reduction_type())] += 1
    return counts


def fused_node(scheduler: Any, nodes: Sequence[Any]) -> Any:
    """A node of the scheduler that is all of these, of which it knows nothing."""
    return nodes[0] if len(nodes) == 1 else scheduling.FusedSchedulerNode(scheduler, list(nodes))


def is_subgraph(node: Any) -> bool:
    """A call of a graph of its own, which a product was replaced by."""
    return isinstance(node.node, ir.SubgraphBuffer)


def bytes_of_buffer(buffer: Any) -> int:
    """Bytes of all its elements."""
    elements = prod(number(size) for size in buffer.get_size())
    return int(elements * buffer.get_dtype().itemsize)


def buffer_of(name: str) -> Any:
    """A graph's buffer or input; None of what has neither."""
    return V.graph.name_to_buffer.get(name) or V.graph.graph_inputs.get(name)


def root_of(graph: Any) -> Any:
    """The graph whose program calls this one."""
    while getattr(graph, "parent", None) is not None:
        graph = graph.parent
    return graph


def writer() -> Any:
    """What the wrapper of the graph that is being lowered is written with."""
    return V.graph.wrapper_code


def symbols_of(graph: Any) -> tuple[str, ...]:
    """Sizes that the graph is handed as numbers, by the names of its program's variables."""
    inputs = graph.graph_inputs.values()
    return tuple(each.name for each in inputs if getattr(each, "is_symbol", False))


def called_operators(graph: Any) -> frozenset[Any]:
    """Nodes of a graph that are calls of libraries and of ATen, and in no kernel that it writes."""
    calls = (each for each in graph.operations if isinstance(each, ir.ExternKernel))
    return frozenset(node for call in calls for node in nodes_of_call(call))


def nodes_of_call(call: Any) -> Iterator[Any]:
    """The node of a call. One that falls back to ATen has several origins, and the operator."""
    node = call.get_origin_node()
    if node is not None:
        yield node
    overload = getattr(call, "op_overload", None)
    yield from (each for each in call.get_origins() if each.target is overload)


def lowered_graph() -> Any:
    return V.graph
