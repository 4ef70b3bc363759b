"""The dispatch mode that executes every operator for the virtual device, below autograd.

It decides which device a call belongs to, runs the call on meta tensors, assigns new storages to
their device, keeps small values, and notifies the observer. Operators that need more have a handler
in `SPECIAL` (see `special.py`).
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.errors import UnsupportedError
from torchtally.memory.allocator import Block
from torchtally.memory.workspace import (
    Workspace,
    adds_bias,
    blas_lt_workspace,
    blas_workspace,
    has_scratch,
    scratch,
    scratch_before_results,
    uses_blas,
)
from torchtally.torch_private import HigherOrderOperator, OpOverload, TorchDispatchMode, releases
from torchtally.trace import Call, World
from torchtally.virtual import kernels, values
from torchtally.virtual.arguments import (
    drops,
    float_bytes,
    in_order_of_allocation,
    is_all_on_host,
    is_elementwise_on_lists,
    is_from_options,
    settings_of,
    without_device,
)
from torchtally.virtual.attended import literals_of
from torchtally.virtual.capture import FORBIDDEN, Capture
from torchtally.virtual.depth import INSIDE, OperatorDepth, Presence
from torchtally.virtual.description import describe
from torchtally.virtual.device_checks import check_generator, check_same_device
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.distributed.groups import ProcessGroups
from torchtally.virtual.extensions import custom_operators
from torchtally.virtual.extensions.declared import declaration_of, is_anything_declared
from torchtally.virtual.facts import is_uninformed, rule_of
from torchtally.virtual.invocation import META, Invocation, replace_tensors, tensors_in
from torchtally.virtual.observer import NullObserver, Observer
from torchtally.virtual.operators import Operator, learn
from torchtally.virtual.own_code import never_compiled
from torchtally.virtual.script_time import SCRIPT_TIME
from torchtally.virtual.shapes import SHAPES
from torchtally.virtual.storage import (
    HostMemory,
    Overwritten,
    VirtualStorage,
    make_virtual,
    pin,
    virtual_of,
)
from torchtally.virtual.streams import current_stream_number
from torchtally.virtual.templates import template_of
from torchtally.virtual.value_keeper import ValueKeeper, give_derived, inside_backward
from torchtally.virtual.waits import HostWait, host_wait, pins_result

ScratchRules = Callable[[Call, Chip], tuple[Workspace, ...]]
KernelTime = Callable[[Call], float]
"""Predicted seconds of a call by itself, on the device."""


def no_time(call: Call) -> float:
    """Time of a session that predicts none."""
    return 0.0


FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)
"""torch's own words (torch/cuda/__init__.py)."""

RANDOM_OPERATOR = 2
"""Place of the operator among the arguments of DTensor's higher-order one: behind two offsets."""

PLAIN: Any = Tensor.__torch_dispatch__
"""Of classes whose tensors do not dispatch themselves; some of their tensors are listed anyway."""


WITH_RANDOM_STATE = ("graphsafe_run_with_rng_state",)
UNIFIED = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"

Handler = Callable[["VirtualDispatch", Invocation], Any]
SPECIAL: dict[OpOverload, Handler] = {}
"""Operators that need more than a shape function; filled by `special.py`."""


