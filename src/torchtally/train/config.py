"""One frozen config of a training: a TOML file with flags over it, checked before anything runs."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from torchtally.errors import UsageError
from torchtally.train.models.config import Activation, Norm, Positions, TransformerConfig
from torchtally.train.models.presets import preset
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.optimizers.schedules import DecayShape, ScheduleConfig, Shape

STDLIB = "<stdlib>"
"""In `data.text`: Python's own library, text that is on every machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A preset, with other values for some of its sizes; or all sizes of a decoder."""

    preset: str | None = None
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    norm: Norm | None = None
    positions: Positions | None = None
    activation: Activation | None = None
    is_tied: bool | None = None
    has_bias: bool | None = None
    window: int | None = None
    dropout: float | None = None
    rope_theta: float | None = None
    norm_eps: float | None = None
    recompute: Literal["none", "selective", "full"] = "none"
    """What the backward pass makes again instead of keeping it."""
    weights: str | None = None
    """Start from these: a folder or file of safetensors with Hugging Face's names."""

    def transformer(self) -> TransformerConfig:
        """The decoder's config. Raises UsageError where a size is missing or cannot be."""
        sizes = {member.name for member in fields(TransformerConfig)}
        values = {
            member.name: value
            for member in fields(self)
            if member.name in sizes and (value := getattr(self, member.name)) is not None
        }
        if self.preset is not None:
            return preset(self.preset, **values)
        needed = ("layers", "width", "heads", "ffn", "vocabulary", "context")
        if missing := [name for name in needed if name not in values]:
            raise UsageError(
                f"model.{missing[0]}: is missing. Give a preset (llama-1m), or all of "
                f"{', '.join(needed)}."
            )
        return TransformerConfig(**{"kv_heads": values["heads"], **values})


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """The linear teacher: x of a normal, y = x . (0, 1, ..., dim - 1); a deep linear pupil."""

    dim: int = 16
    num_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Token files that there are, or text that is turned into them first."""

    train: tuple[str, ...] = ()
    """Files of tokens, or a folder by `tally data prepare`."""
    validation: tuple[str, ...] = ()
    """The folder's own validation split where none is given."""
    text: tuple[str, ...] = ()
    """Text files, folders or globs, read as bytes; "<stdlib>" is Python's own library."""
    dtype: str | None = None
    """Of files without a header: "uint16", "uint32"."""
    order: Literal["shuffled", "sequential", "random"] = "shuffled"
    stride: int | None = None
    """Tokens from one window's beginning to the next one's; the sequence's length."""
    read: Literal["map", "copy"] = "map"
    """A mapped file is read twice as fast; one that shrinks while it is read ends the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateConfig:
    """How the learning rate goes over the steps of the run."""

    shape: Shape = "cosine"
    warmup_steps: int = 0
    """Of a run that is no longer than these, all steps but the last warm up."""
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
    """The loss on validation data, now and then and at the end."""

    every: int | None = None
    """Steps; None: at the end alone."""
    batches: int = 20
    """Of the training's batch size, the same ones every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Text of the model's own, now and then and at the end."""

    every: int | None = None
    tokens: int = 0
    """0: none."""
    prompt: str = "\n"
    temperature: float = 0.8
    top_k: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Where the run is written down. The JSONL file is always there."""

    folder: str = "runs/run"
    every: int = 10
    """Steps between two records."""
    to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    project: str = "torchtally"
    """wandb's and trackio's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """torch.profiler over some steps; its trace goes to the run's folder."""

    first_step: int | None = None
    steps: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """What a training can go on from, in the run's folder below `checkpoints`."""

    every: int | None = None
    """Steps from one to the next."""
    every_minutes: float | None = 10.0
    """Minutes from one to the next, whatever the steps."""
    at_end: bool = True
    """One after the last step, too."""
    keep_last: int = 2
    """So many, the newest; more than one, so that a damaged one is not the end."""
    keep_every: int | None = None
    """Those of steps that it divides are never removed."""
    in_background: bool = True
    """Written while training goes on, from a copy in the host's memory."""
    follows_links: bool = False
    """Whether `checkpoints` may be a symbolic link."""

    def __post_init__(self) -> None:
        for name in ("every", "every_minutes", "keep_last", "keep_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"checkpoint.{name}: {value} is none: give more than 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the ranks of `torchrun` share a training. Nothing of it matters to a process alone."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """All weights on every rank, or a shard of each weight on each (FSDP2)."""
    reshard_after_forward: bool = True
    """fsdp: a block's whole weights are let go after its forward pass and gathered again."""


PrecisionName = Literal["auto", "fp32", "tf32", "bf16", "fp16", "bf16-master", "pure-bf16", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All that a training depends on. The same config and seed give the same losses."""

    task: Literal["language", "teacher"] = "language"
    steps: int
    batch: int
    """Sequences (rows) of an optimizer step, of all ranks together."""
    micro_batch: int | None = None
    """Of them at once on the device; all where none is given."""
    sequence: int | None = None
    """Tokens; the model's context where none is given."""
    seed: int = 1
    device: str = "auto"
    """"auto": the GPU where there is one."""
    precision: PrecisionName = "auto"
    """"auto": bf16 on a GPU that has it, else fp32."""
    compile: bool | None = None
    """torch.compile; None: on GPUs."""
    clip_norm: float | None = 1.0
    loss_chunk_tokens: int | None = None
    """Logits of so many tokens are there at once; 0: of all; None: 128 on the CPU, all on a GPU."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """When a loss or a gradient is no number."""
    on_spike: Literal["note", "skip", "stop"] = "note"
    """When a loss jumps far above those before it."""
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
                raise UsageError(f"{name}: {value} is none: give 1 or more.")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch:
            raise UsageError(
                f"micro_batch: {self.micro_batch} of a batch of {self.batch}: give 1 to "
                f"{self.batch}."
            )
        if self.loss_chunk_tokens is not None and self.loss_chunk_tokens < 0:
            raise UsageError(f"loss_chunk_tokens: {self.loss_chunk_tokens}: give 0 or more.")
        if self.task == "language":
            context = self.model.transformer().context
            if self.sequence is not None and not 1 <= self.sequence <= context:
                raise UsageError(
                    f"sequence: {self.sequence} is not from 1 to the model's context of {context}."
                )
            if not (self.data.train or self.data.text):
                raise UsageError(
                    "data.train: nothing to train on. Give files of tokens, or text: "
                    f'data.text = ["book.txt"] or ["{STDLIB}"].'
                )
        self.learning_rate.schedule(self.steps)

    @property
    def rows(self) -> int:
        """Of a micro-batch."""
        return self.micro_batch or self.batch

    @property
    def tokens_of_sequence(self) -> int:
        """Of a language model's sequence."""
        return self.sequence or self.model.transformer().context

    def chunk_tokens(self, device_type: str) -> int | None:
        """Of how many tokens logits are there at once on a device of this type; None: of all.

        On the CPU chunks that stay in its caches are faster (benchmarks/train_step.py). On a GPU
        they save memory, and nobody has timed them.
        """
        if self.loss_chunk_tokens is None:
            return 128 if device_type == "cpu" else None
        return self.loss_chunk_tokens or None

    def document(self) -> dict[str, Any]:
        """The config as plain values, for logs and checkpoints."""
        return asdict(self)


def read_config(path: Path | str) -> TrainConfig:
    """The config of a TOML file. Raises UsageError that names file and key."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is no TOML: {error}.") from error
    return config_of(values, str(path))


def config_of(values: Mapping[str, Any], place: str) -> TrainConfig:
    """The config of plain values. Raises UsageError that names place and key."""
    for key, valid_keys in unknown_keys(values, TrainConfig):
        near = get_close_matches(key.rpartition(".")[2], valid_keys, n=1)
        guess = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(valid_keys)}."
        raise UsageError(f"{place}: {key}: no such key.{guess}")
    try:
        return msgspec.convert(values, TrainConfig)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, UsageError):
            raise UsageError(f"{place}: {cause}") from error
        raise UsageError(f"{place}: {error}.") from error
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def unknown_keys(
    values: Mapping[str, Any], kind: type, before: str = ""
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(a key that the config does not have, those it has there)."""
    hints = get_type_hints(kind)
    valid_keys = tuple(member.name for member in fields(kind))
    for key, value in values.items():
        if key not in valid_keys:
            yield before + key, valid_keys
        elif is_dataclass(hints[key]) and isinstance(value, Mapping):
            inner = hints[key]
            assert isinstance(inner, type)
            yield from unknown_keys(value, inner, f"{before}{key}.")
