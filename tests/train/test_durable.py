"""Loops of others that were killed and started again end as those that were not: bit for bit."""

import errno
import math
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import torchtally
from tests.train.checkpoints.injection import failing
from tests.train.forked import forked
from tests.train.loops import GPT, nano
from tests.train.ranks.processes import RankDied, on_ranks
from tests.train.test_what_was_trained import train
from tests.train.training import language
from torchtally.checkpoints.durable import Durable
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.packing import pack, unpack
from torchtally.errors import CheckpointError, UsageError

pytestmark = pytest.mark.one_case_in(2)

STEPS = 12
RANDOM_KILLS = int(os.environ.get("TALLY_KILLS", "2"))
TIME_LIMIT_S = 60.0


def at_step(step: int, number: int) -> Any:
    return lambda done, loss: os.kill(os.getpid(), number) if done == step else None


def nano_alone(folder: Path, step: int = -1, number: int = 0) -> None:
    """The process of a loop, which signals itself within a step."""
    torch.set_num_threads(1)
    nano(folder, STEPS, on_step=at_step(step, number))


def exit_code(*args: Any, after_s: float = TIME_LIMIT_S) -> int | None:
    """Of a loop in a process of its own, which is killed after some time."""
    process = forked().Process(target=nano_alone, args=args, daemon=True)
    process.start()
    process.join(after_s)
    process.kill()
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    torch.set_num_threads(1)
    return nano(tmp_path_factory.mktemp("whole"), STEPS)


def assert_equal(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(actual[name], wanted[name])] == []


@pytest.mark.thorough("test_killed_at_random_nanogpt_ends_the_same")
def test_killed_in_some_steps_nanogpt_ends_the_same(
    tmp_path: Path, whole: dict[str, Tensor]
) -> None:
    for step in (1, 4, 5, 10):
        assert exit_code(tmp_path, step, signal.SIGKILL) == -signal.SIGKILL
    assert_equal(nano(tmp_path, STEPS), whole)
    assert nano(tmp_path, STEPS)["best"] == whole["best"]  # all steps are done


