"""The private calls into torch, each made once: an upgrade that moves one of them fails here."""

import ast
import importlib
import inspect
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.optim.swa_utils
import torch.utils.checkpoint
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.testing._internal.two_tensor import TwoTensor

from torchtally import torch_private as private
from torchtally.torch_private import flex, gpu, groups, names, releases, shards
from torchtally.virtual import session


def test_this_torch_is_one_of_those_the_calls_were_seen_on():
    version = releases.version_of(torch.__version__)
    assert releases.HERE.version == version, (
        f"look at every test here on torch {torch.__version__}, then add its release"
    )


def test_the_true_device_whatever_python_is_shown(monkeypatch: pytest.MonkeyPatch):
    x, y = torch.zeros(1), torch.zeros(1, device="meta")
    monkeypatch.setattr(Tensor, "device", property(lambda tensor: "shown"), raising=False)
    monkeypatch.setattr(Tensor, "is_meta", property(lambda tensor: False), raising=False)
    assert x.device == "shown"
    assert private.true_device(x) == torch.device("cpu")
    assert private.true_device(y) == torch.device("meta")
    assert private.is_meta(y)
    assert not private.is_meta(x)


def test_the_node_being_evaluated_and_its_sequence_number():
    seen: list[tuple[str, int]] = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            node = private.current_autograd_node()
            seen.append((node.name(), private.sequence_number(node)))
            return grad

    assert private.current_autograd_node() is None
    x = torch.ones(1, requires_grad=True)
    before = private.next_sequence_number()
    y = Probe.apply(x)
    assert private.next_sequence_number() == before + 1
    assert private.sequence_number(y.grad_fn) == before
    y.backward()
    assert seen == [("ProbeBackward", before)]


def test_how_many_hold_a_storage():
    """The tensor, and whoever asks; each view is one more."""
    x = torch.zeros(4, device="meta")
    assert private.storage_owners(x) == private.STORAGE_OWNERS == 2
    view = x[:2]
    assert private.storage_owners(x) == private.storage_owners(view) == 3
    del view
    assert private.storage_owners(x) == 2


