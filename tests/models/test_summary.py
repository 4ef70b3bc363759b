"""`torchtally.summary`: figures of small models by hand, and nothing of the caller's is changed."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor, nn

import torchtally
from torchtally import summary
from torchtally.errors import UsageError
from torchtally.memory import is_alive
from torchtally.report.formats import render
from torchtally.report.model import model_report
from torchtally.report.report import Look
from torchtally.trace import Role, ScriptWork
from torchtally.views.model_summary import ModelSummary
from torchtally.views.script_work import script_work

AS_IS: dict[str, Any] = {"optimizer": "sgd", "precision": "as-is"}


def layers(depth: int = 3, width: int = 4) -> nn.Module:
    blocks = (nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
    return nn.Sequential(*blocks, nn.Linear(width, 2))


def test_a_linear_layer() -> None:
    """M = 2 rows, 3 in, 4 out: 2 * M * 3 * 4 FLOPs forward; the input has no gradient."""
    model_summary = summary(nn.Linear(3, 4, bias=False), "2x3", **AS_IS)
    assert model_summary.parameters == model_summary.trained_parameters == 3 * 4
    assert model_summary.flops_forward == model_summary.flops_backward == 2 * 2 * 3 * 4
    assert model_summary.root.facts.output == ((2, 4),)
    assert model_summary.inputs == "2x3:float32"


def test_the_parts_sum_to_the_step() -> None:
    model_summary = summary(layers(), "8x4", **AS_IS)
    total, parts = model_summary.ledger.total, model_summary.root.total + model_summary.outside
    assert parts.flops == total.flops
    assert parts.bytes_saved == total.bytes_saved
    assert parts.count == total.count
    assert parts.seconds == pytest.approx(model_summary.step_s)
    assert model_summary.modules["0"].parameters == 4 * 4 + 4
    assert model_summary.modules["0.0"].total.flops_forward == 2 * 8 * 4 * 4


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.head(self.embedding(ids))
            return logits

    model_summary = summary(Tied(), "2x3:int64", **AS_IS)
    assert model_summary.parameters == 10 * 4
    assert model_summary.modules["head"].parameters == 0
    assert model_summary.modules["head"].total.flops_forward == 2 * 6 * 4 * 10


def test_each_module_that_shares_another_has_what_it_costs() -> None:
    shared = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    model_summary = summary(model, "8x4", **AS_IS)
    modules = model_summary.modules
    assert [modules[path].total.flops_forward for path in ("", "0", "1", "0.0", "1.0")] == [
        2 * 2 * 8 * 4 * 4,
        *[2 * 8 * 4 * 4] * 4,
    ]
    table = model_summary.table()
    assert list(zip(table.column("module"), table.column("parameters"), strict=True)) == [
        ("Sequential", 4 * 4), ("  0: Sequential", 4 * 4), ("    0: Linear", 4 * 4),
        ("  1: Sequential", None), ("    0: Linear", None), ("(outside any module)", None),
    ]  # fmt: skip
    assert "counted there" in str(table.note)


def test_the_peak_is_that_of_a_training_loop() -> None:
    model = layers(width=256)

    def train() -> None:
        copied = layers(width=256).cuda()
        optimizer = torch.optim.AdamW(copied.parameters())
        for _ in range(3):
            batch = torch.empty(64, 256, device="cuda")
            copied(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    ledger = torchtally.account(torchtally.run(train, gpu="H100-SXM"))
    model_summary = summary(model, "64x256", precision="as-is", loss=lambda output: output.sum())
    assert model_summary.peak_bytes == ledger.memory.peak_bytes
    assert model_summary.flops_forward == ledger.total.flops_forward


def state_bytes(model: ModelSummary) -> int:
    trace = model.ledger.trace
    return sum(
        storage.requested_bytes
        for storage in trace.storages
        if storage.role is Role.OPTIMIZER_STATE and is_alive(storage, trace.step_ends[-1] - 1)
    )


def test_an_optimizer_keeps_nothing_for_what_has_no_gradient() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(16, 16, bias=False), nn.Linear(999, 999)
            self.frozen = nn.Linear(16, 16).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.frozen(self.used(x))
            return out

    model_summary = summary(Idle(), "2x16", precision="as-is")
    assert state_bytes(model_summary) == 2 * 4 * 16 * 16
    assert model_summary.parameters - model_summary.trained_parameters == 16 * 16 + 16


@pytest.mark.thorough
def test_precisions() -> None:
    """Weights of bfloat16 halve AdamW's state, which is 2 numbers for each of 16 * 16."""
    model = nn.Linear(16, 16, bias=False)
    states = {
        name: state_bytes(summary(model, "2x16", precision=name))
        for name in ("fp32", "tf32", "bf16", "fp16", "pure-bf16")
    }
    assert states.pop("pure-bf16") == 2 * 2 * 16 * 16
    assert set(states.values()) == {2 * 4 * 16 * 16}


