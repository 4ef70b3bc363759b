"""The exact loss on validation data, without side effects on the training.

The caller chooses the windows: two losses are comparable only if these are the same.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.checkpoints.ranks import ALONE, Ranks
from torchtally.checkpoints.shards import reshard
from torchtally.errors import UsageError
from torchtally.train.logs import names
from torchtally.train.logs.log import LogValue
from torchtally.train.models.loss import IGNORED

LARGEST_EXPONENT = math.log(1.7e308)


Rows = tuple[Tensor, Tensor]
"""(inputs, targets), with equally many rows."""
PrecisionContext = Callable[[], AbstractContextManager[object]]
"""Makes the context of a forward pass: autocast, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation."""

    loss_nats: float
    """Mean over all targets that are not ignored."""
    tokens: int
    """Targets that are not ignored."""
    seconds: float
    text_bytes: int | None = None
    """Of the text that the targets stand for; None where the data does not say."""

    @property
    def bits_per_byte(self) -> float | None:
        """Bits that the model needs for all targets, ends of documents among them, by a byte of
        text: comparable between tokenizers.
        """
        if not self.text_bytes:
            return None
        return self.loss_nats * self.tokens / math.log(2) / self.text_bytes

    @property
    def perplexity(self) -> float:
        """exp(loss); inf where it overflows float64."""
        return math.inf if self.loss_nats > LARGEST_EXPONENT else math.exp(self.loss_nats)

    def values(self) -> dict[str, LogValue]:
        """The values under their log names, without unknown ones."""
        bits = self.bits_per_byte
        return {
            names.EVAL_LOSS: self.loss_nats,
            names.EVAL_PERPLEXITY: self.perplexity,
            names.EVAL_TOKENS: self.tokens,
            names.EVAL_S: self.seconds,
            **({} if bits is None else {names.EVAL_BITS_PER_BYTE: bits}),
        }


def evaluate(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Float[Tensor, ""]],
    batches: Iterable[Rows],
    *,
    precision_context: PrecisionContext = nullcontext,
    ranks: Ranks = ALONE,
    byte_counts: Tensor | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Evaluation:
    """The mean loss over all targets of these batches, however they are batched.

    `loss` returns the mean over a batch's targets that count: token ids other than -100, or all
    floating-point targets. Means are weighted by their number of targets and summed in float64.
    The host synchronizes with the device once, at the end. With several ranks `batches` are this
    rank's rows, equally many batches on each, and the result is that of all ranks. `byte_counts`
    are the bytes of text that each token id stands for, where they are known.

    Raises UsageError if no target counts.
    """
    start_s = clock()
    totals: Tensor | None = None
    with evaluation_mode(model):
        for inputs, targets in batches:
            with precision_context():
                mean = loss(inputs, targets).double()
            is_counted = _counts(targets)
            count = is_counted.sum()
            # The mean over no targets is 0 / 0 = NaN.
            nats = torch.where(count > 0, mean * count, 0.0)
            sums = torch.stack(
                [nats, count.double(), _text_bytes(targets, is_counted, byte_counts)]
            )
            totals = sums if totals is None else totals + sums
    nats_of_all, count_of_all, bytes_of_all = ranks.sum(
        (0.0, 0.0, 0.0) if totals is None else totals.tolist()
    )
    if not count_of_all:
        raise UsageError("The validation data has no targets: add data, or use longer windows.")
    return Evaluation(
        loss_nats=nats_of_all / count_of_all,
        tokens=int(count_of_all),
        seconds=clock() - start_s,
        text_bytes=None if byte_counts is None else int(bytes_of_all),
    )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and without gradients; restored afterwards.

    Each module's mode, and the states of PyTorch's generators on the CPU and on the model's CUDA
    devices, are restored even if the block raises; sharded weights are resharded.
    """
    # no_grad and not inference_mode: a tensor that a module caches under the latter would fail the
    # next training step ("Inference tensors cannot be saved for backward", saved_variable.cpp).
    modes = [(module, module.training) for module in model.modules()]
    with (
        torch.random.fork_rng(devices=cuda_devices([*model.parameters(), *model.buffers()])),
        torch.no_grad(),
    ):
        try:
            model.eval()
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            reshard(model)


def cuda_devices(tensors: Iterable[Tensor]) -> list[int]:
    """The indices of the CUDA devices that they are on."""
    return sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})


def _counts(targets: Tensor) -> Tensor:
    """True where a target counts."""
    if targets.is_floating_point():
        return torch.ones_like(targets, dtype=torch.bool)
    return targets != IGNORED


def _text_bytes(targets: Tensor, is_counted: Tensor, byte_counts: Tensor | None) -> Tensor:
    """Bytes of text that the targets stand for; 0 where the counts are not known."""
    if byte_counts is None:
        return torch.zeros((), dtype=torch.float64, device=targets.device)
    counts = byte_counts.to(targets.device)
    return torch.where(is_counted, counts[targets.clamp(min=0)], 0).sum().double()