def test_a_gradient_that_only_the_engine_holds():
    """The counts of a tensor that waits in the engine, as a dispatch mode meets it."""
    kept: list[object] = []
    answers: list[bool] = []

    class Adds(private.TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.add.Tensor and private.current_autograd_node() is not None:
                tensor = args[0]  # the arguments' reference, and this name's
                answers.append(private.is_held_once(tensor, 2))
            return func(*args, **(kwargs or {}))

    with Adds():
        leaf = torch.ones(3, 3, device="meta", requires_grad=True)
        x = leaf * 1
        (x.relu() + x.sigmoid()).sum().backward()
        assert answers == [True]
        x = leaf * 1
        one, other = x.relu(), x.sigmoid()
        other.grad_fn.register_hook(lambda inputs, outputs: kept.append(inputs))  # type: ignore[union-attr]
        one.grad_fn.register_hook(lambda inputs, outputs: kept.append(inputs))  # type: ignore[union-attr]
        (one + other).sum().backward()
        x = leaf * 1
        ((x.sigmoid() * 2 + x) + x).sum().backward()  # the first two are one tensor, held twice
        assert answers == [True, False, False, True]


def test_the_cpus_choice_of_an_attention_kernel_asked_with_meta_tensors():
    q = torch.empty(2, 4, 8, 16, device="meta")
    kv = torch.empty(2, 2, 8, 16, device="meta")
    assert private.host_chooses_flash(q, q, q, None, 0.0, True)
    assert private.host_chooses_flash(q, kv, kv, None, 0.0, True, enable_gqa=True)
    assert not private.host_chooses_flash(q, q, q, None, 0.1, True)
    without_batch = private.host_chooses_flash(q[0], q[0], q[0], None, 0.0, True)
    assert without_batch is releases.HERE.fuses_attention_of_3d
    with sdpa_kernel(SDPBackend.MATH):
        assert not private.host_chooses_flash(q, q, q)


def test_accumulation_nodes_have_no_number_of_their_own():
    x = torch.ones(1, requires_grad=True)
    ((node, _),) = (x * 2).grad_fn.next_functions[:1]  # type: ignore[union-attr]
    assert private.sequence_number(node) == private.ACCUMULATE_GRAD_SEQUENCE  # type: ignore[union-attr]
    assert node.variable is x  # type: ignore[union-attr]


def test_below_autograd_nothing_is_recorded():
    x = torch.ones(1, requires_grad=True)
    with private.below_autograd():
        assert (x * 2).grad_fn is None
    assert (x * 2).grad_fn is not None


def included() -> str:
    return str(torch._C._dispatch_tls_local_include_set())


def excluded() -> str:
    return str(torch._C._dispatch_tls_local_exclude_set())


def test_the_autocast_key_is_included_and_excluded_for_a_while():
    name = private.AUTOCAST_KEY.name
    with private.autocast_on_backend():
        assert name not in excluded()
        with private.include_autocast_key():
            assert name in included()
            with private.exclude_autocast_key():
                assert name in excluded()
        assert name not in included()
    assert name in excluded()


def test_operators_with_a_cuda_autocast_kernel():
    assert {"aten::mm", "aten::linear", "aten::softmax.int"} <= set(private.autocast_operators())


def test_composite_operators_are_known():
    aten = torch.ops.aten
    assert private.has_composite_kernel(aten.linear.default)
    assert private.has_composite_kernel(aten.matmul.default)
    assert not private.has_composite_kernel(aten.mm.default)


def test_lifting_host_tensors_only():
    assert not torch._C._only_lift_cpu_tensors()
    with private.lift_cpu_tensors_only():
        assert torch._C._only_lift_cpu_tensors()
    assert not torch._C._only_lift_cpu_tensors()


def test_tensors_below_the_wrappers_of_torch_func():
    x = torch.arange(3.0)
    seen: list[bool] = []

    def probe(inner: Tensor) -> Tensor:
        seen.append(inner is not x and private.unwrap(inner).data_ptr() == x.data_ptr())
        return inner.sum()

    torch.func.grad(probe)(x)
    torch.func.vmap(lambda y: (seen.append(private.unwrap(y).shape == (3,)), y)[1])(x)
    assert seen == [True, True]
    assert private.unwrap(x) is x


def codes_met(function) -> set[object]:
    """Code of every frame above a call of `function`'s argument."""
    import sys

    codes: set[object] = set()

    def look() -> None:
        frame = sys._getframe()
        while frame is not None:
            codes.add(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]

    function(look)
    return codes


def test_the_engines_code_is_above_every_hook():
    def backward(look) -> None:
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda grad: look())
        x.sum().backward()

    def gradient(look) -> None:
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda grad: look())
        torch.autograd.grad(x.sum(), x)

    assert private.engine_code() in codes_met(backward)
    assert private.engine_code() in codes_met(gradient)
    assert private.engine_code() not in codes_met(lambda look: look())


def test_the_engine_is_asked_within_its_frame():
    x, y, one = (torch.ones(1, requires_grad=requires) for requires in (True, True, False))

    def backward(look) -> None:
        x.register_hook(lambda grad: look())
        private.run_engine((2 * x,), (one,), False, create_graph=False, accumulate_grad=True)

    assert private.engine_code() in codes_met(backward)
    assert x.grad is not None
    assert x.grad.item() == 2
    assert [g.item() for g in private.run_engine((3 * y,), (one,), False, False, (y,))] == [3]
    owner, name = private.AUTOGRAD_ENGINE
    assert callable(getattr(owner, name).run_backward)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_code_of_recomputation_is_above_the_second_forward_only(use_reentrant: bool):
    runs: list[bool] = []

    def forward(x: Tensor) -> Tensor:
        met = codes_met(lambda look: look())
        runs.append(any(code in met for code in private.recompute_codes()))
        return x.sin()

    x = torch.ones(1, requires_grad=True)
    torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=use_reentrant).sum().backward()
    assert runs == [False, True]
    assert len(private.recompute_codes()) == 2


def test_tensors_swap_what_they_stand_for():
    p = torch.nn.Parameter(torch.tensor([1.0]))
    other = torch.tensor([2.0])
    private.swap_contents(p, other)
    assert isinstance(p, torch.nn.Parameter)
    assert p.tolist() == [2]
    assert other.tolist() == [1]


def test_tensors_are_grouped_by_device_and_dtype():
    a, b = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    groups = private.group_tensors([[a, b, a]], True)
    assert set(groups) == {
        (torch.device("cpu"), torch.float32),
        (torch.device("cpu"), torch.float64),
    }
    ((tensors,), indices) = groups[torch.device("cpu"), torch.float32]
    assert len(tensors) == 2
    assert indices == [0, 2]


