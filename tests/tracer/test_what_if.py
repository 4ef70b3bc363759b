"""`--what-if`: a change tried without making it is what the change would have been."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.traces import names, ops
from tests.virtual import untouched
from torchtally.errors import UsageError
from torchtally.ledger import account
from torchtally.memory import Category
from torchtally.trace import Ending, Phase, Trace
from torchtally.tracer.session import recording
from torchtally.tracer.what_if import stand_ins


class Layer(nn.Module):
    """Keeps four times what came in, for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu().tanh())
        return out + x


class Model(nn.Module):
    """Three layers, checkpointed by hand or not."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return x


def train(*, by_hand: str = "", validates: bool = False, **options: object) -> None:
    """Two steps of AdamW; `by_hand` is what the script does by itself."""
    model = Model(recomputes=by_hand == "checkpoint").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)  # type: ignore[arg-type]
    x = torch.zeros(512, 256, device="cuda")
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=by_hand == "autocast"):
            out = model(x)
        out.float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        del out
    if validates:
        with torch.no_grad():
            model(x)


def run(*what_ifs: str, script: Callable[..., None] = train, **how: Any) -> Trace:
    with recording("H100-SXM", script="train", what_ifs=what_ifs) as recorder:
        script(**how)
        return recorder.trace(Ending("exit"))


def facts(trace: Trace) -> tuple[int, int, list[tuple[Phase, str]]]:
    """The peak, allocated and reserved, and every operator with its phase."""
    ledger = account(trace)
    ledger.check()
    reserved_bytes = max(reserved.bytes for reserved in trace.reserved)
    return ledger.memory.peak_bytes, reserved_bytes, [(op.phase, op.call.name) for op in ops(trace)]


def activations(trace: Trace) -> int:
    """Bytes at the peak."""
    return dict(account(trace).memory.at_peak)[Category.ACTIVATIONS]


# Each change -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_checkpointing_is_as_if_the_script_had_called_it() -> None:
    plain, tried, by_hand = run(), run("checkpoint=Layer"), run(by_hand="checkpoint")
    assert facts(tried) == facts(by_hand)
    assert ops(tried, phase=Phase.RECOMPUTE)
    assert not ops(plain, phase=Phase.RECOMPUTE)
    # Kept of each layer: what came in, 512 KiB. Not: two results of 2 MiB in every layer.
    assert activations(tried) < activations(plain)
    assert facts(tried)[0] < facts(plain)[0]


@pytest.mark.thorough
def test_checkpointing_runs_each_product_of_a_layer_once_more() -> None:
    plain, tried = run(), run("checkpoint=Layer")
    assert len(ops(plain, "aten.addmm")) == 2 * 6  # two steps of three layers with two each
    recomputed = ops(tried, "aten.addmm", Phase.RECOMPUTE)
    # The last product's result is not needed again: its backward pass reads its inputs.
    assert len(recomputed) == len(ops(run(by_hand="checkpoint"), "aten.addmm", Phase.RECOMPUTE))
    assert 6 <= len(recomputed) <= 12


def test_no_gradients_no_checkpoint() -> None:
    """A validation is left as it is."""
    counts = [
        len(ops(run(*what_ifs, validates=True), "aten.addmm", Phase.FORWARD))
        for what_ifs in ((), ("checkpoint=Layer",))
    ]
    assert counts == [18, 18]


def test_a_class_nobody_has_changes_nothing() -> None:
    assert facts(run("checkpoint=Attention")) == facts(run())


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", "bfloat16"), ("float16", "float16")])
def test_autocast_multiplies_in_its_dtype(name: str, dtype: str) -> None:
    trace = run(f"autocast={name}")
    products = ops(trace, "aten.addmm")
    assert len(products) == 12
    assert {op.call.outputs[0].dtype for op in products} == {dtype}


@pytest.mark.thorough
def test_autocast_is_as_if_the_script_had_entered_it() -> None:
    plain, tried, by_hand = run(), run("autocast=bfloat16"), run(by_hand="autocast")
    assert facts(tried) == facts(by_hand)
    assert facts(tried)[0] != facts(plain)[0]


def test_a_script_that_autocasts_already_is_left_as_it_is() -> None:
    assert facts(run("autocast=float16", by_hand="autocast")) == facts(run(by_hand="autocast"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "operators"),
    [
        ("fused", {"fused": True}, {"aten._fused_adamw_"}),
        ("foreach", {"foreach": True}, {"aten._foreach_lerp_", "aten._foreach_addcdiv_"}),
        ("for-loop", {"foreach": False}, {"aten.lerp_", "aten.addcdiv_"}),
    ],
)
def test_an_optimizer_is_as_if_the_script_had_asked_for_it(
    name: str, options: dict[str, Any], operators: set[str]
) -> None:
    tried = run(f"optimizer={name}")
    assert facts(tried) == facts(run(**options))
    assert operators <= set(names(tried, Phase.OPTIMIZER))
    others = {"aten._fused_adamw_", "aten._foreach_lerp_", "aten.lerp_"} - operators
    assert not others & set(names(tried, Phase.OPTIMIZER))


def test_the_optimizers_own_word_is_overruled() -> None:
    tried = run("optimizer=fused", foreach=True)
    assert facts(tried) == facts(run(fused=True))


def test_changes_can_be_tried_together() -> None:
    tried = run("checkpoint=Layer", "autocast=bfloat16", "optimizer=fused")
    assert ops(tried, phase=Phase.RECOMPUTE)
    assert {op.call.outputs[0].dtype for op in ops(tried, "aten.addmm")} == {"bfloat16"}
    assert "aten._fused_adamw_" in names(tried, Phase.OPTIMIZER)
    assert [note.text for note in tried.notes] == [
        "the script was run as if changed: checkpoint=Layer",
        "the script was run as if changed: autocast=bfloat16",
        "the script was run as if changed: optimizer=fused",
    ]


def without_implementations() -> None:
    """An optimizer that has no such implementations."""
    weight = nn.Parameter(torch.zeros(10, device="cuda"))
    optimizer = torch.optim.LBFGS([weight])
    optimizer.step(lambda: weight.sum())


def test_an_optimizer_without_the_implementation_is_left_as_it_is() -> None:
    tried = run("optimizer=fused", script=without_implementations)
    assert names(tried) == names(run(script=without_implementations))


# Mistakes, and afterwards ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["magic=1", "checkpoint", "checkpoint=", "=fused", ""])
def test_a_change_nobody_knows_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        stand_ins((text,))
    said = str(refusal.value)
    assert said.startswith(f"--what-if {text}: not a change that can be tried.\n")
    for change in (
        "checkpoint=CLASS", "autocast=bfloat16", "optimizer=fused", "bucket_cap_mb=MIB",
        "gradient_as_bucket_view=True", "reshard_after_forward=False",
    ):  # fmt: skip
        assert f"  {change}" in said


def test_a_value_nobody_knows_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"autocast=int8: the dtypes are bfloat16, float16\."):
        stand_ins(("autocast=int8",))
    with pytest.raises(UsageError, match=r"the implementations are fused, foreach, for-loop\."):
        stand_ins(("optimizer=fast",))
    for text in ("bucket_cap_mb=0", "bucket_cap_mb=inf", "bucket_cap_mb=nan", "bucket_cap_mb=x"):
        with pytest.raises(UsageError, match="expected MiB above 0"):
            stand_ins((text,))
    with pytest.raises(UsageError, match="expected True or False"):
        stand_ins(("gradient_as_bucket_view=1",))
    with pytest.raises(UsageError, match="expected True, False or a number of ranks"):
        stand_ins(("reshard_after_forward=1",))


def test_without_changes_nothing_is_replaced_and_nothing_is_noted() -> None:
    assert stand_ins(()) == []
    assert run().notes == ()


@pytest.mark.thorough
def test_torch_is_untouched_afterwards() -> None:
    run()  # whatever torch makes when first used
    before = untouched.snapshot()
    tried = (
        "checkpoint=Layer", "autocast=bfloat16", "optimizer=fused", "bucket_cap_mb=1",
        "reshard_after_forward=False",
    )  # fmt: skip
    stand_ins(tried)  # whatever is imported for them
    run(*tried)
    assert untouched.changes(before, untouched.snapshot()) == []
    with recording("H100-SXM", script="", what_ifs=tried):
        assert untouched.changes(before, untouched.snapshot()) != []

    def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(*tried, script=failing)
    assert untouched.changes(before, untouched.snapshot()) == []


def test_a_change_that_met_nothing_says_so() -> None:
    with recording("H100-SXM", script="", what_ifs=("checkpoint=Nothing",)) as recorder:
        nn.Linear(2, 2, device="cuda")(torch.ones(2, 2, device="cuda"))
        trace = recorder.trace(Ending("exit"))
    assert any("checkpoint=Nothing changed nothing" in note.text for note in trace.notes)


@pytest.mark.thorough("the tests beside it, of eager modules")
def test_a_class_within_a_compiled_whole_is_said_to_be_there() -> None:
    """Whatever is compiled around it has no calls of it."""

    def script() -> None:
        model = torch.compile(Model().cuda())
        model(torch.zeros(64, 256, device="cuda"))

    whole, other = (
        " ".join(note.text for note in run(f"compile={name}", script=script).notes)
        for name in ("Layer", "Nothing")
    )
    assert "compile=Layer changed nothing: modules of that class are there, within one" in whole
    assert "compile=Nothing changed nothing: the script has nothing of that kind" in other


def test_a_module_of_torchs_own_is_compiled_too_and_said_where_its_method_would_not() -> None:
    """`Sequential.compile()` leaves all as it is, without a word of PyTorch's."""

    def script(*, by_method: bool = False) -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda()
        if by_method:
            model.compile()
        model(torch.ones(512, 64, device="cuda"))

    def is_fused(trace: Trace) -> bool:
        return any(call.fused is not None for call in trace.calls)

    assert is_fused(run("compile", script=script))
    by_method = run(script=script, by_method=True)
    assert not is_fused(by_method)
    assert any("Sequential.compile() compiles nothing" in note.text for note in by_method.notes)