def test_a_forward_pass_alone() -> None:
    model_summary = summary(layers(), "8x4", training=False)
    assert model_summary.flops_backward == model_summary.bytes_saved == 0
    assert model_summary.ledger.total.flops_optimizer == 0
    assert model_summary.flops_forward > 3 * 2 * 8 * 4 * 4
    assert "flops_backward" not in [column.name for column in model_summary.table().columns]


def test_a_step_without_an_optimizer_has_no_state() -> None:
    model_summary = summary(nn.Linear(16, 16), "2x16", optimizer=None, precision="as-is")
    assert state_bytes(model_summary) == 0
    assert model_summary.flops_backward == 2 * 2 * 16 * 16 + 2 * 16  # and the bias's sum over rows


def test_an_optimizer_by_a_function() -> None:
    model_summary = summary(
        nn.Linear(16, 16, bias=False), "2x16", precision="as-is",
        optimizer=lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
    )  # fmt: skip
    assert state_bytes(model_summary) == 4 * 16 * 16


# Nothing is changed ------------------------------------------------------------------------------


def test_the_caller_keeps_everything() -> None:
    model = layers().eval()
    model[0].train()
    weight = model[0][0].weight
    weight.grad = torch.ones(4, 4)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    before = torch.get_float32_matmul_precision()
    batch = torch.rand(8, 4, generator=torch.Generator().manual_seed(1))
    summary(model, batch, precision="tf32")
    assert (torch.rand(1), random.random(), np.random.rand()) == expected
    assert torch.get_float32_matmul_precision() == before
    assert [module.training for module in model.modules()][:4] == [False, True, True, True]
    assert model[0][0].weight is weight
    assert torch.equal(weight.grad, torch.ones(4, 4))
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.state_dict().items())
    assert all(not module._forward_hooks for module in model.modules())
    assert not torch.cuda.is_available() or weight.device.type == "cpu"


def figures(model: ModelSummary) -> tuple[object, ...]:
    step_ns = round((model.step_s or 0) * 1e9)
    return model.parameters, model.ledger.total.flops, model.peak_bytes, step_ns


@pytest.mark.thorough
def test_a_model_on_meta_and_on_a_virtual_gpu_costs_the_same() -> None:
    model = layers()
    with torch.device("meta"):
        on_meta = layers()
    with torchtally.virtual_gpu("H100-SXM"):
        on_gpu = layers().cuda()
    expected = figures(summary(model, "8x4"))
    assert figures(summary(on_meta, torch.empty(8, 4, device="meta"))) == expected
    assert figures(summary(on_gpu, torch.rand(8, 4))) == expected
    assert all(parameter.is_meta for parameter in on_meta.parameters())


def test_a_function_builds_what_this_machine_cannot_hold() -> None:
    """Two matrices of 2**36 numbers: 256 GiB each."""
    model_summary = summary(
        lambda: nn.Sequential(*(nn.Linear(2**18, 2**18, bias=False) for _ in range(2))),
        f"1x{2**18}", precision="as-is", optimizer=None,
    )  # fmt: skip
    assert model_summary.parameters == 2 * 2**36
    assert model_summary.fits is False


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["4x"], {}, "'4x' is not an input. These work: 4x512:int64"),
        (["4:floot32"], {}, "unknown dtype. Did you mean float32"),
        (["2x4"], {"optimizer": "adamq"}, "unknown optimizer 'adamq'. Did you mean adam"),
        (["2x4"], {"precision": "bf17"}, "unknown precision 'bf17'. Choose one of bf16"),
        (["2x4"], {"gpu": "H1000"}, "H1000"),
        (["2x4"], {"loss": lambda output: output.detach().sum()}, "the loss has no gradient"),
    ],
)
def test_mistakes_are_messages(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        summary(layers(), *arguments, **options)


def test_what_the_model_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="same reduction dim"):
        summary(layers(), "2x5")
    assert not torch.cuda.is_initialized()
    summary(layers(), "2x4")  # the session has been left


