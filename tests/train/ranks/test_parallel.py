"""One, two and four ranks train alike, whole weights or shards on each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.ranks.processes import on_ranks
from tests.train.ranks.trainings import Trained, trained_on_ranks
from tests.train.training import language, teacher
from torchtally.checkpoints.ranks import Ranks
from torchtally.errors import UsageError
from torchtally.train.config import TrainConfig
from torchtally.train.models.loss import IGNORED
from torchtally.train.optimizers.build import implementation
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.parallel import parallel
from torchtally.train.precision import precision
from torchtally.train.tasks import TrainBatch

FSDP = {"parallel": {"strategy": "fsdp"}}
KINDS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": FSDP,
    "fsdp, whole after forward": {"parallel": {"strategy": "fsdp", "reshard_after_forward": False}},
    "ddp, micro-batches": {"micro_batch": 1},
    "fsdp, micro-batches": {**FSDP, "micro_batch": 1},
    "ddp, recomputed": {"recompute": "full"},
}
STEPS, ROWS = 3, 8


def config_of(folder: Path, **changes: Any) -> TrainConfig:
    """A tiny decoder, clipped at every step, on one row of text for each of eight ranks."""
    recompute = changes.pop("recompute", "none")
    task = language(folder, **{"steps": STEPS, "batch": ROWS, "clip_norm": 0.3, **changes})
    return replace(task, model=replace(task.model, recompute=recompute))


def unevenly_ignored(batch: TrainBatch, own: Ranks) -> TrainBatch:
    """Targets that do not count, more of them in the first rows of the global batch; in one of the
    rows of the last rank, all.
    """
    rows = len(batch.targets)
    targets = batch.targets.clone()
    for row in range(rows):
        place = own.rank * rows + row
        targets[row, : 3 * (ROWS - 1 - place)] = IGNORED
        if place == ROWS - 1:
            targets[row] = IGNORED
    return replace(batch, targets=targets)


def numbers(history: Trained) -> list[tuple[Any, ...]]:
    """What all ranks must agree on, to the bit."""
    return [
        (
            step_result.loss,
            step_result.grad_norm,
            step_result.outcome,
            step_result.is_spike,
            step_result.loss_scale,
        )
        for step_result in history.results
    ]


def are_alike(one: Trained, other: Trained, *, loss: float, weight: float) -> bool:
    """Losses and norms to a relative tolerance, weights to an absolute one."""
    return (
        [step_result.loss for step_result in one.results]
        == pytest.approx([step_result.loss for step_result in other.results], rel=loss)
        and [step_result.grad_norm for step_result in one.results]
        == pytest.approx([step_result.grad_norm for step_result in other.results], rel=100 * loss)
        and one.validation_loss == pytest.approx(other.validation_loss, rel=loss)
        and one.weights.keys() == other.weights.keys()
        and all(
            torch.allclose(tensor, other.weights[name], rtol=0, atol=weight)
            for name, tensor in one.weights.items()
        )
    )


def global_rows(ranks_found: list[Trained], step: int) -> Tensor:
    return torch.cat([rank.inputs[step] for rank in ranks_found])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Trained:
    (history,) = on_ranks(trained_on_ranks, 1, [config_of(folder)])[0]
    return history


@pytest.fixture(scope="module")
def alone_ignoring(folder: Path) -> Trained:
    (history,) = on_ranks(trained_on_ranks, 1, [config_of(folder)], unevenly_ignored)[0]
    return history


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_ranks_trains_alike(size: int, folder: Path, alone: Trained) -> None:
    configs = [config_of(folder, **kind) for kind in KINDS.values()]
    every = on_ranks(trained_on_ranks, size, configs)
    for at, kind in enumerate(KINDS):
        histories = [rank[at] for rank in every]
        for step in range(STEPS):
            assert torch.equal(global_rows(histories, step), alone.inputs[step])
        for other in histories[1:]:
            assert numbers(other) == numbers(histories[0]), kind
            assert other.validation_loss == histories[0].validation_loss
        assert are_alike(histories[0], alone, loss=1e-6, weight=1e-4), kind
        assert all(
            result.micro_batches == ROWS // size for result in histories[0].results
        ) or at not in (3, 4)


@pytest.mark.thorough("test_any_number_of_ranks_trains_alike")
def test_the_mean_is_over_the_targets_of_all_ranks(
    folder: Path, alone: Trained, alone_ignoring: Trained
) -> None:
    assert not are_alike(alone_ignoring, alone, loss=1e-6, weight=1e-4)  # the check can fail
    configs = [config_of(folder, **KINDS[name]) for name in ("ddp", "fsdp", "ddp, micro-batches")]
    for history in on_ranks(trained_on_ranks, 4, configs, unevenly_ignored)[0]:
        assert are_alike(history, alone_ignoring, loss=1e-6, weight=1e-4)


@pytest.mark.thorough
def test_bfloat16_on_ranks_is_bfloat16_alone(folder: Path) -> None:
    """Shards are gathered in bfloat16, so a block's sums are, too: close, and not as close."""
    configs = [config_of(folder, precision="bf16", **options) for options in ({}, FSDP)]
    reference = on_ranks(trained_on_ranks, 1, configs[:1])[0][0]
    replicas, shards = on_ranks(trained_on_ranks, 2, configs)[0]
    assert are_alike(replicas, reference, loss=5e-4, weight=5e-3)
    assert are_alike(shards, reference, loss=2e-3, weight=5e-3)
    assert {weight.dtype for weight in shards.weights.values()} == {torch.float32}