class VirtualDispatch(TorchDispatchMode):
    """Executes operators for the virtual GPUs of one session. One object serves all threads."""

    def __init__(
        self,
        gpus: list[DeviceMemory],
        host: HostMemory,
        observer: Observer,
        world: World = World(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpus = gpus
        self.host = host
        self.observer = observer
        self.random = [values.RandomState() for _ in gpus]
        self.current_device = 0
        self.groups = ProcessGroups(world)
        self.values = ValueKeeper(host, observer, lambda: self.random[self.current_device])
        self.budget = values.HostBudget()
        self.is_active = True
        self._presence = Presence()
        self.is_counted = False
        """The script has asked how many GPUs there are."""
        self.capture: Capture | None = None
        """The CUDA graph's that is being captured."""
        self.run_sparse: Handler = refuse_sparse
        """What runs a call with sparse tensors; set by the session."""
        self.target: Chip | None = None
        """The chip simulated."""
        self.nonzero_fraction = 1.0
        """Share of a mask assumed true where a shape depends on unknown values."""
        self.kernel_s: KernelTime = no_time
        self.last_home: DeviceMemory | HostMemory | None = None
        """Where the last operator's results went: factories inside a C++ composition follow it."""
        self.operators: dict[int, Operator] = {}
        """By the overload's id: `OpOverload.__hash__` is a Python function (torch/_ops.py)."""
        self._scratch: dict[tuple[Any, ...], tuple[tuple[int, str], ...]] = {}
        self._checked: set[int] = set()
        """Signatures of in-place calls whose shapes torch has accepted."""
        self._node = -1
        """Sequence number of the autograd node that last allocated; ids of its storages below."""
        self._made_by_node: set[int] = set()

    def __enter__(self) -> Any:
        self._presence.depth += 1
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        self._presence.depth -= 1
        super().__exit__(*exc)  # type: ignore[no-untyped-call]

    @property
    def is_here(self) -> bool:
        """Operators of this thread arrive here."""
        return self._presence.depth > 0

    def check_place(self) -> None:
        """Raise in a forked process, as torch does, and in a thread that would not be seen."""
        if not self.is_active:
            raise RuntimeError(FORKED)
        if not self.is_here:
            raise UnsupportedError(
                f"the thread {threading.current_thread().name!r} was started before the virtual "
                "GPU: tally would not see its operators.\n"
                "Start the thread inside, or give its work to a pool."
            )

    supports_higher_order_operators = True
    """Else torch raises an error of its own for them, about this class (torch/_ops.py)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch/utils/_python_dispatch.py would import the compiler to say True (1.3 s)."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: else Dynamo leaves the script's frames alone, as it would see this mode's."""
        return True

    @never_compiled
    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Subclasses among the arguments dispatch themselves, and what they do inside arrives here
        # (`dispatch_on_mode` and `dispatch_on_subclass`, torch/csrc/utils/python_arg_parser.cpp).
        if types and any(kind.__torch_dispatch__ is not PLAIN for kind in types):
            return NotImplemented
        if isinstance(func, HigherOrderOperator):
            if private.higher_order_name(func) in WITH_RANDOM_STATE:
                # Which state a compiled program draws from changes nothing here.
                kwargs = {key: each for key, each in (kwargs or {}).items() if key != "rng_state"}
                with self:
                    return args[0](*args[1:], **kwargs)
            if private.higher_order_name(func) == private.DTENSOR_RANDOM:
                with self:
                    return args[RANDOM_OPERATOR](*args[RANDOM_OPERATOR + 1 :], **(kwargs or {}))
            raise UnsupportedError(
                f"{private.higher_order_name(func)} is a higher-order operator, which tally's "
                "simulated GPU cannot run yet.\nWrite it without, in plain Python."
            )
        SCRIPT_TIME.stop()
        try:
            operator = self.operators.get(id(func)) or self.operator(func)
            if operator.is_plain_on_host and not kwargs and is_all_on_host(args):
                return self.run_plainly(func, args)
            call = Invocation(operator, args, kwargs or {})
            if not self.is_active:
                return in_child(call)
            handler = operator.handler
            return self.run(call) if handler is None else handler(self, call)
        finally:
            SCRIPT_TIME.go()

    def run_plainly(self, overload: OpOverload, args: tuple[Any, ...]) -> Any:
        """A call on real host tensors alone: most of what a data loader does."""
        self.observer.host_operator_ran()
        return SCRIPT_TIME.run(overload, args, {})

    def leave_in_child(self) -> None:
        """Runs everything for real from now on, and records nothing: in a forked process."""
        self.is_active = False
        self.observer = NullObserver()
        for gpu in self.gpus:
            gpu.observer = None
        # The class attribute is what threads start with: tensors report real devices in all.
        OperatorDepth.depth = INSIDE.depth = 1

    def operator(self, overload: OpOverload) -> Operator:
        """Facts of an overload, looked up in its schema the first time."""
        operator = self.operators.get(id(overload))
        if operator is None:
            name = overload.name().split(".")[0].replace("::", ".")
            operator = self.operators[id(overload)] = learn(
                overload,
                SPECIAL.get(overload) or custom_operators.handler_of(overload),
                rule_of(name),
                needs_facts=not is_uninformed(name),
            )
        return operator

    def call(self, overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Run and record one more operator, as part of the one being handled."""
        return self.run(Invocation(self.operator(overload), args, kwargs))

    def home_of(self, device: torch.device) -> DeviceMemory | HostMemory | None:
        """The memory that holds a device's storages; None for a device that is not simulated."""
        if device.type == "cuda":
            index = self.current_device if device.index is None else device.index
            if index >= len(self.gpus):
                raise RuntimeError(
                    "CUDA error: invalid device ordinal\n"
                    f"cuda:{index} was requested; this run simulates {len(self.gpus)} GPU(s)."
                )
            return self.gpus[index]
        return self.host if device.type == "cpu" else None

    def run(self, call: Invocation) -> Any:
        """Run a call on the device that its tensors and its `device` argument name."""
        # A device beats the host: TensorIterator (ATen/TensorIterator.cpp, `compute_types`) takes
        # the common device from the first tensor that is not a zero-dimensional one of the CPU.
        home: Any = None
        mixes = False
        for virtual in call.virtuals:
            if virtual is None:
                mixes = True
            elif home is None or home is self.host:
                mixes = mixes or home is self.host
                home = virtual.home
            elif virtual.home is not home:
                mixes = True
        # Memory of a CUDA graph's last replay, which the next one reuses: torch raises here, too
        # (`dealloc_current_path_weakrefs`, torch/_inductor/cudagraph_trees.py).
        if home.__class__ is Overwritten:
            home.refuse()
        result_home = home
        device = call.kwargs.get("device")
        if device is not None:
            if device.type == "meta":
                # The user wants a meta tensor; or C++ took `Tensor::options()` from a virtual one,
                # whose TensorImpl says meta, and the result belongs to the virtual device.
                if home is None and is_from_options(call):
                    home = self.last_home
                if home is None:
                    return self.execute(call.operator.overload, call.args, call.kwargs)
                result_home = home
            else:
                # `_to_copy` to another device: checked where its input is, kept where it goes.
                result_home = self.home_of(device)
                home = home or (result_home if result_home is not self.host else None)
        if home is None:
            return self.run_on_host(call)
        if mixes and home is not self.host:
            check_same_device(call)
        return self.run_virtual(call, result_home, mixes)

    # On the host.

    def run_on_host(self, call: Invocation) -> Any:
        """A call without virtual tensors, run for real; big float factories become virtual."""
        self.observer.host_operator_ran()
        kwargs = call.kwargs
        pinned = kwargs.get("pin_memory")
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}  # torch pins by the CUDA driver
        if call.operator.is_factory and (nbytes := float_bytes(call)):
            if not self.budget.has_room(nbytes):
                meta = self.execute(call.operator.overload, call.args, without_device(kwargs, META))
                return self.on_host_without_values(call, meta, is_pinned=bool(pinned))
            result = call.operator.overload(*call.args, **kwargs)
            self.budget.hold(result)
        else:
            result = SCRIPT_TIME.run(call.operator.overload, call.args, kwargs)
        if pinned and isinstance(result, Tensor):
            pin(result)
        return result

    def on_host_without_values(self, call: Invocation, meta: Tensor, *, is_pinned: bool) -> Tensor:
        """A big tensor of the host's, of which only facts are kept."""
        make_virtual(meta, self.host)
        give_derived([meta], call)
        if is_pinned:
            pin(meta)
        return meta

    # On a virtual device.

    def run_virtual(self, call: Invocation, home: Any, mixes: bool) -> Any:
        """Run on meta tensors; results belong to `home`."""
        operator = call.operator
        if any(tensor.layout is not torch.strided for tensor in call.inputs):
            return self.run_sparse(self, call)
        # Composite operators decompose at autograd's keys. Under inference mode those keys are
        # excluded (c10/core/InferenceMode.h), so the operator arrives whole. Torch takes this mode
        # off the stack while it runs: `with self` puts it back for the parts.
        if operator.is_composite and operator.overload not in SHAPES:
            with self:
                return kernels.branch_of(operator.overload)(*call.args, **call.kwargs)
        if (generator := call.kwargs.get("generator")) is not None:
            check_generator(generator, home)
        self.last_home = home
        if operator.product is not None and self.target is not None:
            call.settings = settings_of(call)
        if operator.is_attention:
            call.settings = (*literals_of(call.named_inputs), *drops(call))
        if is_anything_declared() and (cost := declaration_of(operator.name)) is not None:
            call.settings = (*call.settings, *cost.literals(dict(call.named_arguments)))
        if operator.is_view:
            return self.finish(call, self.execute_as_meta(call, mixes), home)
        # Results depend on the signature alone: known ones are built without the meta kernel.
        signature = call.signature
        template = operator.templates.get(signature)
        if template is not None:
            return self.finish(call, template.build(), home)
        # In place, the result is the first argument. The meta kernel only checks shapes, once.
        if operator.is_inplace:
            if signature not in self._checked:
                if not is_elementwise_on_lists(call):
                    self.execute_as_meta(call, mixes)
                self._checked.add(signature)
            return self.finish(call, call.args[0] if operator.returns_self else None, home)
        result = self.execute_as_meta(call, mixes)
        if not operator.is_mutating and (learnt := template_of(result)) is not None:
            operator.templates[signature] = learnt
        return self.finish(call, result, home)

    def execute_as_meta(self, call: Invocation, mixes: bool) -> Any:
        """The operator with host tensors replaced by meta tensors of the same shapes."""
        args, kwargs = call.args, call.kwargs
        # Meta kernels refuse a mixture of cpu and meta, which stands for one of cpu and cuda here.
        if mixes and call.has_real:
            stand_in = {
                id(tensor): torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META
                )
                for tensor in call.inputs
                if not private.is_meta(tensor)
            }
            args = replace_tensors(args, stand_in)
            kwargs = {name: replace_tensors(arg, stand_in) for name, arg in kwargs.items()}
        return self.execute(call.operator.overload, args, without_device(kwargs, META))

    def execute(self, overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator on meta tensors."""
        function = SHAPES.get(overload, overload)
        # torch's meta kernels in Python read `tensor.device` and compare (`check_same_device` in
        # torch/_prims_common).
        INSIDE.depth += 1  # as `as_meta` does
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"tally cannot run {overload} on the simulated GPU: torch {torch.__version__} "
                "has no shape function (meta kernel) for it.\nReplace the operator, register "
                "one by torch.library.register_fake, or run this part on the CPU."
            ) from error
        finally:
            INSIDE.depth -= 1

    def finish(self, call: Invocation, result: Any, home: Any) -> Any:
        """Assign new storages to their device, keep values, and notify the observer."""
        outputs = tensors_in(result)
        is_new = False
        # Attention's seed and offset are on the host, but where a graph captures (`HOST_RESULTS`).
        if call.operator.host_results and self.capture is None:
            for place in call.operator.host_results:
                make_virtual(outputs[place], self.host)
        held: list[Block] = []
        if call.operator.copies_before_results and isinstance(home, DeviceMemory):
            held = home.take_scratch(self.scratch_of(call, outputs, scratch_before_results))
        # In the order of the CUDA kernel: the caching allocator's blocks depend on it.
        for tensor in in_order_of_allocation(outputs, call.operator.allocation_order):
            if tensor.layout is not torch.strided:
                continue  # a sparse tensor's indices and values are tensors of their own
            # A view shares its base's StorageImpl, hence the Python object that carries `virtual`.
            storage = tensor.untyped_storage()
            if getattr(storage, "virtual", None) is None and private.is_meta(tensor):
                virtual = VirtualStorage(home, storage.nbytes())
                storage.virtual = virtual  # type: ignore[attr-defined]
                self.note_maker(virtual)
                is_new = True
        # `resize_`, `set_` and out= may reallocate (`resize_bytes_meta`, ATen/native/Resize.h).
        if call.operator.is_mutating and not call.operator.is_inplace:
            self.notice_resizes(call)
        if held and isinstance(home, DeviceMemory):
            home.free_scratch(held)
        # After the results: a structured kernel allocates these before its `impl` asks cuBLAS for a
        # handle (torchgen/dest/register_dispatch_key.py).
        if call.operator.takes_workspace and isinstance(home, DeviceMemory):
            self.take_workspaces(call, outputs, home)
        pins = home is self.host and pins_result(call)
        if pins:
            pin(result)  # before the recorder looks
        self.notify(call, outputs, home)
        if is_new or call.operator.is_mutating:
            result = self.values.keep(call, outputs, result, home)
            if pins:
                pin(result)  # on the host it may be another tensor now, with real values
        return result

    def notify(self, call: Invocation, outputs: Sequence[Tensor], home: Any) -> None:
        """Notify the observer of the operator, and of the host's wait for it, if any."""
        on_host = [virtual is None or virtual.home is self.host for virtual in call.virtuals]
        if home is self.host and all(on_host):
            self.observer.host_operator_ran()
            return
        if self.groups.promised and call.stream is None:
            self.groups.keep_promises(call.virtuals, self.wait_here)
        if self.groups.peers is not None and self.groups.peers.owners:
            call = self.groups.peers.as_transfer(call)
        if self.capture is not None:
            self.capture.add(self.observer.operator_captured(call, outputs), call, outputs)
        else:
            self.observer.operator_ran(call, outputs)
        match host_wait(call, on_host, is_to_host=home is self.host):
            case HostWait.DEVICE:
                self.host_waits()
            case HostWait.TRANSFER:
                self.check_capture()
                self.observer.host_waited()

    def wait_here(self, stream: int, until: int) -> None:
        """The current stream waits for what another was given before a tick."""
        self.observer.stream_waited(current_stream_number(), stream, until)

    def take_workspaces(
        self, call: Invocation, outputs: Sequence[Tensor], memory: DeviceMemory
    ) -> None:
        """What the call needs besides its results: a library's workspace, or scratch memory."""
        chip, name = self.target, call.operator.name
        if chip is None or not chip.is_cuda:
            return
        # One workspace per handle and stream, kept (ATen/cuda/CublasHandlePool.cpp). Handles belong
        # to threads, and the engine runs CUDA's backward in a thread per device.
        if uses_blas(name):
            is_backward = inside_backward()
            workspace = blas_workspace(chip, os.environ)
            memory.need_library(workspace, is_backward=is_backward)
            shares = os.environ.get(UNIFIED, "0" if releases.HERE.has_lt_workspace else "1") == "1"
            if not shares and adds_bias(name, call.inputs[0].dim()):
                memory.need_library(blas_lt_workspace(os.environ), is_backward=is_backward)
        if has_scratch(name):
            memory.use_workspaces(self.scratch_of(call, outputs, scratch))

    def scratch_of(
        self, call: Invocation, outputs: Sequence[Tensor], rules: ScratchRules
    ) -> tuple[tuple[int, str], ...]:
        """(bytes, name) of what a call takes by these rules."""
        chip = self.target
        if chip is None or not chip.is_cuda:
            return ()
        signature = (rules, call.signature, *(tensor.shape for tensor in outputs))
        sizes = self._scratch.get(signature)
        if sizes is None:
            workspaces = rules(describe(call, outputs), chip)
            sizes = tuple((workspace.bytes, workspace.kind.name) for workspace in workspaces)
            self._scratch[signature] = sizes
        return sizes

    def note_maker(self, virtual: VirtualStorage) -> None:
        """Remember which storages the autograd node being evaluated has allocated.

        By sequence number: addresses of nodes are reused within one backward pass.
        """
        node = private.current_autograd_node()
        if node is not None:
            number = private.sequence_number(node)
            if self._node != number:
                self._node = number
                self._made_by_node.clear()
            self._made_by_node.add(id(virtual))

    def was_made_by(self, virtual: VirtualStorage, node: Any) -> bool:
        """Whether a storage was allocated in this evaluation of a node."""
        return self._node == private.sequence_number(node) and id(virtual) in self._made_by_node

    def host_waits(self) -> None:
        """The host waits until the device has done everything it was given."""
        self.check_capture()
        for gpu in self.gpus:
            gpu.synchronize()

    def check_capture(self) -> None:
        """Raise CUDA's error for what a CUDA graph cannot capture: the host would wait."""
        if self.capture is not None:
            raise RuntimeError(FORBIDDEN)

    def host_reads(self, virtual: VirtualStorage) -> None:
        """The script reads values: those on the device have to be waited for."""
        if virtual.home is not self.host:
            self.host_waits()

    def notice_resizes(self, call: Invocation) -> None:
        for tensor in call.inputs:
            # After `set_` a tensor has another storage, and its old one may be a view's still.
            if (virtual := virtual_of(tensor)) is not None:
                nbytes = tensor.untyped_storage().nbytes()
                if nbytes != virtual.requested_bytes:
                    virtual.resize(nbytes)


def refuse_sparse(mode: VirtualDispatch, call: Invocation) -> Any:
    raise UnsupportedError(f"{call.operator.overload}: sparse tensors are not simulated here.")


def in_child(call: Invocation) -> Any:
    """An operator in a forked worker: results on virtual host data are real zeros."""
    result = call.operator.overload(*call.args, **call.kwargs)
    if not call.is_virtual:
        return result
    return private.tree_map_only(
        Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype) if private.is_meta(t) else t, result
    )
