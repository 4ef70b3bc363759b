"""The table of rules itself: it names real operators, misses none, and never counts backwards."""

import re
from importlib import import_module

import pytest
import torch
import torch.distributed.fsdp  # registers the fsdp operators
import torch.nn.attention.varlen  # registers the torch_attn operators

from tests.work.calls import call, cost, given, spec
from torchtally.trace import Call
from torchtally.trace.peers import ONE_SIDED
from torchtally.trace.sleep import SLEEP
from torchtally.work import RULES, Cost, Kind, cost_of
from torchtally.work.rule import one_pass, rule

VERSION_DEPENDENT: frozenset[str] = frozenset(
    {
        "aten.cholesky",
        "aten.qr",
        "aten._dyn_quant_matmul_4bit",
        "aten._flash_attention_forward_no_dropout_inplace",
        "aten._foreach_clone",
        "aten._foreach_mm",
        "aten._foreach_powsum",
        "aten._fused_rms_norm",
        "aten._fused_rms_norm_backward",
        "aten._philox_normal",
        "aten._philox_normal_",
        "aten._philox_uniform",
        "aten._philox_uniform_",
        "aten._scaled_grouped_mm_v2",
        "aten._scaled_mm_v2",
        "aten._upsample_lanczos2d_aa",
        "aten._upsample_lanczos2d_aa_backward",
        "aten._weight_int4pack_mm_with_scales_and_zeros",
        "aten.hash_tensor",
        "aten.linalg__powsum",
        "c10d.check_for_nan",
        "torch_attn._varlen_attn",
        "torch_attn._varlen_attn_backward",
        "torch_attn._varlen_attn_out",
        "torch_nn._linear_cross_entropy_batch_chunked",
        "torch_nn._linear_cross_entropy_batch_chunked_no_reduction",
        "_c10d_functional.batch_p2p_ops",
        "_c10d_functional.irecv",
        "_c10d_functional.isend",
        "_dtensor.shard_dim_alltoall",
    }
)
"""Operators that not every supported torch has."""


def exists(name: str) -> bool:
    namespace, operator = name.split(".")
    return hasattr(getattr(torch.ops, namespace), operator)


OF_OTHERS = ("bitsandbytes.", "fbgemm.", "quanto.")
"""Libraries that define their own operators, and are not installed here."""


def misnamed(names: set[str]) -> set[str]:
    return {name for name in names if name not in VERSION_DEPENDENT and not exists(name)}