@pytest.mark.thorough("test_any_number_of_ranks_trains_alike")
def test_every_precision_goes_with_replicas(folder: Path) -> None:
    configs = [config_of(folder, precision=name) for name in ("fp16", "bf16-master", "pure-bf16")]
    references = on_ranks(trained_on_ranks, 1, configs)[0]
    every = on_ranks(trained_on_ranks, 2, configs)
    for one, other, reference in zip(*every, references, strict=True):
        assert numbers(one) == numbers(other)
        assert all(torch.equal(weight, other.weights[name]) for name, weight in one.weights.items())
        assert [result.outcome for result in one.results] == [
            result.outcome for result in reference.results
        ]
        assert are_alike(one, reference, loss=2e-3, weight=1e-2)


OPTIMIZERS = [
    {"name": "sgd", "lr": 1e-4},
    {"name": "momentum", "lr": 1e-4},
    {"name": "momentum", "lr": 1e-4, "implementation": "foreach"},
    {"name": "adagrad"},
    {"name": "adagrad", "implementation": "foreach"},
    {"name": "adagrad", "eps_inside_root": True},
    {"name": "rmsprop", "lr": 1e-3},
    {"name": "rmsprop", "lr": 1e-3, "implementation": "foreach"},
    {"name": "adam"},
    {"name": "adam", "implementation": "for-loop"},
    {"name": "adam", "implementation": "foreach"},
    {"name": "adamw"},
    {"name": "lion"},
    {"name": "muon"},
]


@pytest.mark.thorough("test_any_number_of_ranks_trains_alike, with one optimizer")
def test_every_optimizer_steps_shards_as_it_steps_the_whole(tmp_path: Path) -> None:
    """Matrices of ten rows and one of a single row: three ranks have unequal shards, or none."""
    configs = [
        teacher(
            tmp_path,
            batch=6,
            steps=3,
            teacher={"dim": 10, "num_layers": 2},
            optimizer=optimizer,
            **FSDP,
        )
        for optimizer in OPTIMIZERS
    ]
    whole = on_ranks(trained_on_ranks, 1, configs)[0]
    shards = on_ranks(trained_on_ranks, 3, configs)[0]
    for options, actual, expected in zip(OPTIMIZERS, shards, whole, strict=True):
        # Muon multiplies in bfloat16.
        weight = 1e-3 if options["name"] == "muon" else 1e-5
        assert are_alike(actual, expected, loss=1e-3, weight=weight), options


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad"])
def test_fused_kernels_that_know_no_shards_are_refused(name: str) -> None:
    config = OptimizerConfig(name=name, implementation="fused")
    assert implementation(config, {"cpu"}) == "fused"
    with pytest.raises(UsageError, match=r"with sharded weights\. Choose from for-loop, foreach"):
        implementation(config, {"cpu"}, are_shards=True)


@pytest.mark.parametrize("name", ["fp16", "bf16-master", "pure-bf16", "fp8"])
def test_precisions_that_know_no_shards_are_refused(name: str, folder: Path) -> None:
    config = config_of(folder, precision=name, **FSDP)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match=f"{name} does not work with .* fsdp, which takes fp32"):
        parallel(
            model,
            lambda model, x, y: model(x).mean(),
            config.parallel,
            precision=precision(name),
            device=torch.device("cpu"),
            ranks=Ranks(0, 2),
        )


@pytest.mark.thorough("test_any_number_of_ranks_trains_alike")
def test_the_linear_teacher_has_ranks_too(tmp_path: Path) -> None:
    configs = [
        teacher(tmp_path, batch=8, teacher={"dim": 8, "num_layers": 2}, **options)
        for options in ({}, FSDP)
    ]
    reference = on_ranks(trained_on_ranks, 1, configs[:1])[0][0]
    every = on_ranks(trained_on_ranks, 4, configs)
    for at in range(2):
        histories = [rank[at] for rank in every]
        assert torch.equal(global_rows(histories, 3), reference.inputs[3])
        assert are_alike(histories[0], reference, loss=1e-4, weight=1e-4)
