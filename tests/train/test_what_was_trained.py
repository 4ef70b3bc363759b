"""What was trained is what the log says: data, hyperparameters and weights are those of the config.

Every test here failed once: a run trained something other than its log said.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.training import TINY, Witness, language
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.ranks import ALONE
from torchtally.checkpoints.signals import Signals
from torchtally.errors import CheckpointError, UsageError
from torchtally.train.config import TrainConfig, config_of
from torchtally.train.data.description import description_in
from torchtally.train.job import Start, train_in_folder
from torchtally.train.keys import HINTS
from torchtally.train.logs.jsonl import read_log
from torchtally.train.logs.log import RunHeader
from torchtally.train.models.config import RopeStretch
from torchtally.train.models.huggingface import write_weights
from torchtally.train.models.presets import preset
from torchtally.train.models.transformer import Transformer
from torchtally.train.resuming import FREE, ROUNDING, resume
from torchtally.train.trainer import Trainer, trainer_of


def train(config: TrainConfig, **start: bool) -> list[str]:
    """What `tally train` does in the config's folder; the notes to the user."""
    torch.set_num_threads(1)
    witness = Witness()
    witness.on_step = lambda *_: None  # type: ignore[method-assign]
    how = {"resumes": False, "allows_changes": False, "replaces": False} | start
    begin = Start(peak_flop_per_s=None, header=RunHeader(config=config.document()), **how)
    train_in_folder(config, ALONE, witness, Signals(print), begin)
    return witness.notes


def header(config: TrainConfig) -> Mapping[str, Any]:
    return read_log(config.log.folder).run


# Data --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_run_that_replaces_another_reads_the_text_of_its_own_config(tmp_path: Path) -> None:
    config = language(tmp_path, steps=1)
    train(config)
    folder = Path(config.log.folder) / "data"
    other = tmp_path / "other.txt"
    other.write_text("another text\n" * 100)
    train(language(tmp_path, steps=1, data={"text": [str(other)]}), replaces=True)
    description = description_in(str(folder))
    assert description is not None
    tokens = sum(split.tokens for split in description.splits.values())
    assert tokens == 1300 + 2  # bytes, and the end of the document in each of the two splits
    assert header(config)["fingerprints"]["train"]["tokens"] < 1300


@pytest.mark.thorough
def test_text_that_changed_is_tokenized_again(tmp_path: Path) -> None:
    config = language(tmp_path, steps=2)
    train(config)
    first = header(config)["fingerprints"]
    text = tmp_path / "text.txt"
    text.write_text(text.read_text().replace("7", "8"))  # as many bytes
    with pytest.raises(UsageError, match=r"data\.text: has changed .* data\.train = \["):
        train(config, resumes=True)
    # The tokens of the run are still there.
    former = {"text": [], "train": [f"{config.log.folder}/data"]}
    assert train(language(tmp_path, steps=2, data=former), resumes=True) == ["resuming from step 2"]
    (note, *_) = train(config, resumes=True, allows_changes=True)
    assert f"fingerprints.train.sha256: saved '{first['train']['sha256']}', now" in note
    train(config, replaces=True)
    second = header(config)["fingerprints"]
    assert first["train"]["tokens"] == second["train"]["tokens"]
    assert first["train"]["sha256"] != second["train"]["sha256"]


@pytest.mark.thorough
def test_text_that_is_gone_names_the_tokens_made_of_it(tmp_path: Path) -> None:
    config = language(tmp_path, steps=2, checkpoint={"every": 1})
    train(config)
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    with pytest.raises(UsageError, match=r"data\.train = \[\".*run/data\"\]"):
        train(config, resumes=True)
    # The same tokens under another name are the same data.
    by_tokens = {"text": [], "train": [f"{config.log.folder}/data"]}
    other = language(tmp_path, steps=2, checkpoint={"every": 1}, data=by_tokens)
    (tmp_path / "text.txt").unlink()  # `language` makes it where it is missing
    assert train(other, resumes=True) == ["resuming from step 2"]