def operators() -> dict[str, list[torch._ops.OpOverload]]:
    """Every ATen operator this torch has, with its overloads."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    packets = {re.split(r"::|\.", name)[1] for name in names}
    met = {}
    for name in sorted(packets):
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:
            met[name] = [getattr(packet, overload) for overload in packet.overloads()]
    return met


def pointwise_operators() -> list[str]:
    tagged = [
        name
        for name, overloads in operators().items()
        if any(torch.Tag.pointwise in overload.tags for overload in overloads)
    ]
    in_place = [f"{name}_" for name in tagged if hasattr(torch.ops.aten, f"{name}_")]
    return sorted({*tagged, *in_place})


def has_rule(name: str) -> bool:
    return f"aten.{name}" in RULES or f"aten.{name.removesuffix('_')}" in RULES


def test_every_rule_is_an_operator_of_torch() -> None:
    import_module("torch._dynamo._trace_wrapped_higher_order_op")  # registers that of flex_lib
    import_module("torchtally.virtual.flex_attention")  # registers the package's own
    import_module("torchtally.libraries.operators.flash_attention")
    for name in ("transformer_engine", "layers", "mixtures", "optimizers", "products"):
        import_module(f"torchtally.libraries.operators.{name}")
    import_module("torch.distributed._symmetric_memory")
    import_module("torchtally.virtual.distributed.expert_exchange").register()
    of_torch = {name for name in RULES if not name.startswith(OF_OTHERS)}
    # Methods of its handles, and copies from and to what they give: no operators of their own.
    assert misnamed(of_torch) == {*ONE_SIDED, "symm_mem.barrier", SLEEP}


def test_a_misnamed_rule_is_found() -> None:
    assert misnamed({"aten.mm", "aten.matrix_mul"}) == {"aten.matrix_mul"}


def test_every_pointwise_operator_has_a_rule() -> None:
    names = pointwise_operators()
    assert len(names) > 250
    assert [name for name in names if not has_rule(name)] == []


def test_a_missing_pointwise_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "aten.gelu")
    assert [name for name in pointwise_operators() if not has_rule(name)] == ["gelu", "gelu_"]


def test_every_foreach_operator_has_a_rule() -> None:
    names = [name for name in operators() if name.startswith("_foreach_")]
    assert len(names) > 90
    assert [name for name in names if not has_rule(name)] == []


def test_every_fused_optimizer_has_a_rule() -> None:
    names = [name for name in operators() if re.match(r"_fused_(ada|sgd)|_amp_", name)]
    assert len(names) >= 12
    assert [name for name in names if not has_rule(name)] == []


def test_an_operator_has_one_rule() -> None:
    with pytest.raises(ValueError, match=r"aten\.mm has two rules"):
        rule("aten.mm", kind=Kind.PRODUCT)(one_pass)


def test_an_unknown_operator_is_uncounted_not_zero() -> None:
    assert cost_of(call("mylib.mystery", [given("x", 4)], (4,))) == (Kind.UNCOUNTED, Cost())


def test_a_view_is_free_whatever_its_name() -> None:
    tensor = given("self", 4, 4)
    view = call("mylib.mystery", [tensor], (16,))
    view = type(view)(view.name, "", view.inputs, (view.inputs[0],))
    assert cost_of(view) == (Kind.VIEW, Cost())


def test_in_place_reads_and_writes_its_target() -> None:
    # 8 + 8 elements of 4 bytes read, 8 written
    one = call("aten.add_", [given("self", 8, written=True), given("other", 8)])
    assert cost_of(one) == (Kind.ELEMENTWISE, Cost(8, 64, 32))


def test_the_target_of_an_out_form_is_not_read() -> None:
    inputs = [given("self", 8), given("other", 8), given("out", 8, written=True)]
    assert cost(call("aten.add", inputs, overload="out")) == Cost(8, 64, 32)


def test_a_broadcast_tensor_is_read_once() -> None:
    row = spec(1, 8, argument="other")
    expanded = type(row)("other", (4, 8), (0, 1), "float32", row.device, 0)
    one = call("aten.add", [given("self", 4, 8), expanded], (4, 8))
    assert cost(one) == Cost(32, 4 * (32 + 8), 4 * 32)


def test_host_memory_is_not_counted() -> None:
    one = call("aten._to_copy", [spec(8, argument="self", device="cpu")], (8,))
    assert cost_of(one) == (Kind.COPY, Cost(0, 0, 32))


FREE = [
    call("aten.empty", [], (4,)),
    call("aten.empty_like", [given("self", 4)], (4,)),
    call("aten.resize_", [given("self", 4, written=True)]),
    call("aten.set_", [given("self", 4, written=True), given("source", 4)]),
    call("aten.t_", [given("self", 4, 4, written=True)]),
    call("aten._local_scalar_dense", [given("self")]),
    call("aten.record_stream", [given("self", 4, written=True)]),
    call("aten._assert_async", [given("self")]),
]


@pytest.mark.parametrize("one", FREE, ids=lambda one: one.name)
def test_metadata_is_free(one: object) -> None:
    assert cost_of(one) == (Kind.METADATA, Cost())  # type: ignore[arg-type]


def test_an_operator_on_no_tensors_costs_nothing() -> None:
    """`torch._foreach_zero_([])` has neither inputs nor outputs."""
    empty_list = Call("aten._foreach_zero_", "", inputs=(), outputs=())
    assert cost_of(empty_list) == (Kind.COPY, Cost())
