"""Each rule beside the same training without the fault: one sentence, and none."""

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torchtally
from tests.tracer.test_out_of_memory import failed
from torchtally.diagnosis import Diagnosis, diagnose
from torchtally.ledger import account
from torchtally.report.diagnoses import diagnosis_sentences
from torchtally.report.documents.run import run_document
from torchtally.report.keys import dumps
from torchtally.report.text import summary_text
from torchtally.views.summary import summarise

MIB = 1 << 20
Train = Callable[[], None]


def diagnoses_of(train: Train, steps: int = 2) -> tuple[Diagnosis, ...]:
    return diagnose(account(torchtally.run(train, gpu="H100-SXM", steps=steps)))


def rules_of(train: Train, steps: int = 2) -> list[str]:
    return [diagnosis.rule for diagnosis in diagnoses_of(train, steps)]


def linear_training(keeps: bool, steps: int = 4) -> Train:
    """A loop that keeps each step's output with its graph, or its number alone."""

    def train() -> None:
        model = nn.Linear(512, 512, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        for _ in range(steps):
            output = model(torch.randn(1024, 512, device="cuda")).sigmoid()
            kept.append(output if keeps else output.detach().mean())
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def test_what_every_step_keeps_more_of() -> None:
    (diagnosis,) = diagnoses_of(linear_training(keeps=True), steps=4)
    # The output of sigmoid is 1024 x 512 x 4 bytes; backward freed what its graph held.
    assert (diagnosis.rule, diagnosis.cost_bytes) == ("growth", 2 * MIB)
    assert diagnosis.line is not None
    assert diagnosis.line.text.startswith("output = model(")


def test_a_number_of_each_step_is_no_growth() -> None:
    assert rules_of(linear_training(keeps=False), steps=4) == []


def test_two_steps_tell_no_growth() -> None:
    assert rules_of(linear_training(keeps=True), steps=2) == []


def checkpointed(how: str) -> Train:
    """Eight layers, checkpointed as a whole ("whole", "reentrant"), one by one, or not."""

    def train() -> None:
        layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)).to(
            "cuda"
        )
        head = nn.Linear(256, 1, device="cuda")
        optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=0.1)

        def trunk(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if how == "blocks" else layer(x)
            return x

        for _ in range(3):
            x = torch.randn(8192, 256, device="cuda")
            if how in ("whole", "reentrant"):
                x = checkpoint(trunk, x, use_reentrant=how == "reentrant")
            else:
                x = trunk(x)
            head(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("how", "rules"),
    [("none", []), ("blocks", []), ("whole", ["checkpoints"]), ("reentrant", ["gradients"])],
)
def test_one_checkpoint_around_all(how: str, rules: list[str]) -> None:
    assert rules_of(checkpointed(how)) == rules


def test_parameters_without_gradients_are_counted() -> None:
    with pytest.warns(UserWarning, match="None of the inputs"):
        (diagnosis,) = diagnoses_of(checkpointed("reentrant"))
    (sentence,) = diagnosis_sentences([diagnosis], "")
    assert "16 of 18 trained parameters get no gradient" in sentence


def test_a_checkpoint_for_each_of_a_few_large_blocks_is_no_fault() -> None:
    """Recomputing one of three blocks holds most at the peak, and is a third of what is done."""

    class Block(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                *(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU()))
            )

    def train() -> None:
        blocks = nn.ModuleList(Block() for _ in range(3)).to("cuda")
        optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.randn(65536, 128, device="cuda")
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False)
            x.mean().backward()
            optimizer.step()

    assert rules_of(train) == []


def test_frozen_parameters_and_those_not_used_are_no_fault() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).to("cuda")
        model[0].requires_grad_(False)
        unused = nn.Linear(512, 512, device="cuda")
        optimizer = torch.optim.SGD(
            [p for p in (*model.parameters(), *unused.parameters()) if p.requires_grad], lr=0.1
        )
        for _ in range(2):
            model(torch.randn(8, 256, device="cuda")).mean().backward()
            optimizer.step()

    assert rules_of(train) == []


@pytest.mark.parametrize(
    ("options", "rules"),
    [({}, ["optimizer_copies"]), ({"fused": True}, []), ({"foreach": False}, [])],
)
def test_copies_of_foreach(options: dict[str, bool], rules: list[str]) -> None:
    def train() -> None:
        layers = (nn.Linear(1024, 1024, bias=False) for _ in range(32))
        model = nn.Sequential(*layers).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for _ in range(2):
            model(torch.randn(4, 1024, device="cuda")).mean().backward()
            optimizer.step()

    assert rules_of(train) == rules