def raw(path: Path, ids: "np.ndarray[Any, Any]") -> str:
    ids.astype(np.uint16).tofile(path)
    return str(path)


@pytest.fixture
def shards(tmp_path: Path) -> TrainConfig:
    """A run of two steps on two raw files."""
    ids = np.arange(3000) % 257
    data = {
        "train": [raw(tmp_path / "a_1.bin", ids), raw(tmp_path / "a_2.bin", ids)],
        "validation": [raw(tmp_path / "b.bin", ids)],
        "dtype": "uint16",
    }
    config = language(tmp_path, steps=2, data=data, model=TINY | {"vocabulary": 257})
    train(config)
    return config


def test_changed_tokens_are_noticed(shards: TrainConfig, tmp_path: Path) -> None:
    ids = np.arange(3000) % 257
    ids[1500] ^= 1
    raw(tmp_path / "a_2.bin", ids)
    with pytest.raises(UsageError, match=r"fingerprints\.train\.sha256"):
        train(shards, resumes=True)
    (note, *_) = train(shards, resumes=True, allows_changes=True)
    assert "fingerprints.train.sha256" in note
    log = Path(shards.log.folder, "log.jsonl").read_text().splitlines()
    assert sum('"fingerprints"' in line for line in log) == 2  # of the run, and of its resumption
    manifest = Checkpoints(shards.log.folder).manifest(2)
    assert manifest.fingerprints["train"] == header(shards)["fingerprints"]["train"]


def test_other_validation_data_is_said_and_not_refused(shards: TrainConfig, tmp_path: Path) -> None:
    raw(tmp_path / "b.bin", np.zeros(3000))
    (note, *_) = train(shards, resumes=True)
    assert "fingerprints.validation.sha256" in note


def test_a_glob_is_all_its_files_in_order(shards: TrainConfig, tmp_path: Path) -> None:
    """The example says 10B tokens: all the shards that it names by one pattern."""
    data = {
        "train": [str(tmp_path / "a_*.bin")],
        "validation": [str(tmp_path / "b.bin")],
        "dtype": "uint16",
    }
    config = language(tmp_path, steps=2, data=data)
    assert train(config, resumes=True) == ["resuming from step 2"]  # the same data
    assert header(shards)["fingerprints"]["train"]["files"] == 2
    with pytest.raises(UsageError, match=r"c_\*\.bin: no file matches"):
        trainer_of(language(tmp_path, data=data | {"train": [str(tmp_path / "c_*.bin")]}))


def test_a_folder_is_locked_before_its_text_is_tokenized(tmp_path: Path) -> None:
    """Two runs that start together must not both write the tokens."""
    config = language(tmp_path)
    with (
        Checkpoints(config.log.folder).lock(),
        pytest.raises(UsageError, match="another run is training there"),
    ):
        train(config)
    assert not Path(config.log.folder, "data").exists()


# Hyperparameters ---------------------------------------------------------------------------------


