"""The frozen config of a training: a TOML file plus flags, validated before anything runs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from torchtally.checkpoints.config import CheckpointConfig
from torchtally.errors import UsageError, check_choice
from torchtally.reading import parse_toml, read_text
from torchtally.train.data.description import description_in
from torchtally.train.data.tokenizer import LEAST_VOCABULARY
from torchtally.train.models.config import RopeStretch, TransformerConfig
from torchtally.train.models.huggingface_config import config_beside
from torchtally.train.models.presets import preset
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.optimizers.schedules import DecayShape, ScheduleConfig, Shape

STDLIB = "<stdlib>"
"""In `data.text`: Python's standard library, text that every machine has."""


_SIZES = {
    name: hint | None
    for name, hint in get_type_hints(TransformerConfig).items() if name != "rope_stretch"
}  # fmt: skip
Sizes: Any = make_dataclass(
    "Sizes", [(name, hint, None) for name, hint in _SIZES.items()],
    frozen=True, slots=True, kw_only=True,
)  # fmt: skip
"""Those of a decoder, each optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Sizes):  # type: ignore[misc]
    """A preset, with changes to some of its sizes, or all sizes of a decoder."""

    preset: str | None = None
    rope_factor: float | None = None
    """Stretches rotary positions as Llama 3.1 does; its other numbers are the three below."""
    rope_original_context: int | None = None
    rope_low_factor: float | None = None
    rope_high_factor: float | None = None
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
            raise UsageError('model.arguments: are those of model.code = "module:Class".')
        for member in fields(self) if self.code is not None else ():
            is_default = getattr(self, member.name) in (None, "none")
            if not is_default and member.name not in ("code", "arguments", *OF_TEXT):
                raise UsageError(
                    f"model.{member.name}: is of decoders. Give it to {self.code} by "
                    f"model.arguments.{member.name}."
                )

    def of_text(self) -> tuple[int, int]:
        """(vocabulary, context). Raises UsageError where they are unknown."""
        if self.code is None:
            config = self.transformer()
            return config.vocabulary, config.context
        if self.vocabulary is None or self.context is None:
            missing = "context" if self.context is None else "vocabulary"
            raise UsageError(f"model.{missing}: is missing; {self.code} does not tell it.")
        return self.vocabulary, self.context

    def transformer(self) -> TransformerConfig:
        """The decoder's config. Raises UsageError for a missing or invalid size, and for one that
        the weights do not have.
        """
        values = self._values()
        beside = None if self.weights is None else config_beside(self.weights)
        if beside is None:
            return self._of_values(values)
        config = replace(beside, **values) if self.preset is None else self._of_values(values)
        _check_alike(config, beside, f"{self.weights}")
        return config

    def _values(self) -> dict[str, Any]:
        """The keys that are given, under the names of TransformerConfig."""
        values = {
            name: value for name in _SIZES if (value := getattr(self, name)) is not None
        }  # fmt: skip
        stretch = {
            name: value
            for name in ("original_context", "low_factor", "high_factor")
            if (value := getattr(self, f"rope_{name}")) is not None
        }
        if self.rope_factor is not None:
            values["rope_stretch"] = RopeStretch(factor=self.rope_factor, **stretch)
        elif stretch:
            raise UsageError(f"model.rope_{next(iter(stretch))}: needs rope_factor as well.")
        return values

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

    dim: int = 16
    num_layers: int = 0


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
    stride: int | None = None
    """Tokens from one window's start to the next; default: the sequence length."""
    weights: tuple[float, ...] = ()
    """How often each of `train` is read, relative to the others; default: each window as often."""
    documents: Literal["joined", "masked"] = "joined"
    """Whether tokens attend to other documents in their window, or to their own alone."""
    document_start: int | None = None
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
        if not all(0 < weight < inf for weight in self.weights):
            raise UsageError(f"data.weights: expected numbers above 0, got {self.weights}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateConfig:
    """The learning rate schedule."""

    shape: Shape = "cosine"
    warmup_steps: int = 0
    """At most steps - 1: a shorter run is all warm-up."""
    floor: float | None = None
    decay_steps: int | None = None
    decay_shape: DecayShape | None = None

    def schedule(self, steps: int) -> ScheduleConfig:
        """The schedule of a run of this many steps."""
        values = {member.name: getattr(self, member.name) for member in fields(self)}
        if self.shape == "constant":
            return ScheduleConfig(**values)
        # `--steps 100` tries a config out: its warm-up may be as long as that.
        values["warmup_steps"] = min(self.warmup_steps, max(steps - 1, 0))
        return ScheduleConfig(**values, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluations of the validation loss, periodically and at the end."""

    every: int | None = None
    """Steps between evaluations, the first before any step; None: only at the end."""
    batches: int = 20
    """Batches per evaluation, of the training batch size; the same ones every time."""
    patience: int | None = None
    """Evaluations in a row without a lower loss, after which the training ends."""

    def __post_init__(self) -> None:
        if self.patience is not None and (self.patience < 1 or self.every is None):
            raise UsageError(
                f"evaluation.patience: {self.patience}: expected 1 or more, with evaluation.every."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Text sampled from the model, periodically and at the end."""

    every: int | None = None
    tokens: int = 0
    """Per sample; 0: no samples."""
    prompt: str = "\n"
    temperature: float = 0.8
    top_k: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Where the run is logged. The JSONL file is always written."""

    folder: str = "runs/run"
    every: int = 10
    """Steps between log records."""
    to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    project: str = "torchtally"
    """Project name for wandb and trackio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """torch.profiler over some steps; its trace is written to the run's folder."""

    first_step: int | None = None
    steps: int = 3


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
    steps: int
    batch: int
    """Sequences (rows) per optimizer step, over all ranks."""
    micro_batch: int | None = None
    """Rows at a time on the device; default: all."""
    sequence: int | None = None
    """Tokens; default: the model's context."""
    seed: int = 1
    device: str = "auto"
    """"auto": the GPU if there is one."""
    precision: PrecisionName = "auto"
    """"auto": bf16 on a GPU that supports it, else fp32."""
    compile: bool | None = None
    """torch.compile; None: on GPUs."""
    clip_norm: float | None = 1.0
    loss_chunk_tokens: int | None = None
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
        for name, value in (("steps", self.steps), ("batch", self.batch)):
            if value < 1:
                raise UsageError(f"{name}: expected 1 or more, got {value}.")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch:
            raise UsageError(
                f"micro_batch: expected 1 to {self.batch} (the batch), got {self.micro_batch}."
            )
        if self.loss_chunk_tokens is not None and self.loss_chunk_tokens < 0:
            raise UsageError(
                f"loss_chunk_tokens: expected 0 or more, got {self.loss_chunk_tokens}."
            )
        if ":" not in self.task:
            check_choice("task: unknown task", self.task, TASKS)
        if self.task == "teacher" and self.model.code is not None:
            raise UsageError("model.code: the teacher has a student of its own.")
        if self.model.code is not None and self.sampling.tokens:
            raise UsageError("sampling.tokens: is of decoders, and not of model.code.")
        if self.task == "language":
            context = self.model.of_text()[1]
            if self.sequence is not None and not 1 <= self.sequence <= context:
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
        near = get_close_matches(key.rpartition(".")[2], valid_keys, n=1)
        guess = f" Did you mean {near[0]}?" if near else f" Keys are: {', '.join(valid_keys)}."
        raise UsageError(f"{place}: {key}: unknown key.{guess}")
    if isinstance(values.get("model"), str):
        values = {**values, "model": {"code": values["model"]}}
    values = _with_vocabulary(values)
    try:
        return msgspec.convert(values, TrainConfig)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, UsageError):
            raise UsageError(f"{place}: {cause}") from error
        raise UsageError(f"{place}: {error}.") from error
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _with_vocabulary(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the vocabulary of the data where the model has none: tokens.json says it, and text is
    read as bytes.
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
    hints = get_type_hints(kind)
    valid_keys = tuple(member.name for member in fields(kind))
    for key, value in values.items():
        if key not in valid_keys:
            yield before + key, valid_keys
        elif is_dataclass(hints[key]) and isinstance(value, Mapping):
            inner = hints[key]
            assert isinstance(inner, type)
            yield from unknown_keys(value, inner, f"{before}{key}.")
