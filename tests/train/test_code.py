"""Models and tasks of the user's own, by module:name: trained, resumed and refused as ours are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.train.test_what_was_trained import train
from tests.train.training import language
from torchtally.checkpoints.folder import Checkpoints
from torchtally.errors import UsageError
from torchtally.runs.function import run
from torchtally.train.code import loss_of
from torchtally.train.config import TrainConfig, config_of, read_config
from torchtally.train.keys import read_value, value_text
from torchtally.train.logs.jsonl import read_log
from torchtally.train.plan import step_flops, weights
from torchtally.train.tasks import task_of
from torchtally.train.trainer import rehearse

HERE = __name__


class Bigram(nn.Module):
    """Logits of the next token by the last one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(257, width), nn.Dropout(0.2), nn.Linear(width, 257))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.net(tokens)
        return logits


class Circles:
    """Points inside of a circle, or outside."""

    def __init__(self, config: TrainConfig) -> None:
        self.rows, self.seed = config.batch, config.seed

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1000 + step)
        points = torch.randn(self.rows, 2, generator=generator)
        return points, (points.norm(dim=1) < 1).long()

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        return [self.batch(-1)]


class Lines(Circles):
    """With a model and a loss of its own."""

    model = nn.Linear(2, 1)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return (model(inputs)[:, 0] - targets).abs().mean()


def few(config: TrainConfig) -> Any:
    """Gives one row too few."""
    circles = Lines(config)
    circles.rows -= 1
    return circles


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))


def deeper(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), net(2), nn.Linear(2, 2))


def number(width: int) -> int:
    return width


def circles(folder: Path, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "task": f"{HERE}:Circles", "steps": 4, "batch": 6, "micro_batch": 2, "device": "cpu",
        "model": {"code": f"{HERE}:net", "arguments": {"width": 4}},
        "checkpoint": {"every": 2}, "log": {"folder": str(folder / "run"), "every": 1},
    }  # fmt: skip
    return config_of(values | changes, "mine.toml")


def text(folder: Path, **changes: Any) -> TrainConfig:
    model = {"code": f"{HERE}:Bigram", "arguments": {"width": 8}, "vocabulary": 257, "context": 16}
    return language(folder, model=model, steps=4, checkpoint={"every": 2}, **changes)