def test_the_users_order_of_attention_backends():
    """Numbers of `SDPBackend`; the default is flash, efficient, math, cuDNN."""
    assert private.sdp_priority_order()[:4] == [1, 2, 0, 3]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        assert private.sdp_priority_order()[:2] == [2, 0]


def test_the_arguments_of_to_are_told_apart():
    assert private.parse_to("cpu", torch.float16, True) == (
        torch.device("cpu"), torch.float16, True, None,
    )  # fmt: skip
    assert private.parse_to(torch.int8)[:2] == (None, torch.int8)
    assert private.parse_to(memory_format=torch.channels_last)[3] is torch.channels_last


@pytest.mark.filterwarnings("ignore")
def test_every_setting_of_tf32_is_seen():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def allowed() -> list[str]:
        return [
            name
            for name in ("matmul", "conv", "rnn")
            if private.fp32_precision("cuda", name) == "tf32"
        ]

    assert allowed() == ["conv", "rnn"]
    try:
        torch.set_float32_matmul_precision("high")
        assert allowed() == ["matmul", "conv", "rnn"]
        matmul.allow_tf32 = False
        assert allowed() == ["conv", "rnn"]
        matmul.fp32_precision = "tf32"
        assert allowed() == ["matmul", "conv", "rnn"]
        with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
            print(matmul.allow_tf32)
        with cudnn.flags(allow_tf32=False):
            assert allowed() == ["matmul"]
        cudnn.conv.fp32_precision = "ieee"
        assert allowed() == ["matmul", "rnn"]
    finally:
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision = "none"
        cudnn.allow_tf32 = True
    assert allowed() == ["conv", "rnn"]


def test_optimizers_ask_which_devices_have_foreach():
    assert "cuda" in private.devices_with_foreach()
    assert "cpu" not in private.devices_with_foreach()
    for name in session.ASK_FOR_FOREACH:
        asked = getattr(sys.modules[name], private.devices_with_foreach.__name__)
        assert asked is private.devices_with_foreach


def test_the_default_device_is_put_back():
    with private.keep_default_device():
        torch.set_default_device("meta")
        assert torch.zeros(1).is_meta
    assert not torch.zeros(1).is_meta


def test_the_storages_own_answers():
    storage = torch.zeros(4).untyped_storage()
    assert private.StorageBase.device.__get__(storage) == torch.device("cpu")
    assert private.StorageBase.data_ptr(storage) == storage.data_ptr()
    private.StorageBase.resize_(storage, 8)
    assert storage.nbytes() == 8


def private_chains() -> dict[str, object]:
    """Everything in torch that the files name by a dotted path, with what is there now."""
    room = Path(private.__file__).parent
    texts = (file.read_text() for file in sorted(room.glob("*.py")))
    tree = ast.parse("\n".join(texts))
    chains = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.")
    }
    return {chain: resolve(chain) for chain in chains}


def resolve(chain: str) -> object:
    """What a dotted path leads to; None where a part is missing."""
    value: object = torch
    for part in chain.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def test_torch_has_every_name_written_there():
    chains = private_chains()
    assert [chain for chain, value in chains.items() if value is None] == []
    assert "torch._C._current_autograd_node" in chains
    assert len(chains) > 80
    assert resolve("torch._C._no_such_thing") is None


def test_torch_has_every_name_that_is_replaced():
    places = [place for place in vars(private).values() if isinstance(place, private.PrivateName)]
    assert len(places) == 12
    for owner, name in places:
        assert hasattr(owner, name), f"{owner.__name__}.{name}"
    for owner, name in (
        private.PARSE_TO, private.HAS_COMPATIBLE_TYPE, private.REBUILD_TENSOR,
        private.GROUP_TENSORS, private.GET_ACCELERATOR, private.DUMP_SNAPSHOT,
    ):  # fmt: skip
        assert callable(getattr(owner, name))
    for file in private.NATIVE_FILES:
        assert isinstance(file, private.NativeFile)
        assert callable(getattr(file.owner, file.name)), file
    for owner in private.MAPPED_FILES:
        assert callable(owner.from_file)
    for name in (private.LAZY_INIT, private.INITIALIZED, private.LAZY_CALL, private.SLEEP):
        assert hasattr(torch.cuda, name), name
    assert hasattr(torch.nn.parallel.scatter_gather, "Scatter")


OF_OLDER_TORCH = "_cuda_cudaCachingAllocator_set_allocator_settings"
OF_NEWER_TORCH = "_cuda_allocationTraceback"