def resumed(config: TrainConfig) -> tuple[Trainer, list[str]]:
    notes: list[str] = []
    trainer = trainer_of(config)
    point = resume(trainer, Checkpoints(config.log.folder), notes.append, allows_changes=True)
    assert point is not None
    return trainer, notes


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16-master"])
def test_a_changed_hyperparameter_is_the_live_optimizers(tmp_path: Path, precision: Any) -> None:
    adam = {"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.95]}
    train(language(tmp_path, steps=2, optimizer=adam, precision=precision))
    other = adam | {"weight_decay": 0.5, "betas": [0.8, 0.95]}
    changed = language(tmp_path, steps=2, optimizer=other, precision=precision)
    trainer, notes = resumed(changed)
    (group, plain) = trainer.optimizer.param_groups
    assert (group["weight_decay"], plain["weight_decay"]) == (0.5, 0.0)
    assert group["betas"] == (0.8, 0.95)
    assert {line.strip() for line in notes[-1].splitlines() if "param_groups" in line} == {
        "optimizer.param_groups[0].betas: saved [0.9, 0.95], now [0.8, 0.95]",
        "optimizer.param_groups[1].betas: saved [0.9, 0.95], now [0.8, 0.95]",
        "optimizer.param_groups[0].weight_decay: saved 0.1, now 0.5",
    }


@pytest.mark.thorough
def test_the_implementation_is_the_configs_and_parameter_groups_are_the_saved(
    tmp_path: Path,
) -> None:
    train(language(tmp_path, steps=2, optimizer={"implementation": "for-loop"}))
    trainer, _ = resumed(language(tmp_path, steps=2, optimizer={"implementation": "fused"}))
    assert [group["fused"] for group in trainer.optimizer.param_groups] == [True, True]
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {2}
    with pytest.raises(CheckpointError, match=r"optimizer: .* has parameter groups of"):
        resumed(language(tmp_path, steps=2, optimizer={"decayed_on": "all"}))


def test_another_default_is_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version with another default trains something else under the same config."""
    config = language(tmp_path, steps=2)
    train(config)
    default = {"lr": 1e-3, "weight_decay": 0.25, "betas": (0.9, 0.999), "eps": 1e-8}
    monkeypatch.setitem(
        __import__("torchtally.train.optimizers.config", fromlist=["x"]).DEFAULTS, "adamw", default
    )
    with pytest.raises(UsageError, match=r"weight_decay: saved 0\.01, now 0\.25"):
        train(config, resumes=True)


# Weights and the config beside them --------------------------------------------------------------


def exported(folder: Path, **changes: Any) -> str:
    """A model in the format of transformers."""
    sizes = config_of(
        {"steps": 1, "batch": 1, "model": TINY | changes, "data": {"text": ["<stdlib>"]}}, "x"
    ).model.transformer()
    write_weights(Transformer(sizes), folder)
    return str(folder)


def test_weights_come_with_their_config(tmp_path: Path) -> None:
    folder = exported(tmp_path / "model", rope_theta=500.0, norm_eps=1e-3)
    for path in (folder, f"{folder}/model.safetensors"):
        model = language(tmp_path, model={"weights": path}).model.transformer()
        assert (model.rope_theta, model.norm_eps, model.layers) == (500.0, 1e-3, 2)
    filled = language(tmp_path, model={**TINY, "weights": folder}).model.transformer()
    assert (filled.rope_theta, filled.norm_eps) == (500.0, 1e-3)
    trained = {"weights": folder, "dropout": 0.1, "context": 16}
    alike = language(tmp_path, model=TINY | trained).model.transformer()
    assert (alike.dropout, alike.context) == (0.1, 16)


@pytest.mark.parametrize(
    ("key", "value", "here"), [("rope_theta", 10.0, 500.0), ("norm_eps", 1e-6, 1e-3)]
)
def test_a_key_against_the_weights_config_is_refused(
    key: str, value: float, here: float, tmp_path: Path
) -> None:
    folder = exported(tmp_path / "model", rope_theta=500.0, norm_eps=1e-3)
    with pytest.raises(UsageError, match=rf"model\.{key}: {value}, but .*config\.json has {here}"):
        language(tmp_path, model={"weights": folder, key: value})
    with pytest.raises(UsageError, match=r"model\.layers: 5, but"):
        language(tmp_path, model={"preset": "llama-1m", "weights": folder})


@pytest.mark.parametrize(
    ("name", "layers", "width"), [("llama-1b", 16, 2048), ("llama-3b", 28, 3072)]
)
def test_llama_3_2_has_its_stretched_rotary_positions(name: str, layers: int, width: int) -> None:
    """Of the config.json of meta-llama/Llama-3.2-1B and -3B: rope_scaling."""
    config = preset(name)
    assert (config.layers, config.width, config.rope_theta) == (layers, width, 500_000.0)
    assert config.rope_stretch == RopeStretch(
        factor=32.0, original_context=8192, low_factor=1.0, high_factor=4.0
    )


def test_rope_stretch_by_keys() -> None:
    values = {"steps": 1, "batch": 1, "data": {"text": ["<stdlib>"]}}
    stretch = {"factor": 8.0, "original_context": 16, "high_factor": 2.0}
    config = config_of(values | {"model": TINY | {"rope_stretch": stretch}}, "x")
    assert config.model.transformer().rope_stretch == RopeStretch(
        factor=8.0, original_context=16, low_factor=1.0, high_factor=2.0
    )
    for wrong, complaint in (({"low_factor": 2.0}, "missing required field `factor`"),
                             ({"factor": 8.0, "low": 2.0}, "rope_stretch.low: unknown key"),
                             ({"factor": 0.5}, "factor 0.5 must be 1 or more"),
                             ({"factor": "x"}, "factor: expected a number, got")):  # fmt: skip
        with pytest.raises(UsageError, match=complaint):
            config_of(values | {"model": TINY | {"rope_stretch": wrong}}, "x")


# Every key ---------------------------------------------------------------------------------------

STEPS = 3
BASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "gelu": {"model": TINY | {"activation": "gelu", "dropout": 0.1}},
    "windowed": {"model": TINY | {"window": 4}},
    "mixture": {"model": TINY | {"experts": 4, "active_experts": 2}},
    "stretched": {"model": TINY | {"rope_stretch": {"factor": 4.0, "original_context": 16}}},
    "momentum": {"optimizer": {"name": "momentum", "lr": 0.01}},
    "rmsprop": {"optimizer": {"name": "rmsprop"}},
    "adagrad": {"optimizer": {"name": "adagrad"}},
    "muon": {"optimizer": {"name": "muon", "adamw_lr": 1e-3}},
    "wsd": {"learning_rate": {"shape": "wsd", "decay_steps": 2}},
    "masked": {"data": {"documents": "masked", "document_start": 10}},
    "teacher": {"task": "teacher", "model": {}, "data": {}},
    "own": {
        "task": "tests.train.test_code:Circles",
        "model": {"code": "tests.train.test_code:net", "arguments": {"width": 16}},
        "data": {},
    },
}
CHANGES: dict[str, tuple[str, Any]] = {
    "task": ("adamw", "teacher"),
    "steps": ("adamw", 5),
    "batch": ("adamw", 8),
    "sequence": ("adamw", 16),
    "seed": ("adamw", 2),
    "precision": ("adamw", "bf16"),
    "clip_norm": ("adamw", 1e-3),
    "model.preset": ("adamw", "llama-1m"),
    "model.layers": ("adamw", 1),
    "model.width": ("adamw", 64),
    "model.heads": ("adamw", 8),
    "model.kv_heads": ("adamw", 4),
    "model.ffn": ("adamw", 32),
    "model.vocabulary": ("adamw", 300),
    "model.context": ("adamw", 16),
    "model.norm": ("adamw", "layer"),
    "model.positions": ("adamw", "learned"),
    "model.activation": ("gelu", "gelu_tanh"),
    "model.is_tied": ("adamw", True),
    "model.has_bias": ("adamw", True),
    "model.window": ("adamw", 4),
    "model.dropout": ("gelu", 0.5),
    "model.rope_theta": ("adamw", 100.0),
    "model.rope_stretch.factor": ("adamw", 8.0),
    "model.rope_stretch.original_context": ("stretched", 8),
    "model.rope_stretch.low_factor": ("stretched", 2.0),
    "model.rope_stretch.high_factor": ("stretched", 8.0),
    "model.norm_eps": ("adamw", 1e-2),
    "model.code": ("own", "tests.train.test_code:deeper"),
    "model.arguments": ("own", {"width": 8}),
    "model.head_dim": ("adamw", 16),
    "model.has_qkv_bias": ("adamw", True),
    "model.has_qk_norm": ("adamw", True),
    "model.has_post_norms": ("adamw", True),
    "model.is_embedding_scaled": ("adamw", True),
    "model.global_every": ("windowed", 2),
    "model.local_rope_theta": ("windowed", 10.0),
    "model.query_scalar": ("adamw", 2),
    "model.logit_cap": ("adamw", 1.0),
    "model.experts": ("mixture", 2),
    "model.active_experts": ("mixture", 1),
    "teacher.dim": ("teacher", 8),
    "teacher.num_layers": ("teacher", 1),
    "data.order": ("adamw", "sequential"),
    "data.stride": ("adamw", 1),
    "data.weights": ("adamw", (1.0, 2.0)),
    "data.documents": ("masked", "joined"),
    "data.document_start": ("masked", 32),
    "data.targets": ("adamw", "masked"),
    "optimizer.name": ("adamw", "lion"),
    "optimizer.lr": ("adamw", 0.1),
    "optimizer.weight_decay": ("adamw", 0.9),
    "optimizer.betas": ("adamw", (0.5, 0.6)),
    "optimizer.eps": ("adamw", 0.1),
    "optimizer.momentum": ("momentum", 0.1),
    "optimizer.nesterov": ("momentum", True),
    "optimizer.alpha": ("rmsprop", 0.1),
    "optimizer.eps_inside_root": ("adagrad", True),
    "optimizer.ns_steps": ("muon", 1),
    "optimizer.adjust_lr_fn": ("muon", "original"),
    "optimizer.adamw_lr": ("muon", 0.1),
    "optimizer.decayed_on": ("adamw", "all"),
    "learning_rate.shape": ("adamw", "linear"),
    "learning_rate.warmup_steps": ("adamw", 2),
    "learning_rate.floor": ("adamw", 0.9),
    "learning_rate.decay_steps": ("wsd", 1),
    "learning_rate.decay_shape": ("wsd", "sqrt"),
}
"""Of each key the base config that it means something in, and another value."""


def test_every_key_is_changed_or_free() -> None:
    free = {key for key in HINTS if key.startswith((*FREE, *ROUNDING))}
    assert free | CHANGES.keys() == {*HINTS}
    assert not free & CHANGES.keys()


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Tensor]]]:
    """Folders with a checkpoint of step 2, and the state after step 3."""
    ends: dict[str, tuple[Path, dict[str, Tensor]]] = {}
    text = tmp_path_factory.mktemp("bases_text")
    (text / "text.txt").write_text("".join(f"line {n}: {n * n}\n" for n in range(200)))
    for name in BASES:
        folder = tmp_path_factory.mktemp(name)
        config = of_base(name, folder, text)
        train(config)
        checkpoints = Checkpoints(config.log.folder)
        with checkpoints.lock():
            for step in checkpoints.steps():
                if step != 2:
                    checkpoints.set_aside(step)
        ends[name] = (folder, after_another_step(config))
    return ends


def of_base(name: str, folder: Path, text: Path, **changes: Any) -> TrainConfig:
    values = {
        "steps": STEPS,
        "checkpoint": {"every": 1},
        "evaluation": {"batches": 1},
        "log": {"folder": str(folder / "run"), "every": 1},
    }
    values |= BASES[name] | changes
    if values.get("data"):
        values["data"] = {"text": [str(text / "text.txt")]} | values["data"]
    return language(text, **values)


def with_key(name: str, key: str, value: Any) -> dict[str, Any]:
    section, *names = key.split(".")
    if not names:
        return {key: value}
    is_decoder = section == "model" and name != "own"
    table = {**({"layers": 2, **TINY} if is_decoder else {}), **BASES[name].get(section, {})}
    if len(names) == 2:
        value = {**table.get(names[0], {}), names[1]: value}
    return {section: {**table, names[0]: value}}


def after_another_step(config: TrainConfig) -> dict[str, Tensor]:
    """The weights and the optimizer's state, of a run resumed at step 2."""
    trainer, _ = resumed(config)
    with trainer.task.batches(range(2, 3), trainer.device) as batches:
        for batch in batches:
            trainer.step(batch)
    trainer.task.close()
    return {
        name: tensor.detach().clone()
        for name, tensor in trainer.contents.tensors().items()
        if not name.startswith("random/")
    }


@pytest.mark.one_case_in(16)
@pytest.mark.thorough("the cases beside it", cases=("task",))
@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_key_changes_the_bits_or_is_refused(
    key: str, bases: dict[str, tuple[Path, dict[str, Tensor]]]
) -> None:
    base, value = CHANGES[key]
    folder, end = bases[base]
    text = next(iter(folder.parent.glob("bases_text*")))
    try:
        bits = after_another_step(of_base(base, folder, text, **with_key(base, key, value)))
    except (CheckpointError, UsageError):
        return
    assert bits.keys() != end.keys() or any(
        bits[name].shape != end[name].shape or not torch.equal(bits[name], end[name])
        for name in end
    ), f"{key} is printed as changed, and changes nothing"


def test_an_unchanged_config_changes_no_bit(
    bases: dict[str, tuple[Path, dict[str, Tensor]]],
) -> None:
    """Else the test above would show nothing."""
    for name, (folder, end) in bases.items():
        text = next(iter(folder.parent.glob("bases_text*")))
        bits = after_another_step(of_base(name, folder, text))
        assert all(torch.equal(bits[key], end[key]) for key in end), name


# The data of a config ----------------------------------------------------------------------------


def test_the_vocabulary_is_that_of_the_data(tmp_path: Path) -> None:
    sizes = {key: value for key, value in TINY.items() if key != "vocabulary"}
    text = language(tmp_path, model=sizes)
    assert text.model.vocabulary == 257
    train(language(tmp_path, model=sizes, steps=1))
    prepared = {"train": [f"{text.log.folder}/data"]}
    assert language(tmp_path, model=sizes, data=prepared).model.vocabulary == 257
    with pytest.raises(UsageError, match=r"model\.vocabulary: is missing"):
        language(tmp_path, model=sizes, data={"train": ["a.bin"]})


def batch_of(config: TrainConfig, step: int) -> tuple[Tensor, Tensor]:
    trainer = trainer_of(config)
    with trainer.task.batches(range(step, step + 1), trainer.device) as batches:
        (batch,) = batches
    trainer.task.close()
    return batch.inputs, batch.targets


def test_masked_targets_are_read_and_not_predicted(tmp_path: Path) -> None:
    ids = np.arange(3000) % 257
    path = tmp_path / "ids.npy"
    np.save(path, np.where(ids % 2, ids, ~ids).astype(np.int32))
    data = {"train": [str(path)], "targets": "masked"}
    inputs, targets = batch_of(language(tmp_path, data=data), 0)
    after, expected = inputs[:, 1:], targets[:, :-1]
    assert torch.equal(after % 2 == 0, expected == -100)
    assert torch.equal(after[after % 2 == 1], expected[expected != -100])


def test_each_path_is_read_by_its_weight(tmp_path: Path) -> None:
    paths = [raw(tmp_path / name, np.full(3000, at)) for at, name in enumerate(("a.bin", "b.bin"))]
    data = {"train": paths, "weights": [3.0, 1.0], "dtype": "uint16"}
    config = language(tmp_path, data=data, batch=4096, micro_batch=64)
    inputs, _ = batch_of(config, 7)
    assert inputs[:, 0].bincount().tolist() == [3072, 1024]
    with pytest.raises(UsageError, match=r"data\.weights: 1 weights; give one for each"):
        language(tmp_path, data=data | {"weights": [1.0]})