def test_killed_at_random_nanogpt_ends_the_same(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    draw = random.Random(0)
    for _ in range(RANDOM_KILLS):
        exit_code(tmp_path, after_s=draw.uniform(0.1, 1.0))
    assert_equal(nano(tmp_path, STEPS), whole)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_ends_it(
    number: int, tmp_path: Path, whole: dict[str, Tensor], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        nano(tmp_path, STEPS, every=None, on_step=waiting_for(number))
    assert ended.value.code == 128 + number
    assert Checkpoints(tmp_path).steps() == [6]
    assert "saving after this step" in capfd.readouterr().err
    assert_equal(nano(tmp_path, STEPS), whole)


def signalled_after_the_loop(folder: Path) -> None:
    for _ in loop(folder, nn.Linear(2, 2)):
        pass
    with torchtally.durable(folder, model=nn.Linear(2, 2)) as run:
        assert not list(run.steps(2))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TIME_LIMIT_S)


def test_a_signal_after_the_last_step_ends_it(tmp_path: Path) -> None:
    process = forked().Process(target=signalled_after_the_loop, args=(tmp_path,), daemon=True)
    process.start()
    process.join(TIME_LIMIT_S)
    assert process.exitcode == 128 + signal.SIGTERM
    assert Checkpoints(tmp_path).steps() == [2]


def waiting_for(number: int) -> Any:
    """Signals its own process in step 5, and gives the thread that listens time to hear."""

    def on_step(step: int, loss: float) -> None:
        if step == 5:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    return on_step


def test_the_comparison_can_fail(
    tmp_path: Path, whole: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the batch that was drawn ahead the end is another."""
    nano(tmp_path, 5)
    monkeypatch.setattr(Durable, "get", lambda run, key, default=None: default)
    different = nano(tmp_path, STEPS)
    assert not torch.equal(different["wte.weight"], whole["wte.weight"])


def others(model: nn.Module) -> dict[str, Any]:
    """The optimizer and the scaler of the loop."""
    return {
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True),
        "scaler": torch.amp.GradScaler("cpu"),
    }


# Any objects -------------------------------------------------------------------------------------


def generators(folder: Path, steps: int, lr: float = 0.1, **changes: Any) -> list[Any]:
    """A loop with everything that a checkpoint can hold; its end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    mean = torch.optim.swa_utils.AveragedModel(model)
    one, other, third = torch.Generator(), np.random.default_rng(1), random.Random(2)
    with torchtally.durable(
        folder, model=model, optimizer=optimizer, scheduler=scheduler, data=one,
        objects={"plateau": plateau, "mean": mean, "other": other, "third": third},
        in_background=False, every=1, **changes,
    ) as run:  # fmt: skip
        for step in run.steps(steps):
            x = torch.randn(3, 4, generator=one) + float(other.normal()) + third.gauss(0, 1)
            loss = model(x).square().mean() + torch.rand(()) * model[0].weight.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            plateau.step(0.0)
            mean.update_parameters(model)
            run["seen"] = (*run.get("seen", ()), step, float(optimizer.param_groups[0]["lr"]))
        values = [*model.state_dict().values(), *mean.state_dict().values()]
        return [run["seen"], plateau.best, [value.tolist() for value in values]]


@pytest.mark.thorough
def test_schedulers_averages_and_generators_go_on(tmp_path: Path) -> None:
    for steps in range(1, 5):
        random_generators = generators(tmp_path / "parts", steps)
    assert random_generators == generators(tmp_path / "whole", 4)
    assert random_generators[0][::2] == (0, 1, 2, 3)


def test_a_changed_hyperparameter_is_refused_or_the_scripts(tmp_path: Path) -> None:
    nano(tmp_path, 2)
    model = GPT()
    given = others(model)
    given["optimizer"].param_groups[0]["weight_decay"] = 0.5
    with (
        pytest.raises(UsageError, match=r"\[0\]\.weight_decay: saved 0\.01, now 0\.5"),
        torchtally.durable(tmp_path, model=model, **given),
    ):
        pass
    with torchtally.durable(tmp_path, model=model, **given, allow_changes=True):
        group = given["optimizer"].param_groups[0]
        assert group["weight_decay"] == 0.5
        assert group["lr"] == 1e-3 * 2 / 4  # of the last step: the script gave the same as before


def test_a_changed_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    nano(tmp_path, 1, config={"n_layer": 2, "inner": {"bias": True}})
    other = {"n_layer": 2, "inner": {"bias": False}}
    with pytest.raises(UsageError, match=r"inner\.bias: saved True, now False"):
        nano(tmp_path, 2, config=other)
    nano(tmp_path, 2, config=other, allow_changes=True)


@pytest.mark.thorough("checkpoints/test_damage.py")
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, whole: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    nano(tmp_path, 6)
    file = tmp_path / "checkpoints" / "step-00000006" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert_equal(nano(tmp_path, STEPS), whole)
    assert "resuming from step 5" in capsys.readouterr().err


@pytest.mark.parametrize("in_background", [True, False])
def test_a_full_disk_ends_it_and_costs_no_checkpoint(
    in_background: bool, tmp_path: Path, whole: dict[str, Tensor]
) -> None:
    nano(tmp_path, 3)
    with ExitStack() as stack:

        def fill(step: int, loss: float) -> None:
            if step == 4:
                full = failing(0, errno.ENOSPC, names=("write",), ever_after=True)
                stack.enter_context(full)

        with pytest.raises(CheckpointError, match=r"No space left on device.*Free some space"):
            nano(tmp_path, STEPS, on_step=fill, in_background=in_background)
    # That of step 4 may have been in the middle of being written.
    assert Checkpoints(tmp_path).steps()[0] in ((3, 4) if in_background else (4,))
    assert_equal(nano(tmp_path, STEPS), whole)


# What is refused ---------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    loader = torch.utils.data.DataLoader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="data: a DataLoader has neither state_dict"):
        torchtally.durable(tmp_path, model=model, data=loader)
    with pytest.raises(UsageError, match="'random' cannot be the name"):
        torchtally.durable(tmp_path, model=model, objects={"random": model})
    with torchtally.durable(tmp_path, model=model) as run:
        with pytest.raises(UsageError, match="values/best/path: a PosixPath cannot be saved"):
            run["best"] = {"path": tmp_path}
        assert len(run) == 0
        assert repr(run) == f"<durable run in {tmp_path}, 0 steps done>"


def test_another_model_or_object_is_refused(tmp_path: Path) -> None:
    for _ in loop(tmp_path, nn.Linear(2, 2)):
        pass
    with pytest.raises(CheckpointError, match="'model/bias' that this model lacks"):
        next(loop(tmp_path, nn.Linear(2, 2, bias=False)))
    with pytest.raises(CheckpointError, match=r"model/weight: is float32 of shape \(2, 2\)"):
        next(loop(tmp_path, nn.Linear(3, 2)))
    with pytest.raises(UsageError, match="data: the checkpoint lacks this object"):
        next(loop(tmp_path, nn.Linear(2, 2), data=torch.Generator()))


def loop(folder: Path, model: nn.Module, **more: Any) -> Any:
    with torchtally.durable(folder, model=model, **more) as run:
        yield from run.steps(2)


def test_a_folder_of_tally_train_is_refused(tmp_path: Path) -> None:
    config = language(tmp_path, steps=1)
    train(config)
    with pytest.raises(UsageError, match="belongs to another training"):
        next(loop(Path(config.log.folder), nn.Linear(2, 2)))


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    first = loop(tmp_path, nn.Linear(2, 2))
    next(first)
    with pytest.raises(UsageError, match="another run is training there"):
        next(loop(tmp_path, nn.Linear(2, 2)))
    first.close()
    assert Checkpoints(tmp_path).steps() == []  # `break` leaves a step undone


def test_nan_weights_are_not_saved(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    steps = loop(tmp_path, model)
    next(steps)
    model.weight.data.fill_(math.nan)
    with pytest.raises(CheckpointError, match="Step 2: weights are NaN or inf"):
        list(steps)


# Packing -----------------------------------------------------------------------------------------

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3)
    | st.floats(allow_nan=False)
    | st.sampled_from([torch.float16, torch.int64])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(VALUES)
def test_values_come_back_with_their_types(value: Any) -> None:
    tensors: dict[str, Tensor] = {}
    state = unpack(pack(value, "it", tensors), tensors)
    assert repr(state) == repr(value)
    assert not tensors


def test_tensors_and_arrays_come_back() -> None:
    tensors: dict[str, Tensor] = {}
    value = {"a": (torch.arange(3), [np.arange(2.0)]), "nan": math.nan, "step": np.int64(3)}
    state = unpack(pack(value, "it", tensors), tensors)
    assert tensors.keys() == {"it/a/0", "it/a/1/0"}
    assert state["a"][0].tolist() == [0, 1, 2]
    assert state["a"][1][0].tolist() == [0.0, 1.0]
    assert math.isnan(state["nan"])
    assert state["step"] == 3
    with pytest.raises(UsageError, match="it/a/b: two tensors have this name"):
        pack({"a": {"b": torch.ones(1)}, "a/b": torch.ones(1)}, "it", {})


# Ranks -------------------------------------------------------------------------------------------


def ranked(folder: Path, way: str, steps: int, kill_at: int = -1) -> dict[str, list[float]]:
    """A loop on ranks, each with batches of its own; weights, and a value of each rank."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    if way == "ddp":
        model: nn.Module = DistributedDataParallel(plain)
    else:
        model = fully_shard(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    with torchtally.durable(
        folder, model=model, optimizer=optimizer, every=1, in_background=False
    ) as run:
        x = run.get("x", torch.randn(3, 4))
        for step in run.steps(steps):
            model(x).square().sum().backward()
            x = run["x"] = torch.randn(3, 4)
            optimizer.step()
            optimizer.zero_grad()
            if (step, rank) == (kill_at, 1):
                os.kill(os.getpid(), signal.SIGKILL)
    weights = {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).flatten().tolist()
        for name, value in plain.state_dict().items()
    }
    return {**weights, "x": x.flatten().tolist()}


@pytest.mark.thorough("ranks/test_resume.py")
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ranks_go_on_each_with_its_own_batches(way: str, tmp_path: Path) -> None:
    whole = on_ranks(ranked, 2, tmp_path / "whole", way, 4)
    with pytest.raises((RankDied, RuntimeError)):  # the other one may tell of it first
        on_ranks(ranked, 2, tmp_path / "killed", way, 4, 2)
    by_rank = on_ranks(ranked, 2, tmp_path / "killed", way, 4)
    assert by_rank == whole
    assert whole[0]["x"] != whole[1]["x"]
    # FSDP2 and DDP read each other's, on another number of ranks.
    (alone,) = on_ranks(ranked, 1, tmp_path / "killed", "ddp", 4)
    assert {**alone, "x": 0} == {**whole[0], "x": 0}


def ranked_until_a_signal(folder: Path) -> list[Any]:
    """How a loop on ranks ends, of which one is signalled."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 2))
    with torchtally.durable(folder, model=model, in_background=False) as run:
        try:
            for step in run.steps(10_000):
                model(torch.ones(1, 2)).sum().backward()
                if (step, dist.get_rank()) == (2, 1):
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.2)
        except SystemExit as end:
            return [end.code, run.step]
    return []


@pytest.mark.thorough
def test_a_signal_to_one_rank_saves_and_ends_all(tmp_path: Path) -> None:
    assert on_ranks(ranked_until_a_signal, 2, tmp_path) == [[143, 3], [143, 3]]
    assert Checkpoints(tmp_path).steps() == [3]


def test_a_notebook_shows_the_checkpoints(tmp_path: Path) -> None:
    with torchtally.durable(tmp_path / "run", model=nn.Linear(2, 2), every=1) as run:
        for _ in run.steps(3):
            pass
    table = run.table()
    assert table.column("step") == (3, 2)  # keep_last=2
    assert table.column("tensors")[0] == len(run._checkpoints.manifest(3).tensors)
    assert all(isinstance(size, int) and size >= 4 * 6 for size in table.column("bytes"))
    assert f"Durable run in {tmp_path / 'run'}, 3 steps done" in run._repr_html_()
    assert str(run).startswith("Durable run in")
    (manifest,) = (tmp_path / "run").rglob("*00000002/*.json")
    manifest.write_bytes(b"damaged")
    assert run.table().column("problem")[0] == ""
    assert "is damaged" in str(run.table().column("problem")[1])
