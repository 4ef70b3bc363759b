"""What weights of fewer bits cost a trained decoder: bytes, speed and loss beside the original."""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from torchtally.errors import UsageError
from torchtally.table import Column, Table, Tabular
from torchtally.train.data.files import open_tokens
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.evaluation import Rows, evaluate
from torchtally.train.models.huggingface import stored_tensors
from torchtally.train.models.quantised import BITS, quantise
from torchtally.train.models.transformer import Transformer
from torchtally.train.sampling import sample
from torchtally.train.trained import Trained
from torchtally.units import Unit

WINDOWS, ROWS = 64, 8
"""Of validation data: at most so many, so many at a time."""
COLUMNS = (
    Column("weight_format", "weights", Unit.WORD),
    Column("bytes", "size", Unit.BYTES),
    Column("tokens_per_s_each", "tokens drawn", Unit.TOKEN_PER_S),
    Column("validation_loss", "loss", Unit.LOSS),
)


@dataclass(frozen=True, slots=True)
class WeightComparison(Tabular):
    """A row for each format of weights."""

    source: str
    rows: tuple[tuple[str, int, float, float | None], ...]
    note: str

    def table(self) -> Table:
        return Table(f"Weights of {self.source}", COLUMNS, self.rows, note=self.note)


def compare_weights(
    trained: Trained, *, tokens: int, clock: Callable[[], float] = time.perf_counter
) -> WeightComparison:
    """The original and each format that the model can have: bytes in a file, tokens a second when
    one sequence of so many tokens is sampled here, and the loss on the run's validation data.
    """
    original = str(trained.model.embedding.weight.dtype).removeprefix("torch.")
    data, why = _validation(trained)
    rows = []
    try:
        for name in (None, *BITS):
            model = trained.model if name is None else copy.deepcopy(trained.model)
            if name is not None:
                quantise(model, name)
            size = sum(tensor.nbytes for tensor in stored_tensors(model).values())
            loss = None if data is None else evaluate(model, model.loss, _windows(data)).loss_nats
            rows.append((name or original, size, _tokens_per_s(model, tokens, clock), loss))
    finally:
        if data is not None:
            data.close()
    note = f"Loss unknown: {why}" if data is None else f"Loss in nats, of {_count(data)} windows."
    note += " Sizes are of files: in memory, torchao takes one byte per int4 weight."
    return WeightComparison(trained.source, tuple(rows), note)


def _validation(trained: Trained) -> tuple[TokenData | None, str]:
    """The validation data, or why there is none."""
    config = trained.model.config
    if not trained.validation:
        return None, "the model has no run with validation data."
    try:
        return open_tokens(
            trained.validation,
            split="validation",
            sequence=config.context,
            read=Read.COPY,
            vocabulary_size=config.vocabulary,
            seed=1,
        ), ""
    except UsageError as error:
        return None, str(error)


def _count(data: TokenData) -> int:
    return min(WINDOWS, data.windows)


def _windows(data: TokenData) -> Iterator[Rows]:
    """Evenly spread over the data."""
    chosen = torch.linspace(0, data.windows - 1, _count(data), dtype=torch.float64).long()
    for part in chosen.split(ROWS):
        tokens = torch.empty((len(part), data.width), dtype=torch.int64)
        data.read(part.numpy(), tokens.numpy())
        yield tokens[:, :-1], tokens[:, 1:]


def _tokens_per_s(model: Transformer, tokens: int, clock: Callable[[], float]) -> float:
    prompt = torch.zeros((1, 1), dtype=torch.int64)
    sample(model, prompt, tokens=2, seed=1)
    begin = clock()
    sample(model, prompt, tokens=tokens, seed=1)
    return tokens / (clock() - begin)
