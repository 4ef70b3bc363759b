"""Lightning's Trainer, interrupted and resumed, ends as an undisturbed one: bit for bit."""

import logging
import os
import random
import signal
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import torchtally
from tests.train.forked import forked
from torchtally.checkpoints import lightning_callback
from torchtally.checkpoints.folder import Checkpoints
from torchtally.errors import UsageError

pytestmark = pytest.mark.one_case_in(3)

KILLS = int(os.environ.get("TALLY_KILLS", "0"))
STEPS = 9
"""Of three epochs of seven batches: updates of 2, 2, 2 and 1."""
warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are augmented by the process's own random numbers."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return torch.full((4,), at / 14) + 0.1 * torch.randn(4), torch.tensor([at % 3 / 2])


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.losses: list[tuple[int, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append((self.trainer.fit_loop.total_batch_idx, loss.item()))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        noise = torch.rand(()).item()  # validation draws, too
        self.log("val", nn.functional.mse_loss(self.net(batch[0]), batch[1]) + 0 * noise)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Interrupting(Callback):
    """Does something when a step has begun, and those before may be saved."""

    def __init__(self, step: int, what: Any) -> None:
        self.step, self.what = step, what

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            self.what()


class Interruption(Exception):  # noqa: N818
    pass


def interrupt() -> None:
    raise Interruption


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, step: int = -1, what: Any = interrupt, **changes: Any) -> dict[str, Any]:
    """The end of a training from where its folder says."""
    torch.set_num_threads(1)
    module = Regression()
    stopping = EarlyStopping("val", patience=50)
    durable: Any = torchtally.LightningDurableCallback(folder, every=1, in_background=False)
    options: dict[str, Any] = {"max_steps": STEPS, "accumulate_grad_batches": 2,
                               "val_check_interval": 3} | changes  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="cpu", callbacks=[durable, Interrupting(step, what), stopping], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **options,
    )  # fmt: skip
    torch.manual_seed(1)
    loader, validation = (DataLoader(Noisy(), 2, shuffle=is_train) for is_train in (True, False))
    trainer.fit(module, loader, validation)
    return {
        "steps": trainer.global_step,
        "batches": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "stopping": repr(stopping.state_dict()),
        "losses": module.losses,
        **{name: value.tolist() for name, value in module.state_dict().items()},
        "random": torch.rand(()).item(),
    }


def killed(folder: Path, step: int) -> int | None:
    process = forked().Process(target=fit, args=(folder, step, die))
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, (1, 3, 4)),  # 4 ends the first epoch, and 3 is followed by a validation
        ({"val_check_interval": 1.0}, (6, 8)),
        ({"accumulate_grad_batches": 1, "val_check_interval": 2}, (2, 7)),
    ],
)
def test_interrupted_in_an_epoch_and_between_two(
    changes: dict[str, Any], steps: tuple[int, ...], tmp_path: Path
) -> None:
    whole = fit(tmp_path / "whole", **changes)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for step in steps:
        with pytest.raises(Interruption):
            fit(tmp_path, step, **changes)
        assert Checkpoints(tmp_path).steps()[0] == step
    answer = fit(tmp_path, **changes)
    losses = answer.pop("losses")
    assert 0 < len(losses) < len(whole["losses"])
    assert losses == whole.pop("losses")[-len(losses) :]
    assert answer == whole
    assert fit(tmp_path, **changes)["losses"] == []  # all steps are done
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_comparison_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the place in the data the end is another."""
    whole = fit(tmp_path / "whole")
    with pytest.raises(Interruption):
        fit(tmp_path, 3)
    monkeypatch.setattr(lightning_callback._Progress, "find", lambda progress: None)
    assert fit(tmp_path)["net.2.bias"] != whole["net.2.bias"]


@pytest.mark.skipif(not KILLS, reason="each start of Lightning takes seconds: set TALLY_KILLS")
def test_killed(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(KILLS):
        assert killed(tmp_path, draw.randrange(1, STEPS)) in (-signal.SIGKILL, 0)
    whole, resumed = fit(tmp_path / "whole"), fit(tmp_path)
    del whole["losses"], resumed["losses"]
    assert resumed == whole


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_it(number: int, tmp_path: Path) -> None:
    def hears() -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.2)  # the thread that listens

    with pytest.raises(SystemExit) as ended:
        fit(tmp_path, 3, hears)
    assert ended.value.code == 128 + number
    assert Checkpoints(tmp_path).steps()[0] == 4
    assert fit(tmp_path)["steps"] == STEPS


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    callback: Any = torchtally.LightningDurableCallback(tmp_path)
    trainer = SimpleNamespace(world_size=2, ckpt_path=None)
    with pytest.raises(UsageError, match="supports one process only"):
        callback.on_fit_start(trainer, None)
    trainer = SimpleNamespace(world_size=1, ckpt_path="last.ckpt")
    with pytest.raises(UsageError, match="Leave ckpt_path out"):
        callback.on_fit_start(trainer, None)
