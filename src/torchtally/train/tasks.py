"""Training tasks: a model, the batches of every step, and the loss of a batch.

Axes: `batch` rows, `sequence` tokens, `width` features.
"""

import math
import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.checkpoints.ranks import ALONE, Ranks
from torchtally.checkpoints.seeds import derive_seed
from torchtally.errors import UsageError
from torchtally.train.code import call, fingerprint_of, loss_of, module_of
from torchtally.train.config import STDLIB, TrainConfig
from torchtally.train.data.batches import batch_at, batches
from torchtally.train.data.description import NAME as DESCRIPTION
from torchtally.train.data.description import Description, description_in
from torchtally.train.data.files import has_split, open_tokens, token_files
from torchtally.train.data.fingerprint import Fingerprint, fingerprint
from torchtally.train.data.order import Mixture, Order, OrderName, rows_of_rank
from torchtally.train.data.prepare import PrepareRequest, is_current, prepare
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.data.tokenizer import Tokenizer, byte_counts, tokenizer_json, tokenizer_of
from torchtally.train.evaluation import Rows
from torchtally.train.models.cruncher import Cruncher
from torchtally.train.models.huggingface import read_weights
from torchtally.train.models.loss import IGNORED
from torchtally.train.models.transformer import Transformer
from torchtally.train.parallel import is_sharded

INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one step is trained on."""

    step: int
    inputs: Tensor
    targets: Tensor
    wait_s: float
    """How long the loop waited for this batch."""


Batches = AbstractContextManager[Iterable[TrainBatch]]


class Task(ABC):
    """A model and the source of its batches: one rank's rows of each global batch."""

    tokens_of_step: int | None = None
    """Tokens per step over all ranks; None if the data is not text."""
    byte_counts: Tensor | None = None
    """Bytes of text of each token id; None if they are not known."""
    fingerprints: Mapping[str, Fingerprint] = {}
    """Of the data read from files: "train", "validation"; and of code."""

    def __init__(self, config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> None:
        """The model is initialised from the seed, equally on every rank: on the device, or on the
        host to be sharded.

        Raises UsageError for unreadable data, naming the file, and for a batch that the ranks
        cannot divide.
        """
        self._config, self._ranks = config, ranks
        self._part = rows_of_rank(config.batch, ranks.rank, ranks.size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(Source.INITIALISATION, config.seed))
            self.model = self._new_model()
        if not is_sharded(config.parallel, ranks):
            self.model.to(device)

    @abstractmethod
    def _new_model(self) -> nn.Module: ...

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """The mean loss of a batch; `model` is the task's model or its wrapper."""

    @abstractmethod
    def batches(self, steps: range, device: torch.device) -> Batches:
        """The batches of these steps, in order."""

    @abstractmethod
    def validation(self, device: torch.device) -> Iterable[Rows]:
        """The same passes every time, equally many on each rank; none without validation data."""

    def close(self) -> None:  # noqa: B027
        """Close files, of tasks that have any."""


def task_of(config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> Task:
    """The task of a config, see `Task`."""
    if ":" in config.task:
        return Own(config, device, ranks)
    kind = Teacher if config.task == "teacher" else Language
    return kind(config, device, ranks)


def _draw(rows_of: Callable[[int], Rows], steps: range) -> Batches:
    """Batches that are made as they are asked for."""
    return nullcontext(TrainBatch(step, *rows_of(step), 0.0) for step in steps)


class Teacher(Task):
    """A linear teacher, y = x . (0, 1, 2, ...), and a deep linear student."""

    def _new_model(self) -> nn.Module:
        return Cruncher(self._config.teacher.dim, self._config.teacher.num_layers)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """Mean squared error."""
        return nn.functional.mse_loss(model(inputs), targets)

    def batches(self, steps: range, device: torch.device) -> Batches:
        return _draw(lambda step: self._rows(Source.ORDER, step, device), steps)

    def validation(self, device: torch.device) -> Iterable[Rows]:
        count = self._config.evaluation.batches
        return (self._rows(Source.VALIDATION_ORDER, step, device) for step in range(count))

    def _rows(self, source: Source, step: int, device: torch.device) -> Rows:
        """A pure function of the seed and the step."""
        generator = torch.Generator().manual_seed(seed_of(source, self._config.seed) + step)
        dim = self._config.teacher.dim
        inputs = torch.randn((self._config.batch, dim), generator=generator)[self._part].to(device)
        return inputs, inputs @ torch.arange(dim, dtype=torch.float32, device=device)


class Decoder(Task):
    """A decoder and its loss, without data: the base of `Language` and `Rehearsal`."""

    def __init__(self, config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> None:
        self._chunk_tokens = config.chunk_tokens(device.type)
        self.tokens_of_step = config.batch * config.tokens_of_sequence
        super().__init__(config, device, ranks)

    def _new_model(self) -> nn.Module:
        return _model(self._config)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """Mean cross-entropy of the next token, in nats."""
        if not isinstance(model, Transformer):
            return loss_of(model, inputs, targets)
        return model.loss(inputs, targets, chunk_tokens=self._chunk_tokens)

    def _mask_documents(self, start: int | None) -> None:
        """If the config says so; documents begin with this id."""
        if self._config.data.documents == "joined":
            return
        if not isinstance(self.model, Transformer):
            raise UsageError(
                "data.documents: not supported with model.code, whose model builds its own masks."
            )
        if start is None:
            raise UsageError(
                "data.document_start: is missing. The data does not say with which id a document "
                "ends; those of `tally data prepare` do."
            )
        self.model.document_start = start


class Rehearsal(Decoder):
    """The same training on random tokens: for a plan, without reading files."""

    def __init__(self, config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> None:
        super().__init__(config, device, ranks)
        self._mask_documents(0)

    def batches(self, steps: range, device: torch.device) -> Batches:
        shape = (self._part.stop - self._part.start, self._config.tokens_of_sequence + 1)
        vocabulary, _ = self._config.model.of_text()

        def rows(step: int) -> Rows:
            tokens = torch.randint(vocabulary, shape).to(device)
            return tokens[:, :-1], tokens[:, 1:]

        return _draw(rows, steps)

    def validation(self, device: torch.device) -> Iterable[Rows]:
        return ()


class Own(Task):
    """A task of the user's own, as `torchtally.train.code` describes it."""

    def __init__(self, config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> None:
        self.fingerprints = fingerprint_of(config.code)
        super().__init__(config, device, ranks)

    def _new_model(self) -> nn.Module:
        config = self._config
        self._own = call("task", config.task, config)
        if config.model.code is not None:
            return _model(config)
        model = getattr(self._own, "model", None)
        if not isinstance(model, nn.Module):
            raise UsageError(
                f'model: {config.task} has none. Give it one, or model = "module:Class".'
            )
        return model

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        """The task's own, or else the model's."""
        own = getattr(self._own, "loss", None)
        loss: Tensor = (own or loss_of)(model, inputs, targets)
        return loss

    def batches(self, steps: range, device: torch.device) -> Batches:
        return _draw(lambda step: self._rows(self._own.batch(step), device), steps)

    def validation(self, device: torch.device) -> Iterable[Rows]:
        validation = getattr(self._own, "validation", tuple)
        return (self._rows(rows, device) for rows in validation())

    def _rows(self, rows: Rows, device: torch.device) -> Rows:
        """Those of this rank."""
        inputs, targets = rows
        if not len(inputs) == len(targets) == self._config.batch:
            raise UsageError(
                f"task: {self._config.task}: returned {len(inputs)} inputs and {len(targets)} "
                f"targets for a batch of {self._config.batch}."
            )
        return inputs[self._part].to(device), targets[self._part].to(device)


def own_model(config: TrainConfig) -> nn.Module:
    """The model of a config with code of the user's own."""
    if ":" in config.task:
        return Own(config, torch.device("cpu")).model
    return _model(config)


def _model(config: TrainConfig) -> nn.Module:
    """A decoder, or the model of `model.code`."""
    if config.model.code is not None:
        return module_of(config.model.code, config.model.arguments)
    model = Transformer(config.model.transformer(), recompute=config.model.recompute)
    if config.model.weights is not None:
        read_weights(model, config.model.weights)
    return model


class Language(Decoder):
    """Next-token prediction on text."""

    def __init__(self, config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> None:
        self._config = config
        rows_of_rank(config.batch, ranks.rank, ranks.size)  # before text is prepared
        sequence = config.tokens_of_sequence
        paths = (prepare_data(config, ranks),) if config.data.text else config.data.train
        with ExitStack() as self._closing:
            # Data before the model: report a bad file before minutes of initialisation.
            self._train = self._open(paths, "train", sequence)
            self._order = self._order_of(paths)
            self._validation = self._open_validation(paths, sequence)
            described = _first_description(paths)
            self.tokenizer: Tokenizer | None = None
            """Of the data, if it is known."""
            start = config.data.document_start
            if described is not None:
                folder, description = described
                text = tokenizer_json(folder, description)
                self.tokenizer = tokenizer_of(text, folder)
                self.byte_counts = self._byte_counts(text)
                start = description.end_of_document if start is None else start
            self.fingerprints = ranks.run_on_first(self._fingerprints, "read the data")
            super().__init__(config, device, ranks)
            self._mask_documents(start)
            self._closing = self._closing.pop_all()

    @contextmanager
    def batches(self, steps: range, device: torch.device) -> Iterator[Iterable[TrainBatch]]:
        with batches(self._train, self._order, steps, self._part, device=device) as ring:
            yield (
                TrainBatch(batch.step, *self._rows(batch.tokens), batch.wait_s) for batch in ring
            )

    def validation(self, device: torch.device) -> Iterable[Rows]:
        if self._validation is None:
            return
        config = self._config
        rows = min(config.batch, self._validation.windows)
        seed = seed_of(Source.VALIDATION_ORDER, config.seed)
        order = Order(OrderName.SHUFFLED, self._validation.windows, rows, seed)
        part = share_rows(rows, self._ranks)
        # As many passes on every rank, of no more rows than a micro-batch of the training has.
        passes = math.ceil(math.ceil(rows / self._ranks.size) / config.rows)
        # At most one epoch of the validation data: no window is used twice.
        for step in range(min(config.evaluation.batches, self._validation.windows // rows)):
            tokens = batch_at(self._validation, order, step, part or slice(1)).to(device)
            for piece in tokens.tensor_split(passes):
                # A rank without rows takes part in collectives with one row of ignored targets.
                inputs, targets = self._rows(piece if len(piece) else tokens[:1])
                is_counted = part is not None and len(piece) > 0
                yield inputs, targets if is_counted else torch.full_like(targets, IGNORED)

    def close(self) -> None:
        self._closing.close()

    def _byte_counts(self, tokenizer: str) -> Tensor | None:
        """Bytes of each id; ids of the model that the tokenizer does not have are of no text."""
        counts = byte_counts(tokenizer)
        if counts is None:
            return None
        vocabulary, _ = self._config.model.of_text()
        by_id = torch.zeros(max(vocabulary, *counts, 0) + 1, dtype=torch.int64)
        by_id[torch.tensor(list(counts))] = torch.tensor(list(counts.values()))
        return by_id

    def _rows(self, tokens: Tensor) -> Rows:
        """Inputs and targets of windows; ids below zero are masked targets."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self._config.data.targets == "all":
            return inputs, targets
        return torch.where(inputs < 0, ~inputs, inputs), targets.masked_fill(targets < 0, IGNORED)

    def _order_of(self, paths: Sequence[str]) -> Order | Mixture:
        """The order of the training's windows, mixed by the weights of its paths."""
        data, batch = self._config.data, self._config.batch
        name, seed = OrderName(data.order), seed_of(Source.ORDER, self._config.seed)
        if not data.weights:
            return Order(name, self._train.windows, batch, seed)
        counts = iter(self._train.windows_of_files)
        files = [token_files([path], split="train", dtype=data.dtype) for path in paths]
        windows = [sum(islice(counts, len(of_path))) for of_path in files]
        sources = [Order(name, n, batch, derive_seed(seed, at)) for at, n in enumerate(windows)]
        return Mixture(tuple(sources), data.weights, batch, seed)

    def _fingerprints(self) -> Mapping[str, Fingerprint]:
        opened = {"train": self._train, "validation": self._validation}
        read = {split: fingerprint(data.files) for split, data in opened.items() if data}
        if isinstance(self._order, Mixture):
            read["train"]["windows"] = str([source.windows for source in self._order.sources])
        return read | fingerprint_of(self._config.code)

    def _open(self, paths: Iterable[str], split: str, sequence: int) -> TokenData:
        """Open and check all files."""
        data = self._config.data
        return self._closing.enter_context(
            open_tokens(
                tuple(paths),
                split=split,
                dtype=data.dtype,
                sequence=sequence,
                stride=data.stride,
                read=Read(data.read),
                is_masked=data.targets == "masked",
                vocabulary_size=self._config.model.of_text()[0],
                seed=seed_of(Source.DATA_CHECK, self._config.seed),
            )
        )

    def _open_validation(self, paths: Iterable[str], sequence: int) -> TokenData | None:
        """The validation files of the config, else the validation split of a prepared folder."""
        files = self._config.data.validation
        if files:
            return self._open(files, "validation", sequence)
        folders = [path for path in paths if has_split(path, "validation")]
        return self._open(folders, "validation", sequence) if folders else None


def prepare_data(config: TrainConfig, ranks: Ranks = ALONE) -> str:
    """The folder of tokens of the config's texts, below the run's folder; created by rank 0, and
    again where the texts have changed, while the others wait.
    """

    def prepare_text() -> None:
        if not has_tokens_of_text(config):
            prepare(_text_request(config))

    ranks.run_on_first(prepare_text, "prepare the text")
    return _text_request(config).out


def has_tokens_of_text(config: TrainConfig) -> bool:
    """Whether the run's folder has the tokens of the config's texts as they are now.

    Raises UsageError where a text is gone.
    """
    request = _text_request(config)
    try:
        return is_current(request)
    except UsageError as error:
        if not Path(request.out, DESCRIPTION).exists():
            raise
        raise UsageError(f"{error} {former_tokens(config)}") from error


def former_tokens(config: TrainConfig) -> str:
    """How to train on the tokens that were made of other texts before."""
    return (
        "To train on the tokens prepared before, set data.text = [] and data.train = "
        f'["{_text_request(config).out}"].'
    )


def _text_request(config: TrainConfig) -> PrepareRequest:
    texts = [stdlib() if path == STDLIB else [path] for path in config.data.text]
    inputs = tuple(path for paths in texts for path in paths)
    folder = Path(config.log.folder) / "data"
    return PrepareRequest(inputs=inputs, out=str(folder), is_overwriting=True)


def share_rows(rows: int, ranks: Ranks) -> slice | None:
    """A rank's part of rows that need not divide evenly; None if it has none."""
    part = slice(ranks.rank * rows // ranks.size, (ranks.rank + 1) * rows // ranks.size)
    return part if part.stop > part.start else None


def stdlib() -> list[str]:
    """The paths of Python's standard library, without installed packages."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return sorted(str(path) for path in folder.iterdir() if path.name not in INSTALLED)


def _first_description(paths: Iterable[str]) -> tuple[str, Description] | None:
    """The first folder among the paths that has a description, with it."""
    for path in filter(os.path.isdir, paths):
        if (description := description_in(path)) is not None:
            return path, description
    return None