def test_copies_that_there_is_no_memory_for() -> None:
    """13 layers of 256 MiB: 13 GiB with gradients and two moments, and copies of 3.25 more."""

    def train() -> None:
        layers = (nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(13))
        model = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 8192, device="cuda")).mean().backward()
        optimizer.step()

    (diagnosis,) = diagnose(account(failed(train, "T4")))
    assert diagnosis.rule == "optimizer_copies"


@pytest.mark.parametrize("waits", [0, 20])
def test_a_host_that_waits_many_times_a_step(waits: int) -> None:
    def train() -> None:
        model = nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            output = model(torch.randn(8, 64, device="cuda"))
            for row in range(waits):
                output[row % 8, row].item()
            output.mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = torchtally.run(train, gpu="H100-SXM", steps=3)
    found = diagnose(account(trace, roofline=torchtally.roofline("H100-SXM")))
    assert [each.rule for each in found] == ["host_waits"] * (waits > 0)
    if found:
        assert found[0].line is not None
        assert found[0].line.text == "output[row % 8, row].item()"


@pytest.mark.parametrize("is_cached", [True, False])
def test_cached_casts_without_training(is_cached: bool) -> None:
    def predict() -> None:
        layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8))).to("cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=is_cached):
            layers(torch.randn(64, 1024, device="cuda"))

    found = diagnoses_of(predict)
    assert [diagnosis.rule for diagnosis in found] == ["cast_weights"] * is_cached
    assert [diagnosis.cost_bytes for diagnosis in found] == [8 * 2 * MIB] * is_cached


@pytest.mark.parametrize("is_expanded", [True, False])
def test_a_mask_for_every_head(is_expanded: bool) -> None:
    def predict() -> None:
        q, k, v = (torch.randn(4, 8, 1024, 64, device="cuda") for _ in range(3))
        mask = torch.ones(4, 1024, device="cuda").bool()[:, None, None, :]
        mask = mask.expand(4, 8, 1024, 1024).contiguous() if is_expanded else None
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    assert rules_of(predict) == ["masks"] * is_expanded


def test_a_bias_of_attention_is_no_mask() -> None:
    def predict() -> None:
        q, k, v = (torch.randn(1, 8, 1024, 64, device="cuda") for _ in range(3))
        bias = torch.randn(1, 8, 1024, 1024, device="cuda")
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    assert rules_of(predict) == []


def models_in_turn(count: int) -> Train:
    def train() -> None:
        models = [nn.Linear(1024, 1024, device="cuda") for _ in range(count)]
        for model in models:
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            for _ in range(3):
                model(torch.randn(8, 1024, device="cuda")).mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    return train


@pytest.mark.parametrize("count", [1, 3])
def test_models_that_wait_for_their_turn(count: int) -> None:
    trace = torchtally.run(models_in_turn(count), gpu="H100-SXM", steps=None)
    found = diagnose(account(trace))
    assert [each.rule for each in found] == ["idle_models"] * (count > 1)
    if found:  # the weights and biases of two models: their optimizers are gone
        assert found[0].cost_bytes == 2 * (4 * MIB + 4096)


def test_an_optimizer_that_steps_now_and_then_is_not_idle() -> None:
    """Its state is held and not touched, while its parameters are read."""

    def train() -> None:
        often, seldom = (nn.Linear(1024, 1024, device="cuda") for _ in range(2))
        adams = [torch.optim.AdamW(model.parameters(), fused=True) for model in (often, seldom)]
        for step in range(6):
            seldom(often(torch.randn(8, 1024, device="cuda"))).mean().backward()
            adams[0].step()
            if step % 2 == 0:
                adams[1].step()

    trace = torchtally.run(train, gpu="H100-SXM", steps=None)
    assert [each.rule for each in diagnose(account(trace))] == []


@pytest.mark.parametrize("keeps", [True, False])
def test_evaluation_that_keeps_its_outputs(keeps: bool) -> None:
    def train() -> None:
        model = nn.Linear(64, 8192, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(256, 64, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        kept = []
        with torch.no_grad():
            for _ in range(8):
                output = model(torch.randn(128, 64, device="cuda"))
                kept.append(output if keeps else output.argmax(-1))

    trace = torchtally.run(train, gpu="H100-SXM", steps=None)
    assert [each.rule for each in diagnose(account(trace))] == ["evaluation"] * keeps


def test_reports_say_it_with_line_and_remedy() -> None:
    ledger = account(torchtally.run(linear_training(keeps=True), gpu="H100-SXM", steps=4))
    text = summary_text(summarise(ledger))
    lines = text.splitlines()
    place = next(n for n, line in enumerate(lines) if "Memory grows by 2.00 MiB" in line)
    assert "test_diagnosis.py:" in lines[place]
    assert place < 8, "behind the verdict"
    (document,) = json.loads(dumps(run_document(ledger)))["diagnoses"]
    assert document["rule"] == "growth"
    assert document["cost_bytes"] == 2 * MIB
    assert document["file"].endswith("test_diagnosis.py")
