"""The frozen config of a training: a TOML file plus flags, validated before anything runs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from torchtally.checkpoints.checked import (
    Count,
    Limit,
    Magnitude,
    Positive,
    Size,
    read_as,
    table_of,
)
from torchtally.checkpoints.config import CheckpointConfig
from torchtally.errors import UsageError, check_choice, did_you_mean
from torchtally.files.reading import parse_toml, read_text
from torchtally.train.data.description import description_in
from torchtally.train.data.tokenizer import LEAST_VOCABULARY
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.huggingface_config import config_beside
from torchtally.train.models.presets import preset
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.optimizers.schedules import LearningRateConfig

STDLIB = "<stdlib>"
"""In `data.text`: Python's standard library, text that every machine has."""


_HINTS = get_type_hints(TransformerConfig, include_extras=True)
_SIZES = {name: hint | None for name, hint in _HINTS.items()}
Sizes: Any = make_dataclass(
    "Sizes",
    [(name, hint, None) for name, hint in _SIZES.items()],
    frozen=True,
    slots=True,
    kw_only=True,
)
"""Those of a decoder, each optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Sizes):  # type: ignore[misc]
    """A preset, with changes to some of its sizes, or all sizes of a decoder."""

    preset: str | None = None
    recompute: Literal["none", "selective", "full"] = "none"
    """Activation recomputation in the backward pass."""
    weights: str | None = None
    """Initial weights: a folder or file of safetensors with Hugging Face's names. A config.json
    beside them gives all sizes."""
    code: str | None = None
    """A class of your own, as module:Class; `model = "module:Class"` is short for it."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """What that class is called with."""

    def __post_init__(self) -> None:
        if self.code is None and self.arguments:
            raise UsageError('model.arguments: only apply to model.code = "module:Class".')
        for member in fields(self) if self.code is not None else ():
            is_default = getattr(self, member.name) in (None, "none")
            if not is_default and member.name not in ("code", "arguments", *OF_TEXT):
                raise UsageError(
                    f"model.{member.name}: applies to built-in decoders only. Pass it to "
                    f"{self.code} by model.arguments.{member.name}."
                )

    def of_text(self) -> tuple[int, int]:
        """(vocabulary, context). Raises UsageError where they are unknown."""
        if self.code is None:
            config = self.transformer()
            return config.vocabulary, config.context
        if self.vocabulary is None or self.context is None:
            missing = "context" if self.context is None else "vocabulary"
            raise UsageError(f"model.{missing}: is missing; {self.code} does not define it.")
        return self.vocabulary, self.context

    def transformer(self) -> TransformerConfig:
        """The decoder's config. Raises UsageError for a missing or invalid size, and for one that
        the weights do not have.
        """
        given = {name: getattr(self, name) for name in _SIZES}
        values = {name: value for name, value in given.items() if value is not None}
        beside = None if self.weights is None else config_beside(self.weights)
        if beside is None:
            return self._of_values(values)
        config = replace(beside, **values) if self.preset is None else self._of_values(values)
        _check_alike(config, beside, f"{self.weights}")
        return config

    def _of_values(self, values: Mapping[str, Any]) -> TransformerConfig:
        if self.preset is not None:
            return preset(self.preset, **values)
        needed = ("layers", "width", "heads", "ffn", "vocabulary", "context")
        if missing := [name for name in needed if name not in values]:
            raise UsageError(
                f"model.{missing[0]}: is missing. Give a preset (such as llama-1m), or all of "
                f"{', '.join(needed)}."
            )
        return TransformerConfig(**{"kv_heads": values["heads"], **values})


OF_TEXT = ("vocabulary", "context")
"""Sizes that the data must fit, of any model."""
OF_A_TRAINING = ("context", "dropout", "init_std")
"""Sizes that may differ from those of initial weights."""


def _check_alike(config: TransformerConfig, beside: TransformerConfig, place: str) -> None:
    for member in fields(config):
        value, there = getattr(config, member.name), getattr(beside, member.name)
        if value != there and member.name not in OF_A_TRAINING:
            raise UsageError(
                f"model.{member.name}: {value}, but {place}'s config.json has {there}. Remove the "
                "key, the preset or the sizes: weights come with their config."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """A linear teacher, x normal and y = x . (0, 1, ..., dim - 1), and a deep linear student."""

    dim: Size = 16
    num_layers: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Existing token files, or text that is tokenized first."""

    train: tuple[str, ...] = ()
    """Token files, patterns of them, or a folder written by `tally data prepare`."""
    validation: tuple[str, ...] = ()
    """Default: the validation split of the folder."""
    text: tuple[str, ...] = ()
    """Text files, folders or globs, read as bytes; "<stdlib>" is Python's standard library."""
    dtype: str | None = None
    """Dtype of files without a header: "uint16", "uint32"."""
    order: Literal["shuffled", "sequential", "random"] = "shuffled"
    stride: Size | None = None
    """Tokens from one window's start to the next; default: the sequence length."""
    weights: Annotated[
        tuple[Positive, ...], Meta(description="an array of finite numbers above 0")
    ] = ()
    """How often each of `train` is read, relative to the others; default: each window as often."""
    documents: Literal["joined", "masked"] = "joined"
    """Whether tokens attend to other documents in their window, or to their own alone."""
    document_start: Count | None = None
    """The id that ends a document and begins the next; default: that of tokens.json."""
    targets: Literal["all", "masked"] = "all"
    """"masked": an id below zero is the token ~id, which is read but is no target."""
    read: Literal["map", "copy"] = "map"
    """A mapped file is read twice as fast; if it shrinks meanwhile, SIGBUS ends the process."""

    def __post_init__(self) -> None:
        if self.weights and (self.text or len(self.weights) != len(self.train)):
            raise UsageError(
                f"data.weights: {len(self.weights)} weights; give one for each of data.train, "
                f"which has {len(self.train)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluations of the validation loss, periodically and at the end."""

    every: Size | None = None
    """Steps between evaluations, the first before any step; None: only at the end."""
    batches: Size = 20
    """Batches per evaluation, of the training batch size; the same ones every time."""
    patience: Size | None = None
    """Evaluations in a row without a lower loss, after which the training ends."""

    def __post_init__(self) -> None:
        if self.patience is not None and self.every is None:
            raise UsageError("evaluation.patience: needs evaluation.every as well.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Text sampled from the model, periodically and at the end."""

    every: Size | None = None
    tokens: Count = 0
    """Per sample; 0: no samples."""
    prompt: str = "\n"
    temperature: Magnitude = 0.8
    top_k: Size | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logs of the run. The JSONL file is always written."""

    folder: str = "runs/run"
    every: Size = 10
    """Steps between log records."""
    numbers_every: Size | None = None
    """Steps between two counts of gradients that underflow and updates that bf16 weights lose."""
    to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    project: str = "torchtally"
    """Project name for wandb and trackio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """torch.profiler over some steps; its trace is written to the run's folder."""

    first_step: Count | None = None
    steps: Size = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the ranks of `torchrun` share a training; without effect on a single process."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: all weights on every rank; fsdp: each rank holds a shard of every weight (FSDP2)."""
    reshard_after_forward: bool = True
    """fsdp: free a block's gathered weights after its forward pass and gather them again."""


TASKS = ("language", "teacher")

PrecisionName = Literal["auto", "fp32", "tf32", "bf16", "fp16", "bf16-master", "pure-bf16", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything a training depends on. The same config and seed give the same losses."""

    task: str = "language"
    """"language", "teacher", or a function of your own as module:function."""
    steps: Size
    batch: Size
    """Sequences (rows) per optimizer step, over all ranks."""
    micro_batch: Size | None = None
    """Rows at a time on the device; default: all."""
    sequence: Size | None = None
    """Tokens; default: the model's context."""
    seed: Count = 1
    device: str = "auto"
    """"auto": the GPU if there is one."""
    precision: PrecisionName = "auto"
    """"auto": bf16 on a GPU that supports it, else fp32."""
    compile: bool | None = None
    """torch.compile; None: on GPUs."""
    clip_norm: Limit | None = 1.0
    loss_chunk_tokens: Count | None = None
    """Tokens whose logits exist at once; 0: all; None: 128 on the CPU, all on a GPU."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """On a NaN or inf loss or gradient."""
    on_spike: Literal["note", "skip", "stop"] = "note"
    """On a loss far above the recent ones."""
    model: ModelConfig = field(default_factory=ModelConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learning_rate: LearningRateConfig = field(default_factory=LearningRateConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    log: LogConfig = field(default_factory=LogConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        if self.micro_batch is not None and self.micro_batch > self.batch:
            raise UsageError(
                f"micro_batch: expected 1 to {self.batch} (the batch), got {self.micro_batch}."
            )
        if ":" not in self.task:
            check_choice("task: unknown task", self.task, TASKS)
        if self.task == "teacher" and self.model.code is not None:
            raise UsageError("model.code: the teacher task has its own student model.")
        if self.model.code is not None and self.sampling.tokens:
            raise UsageError(
                "sampling.tokens: applies to built-in decoders only, not to model.code."
            )
        if self.task == "language":
            context = self.model.of_text()[1]
            if self.sequence is not None and self.sequence > context:
                raise UsageError(
                    f"sequence: expected 1 to {context} (the model's context), got {self.sequence}."
                )
            if not (self.data.train or self.data.text):
                raise UsageError(
                    "data.train: nothing to train on. Give token files, or text: "
                    f'data.text = ["book.txt"] or ["{STDLIB}"].'
                )
        self.learning_rate.schedule(self.steps)

    @property
    def code(self) -> dict[str, str]:
        """The code of the user's own that this trains, by key."""
        task = {"task": self.task} if ":" in self.task else {}
        return task if self.model.code is None else {**task, "model.code": self.model.code}

    @property
    def rows(self) -> int:
        """Rows of a micro-batch."""
        return self.micro_batch or self.batch

    @property
    def tokens_of_sequence(self) -> int:
        """The sequence length of a language model."""
        return self.sequence or self.model.of_text()[1]

    def chunk_tokens(self, device_type: str) -> int | None:
        """How many tokens have logits at once on a device of this type; None: all.

        On the CPU, chunks that fit its caches are faster (benchmarks/train_step.py). On a GPU they
        save memory; their speed there is not measured.
        """
        if self.loss_chunk_tokens is None:
            return 128 if device_type == "cpu" else None
        return self.loss_chunk_tokens or None

    def document(self) -> dict[str, Any]:
        """The config as plain values, for logs and checkpoints."""
        return asdict(self)


WHAT = "a config in TOML"


def read_config(path: Path | str) -> TrainConfig:
    """The config of a TOML file. Raises UsageError that names file and key."""
    values = parse_toml(read_text(path, WHAT), str(path), WHAT)
    return config_of(values, str(path))


def config_of(values: Mapping[str, Any], place: str) -> TrainConfig:
    """The config of plain values. Raises UsageError that names place and key."""
    for key, valid_keys in unknown_keys(values, TrainConfig):
        guess = did_you_mean(key.rpartition(".")[2], valid_keys)
        raise UsageError(f"{place}: {key}: unknown key. {guess}")
    if isinstance(values.get("model"), str):
        values = {**values, "model": {"code": values["model"]}}
    return read_as(TrainConfig, _with_vocabulary(values), place)


def _with_vocabulary(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config with the vocabulary of the data where the model has none: tokens.json says it, and
    text is read as bytes.
    """
    model, data = values.get("model", {}), values.get("data")
    if not (isinstance(model, Mapping) and isinstance(data, Mapping)):
        return values
    if not {"vocabulary", "preset", "weights"}.isdisjoint(model):
        return values
    paths = data.get("train")
    folder = paths[0] if isinstance(paths, list | tuple) and paths else paths
    description = (
        description_in(folder) if isinstance(folder, str) and Path(folder).is_dir() else None
    )
    if description is not None:
        return {**values, "model": {**model, "vocabulary": description.vocabulary_size}}
    if data.get("text"):
        return {**values, "model": {**model, "vocabulary": LEAST_VOCABULARY}}
    return values


def unknown_keys(
    values: Mapping[str, Any], kind: type, before: str = ""
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(unknown key, the valid keys of its table)."""
    tables = {name: table_of(hint) for name, hint in get_type_hints(kind).items()}
    for key, value in values.items():
        if key not in tables:
            yield before + key, tuple(tables)
        elif (inner := tables[key]) is not None and isinstance(value, Mapping):
            yield from unknown_keys(value, inner, f"{before}{key}.")