def test_torch_asks_its_memory_calls():
    """A build for CPUs lacks those of CUDA: torch's own Python names them."""
    folder = Path(torch.__file__).parent
    text = "".join(
        (folder / path).read_text()
        for path in ("_C/__init__.pyi", "cuda/memory.py", "accelerator/memory.py")
    )
    missing = [name for _, name in private.MEMORY_CALLS.values() if name not in text]
    assert set(missing) <= {OF_OLDER_TORCH, OF_NEWER_TORCH}
    assert OF_NEWER_TORCH not in missing or releases.HERE is releases.RELEASES[0]


def test_factories_and_their_operators():
    assert {torch.zeros, torch.tensor, torch.arange} <= private.device_constructors()
    owner, name = private.DEVICE_CONSTRUCTORS
    assert getattr(owner, name)() is private.device_constructors()
    private.device_constructors.cache_clear()
    assert torch.zeros in private.device_constructors()
    assert private.builtin_table()[id(torch.zeros)] == "aten::zeros"
    owner, name = private.BUILTIN_TABLE
    assert getattr(owner, name) is private.builtin_table()


def test_the_innermost_default_device():
    assert private.default_device() is None
    with torch.device("cpu"), torch.device("meta"):
        assert private.default_device() == torch.device("meta")


def test_what_a_tensor_and_its_storage_are():
    x = torch.zeros(4)
    assert private.storage_identity(x) == private.storage_identity(x[1:])
    assert private.storage_identity(x) != private.storage_identity(x.clone())
    assert private.is_view(x[1:])
    assert not private.is_view(x)
    assert private.neg_view(torch.ones(2)).tolist() == [-1, -1]
    assert private.to_copy(x, dtype=torch.float16).dtype is torch.float16
    assert private.has_compatible_type(x, x)
    assert not private.has_compatible_type(x, x.to("meta"))


def test_a_tensor_of_a_loaded_storage():
    x = torch.arange(6.0)
    rebuilt = private.rebuild_tensor(x._typed_storage(), 2, (2,), (1,))
    assert rebuilt.tolist() == [2, 3]
    assert private.untyped_storage(x._typed_storage()).nbytes() == 24


def test_a_generator_is_the_same_in_every_python_object():
    generator = torch.Generator()
    assert private.generator_identity(generator) == private.generator_identity(generator)
    assert private.generator_identity(generator) != private.generator_identity(torch.Generator())


def test_what_an_overload_is_called():
    add = torch.ops.aten.add.Tensor
    assert private.overload_name(add) == "Tensor"
    assert [argument.name for argument in private.schema(add).arguments] == [
        "self", "other", "alpha",
    ]  # fmt: skip
    assert isinstance(add, private.OpOverload)
    assert private.higher_order_name(torch.ops.higher_order.cond) == "cond"
    assert isinstance(torch.ops.higher_order.cond, private.HigherOrderOperator)


def test_the_composition_in_cpp_runs():
    x = torch.tensor([1.0, -2.0])
    y = private.run_composite_kernel(torch.ops.aten.relu6.default, x)
    assert y.tolist() == [1, 0]