def ends(config: TrainConfig) -> list[bytes]:
    folder = Checkpoints(config.log.folder).path / f"step-{config.steps:08}"
    return [(folder / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")]


@pytest.mark.parametrize("config_in", [circles, text])
def test_resumed_it_ends_as_it_would_have(config_in: Any, tmp_path: Path) -> None:
    whole = config_in(tmp_path)
    train(whole)
    assert len(read_log(whole.log.folder).series("eval/loss")) == 1
    end = ends(whole)
    checkpoints = Checkpoints(whole.log.folder)
    with checkpoints.lock():
        checkpoints.set_aside(4)
    assert train(whole, resumes=True)[0] == "resuming from step 2"
    assert ends(whole) == end
    fingerprint = checkpoints.manifest(4).fingerprints["code"]
    assert fingerprint["files"] == 1
    assert read_log(whole.log.folder).run["fingerprints"]["code"] == fingerprint


def test_changed_code_is_another_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from tests.train.test_code import Circles, net\n"
    (tmp_path / "changing.py").write_text(code)
    config = circles(tmp_path, task="changing:Circles")
    train(config)
    (tmp_path / "changing.py").write_text(code + "# and more\n")
    with monkeypatch.context() as patch:  # it is the module's file that counts, as is
        patch.setattr("inspect.getsourcefile", lambda edit: str(tmp_path / "changing.py"))
        with pytest.raises(UsageError, match=r"fingerprints\.code\.sha256: saved"):
            train(config, resumes=True)


def test_what_the_model_holds_is_planned(tmp_path: Path) -> None:
    config = circles(tmp_path)
    sizes = [weight.elements for weight in weights(config)]
    assert sizes == [2 * 4, 4, 4 * 2, 2]
    assert step_flops(config) is None  # unknown, not zero
    for each in (circles(tmp_path, compile=False), text(tmp_path, compile=False)):
        trace = run(lambda each=each: rehearse(each), gpu="H100-SXM", steps=2)
        assert {"aten.addmm", "aten.native_batch_norm"} & {call.name for call in trace.calls}


def test_the_loss_is_the_models_or_follows_from_the_targets() -> None:
    class Own(nn.Linear):
        def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
            return (self(inputs) - targets).abs().mean()

    x, y = torch.ones(3, 2), torch.zeros(3, 2)
    plain = nn.Linear(2, 2)
    assert loss_of(plain, x, y) == nn.functional.mse_loss(plain(x), y)
    assert loss_of(Own(2, 2), x, y).ndim == 0
    ids = torch.tensor([0, 1, -100])
    expected = nn.functional.cross_entropy(plain(x)[:2], ids[:2])
    assert torch.equal(loss_of(plain, x, ids), expected)


def test_a_task_with_a_model_and_a_loss_of_its_own(tmp_path: Path) -> None:
    config = circles(tmp_path, task=f"{HERE}:Lines", model={})
    task = task_of(config, torch.device("cpu"))
    assert isinstance(task.model, nn.Linear)
    inputs, targets = Lines(config).batch(0)
    assert task.loss(task.model, inputs, targets) == Lines(config).loss(task.model, inputs, targets)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no module": ({"task": "nowhere:task"}, r"task: nowhere:task: there is no such module in /"),
    "no such name": (
        {"task": f"{HERE}:Cirkles"},
        r"test_code\.py has no 'Cirkles' to call\. Did you mean circles or Circles",
    ),
    "a module that fails": (
        {"task": "broken:task"},
        r"importing it failed in .*broken\.py:2: ZeroDivisionError",
    ),
    "wrong arguments": (
        {"model": {"code": f"{HERE}:net", "arguments": {"wide": 1}}},
        r"model\.code: .*:net: missing a required argument: 'width'",
    ),
    "no module of torch's": (
        {"model": {"code": f"{HERE}:number", "arguments": {"width": 1}}},
        r"is a int, not an nn\.Module",
    ),
    "no model": ({"model": {}}, r"model: .*:Circles has none"),
    "a batch of another size": (
        {"task": f"{HERE}:few", "model": {}},
        r"returned 5 inputs and 5 targets for a batch of 6",
    ),
    "a size of decoders": (
        {"model": {"code": f"{HERE}:net", "layers": 2}},
        r"model\.layers: applies to built-in decoders only\. "
        r"Pass it to .*:net by model\.arguments\.layers",
    ),
    "arguments alone": ({"model": {"arguments": {"width": 2}}}, r"only apply to model\.code"),
    "an unknown task": ({"task": "langage"}, r"task: unknown task 'langage'.*language"),
    "a student": ({"task": "teacher"}, r"the teacher task has its own student model"),
    "samples": ({"sampling": {"tokens": 3}}, r"sampling\.tokens: applies to built-in decoders"),
    "text without sizes": (
        {"task": "language", "data": {"text": ["<stdlib>"]}},
        r"model\.context: is missing; .*:net does not define it",
    ),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_mistake_is_named(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    changes, message = WRONG[key]
    with pytest.raises(UsageError, match=message):
        train(circles(tmp_path, **changes))


def test_in_toml_a_model_is_a_text_or_a_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'task = "{HERE}:Circles"\nsteps = 1\nbatch = 2\nmodel = "{HERE}:net"\n')
    assert read_config(path).model.code == f"{HERE}:net"
    arguments = {"width": 4, "name": "x", "deep": {"sizes": 0.5}}
    assert read_value("model.arguments", value_text(arguments)) == arguments
