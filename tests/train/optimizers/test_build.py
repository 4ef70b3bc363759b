"""From a config to an optimizer: keys, groups, implementations, resuming, bytes of state."""

import copy
import io
import itertools
import json
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import nn

from benchmarks.optimizers import main as benchmark
from tests.train.optimizers.pairs import (
    MATRICES,
    assert_equal_to_rounding,
    numbered,
    parameters,
    train,
)
from torchtally.checkpoints.checked import check_values
from torchtally.errors import UsageError
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.optimizers import OPTIMIZERS
from torchtally.train.footprint import footprint
from torchtally.train.optimizers.build import (
    FUSED_ON,
    IMPLEMENTATIONS,
    TORCHS,
    build,
    implementation,
    implementations,
)
from torchtally.train.optimizers.config import DEFAULTS, OptimizerConfig
from torchtally.train.optimizers.groups import decay_groups, trained_parameters
from torchtally.train.optimizers.lion import Lion
from torchtally.train.optimizers.muon import Muon

CLASSES = {**TORCHS, "lion": Lion, "muon": Muon}
EVERY = [
    (name, kind)
    for name in DEFAULTS
    for kind in implementations(OptimizerConfig(name=name), {"cpu"})
]


class Small(nn.Module):
    """Every kind of parameter: embedding, norm, matrix, bias, a head of its own, a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(11, 4)
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 4)
        self.lm_head = nn.Linear(4, 11, bias=False)
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        UsageError, match=r"unknown optimizer 'adamx'.* sgd, momentum, adagrad.* muon"
    ):
        OptimizerConfig(name="adamx")


GIVEN: dict[str, Any] = {
    "lr": 0.5, "weight_decay": 0.5, "betas": (0.5, 0.5), "eps": 0.5, "momentum": 0.5,
    "nesterov": True, "alpha": 0.5, "eps_inside_root": True, "ns_steps": 2,
    "adjust_lr_fn": "match_rms_adamw", "adamw_lr": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(("name", "key"), list(itertools.product(DEFAULTS, GIVEN)))
def test_an_optimizer_takes_what_it_has_and_nothing_else(name: str, key: str) -> None:
    if key in DEFAULTS[name]:
        config = OptimizerConfig(name=name, **{key: GIVEN[key]})
        assert config.hyperparameters()[key] == GIVEN[key]
    else:
        with pytest.raises(UsageError, match=f"optimizer {name} has no {key}. Keys are: lr, "):
            OptimizerConfig(name=name, **{key: GIVEN[key]})


@pytest.mark.parametrize("key", GIVEN)
@pytest.mark.parametrize("value", [-1.0, "nine", float("nan")])
def test_every_key_has_values_that_it_refuses(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"adam: {key}: expected .*, got {value!r}"):
        check_values(OptimizerConfig, {key: value}, "adam: ")


def test_a_value_out_of_range_names_key_and_optimizer() -> None:
    with pytest.raises(
        UsageError, match=r"betas: expected .* in \[0, 1\), or none, got \(0.9, 1.0\)"
    ):
        OptimizerConfig(name="adamw", betas=(0.9, 1.0))
    with pytest.raises(UsageError, match=r"'original' needs learning rates .* give adamw_lr"):
        OptimizerConfig(name="muon", adjust_lr_fn="original")


@pytest.mark.parametrize("name", TORCHS)
def test_defaults_are_torchs(name: str) -> None:
    theirs = TORCHS[name](parameters()).defaults
    values = OptimizerConfig(name=name).hyperparameters()
    if name == "momentum":
        assert values.pop("momentum") == 0.9  # torch's 0 is our sgd
    assert values.pop("eps_inside_root", False) is False
    assert values == {key: theirs[key] for key in values}


def test_a_choice_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a file, where no type checker looks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(
        UsageError, match=r"implementation: expected auto, fused, foreach, for-loop, got 'fast'"
    ):
        OptimizerConfig(implementation="fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"decayed_on: expected all, matrices, .*, got 'some'"):
        OptimizerConfig(decayed_on="some")  # type: ignore[arg-type]


def test_adagrads_eps_goes_with_its_form() -> None:
    outside, inside = OptimizerConfig(name="adagrad"), OptimizerConfig(
        name="adagrad", eps_inside_root=True
    )  # fmt: skip
    assert outside.hyperparameters()["eps"] == 1e-10
    assert inside.hyperparameters()["eps"] == 1e-5
    (group,) = build(numbered(parameters()), inside).param_groups[:1]
    assert (group["eps"], group["initial_accumulator_value"]) == (0.0, 1e-5)


def names(group: dict[str, Any]) -> set[str]:
    return set(group["param_names"])


def test_decay_is_on_matrices_alone() -> None:
    decayed, kept = decay_groups(trained_parameters(Small()), 0.1, "matrices")
    assert {value for value, _ in decayed["params"]} == {
        "wte.weight", "up.weight", "down.weight", "lm_head.weight"
    }  # fmt: skip
    assert {value for value, _ in kept["params"]} == {
        "norm.weight", "norm.bias", "up.bias", "down.bias"
    }  # fmt: skip
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)


def test_decay_without_embeddings_and_on_all() -> None:
    model = Small()
    decayed, kept = decay_groups(trained_parameters(model), 0.1, "matrices without embeddings")
    assert "wte.weight" in {value for value, _ in kept["params"]}
    assert {value for value, _ in decayed["params"]} == {
        "up.weight",
        "down.weight",
        "lm_head.weight",
    }
    (everything,) = decay_groups(trained_parameters(model), 0.1, "all")
    assert len(everything["params"]) == 8


def test_a_tied_head_is_an_embedding_and_is_there_once() -> None:
    model = Small()
    model.lm_head.weight = model.wte.weight
    optimizer = build(
        model, OptimizerConfig(decayed_on="matrices without embeddings", weight_decay=0.1)
    )
    assert names(optimizer.param_groups[0]) == {"up.weight", "down.weight"}
    assert sum(len(param_group["params"]) for param_group in optimizer.param_groups) == 7


def test_muons_groups() -> None:
    model = Small()
    config = OptimizerConfig(name="muon", adjust_lr_fn="original", lr=0.02, adamw_lr=0.003)
    optimizer = build(model, config)
    groups = {
        (param_group["orthogonalise"], param_group["lr"], param_group["weight_decay"]): names(
            param_group
        )
        for param_group in optimizer.param_groups
    }
    assert groups == {
        (True, 0.02, 0.1): {"up.weight", "down.weight"},
        (False, 0.003, 0.1): {"wte.weight", "lm_head.weight"},
        (False, 0.003, 0.0): {"norm.weight", "norm.bias", "up.bias", "down.bias"},
    }


def test_nothing_to_train() -> None:
    with pytest.raises(UsageError, match="Nothing to train"):
        build(nn.LayerNorm(2).requires_grad_(False), OptimizerConfig())
    with pytest.raises(UsageError, match="Nothing to train"):
        build([], OptimizerConfig())


AUTO = {
    ("sgd", "cpu"): "fused", ("momentum", "cpu"): "fused", ("adagrad", "cpu"): "fused",
    ("rmsprop", "cpu"): "for-loop", ("adam", "cpu"): "fused", ("adamw", "cpu"): "fused",
    ("lion", "cpu"): "foreach", ("muon", "cpu"): "foreach",
    ("sgd", "cuda"): "fused", ("momentum", "cuda"): "fused", ("rmsprop", "cuda"): "foreach",
    ("adam", "cuda"): "fused", ("adamw", "cuda"): "fused", ("lion", "cuda"): "foreach",
    ("muon", "cuda"): "foreach", ("adamw", "mps"): "for-loop", ("adamw", "meta"): "for-loop",
}  # fmt: skip


@pytest.mark.parametrize(("name", "device"), AUTO)
def test_auto_is_what_it_says(name: str, device: str) -> None:
    assert implementation(OptimizerConfig(name=name), {device}) == AUTO[name, device]


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_build_makes_what_was_asked_for(name: str, kind: Any) -> None:
    optimizer = build(Small(), OptimizerConfig(name=name, implementation=kind))
    assert isinstance(optimizer, CLASSES[name])
    if name in TORCHS:
        for group in optimizer.param_groups:
            assert IMPLEMENTATIONS[kind].items() <= group.items()


@pytest.mark.parametrize(("name", "device"), AUTO)
def test_build_takes_auto(name: str, device: str) -> None:
    if device == "cpu":
        optimizer = build(Small(), OptimizerConfig(name=name))
        assert isinstance(optimizer, CLASSES[name])
        # Of Muon's, AdamW's part is.
        is_fused = AUTO[name, device] == "fused" or name == "muon"
        assert all(bool(group.get("fused")) is is_fused for group in optimizer.param_groups)


def test_an_implementation_that_is_not_there() -> None:
    with pytest.raises(
        UsageError, match=r"lion has no implementation 'fused' on cpu. Choose from foreach"
    ):
        build(Small(), OptimizerConfig(name="lion", implementation="fused"))
    mixed = implementations(OptimizerConfig(name="adamw"), {"cuda", "mps"})
    assert "fused" not in mixed


def test_torch_has_the_fused_kernels_that_are_listed() -> None:
    for name in FUSED_ON["cpu"]:
        TORCHS[name](parameters(), fused=True)
    with pytest.raises(TypeError):
        torch.optim.RMSprop(parameters(), fused=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name in TORCHS])
def test_every_implementation_takes_the_same_steps(name: str) -> None:
    ends = []
    for kind in implementations(OptimizerConfig(name=name), {"cpu"}):
        counted_parameters = parameters()
        train(
            counted_parameters,
            build(numbered(counted_parameters), OptimizerConfig(name=name, implementation=kind)),
        )
        ends.append(counted_parameters)
    for other in ends[1:]:
        assert_equal_to_rounding(other, ends[0])


def config_for(name: str, kind: Any = "auto") -> OptimizerConfig:
    return OptimizerConfig(name=name, implementation=kind, lr=0.01, weight_decay=0.1)


def named(seed: int = 0) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"layer{at}", parameter)
        for at, parameter in enumerate(parameters((*MATRICES, (4,)), seed=seed))
    ]


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_a_resumed_run_goes_on_bit_for_bit(name: str, kind: Any) -> None:
    config = config_for(name, kind)
    first = named()
    optimizer = build(first, config)
    train([parameter for _, parameter in first], optimizer, 7)
    file = io.BytesIO()
    torch.save((optimizer.state_dict(), [parameter for _, parameter in first]), file)
    file.seek(0)
    state, saved = torch.load(file, weights_only=False)
    resumed = [
        (key, nn.Parameter(tensor.detach())) for (key, _), tensor in zip(first, saved, strict=True)
    ]
    second = build(resumed, config)
    second.load_state_dict(state)
    train([parameter for _, parameter in first], optimizer, 5, start=7)
    train([parameter for _, parameter in resumed], second, 5, start=7)
    for (_, one), (_, other) in zip(first, resumed, strict=True):
        assert torch.equal(one, other)
    for one_state, other_state in zip(
        optimizer.state_dict()["state"].values(), second.state_dict()["state"].values(), strict=True
    ):
        assert set(one_state) == set(other_state)
        assert all(torch.equal(one_state[key], other_state[key]) for key in one_state)


@pytest.mark.parametrize(("name", "kind"), EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_state_bytes_are_those_of_the_planner(name: str, kind: Any, dtype: torch.dtype) -> None:
    model = Small().to(dtype)
    optimizer = build(model, OptimizerConfig(name=name, implementation=kind))
    assert name == "adagrad" or footprint(model, optimizer).optimizer_state_bytes == 0
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    train(trained, optimizer, 2)
    hidden = {"up.weight", "down.weight"}
    weights = [
        Weight(
            key, Group.FEED_FORWARD if key in hidden else Group.EMBEDDING, tuple(parameter.shape)
        )
        for key, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    promised = OPTIMIZERS[name].state_bytes(weights, dtype.itemsize)
    assert footprint(model, optimizer).optimizer_state_bytes == promised
    counters = [state["step"] for state in optimizer.state.values() if "step" in state]
    assert all(counter.nbytes == 4 for counter in counters)


@pytest.mark.parametrize("name", DEFAULTS)
def test_torchs_schedulers_and_grad_scaler_work(name: str) -> None:
    """A scaler on the CPU: an overflow skips the step, and gradients arrive unscaled."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = build(model, OptimizerConfig(name=name, lr=0.1, implementation="foreach"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = copy.deepcopy(model.state_dict())
    for factor in (float("inf"), 1.0):
        scaler.scale(factor * model(torch.ones(2, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        is_same = all(
            torch.equal(before[key], tensor) for key, tensor in model.state_dict().items()
        )
        assert is_same == (factor != 1.0)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


D, B, STEPS = 16, 4, 10


def linear_teacher(optimizer_of: Any) -> list[float]:
    """The teacher's weights are 0..D-1; a student at 0 learns them from B random rows a step."""
    generator = torch.Generator().manual_seed(0)
    teacher = torch.arange(D, dtype=torch.float64)
    student = nn.Parameter(torch.zeros(D, dtype=torch.float64))
    optimizer = optimizer_of([student])
    losses = []
    for _ in range(STEPS):
        x = torch.randn(B, D, generator=generator, dtype=torch.float64)
        loss = ((x @ student - x @ teacher) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("name", "kind"), [pair for pair in EVERY if pair[0] in TORCHS])
@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_the_linear_teacher_learns_as_with_torch(name: str, kind: Any, lr: float) -> None:
    config = OptimizerConfig(name=name, lr=lr, implementation=kind, weight_decay=0.0)
    options = config.hyperparameters()
    options.pop("eps_inside_root", None)
    ours = linear_teacher(lambda them: build(numbered(them), config))
    theirs = linear_teacher(lambda them: TORCHS[name](them, foreach=False, **options))
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_the_missions_adagrad_is_faster_at_the_larger_rate() -> None:
    losses = {
        lr: linear_teacher(
            lambda them, lr=lr: build(
                numbered(them), OptimizerConfig(name="adagrad", lr=lr, eps_inside_root=True)
            )
        )
        for lr in (0.01, 0.1)
    }
    assert losses[0.01][0] == losses[0.1][0]
    assert losses[0.1][-1] < losses[0.01][-1]


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No layers and ten words leave 1024 * 768 + 10 * 768 + 2 * 768 = 0.8M parameters."""
    file = tmp_path / "figures.json"
    size = ["--layers", "0", "--vocabulary", "10"]
    assert benchmark([*size, "--repeat", "1", "--json", str(file)]) == 0
    assert "0.8M float32 parameters" in capsys.readouterr().out
    by_name = {
        optimizer["name"]: optimizer for optimizer in json.loads(file.read_text())["optimizers"]
    }
    assert set(by_name) == set(DEFAULTS) - {"muon"}
    assert set(by_name["adamw"]["ratio"]) == {"fused", "for-loop", "foreach"}
    assert all(
        s > 0
        for optimizer in by_name.values()
        for times in optimizer["step_s"].values()
        for s in times
    )
    assert all(optimizer["ratio"].get("for-loop", 1.0) == 1.0 for optimizer in by_name.values())


def test_classes_by_name() -> None:
    assert set(CLASSES) == set(DEFAULTS) <= set(OPTIMIZERS)