def test_a_library_takes_its_operators_along():
    library = torch.library.Library("tally_private", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CPU")
    assert torch.ops.tally_private.twice(torch.tensor(3)).item() == 6
    private.destroy(library)
    with pytest.raises((AttributeError, RuntimeError, NotImplementedError)):
        torch.ops.tally_private.twice(torch.tensor(3))


def test_onednn_says_which_halves_it_has():
    assert isinstance(private.onednn_has_bfloat16(), bool)
    assert private.onednn_has_bfloat16() or not private.onednn_has_float16()


def test_the_compiler_is_looked_up_and_not_imported():
    assert private.DYNAMO_FRAMES.startswith(private.DYNAMO)
    frames = private.compiler_frames()
    assert frames is sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        assert issubclass(frames.OptimizedModule, torch.nn.Module)


def test_the_gradient_scaler_leaves_scaling_to_the_step():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert not getattr(optimizer, "_step_supports_amp_scaling", False)
    private.scale_in_step(optimizer)
    assert "_step_supports_amp_scaling" in inspect.getsource(torch.amp.GradScaler.step)
    assert optimizer._step_supports_amp_scaling


def test_modes_are_left_for_a_while():
    names: list[str] = []

    class Lists(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Lists():
        torch.ones(1)
        with private.without_dispatch_modes():
            torch.zeros(1)
    assert names == ["aten.ones.default"]


def test_trees_are_taken_apart_and_put_together():
    tree = {"a": [1, (2.0, None)]}
    leaves, spec = private.tree_flatten(tree)
    assert leaves == private.tree_leaves(tree) == [1, 2.0, None]
    assert isinstance(spec, private.TreeSpec)
    assert private.tree_unflatten(leaves, spec) == tree
    assert private.tree_map(str, tree) == {"a": ["1", ("2.0", "None")]}
    assert private.tree_map_only(int, lambda n: n + 1, tree) == {"a": [2, (2.0, None)]}


def test_hooks_of_a_forward_are_where_they_are_looked_for():
    module = torch.nn.Linear(1, 1)
    module.register_forward_hook(lambda *args: None)
    module.register_forward_pre_hook(lambda *args: None)
    assert [len(vars(module)[name]) for name in private.FORWARD_HOOKS] == [1, 1]


def test_what_is_asked_of_a_gpu_goes_through_torch(monkeypatch: pytest.MonkeyPatch):
    """Names looked up at each call: the virtual GPU's stand-ins answer, too."""
    calls: list[tuple[object, ...]] = []

    def note(name: str):
        return lambda *args, **options: calls.append((name, *args, *options.values()))

    memory = torch.cuda.memory
    monkeypatch.setattr(torch.cuda, private.LAZY_CALL, note("lazy"))
    monkeypatch.setattr(torch.cuda, private.SLEEP, note("sleep"))
    monkeypatch.setattr(memory, "_record_memory_history", note("record"))
    monkeypatch.setattr(memory, "_set_memory_metadata", note("mark"))
    monkeypatch.setattr(memory, "_snapshot", note("snapshot"))
    private.call_once_initialized(print)
    private.sleep_on_gpu(7)
    private.record_memory_history(None)
    private.set_memory_metadata("step 1")
    private.memory_snapshot()
    assert calls == [
        ("lazy", print), ("sleep", 7), ("record", None), ("mark", "step 1"), ("snapshot",),
    ]  # fmt: skip


def test_higher_order_operators_reach_modes_while_asked_to():
    from torch._higher_order_ops.while_loop import while_loop_op

    def passes() -> bool:
        return not while_loop_op.non_fallthrough_keys.has(private.AUTOCAST_KEY)

    before = while_loop_op.non_fallthrough_keys
    assert not passes()
    with private.let_higher_order_operators_reach_modes():
        assert passes()
    assert while_loop_op.non_fallthrough_keys == before


class Held(Tensor):
    """Holds a tensor under the name `inside`."""

    @staticmethod
    def __new__(cls, inside):
        return private.make_wrapper(cls, inside.shape, device=inside.device)

    def __init__(self, inside):
        self.inside = inside

    def __tensor_flatten__(self):
        return ["inside"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Held(inner["inside"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def test_tensors_inside_of_wrappers():
    x = torch.zeros(2, 3)
    wrapper = Held(Held(x))
    assert (Tensor, "_make_wrapper_subclass") == private.MAKE_WRAPPER
    assert wrapper.shape == (2, 3)
    assert private.tensors_inside(wrapper) == [x]
    assert private.tensors_inside(x) == [x]
    assert {type(x), torch.nn.Parameter} == private.PLAIN_TENSORS


def test_the_parts_of_sparse_tensors():
    indices, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3.0, 4.0], requires_grad=True)
    tensor = torch.sparse_coo_tensor(indices, values, (2, 3))
    assert private.sparse_indices(tensor).equal(indices)
    assert private.sparse_values(tensor).tolist() == [3, 4]
    assert private.sparse_values(tensor.to_sparse_csr()).tolist() == [3, 4]


def test_where_jagged_attention_asks_for_kernels():
    assert private.jagged_attention().can_use_flash_attention


def test_names_of_a_cuda_build():
    declared = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()
    for library, name in (("cuda", "getDevice"), ("nccl", "version")):
        call = private.call_of_build(library, name)
        assert call.owner is private.BUILD is torch._C
        assert f"def {call.name}(" in declared
        has_it = hasattr(torch._C, call.name)
        assert (name in private.calls_of_build(library)) is has_it
    module = private.distributed_module()
    assert module.init_process_group is torch.distributed.init_process_group


def test_the_device_that_the_engine_expects_of_a_gradient():
    """A Python function's gradients: of a real leaf, of one on meta, and of neither's shape."""
    devices: list[str | None] = []

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, host, meta):
            return host * 1

        @staticmethod
        def backward(ctx, grad):
            for shape in ((2,), (3,), (4,)):
                device = private.device_of_gradient(torch.Size(shape))
                devices.append(device and device.type)
            return grad, torch.zeros(3, device="meta")

    host = torch.ones(2, requires_grad=True)
    meta = torch.ones(3, device="meta", requires_grad=True)
    Both.apply(host, meta).sum().backward()
    assert devices == ["cpu", "meta", None]
    assert private.device_of_gradient(torch.Size((2,))) is None


ROOM = [gpu, flex, groups, names, shards]


@pytest.mark.parametrize("module", ROOM, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_private_call_has_its_test(module: ModuleType):
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }
    public |= {name for name in vars(module) if name.isupper() and not name.startswith("_")}
    public |= {name for name in module.__annotations__ if not name.startswith("_")}
    tested = set(re.findall(r"private\.(\w+)", Path(__file__).read_text()))
    assert public - tested == set()
    assert len(public) >= 3


def test_every_file_of_the_room_is_looked_at():
    files = {path.stem for path in Path(private.__file__).parent.glob("*.py")}
    looked_at = {module.__name__.rpartition(".")[2] for module in ROOM}
    # Lightning's are called in tests/train/test_lightning_callback.py, and accesses, the compiler,
    # its shortcuts and templates in tests/virtual/compiling and tests/truth/compiled.
    elsewhere = {"__init__", "accesses", "compiler", "lightning", "needs", "places", "releases"}
    assert files - looked_at == {*elsewhere, "shortcuts", "templates"}


def test_custom_operators_have_functions_by_device():
    @torch.library.custom_op("tally_tests::everywhere", mutates_args=())
    def everywhere(x: Tensor) -> Tensor:
        return x.clone()

    @torch.library.custom_op("tally_tests::on_host", mutates_args=(), device_types="cpu")
    def on_host(x: Tensor) -> Tensor:
        return x.clone()

    function = private.function_of_custom_operator("tally_tests::everywhere", "cuda")
    assert function is not None
    assert function(torch.ones(2)).tolist() == [1, 1]
    assert private.function_of_custom_operator("tally_tests::on_host", "cuda") is None
    assert private.function_of_custom_operator("aten::mm.default", "cuda") is None


def test_what_is_replaced_of_the_compilers_of_kernels():
    assert hasattr(*private.COMPILE_KERNEL)
    triton = pytest.importorskip("triton")
    assert hasattr(triton.runtime.driver, private.TRITON_DRIVER)
    assert hasattr(triton.runtime.autotuner.Autotuner, private.TRITON_BENCHMARK)


def test_what_flex_attention_is_made_of():
    """Two queries that attend to their own key: by torch's composition, and as a mask of it."""
    q = torch.eye(2)[None, None]

    def own(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query == key

    mask = create_block_mask(own, None, None, 2, 2, device="cpu").as_tuple()
    assert mask[private.KV_NUM_BLOCKS].tolist() == [[[1]]]
    assert mask[private.BLOCK_SIZES] == (128, 128)
    assert mask[private.MASK_MOD] is own
    assert mask[private.Q_INDICES].shape == (1, 1, 1, 1)
    assert len(mask[private.FORWARD_BLOCKS]) == 4
    assert len(mask[private.BACKWARD_BLOCKS]) == 8
    places = torch.arange(2)
    assert private.over_indices(own)(places[:1], places[:1], places, places).tolist() == [
        [[[True, False], [False, True]]]
    ]
    with private.indexing_by_tensors():
        assert q[torch.tensor(0)].shape == (1, 2, 2)
    arguments = (lambda score, *indices: score, mask, 1.0, {})
    out, rows, _ = private.dense_flex_attention(q, q, q, *arguments)
    assert torch.equal(out, q)
    gradients = private.dense_flex_attention_backward(
        q, q, q, out, rows, torch.ones_like(q), None, arguments[0],
        lambda score, b, h, m, n, grad: [grad, None, None, None, None], *arguments[1:], (), (),
    )  # fmt: skip
    assert gradients[2].tolist() == [[[[1, 1], [1, 1]]]]
    assert isinstance(torch._higher_order_ops.flex_attention, private.FlexAttention)
    assert getattr(*private.RUNS_UNCOMPILED) is False


def test_a_group_without_a_network():
    """Made by torch over an idle backend, found by its name, and forgotten."""
    names = private.group_names()
    module = private.distributed_module()
    missing = {use for use, (owner, name) in names.items() if not hasattr(owner, name)}
    # Of newer torch, and of its NCCL alone.
    assert missing <= {"split", "leave_split", "set_timeout", "group_start", "group_end"}
    backend = private.make_idle_backend(1, 4)
    assert (backend.rank(), backend.size()) == (1, 4)
    module.init_process_group("fake", store=torch.distributed.HashStore(), rank=0, world_size=2)
    group = torch.distributed.group.WORLD
    assert private.process_group(group) is group
    assert private.process_group(group.group_name) == group
    assert private.process_group(group.boxed()) == group
    private.forget_process_groups()
    assert not torch.distributed.is_initialized()
    private.forget_process_groups()


def test_shardings_are_forgotten():
    from torch.distributed.tensor import debug

    private.forget_shardings()
    assert debug._get_python_sharding_prop_cache_info().currsize == 0


def test_where_dtensor_finds_shapes_and_draws():
    collectives = private.functional_collectives()
    assert hasattr(collectives, private.WRAP_FUNCTIONAL)
    for owner, name in (private.dtensor_shapes(), private.dtensor_propagation()):
        assert callable(getattr(owner, name))
    from torch._prims import rng_prims
    from torch.distributed.tensor import _dispatch

    files = (rng_prims.__file__, _dispatch.__file__)
    has_operator, calls_it = (private.DTENSOR_RANDOM in Path(file).read_text() for file in files)
    assert has_operator is calls_it
    assert has_operator or releases.HERE is releases.RELEASES[0]


def test_what_issues_collectives_together():
    for owner, name in private.coalescing_names().values():
        assert hasattr(owner, name)


def test_the_code_that_shards_knows_the_module_that_it_is_for():
    """Functions of FSDP, by name: a release that renames them would lose the lines of gathers."""
    import torch.distributed.fsdp
    import torch.distributed.tensor

    served = private.ServedModules()
    served.module_served(None, frozenset())
    groups, handles = sys.modules[shards._GROUPS], sys.modules[shards._HANDLES]
    codes = [*shards._codes_of(groups.FSDPParamGroup), *shards._codes_of(handles)]
    known = {code.co_name: served._owners.get(id(code)) for code in codes}
    assert {known[name] for name in ("unshard", "post_backward", "wait_for_unshard")} == {"self"}
    assert {known[name] for name in ("_pre_backward_hook", "_post_backward_hook")} == {"handle"}
    assert private.class_name(torch.nn.Linear(1, 1)) == "Linear"
    assert private.whole_elements(torch.ones(3)) == 0
    assert list(private.flat_parameters(torch.nn.Linear(1, 1))) == []


def test_the_shard_that_deepspeed_names_at_a_parameter():
    parameter, shard = torch.empty(0), torch.ones(3)
    assert private.shard_of(parameter) is None
    parameter.ds_tensor, parameter.ds_numel = shard, 5
    assert private.shard_of(parameter) == (shard, 5)


def test_where_ranks_agree_on_checkpoints():
    coordination = private.checkpoint_coordination()
    assert hasattr(getattr(coordination, private.CHECKPOINT_RANKS), "reduce_scatter")
    assert private.wrapped_exception(ValueError("x"))[0].args == ("x",)
    for owner, name in (private.checkpoint_validation(), private.checkpoint_stager()):
        assert callable(getattr(owner, name))
    assert private.valid_plan() in ([], True)


def test_where_ddp_takes_times():
    owner, name = private.ddp_statistics()
    assert owner is torch.distributed.Logger
    assert callable(getattr(owner, name))


def test_ddp_looks_at_its_parameters_by_a_function_of_the_module():
    owner, name = private.parameter_verification()
    assert owner is torch.distributed
    assert callable(getattr(owner, name))


def test_an_object_is_sent_as_its_bytes():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        sent, length = private.object_tensors({"a": 1}, None)
    finally:
        torch.distributed.destroy_process_group()
    assert pickle.loads(sent.numpy().tobytes()) == {"a": 1}
    assert sent.numel() == length.item()


def test_a_future_of_tensors_is_one_for_cpp():
    tensor = torch.ones(2)
    assert private.done_future([tensor]).value()[0] is tensor
    assert private.done_future([]).value() == []


def test_the_tensors_that_a_wrapper_holds():
    wrapped = TwoTensor(torch.ones(2), torch.zeros(2))
    assert private.names_inside(wrapped) == ["a", "b"]
    assert private.names_inside(torch.ones(2)) == []
    doubled = private.with_inside(wrapped, lambda held: held + 1)
    assert isinstance(doubled, TwoTensor)
    assert (doubled.a.tolist(), doubled.b.tolist()) == ([2, 2], [1, 1])
    assert private.with_inside(torch.ones(1), lambda held: held + 1).tolist() == [2]


def test_products_fused_with_collectives_have_a_composition():
    module = private.symmetric_memory()
    for name in private.FUSED_COLLECTIVES:
        assert hasattr(torch.ops.symm_mem, name)
        assert private.composition(name).__module__ == module.__name__
    for name in private.SYMMETRIC_COLLECTIVES:
        assert hasattr(torch.ops.symm_mem, name)
    for place in (private.symmetric_handle(), private.registry_of_works()):
        assert hasattr(*place)
    assert [type(getattr(module, name)) for name in private.SYMMETRIC_STATE] == [dict] * 3


def test_whether_operators_of_a_thread_meet_modes_and_a_compiler_traces_collectives():
    assert not private.has_dispatch_modes()
    assert not private.is_tracing_collectives()
    with FakeTensorMode():
        assert private.has_dispatch_modes()
        assert private.is_tracing_collectives()


def test_a_module_of_torchs_own_is_compiled_in_place():
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    linear = torch.nn.Linear
    model, own = linear(2, 2), type("Own", (linear,), {"forward": lambda self, x: x + 1})
    assert private.is_torchs_own(model)
    assert not private.is_torchs_own(own(2, 2))
    assert private.module_compiled_in_place(model._call_impl) is model
    assert private.module_compiled_in_place(model.forward) is None
    model.compile(backend=backend)
    model(torch.ones(1, 2))
    assert graphs == []  # the reason for what follows
    private.compile_in_place(model)
    assert model._compiled_call_impl is not None


def test_where_ranks_gather_each_others_states():
    places = (
        (private.ZERO_OPTIMIZER, private.BROADCAST_OBJECT),
        (private.FSDP_OPTIMIZERS, private.OPTIMIZER_KEYS),
        (private.SHARDED_TENSORS, private.SHARDED_METADATA),
    )
    for module, name in places:
        assert callable(getattr(importlib.import_module(module), name))
    module = importlib.import_module(private.ZERO_OPTIMIZER)
    assert callable(module.ZeroRedundancyOptimizer._partition_parameters)
    one_rank = SimpleNamespace(_partition_parameters=lambda: [[{"params": [0]}]])
    assert private.zero_partition(one_rank) == [[{"params": [0]}]]
    placement = private.shard_placement(torch.device("cuda:1"), 5)
    assert (placement.rank(), placement.device()) == (5, torch.device("cuda:1"))


def test_fsdp_cuts_parameters_by_a_function_of_its_own():
    module = importlib.import_module(private.FSDP_PARAMETERS)
    shards = getattr(module, private.CHUNK)(torch.arange(3.0), 4, 0)
    assert [shard.numel() for shard in shards] == [1, 1, 1, 0]


def test_what_converts_a_decorated_functions_frames_and_leaves_them_alone():
    import torch._dynamo.convert_frame as convert_frame

    (converter,) = private.frame_converters()
    assert getattr(*converter) is convert_frame.CatchErrorsWrapper.__call__
    left_alone = private.frame_left_alone()
    assert left_alone.guarded_code is None
    assert private.DYNAMO_CONVERTERS in sys.modules
    assert private.DYNAMO_TYPES in sys.modules


def test_compiled_modules_are_told_from_others():
    module = torch.nn.Linear(1, 1)
    assert not private.is_compiled_module(module)
    module.compile(backend="eager")
    assert private.is_compiled_module(module)
    assert private.original_module(module) is None  # in place
    original = torch.nn.Linear(1, 1)
    compiled = torch.compile(original, backend="eager")
    assert private.is_compiled_module(compiled)
    assert private.original_module(compiled) is original


def test_every_batch_of_a_data_loader_is_fetched_by_one_of_two_functions(
    monkeypatch: pytest.MonkeyPatch,
):
    fetched: list[str] = []
    for owner, name in private.FETCHES:
        native = getattr(owner, name)

        def fetch(fetcher, indices, native=native):
            fetched.append(type(fetcher.dataset).__name__)
            return native(fetcher, indices)

        monkeypatch.setattr(owner, name, fetch)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([1, 2])

    assert [x.tolist() for x in torch.utils.data.DataLoader([1, 2])] == [[1], [2]]
    assert [x.tolist() for x in torch.utils.data.DataLoader(Stream())] == [[1], [2]]
    assert fetched == ["list", "list", "Stream", "Stream", "Stream"]  # the last finds the end