def test_a_model_without_an_output_to_train() -> None:
    with pytest.raises(UsageError, match="in which no tensor has a gradient"):
        summary(layers().requires_grad_(False), "2x4")


def test_a_model_that_cannot_be_copied() -> None:
    model = layers()
    model.lock = open(__file__)  # type: ignore[assignment]  # noqa: SIM115
    with pytest.raises(UsageError, match="Give a function that builds it"):
        summary(model, "2x4")
    model.lock.close()  # type: ignore[union-attr, operator]


def test_torchscript_is_refused() -> None:
    with pytest.raises(UsageError, match="give the model it was scripted from"):
        summary(torch.jit.script(nn.Linear(4, 4)), "2x4")


def test_a_module_that_keeps_what_it_computed() -> None:
    model = nn.Linear(4, 4)
    model.last = model(torch.rand(2, 4))
    model_summary = summary(model, "2x4")
    assert model_summary.parameters == 4 * 4 + 4
    assert model.last.grad_fn is not None


def test_lazy_modules_get_their_sizes() -> None:
    model = nn.Sequential(nn.LazyLinear(8))
    assert summary(model, "2x4", **AS_IS).parameters == 4 * 8 + 8
    assert isinstance(model[0], nn.LazyLinear)  # the caller's has none yet


# What is shown -----------------------------------------------------------------------------------


def test_alike_modules_are_one_row_with_their_sum() -> None:
    model_summary = summary(layers(), "8x4", **AS_IS)
    table = model_summary.table(depth=1)
    names = table.column("module")
    assert names[:3] == ("Sequential", "  (0-2): 3 x Sequential", "  3: Linear")
    assert table.column("parameters")[1] == 3 * (4 * 4 + 4)
    assert table.column("flops_forward")[2] == 2 * 8 * 4 * 2
    assert table.column("output")[:3] == ("8x2", "8x4", "8x2")
    assert len(model_summary.table(depth=0).rows) == 2  # the model, and what is outside of it
    assert model_summary.table(None).column("module")[2] == "    0: 3 x Linear"


def test_modules_that_differ_stay_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5))
    names = summary(model, "8x4", **AS_IS).table().column("module")
    assert names[1:3] == ("  (0-1): 2 x Linear", "  2: Linear")


def test_a_list_is_no_level() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    names = summary(Net(), "8x4", **AS_IS).table(depth=1).column("module")
    assert names[:2] == ("Net", "  blocks.(0-1): 2 x Linear")


def test_it_is_shown_in_80_columns_and_as_a_document() -> None:
    model_summary = summary(layers(), "8x4", **AS_IS)
    text = str(model_summary)
    assert text.startswith("fits H100-SXM\n  peak memory  ")
    assert "Sequential: 70 parameters, called with 8x4:float32\n" in text  # 3 * 20 + 10
    assert max(map(len, text.splitlines())) <= 80
    assert "<table>" in model_summary._repr_html_()
    assert repr(model_summary).startswith(
        "<ModelSummary of Sequential on H100-SXM: 70 parameters, "
    )
    document = json.loads(render(model_report(model_summary), "json", Look()))
    assert document["parameters"] == 70
    assert [module["module"] for module in document["modules"]] == [
        "", "0", "0.0", "0.1", "1", "1.0", "1.1", "2", "2.0", "2.1", "3",
    ]  # fmt: skip
    assert document["flops_forward"] == model_summary.flops_forward


def test_the_code_between_operators_is_no_scripts() -> None:
    """It is ours: a sentence about a script's loop would be of none."""
    model_summary = summary(layers(), "8x4", **AS_IS)
    ledger = model_summary.ledger
    work = ScriptWork(ledger.trace.step_ends[0], None, seconds=1.0)
    trace = structs.replace(ledger.trace, script_work=(work,))
    slow = replace(model_summary, ledger=replace(ledger, trace=trace))
    assert script_work(slow.ledger) is not None
    report = model_report(slow)
    for text in (render(report, "text", Look()), render(report, "markdown", Look())):
        assert "own code between" not in text


def test_the_tree_has_costs_on_request() -> None:
    """Those of the model and of what is outside it sum to the step's."""
    table = summary(layers(), "8x4", **AS_IS).table()
    costs = table.column("cost_usd")
    assert costs[0] + costs[-1] == pytest.approx(table.total("cost_usd"))  # type: ignore[operator]
    assert "cost_usd" not in [column.name for column in table.for_readers().columns]
