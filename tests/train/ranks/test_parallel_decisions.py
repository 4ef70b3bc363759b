"""What ranks decide from numbers, they decide alike; what one cannot do, none does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.ranks.processes import on_ranks
from tests.train.ranks.test_parallel import FSDP, config_of
from tests.train.ranks.trainings import trained_on_ranks
from tests.train.training import TINY, teacher
from torchtally.checkpoints.ranks import Ranks, join_ranks
from torchtally.checkpoints.shards import global_norm
from torchtally.errors import UsageError
from torchtally.train.config import TrainConfig
from torchtally.train.evaluation import evaluation_mode
from torchtally.train.footprint import Footprint, footprint, measure_activation_bytes
from torchtally.train.outcome import NonFiniteError, StepError
from torchtally.train.retry import MemoryShortageError
from torchtally.train.sampling import sample
from torchtally.train.tasks import TrainBatch, share_rows, task_of
from torchtally.train.trainer import device_of, trainer_of


def poisoned(batch: TrainBatch, own: Ranks) -> TrainBatch:
    """NaN in the last row of the second step on rank 1."""
    inputs = batch.inputs.clone()
    if batch.step == 1 and own.rank == 1:
        inputs[-1] = math.nan
    return replace(batch, inputs=inputs)


def texts_of_error(config: TrainConfig) -> str:
    """What a rank says of the step that must not be taken."""
    with join_ranks("cpu") as own:
        trainer = trainer_of(config, own)
        with trainer.task.batches(range(config.steps), trainer.device) as batches:
            try:
                for batch in batches:
                    trainer.step(poisoned(batch, own))
            except StepError as error:
                return f"{type(error).__name__}: {error}"
    return "nothing"


KINDS: list[dict[str, Any]] = [{}, FSDP]


@pytest.mark.thorough
def test_a_step_that_one_rank_cannot_take_no_rank_takes(tmp_path: Path) -> None:
    configs = [teacher(tmp_path, batch=8, steps=3, on_nonfinite="skip", **kind) for kind in KINDS]
    every = on_ranks(trained_on_ranks, 4, configs, poisoned)
    for at in range(len(KINDS)):
        for history in (rank[at] for rank in every):
            assert [step_result.is_skipped for step_result in history.results] == [
                False,
                True,
                False,
            ]
            for name, weight in history.weights.items():
                assert weight.isfinite().all()
                assert torch.equal(weight, every[0][at].weights[name])


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_name_the_rank_whose_rows_were_bad(kind: Any, tmp_path: Path) -> None:
    config = teacher(tmp_path, batch=8, steps=3, **kind)
    said = on_ranks(texts_of_error, 2, config)
    assert len(set(said)) == 1
    assert said[0].startswith("NonFiniteError: Step 1: the loss is nan")
    assert "first in rows 0 to 3 of 4 of rank 1" in said[0]


def short_of_memory(config: TrainConfig) -> tuple[str, int]:
    """Rank 1 has no memory: what it raises, and how often it tried."""
    with join_ranks("cpu") as own:
        trainer = trainer_of(config, own)
        tries = 0

        def loss(*rows: Any) -> torch.Tensor:
            nonlocal tries
            tries += 1
            raise torch.OutOfMemoryError("a device of no size")

        if own.rank == 0:
            return "", 0
        trainer.stepper.loss = loss
        with trainer.task.batches(range(1), trainer.device) as batches:
            try:
                trainer.step(next(iter(batches)))
            except MemoryShortageError as error:
                return str(error), tries
    return "nothing", tries


def test_out_of_memory_is_raised_at_once(tmp_path: Path) -> None:
    said, tries = on_ranks(short_of_memory, 2, teacher(tmp_path, batch=8))[1]
    assert "on rank 1 with 4 of its 4 rows" in said
    assert "set micro_batch to 2" in said
    assert tries == 1


@pytest.mark.thorough
def test_each_rank_drops_out_its_own(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config = replace(config, model=replace(config.model, dropout=0.5))
    histories = [on_rank[0] for on_rank in on_ranks(trained_on_ranks, 2, [config])]
    assert histories[0].random_number != histories[1].random_number
    assert histories[0].results == histories[1].results


def test_a_batch_that_ranks_cannot_share_out_is_refused(tmp_path: Path) -> None:
    for config in (teacher(tmp_path, batch=5), config_of(tmp_path, batch=5)):
        with pytest.raises(UsageError, match="global batch of 5"):
            task_of(config, torch.device("cpu"), Ranks(1, 2))


def looked_at(config: TrainConfig) -> dict[str, Any]:
    """A trainer between its steps, after everything that runs forward passes without backward."""
    with join_ranks("cpu") as own:
        trainer = trainer_of(config, own)
        with trainer.task.batches(range(2), trainer.device) as batches:
            rows = iter(batches)
            batch = next(rows)
            trainer.step(batch)
            trainer.evaluate(list(trainer.task.validation(trainer.device)))
            kept = measure_activation_bytes(
                lambda: trainer.loss(batch.inputs, batch.targets), trainer.model, batch.inputs[None]
            )
            bytes_by_category = footprint(trainer.model, trainer.optimizer, activations_bytes=kept)
            with trainer.parallel.whole_weights():
                ids = sample(trainer.model, torch.tensor([[1, 2]]), tokens=3, seed=1)
            norm = global_norm(parameter.detach() for parameter in trainer.model.parameters())
            loss = trainer.step(next(rows)).loss
        trainer.task.close()
        return {"footprint": bytes_by_category, "ids": ids, "norm": norm.item(), "loss": loss}


@pytest.mark.thorough
def test_looking_changes_no_step_and_counts_what_each_rank_holds(tmp_path: Path) -> None:
    kinds = [(1, {}), (2, {}), (2, FSDP)]
    alone, replicas, shards = (
        on_ranks(looked_at, size, config_of(tmp_path, **options)) for size, options in kinds
    )
    expected = alone[0]
    for history in (*replicas, *shards):
        assert history["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert history["norm"] == pytest.approx(expected["norm"], rel=1e-6)
        assert torch.equal(history["ids"], expected["ids"])
    whole: Footprint = expected["footprint"]
    assert replicas[0]["footprint"].parameters_bytes == whole.parameters_bytes
    held = [shard["footprint"] for shard in shards]
    # FSDP2 pads 257 rows to twice 129.
    rest_bytes = sum(rank.parameters_bytes for rank in held) - whole.parameters_bytes
    assert rest_bytes == 2 * TINY["width"] * 4
    assert sum(rank.optimizer_state_bytes for rank in held) == whole.optimizer_state_bytes


def test_sampling_leaves_weights_as_they_were() -> None:
    """`evaluation_mode` asks what is no shard for nothing."""
    model = torch.nn.Linear(1, 1)
    before = [parameter.clone() for parameter in model.parameters()]
    with evaluation_mode(model):
        assert not model.training
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 20])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_validation_rows_are_shared_out_once(rows: int, size: int) -> None:
    parts = [share_rows(rows, Ranks(rank, size)) for rank in range(size)]
    rows_taken = [row for part in parts if part is not None for row in range(rows)[part]]
    assert rows_taken == list(range(rows))


def test_a_rank_takes_the_gpu_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    config = teacher(tmp_path, device="cuda")
    assert device_of(config) == torch.device("cuda")
    assert device_of(replace(config, device="auto"), Ranks(7, 8, 3)) == torch.device("cuda", 3)
    with pytest.raises(UsageError, match="its machine has 4"):
        device_of(config, Ranks(7, 8, 4))
    with pytest.raises(UsageError, match="takes its own"):
        device_of(replace(config, device="cuda:1"), Ranks(0, 2, 0))


def test_nothing_of_it_matters_to_a_process_alone(tmp_path: Path) -> None:
    config = teacher(tmp_path, parallel={"strategy": "fsdp"})
    trainer = trainer_of(config)
    assert type(trainer.model).__name__ == "Cruncher"
    assert trainer.parallel.ranks.size == 1
    assert isinstance(NonFiniteError("", step=0, batch=(torch.ones(1), torch.ones(1))), StepError)
