"""The private calls into torch, each made once: an upgrade that moves one of them fails here."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch.jit._builtins
import torch.optim.swa_utils
import torch.utils._device
import torch.utils.checkpoint
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from torchtally.virtual import private, session

SEEN_TO_WORK = ("2.11", "2.12", "2.13")
"""torch versions whose source has every call below; 2.13 is the one this is developed on."""


def test_this_torch_is_one_of_those_the_calls_were_seen_on():
    version = ".".join(torch.__version__.split(".")[:2])
    assert version in SEEN_TO_WORK, f"look at every test here on torch {version}, then list it"


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
            seen.append((node.name(), node._sequence_nr()))
            return grad

    assert private.current_autograd_node() is None
    x = torch.ones(1, requires_grad=True)
    before = private.next_sequence_number()
    y = Probe.apply(x)
    assert private.next_sequence_number() == before + 1
    assert y.grad_fn._sequence_nr() == before
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

    class Adds(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.add.Tensor and private.current_autograd_node() is not None:
                answers.append(private.is_held_once(args[0], 1))
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
    assert not private.host_chooses_flash(q[0], q[0], q[0], None, 0.0, True)
    with sdpa_kernel(SDPBackend.MATH):
        assert not private.host_chooses_flash(q, q, q)


def test_accumulation_nodes_have_no_number_of_their_own():
    x = torch.ones(1, requires_grad=True)
    ((node, _),) = (x * 2).grad_fn.next_functions[:1]  # type: ignore[union-attr]
    assert node._sequence_nr() == private.ACCUMULATE_GRAD_SEQUENCE  # type: ignore[union-attr]
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
        with private.autocast_key_included():
            assert name in included()
            with private.autocast_key_excluded():
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
    with private.lifting_cpu_tensors_only():
        assert torch._C._only_lift_cpu_tensors()
    assert not torch._C._only_lift_cpu_tensors()


def test_tensors_below_the_wrappers_of_torch_func():
    x = torch.arange(3.0)
    seen: list[bool] = []

    def probe(inner: Tensor) -> Tensor:
        seen.append(inner is not x and private.unwrapped(inner).data_ptr() == x.data_ptr())
        return inner.sum()

    torch.func.grad(probe)(x)
    torch.func.vmap(lambda y: (seen.append(private.unwrapped(y).shape == (3,)), y)[1])(x)
    assert seen == [True, True]
    assert private.unwrapped(x) is x


def codes_met(function) -> set[object]:
    """Code of every frame above a call of `function`'s argument."""
    import sys

    found: set[object] = set()

    def look() -> None:
        frame = sys._getframe()
        while frame is not None:
            found.add(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]

    function(look)
    return found


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
        (torch.device("cpu"), torch.float32), (torch.device("cpu"), torch.float64),
    }  # fmt: skip
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
    with private.default_device_kept():
        torch.set_default_device("meta")
        assert torch.zeros(1).is_meta
    assert not torch.zeros(1).is_meta


def test_the_storages_own_answers():
    storage = torch.zeros(4).untyped_storage()
    assert private.StorageBase.device.__get__(storage) == torch.device("cpu")
    assert private.StorageBase.data_ptr(storage) == storage.data_ptr()
    private.StorageBase.resize_(storage, 8)
    assert storage.nbytes() == 8


def test_what_stand_ins_replace_is_there():
    """Names in torch that a session replaces and its callers go by."""
    constructors = torch.utils._device._device_constructors()
    assert {torch.zeros, torch.tensor, torch.arange} <= constructors
    table = torch.jit._builtins._get_builtin_table()
    assert table is torch.jit._builtins._builtin_table
    assert table[id(torch.zeros)] == "aten::zeros"
    for owner, name in (
        (torch._utils, "_rebuild_tensor"),
        (torch._C, "_group_tensors_by_device_and_dtype"),
        (torch._C, "_get_accelerator"),
        (torch._C._nn, "_parse_to"),
        (torch, "_has_compatible_shallow_copy_type"),
        (torch.cuda, "_initialized"),
        (torch.cuda, "_lazy_init"),
        (torch.nn.parallel.scatter_gather, "Scatter"),
    ):
        assert hasattr(owner, name), f"{owner.__name__}.{name}"


def test_higher_order_operators_reach_modes_while_asked_to():
    from torch._higher_order_ops.while_loop import while_loop_op

    def passes() -> bool:
        return not while_loop_op.non_fallthrough_keys.has(private.AUTOCAST_KEY)

    before = while_loop_op.non_fallthrough_keys
    assert not passes()
    with private.higher_order_operators_reach_modes():
        assert passes()
    assert while_loop_op.non_fallthrough_keys == before


def test_every_private_call_has_its_test():
    public = {
        name
        for name, value in vars(private).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == private.__name__
    }
    public |= set(private.__annotations__)
    tested = set(re.findall(r"private\.(\w+)", Path(__file__).read_text()))
    assert public - tested == set()
    assert len(public) > 15
