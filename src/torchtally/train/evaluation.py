"""The loss on validation data: exact, and the training as it was before.

Which windows it is of is the caller's choice: the same ones every time, or two losses are not of
the same thing.

Axes: `vocabulary`.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from torchtally.errors import UsageError
from torchtally.train.logs import names
from torchtally.train.logs.log import LogValue
from torchtally.train.models.loss import IGNORED
from torchtally.train.ranks import ALONE, Ranks
from torchtally.train.shards import reshard

LARGEST_EXPONENT = math.log(1.7e308)


Rows = tuple[Tensor, Tensor]
"""Inputs and targets, of as many rows."""
PrecisionContext = Callable[[], AbstractContextManager[object]]
"""Makes the context in which a forward pass runs: autocast, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the model makes of the validation data."""

    loss_nats: float
    """Mean over all targets that count, each counted once."""
    bits_per_byte: float | None
    """Bits for all those targets by the bytes of text they stand for; None where nobody said how
    many bytes a token stands for. Comparable between tokenizers, as the loss is not."""
    tokens: int
    """Targets that count."""
    seconds: float

    @property
    def perplexity(self) -> float:
        """e to the loss; infinity where that is no number of float64."""
        return math.inf if self.loss_nats > LARGEST_EXPONENT else math.exp(self.loss_nats)

    def values(self) -> dict[str, LogValue]:
        """As they are logged."""
        values: dict[str, LogValue] = {
            names.EVAL_LOSS: self.loss_nats,
            names.EVAL_PERPLEXITY: self.perplexity,
            names.EVAL_TOKENS: self.tokens,
            names.EVAL_S: self.seconds,
        }
        if self.bits_per_byte is not None:
            values[names.EVAL_BITS_PER_BYTE] = self.bits_per_byte
        return values


def evaluate(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Float[Tensor, ""]],
    batches: Iterable[Rows],
    *,
    precision_context: PrecisionContext = nullcontext,
    token_bytes: Int[Tensor, " vocabulary"] | None = None,
    ranks: Ranks = ALONE,
    clock: Callable[[], float] = time.perf_counter,
) -> Evaluation:
    """The mean loss over all targets of these batches, however they are spread over them.

    `loss` gives, by way of `model`, the mean over those of a batch's targets that count: of token
    ids all but -100, of anything else all. Means are weighted by their number of targets and added
    up in float64. `token_bytes` are the bytes of text that each token id stands for, on any device;
    0 for the end of a document, whose bits count all the same. The host waits for the device once,
    at the end. With several ranks, `batches` are this one's rows, as many batches on each, and what
    comes back is of all.

    Raises UsageError where no target counts.
    """
    start_s = clock()
    totals: Tensor | None = None
    with evaluation_mode(model):
        for inputs, targets in batches:
            with precision_context():
                mean = loss(inputs, targets).double()
            counted = _counts(targets)
            count = counted.sum()
            lengths = _bytes_of(targets, counted, token_bytes)
            # Of no target the mean is 0 / 0.
            nats = torch.where(count > 0, mean * count, 0.0)
            sums = torch.stack([nats, count.double(), lengths.double()])
            totals = sums if totals is None else totals + sums
    own = (0.0, 0.0, 0.0) if totals is None else totals.tolist()
    nats_of_all, count_of_all, text_bytes = ranks.sum(own)
    if not count_of_all:
        raise UsageError("The validation data has no targets: give it more, or longer windows.")
    return Evaluation(
        loss_nats=nats_of_all / count_of_all,
        bits_per_byte=nats_of_all / math.log(2) / text_bytes if text_bytes else None,
        tokens=int(count_of_all),
        seconds=clock() - start_s,
    )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and without gradients; afterwards all is as it was.

    Weights that were shards are shards again.

    Each module's mode, and the states of PyTorch's generators of the CPU and of the CUDA devices
    that hold parts of the model come back, also when the block raises. It is no_grad and not
    inference_mode, since a tensor that a module made under the latter, and keeps, would end the
    next training step ("Inference tensors cannot be saved for backward").
    """
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=_cuda_devices(model)), torch.no_grad():
        try:
            model.eval()
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            reshard(model)


def _cuda_devices(model: nn.Module) -> list[int]:
    tensors = (*model.parameters(), *model.buffers())
    return sorted(
        {parameter.device.index for parameter in tensors if parameter.device.type == "cuda"}
    )


def _counts(targets: Tensor) -> Tensor:
    """1 where a target counts."""
    if targets.is_floating_point():
        return torch.ones_like(targets, dtype=torch.bool)
    return targets != IGNORED


def _bytes_of(targets: Tensor, counted: Tensor, token_bytes: Tensor | None) -> Tensor:
    if token_bytes is None:
        return torch.zeros((), device=targets.device)
    lengths = token_bytes.to(targets.device)[torch.where(counted, targets, 0)]
    return torch.where(counted, lengths, 0).sum()
