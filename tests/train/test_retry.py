"""Memory that does not suffice for a micro-batch: a smaller one, and no other difference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally
from tests.train.steppers import ADAMW, are_equal, everything, language_loss, square_loss, stepper
from torchtally.chips import chip
from torchtally.train.models.presets import preset
from torchtally.train.models.transformer import Transformer
from torchtally.train.optimizers.build import build
from torchtally.train.precision import precision
from torchtally.train.retry import MemoryShortageError
from torchtally.train.step import Stepper

MIB = 2**20
H100 = chip("H100-SXM")


class Hungry(nn.Module):
    """Refuses more rows than fit, in the forward pass or in the backward pass. With dropout."""

    def __init__(self, fits: int, *, where: str = "forward") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 4)
        self.fits = fits
        self.where = where
        self.error: type[Exception] = torch.OutOfMemoryError
        self.tried: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.tried.append(len(x))
        if self.where == "forward":
            self.refuse(x)
        result = F.dropout(self.linear(x), 0.5).sum(-1)
        if self.where == "backward":
            result.register_hook(lambda _: self.refuse(x))
        return result

    def refuse(self, x: Tensor) -> None:
        if len(x) > self.fits:
            raise self.error(f"CUDA out of memory. Tried to allocate {len(x)} GiB")


EIGHT = (torch.arange(32.0).reshape(8, 4) / 32, torch.arange(8.0))


def hungry(micro_batch: int, fits: int, *, where: str = "forward", **options: Any) -> Stepper:
    model = Hungry(fits, where=where)
    return stepper(micro_batch, model=model, loss=square_loss, **options)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(("fits", "size"), [(7, 4), (3, 2), (1, 1)])
def test_a_lower_micro_batch_is_as_if_it_had_been_so_from_the_start(
    where: str, fits: int, size: int
) -> None:
    """Bit for bit, dropout too: the random numbers are set back."""
    lowered, small = hungry(8, fits, where=where), hungry(size, fits, where=where)
    torch.manual_seed(5)
    losses = [lowered(EIGHT, step=step) for step in range(3)]
    torch.manual_seed(5)
    expected = [small(EIGHT, step=step) for step in range(3)]
    assert losses[0] == replace(expected[0], lowered_from=8)
    assert losses[1:] == expected[1:]  # and it stays low: nothing is tried again
    assert are_equal(everything(lowered), everything(small))
    assert (losses[0].micro_batch, losses[0].micro_batches) == (size, 8 // size)
    assert lowered.micro_batch == size


def test_a_ragged_batch_is_lowered_too() -> None:
    train_step = hungry(7, fits=2)
    x, y = EIGHT[0][:7], EIGHT[1][:7]
    result = train_step((x, y), step=0)
    assert (result.micro_batch, result.micro_batches, result.lowered_from) == (1, 7, 7)


def test_at_the_floor_the_error_is_raised_with_the_sizes() -> None:
    train_step = hungry(8, fits=0)
    before = everything(train_step)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1 GiB") as caught:
        train_step(EIGHT, step=0)
    assert isinstance(caught.value, MemoryShortageError)  # the user reads it without a traceback
    assert "with 1 of 8 rows of (4,) at a time" in str(caught.value)
    assert train_step.model.tried == [8, 4, 2, 1]
    assert are_equal(before, everything(train_step))


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, ValueError, KeyboardInterrupt])
def test_any_other_error_passes_untouched(error: type[Exception]) -> None:
    """Even one that says the same words."""
    train_step = hungry(8, fits=4)
    train_step.model.error = error
    with pytest.raises(error, match="CUDA out of memory") as caught:
        train_step(EIGHT, step=0)
    assert train_step.model.tried == [8]
    assert not hasattr(caught.value, "__notes__")
    assert caught.value.__cause__ is None


def test_memory_short_in_the_update_is_no_matter_of_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_step = hungry(8, fits=8)

    def refuse() -> None:
        raise torch.OutOfMemoryError("no room for state")

    monkeypatch.setattr(train_step.optimizer, "step", refuse)
    with pytest.raises(torch.OutOfMemoryError, match="no room for state"):
        train_step(EIGHT, step=0)
    assert train_step.model.tried == [8]


@pytest.mark.thorough
def test_the_simulated_allocator_refuses_and_the_step_is_done_in_parts() -> None:
    """A Transformer on a chip that has memory for four rows of eight."""
    rows, sequence = 8, 256
    config = preset("llama-1m", vocabulary=8192)

    def train(memory_bytes: int) -> tuple[list[int], int]:
        """The micro-batches on a chip that leaves so much to its programs' tensors."""
        context_bytes = H100.total_memory_bytes - usable_bytes()
        small = replace(H100, program_memory_bytes=memory_bytes + context_bytes)
        sizes = []
        with torchtally.virtual_gpu(small) as gpu:
            assert torch.cuda.mem_get_info()[0] == memory_bytes
            how = precision("bf16")
            model = how.prepare(Transformer(config), "cuda")
            train_step = Stepper(
                model, language_loss, how.wrap(build(model, ADAMW)), precision=how,
                device="cuda", micro_batch=rows,
            )  # fmt: skip
            for step in range(2):
                batch = torch.randint(0, config.vocabulary, (rows, sequence + 1), device="cuda")
                sizes.append(train_step(batch, step=step).micro_batch)
            return sizes, gpu.peak_allocated_bytes

    sizes, peak_bytes = train(usable_bytes())
    assert sizes == [8, 8]
    assert peak_bytes > 100 * MIB
    sizes, smaller_peak_bytes = train(peak_bytes * 3 // 4)
    assert sizes == [4, 4]
    assert smaller_peak_bytes <= peak_bytes * 3 // 4
    # The first step's passes have no optimizer state beside them.
    assert train(peak_bytes * 9 // 10)[0] == [8, 4]


def usable_bytes() -> int:
    with torchtally.virtual_gpu(H100):
        free_bytes: int = torch.cuda.mem_get_info()[0]
        return free_bytes
