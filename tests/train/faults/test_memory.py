"""Memory that is short in earnest: the host's by a limit, a device's by its allocator's model."""

import json
import subprocess
import weakref
from dataclasses import replace
from itertools import pairwise
from math import log2
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import torchtally
from tests.train.steppers import ADAMW, language_loss
from tests.warm import warm
from torchtally.chips import chip
from torchtally.errors import TallyError
from torchtally.train import retry
from torchtally.train.models.presets import preset
from torchtally.train.models.transformer import Transformer
from torchtally.train.optimizers.build import build
from torchtally.train.precision import precision
from torchtally.train.retry import (
    HOST_ALLOCATOR,
    MemoryShortageError,
    explain_shortage,
    halve_until_it_fits,
)
from torchtally.train.step import Stepper

CPU = torch.device("cpu")
MIB = 2**20


# Halving ---------------------------------------------------------------------------------------


def halved(size: int, attempt: Any) -> Any:
    return halve_until_it_fits(
        attempt, size, device=CPU, discard=lambda: None, note="{} rows".format
    )


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_attempts_are_few_and_each_is_smaller(size: int, fits: int) -> None:
    """Never the same size twice, so it ends: in a size that fits, or at the floor."""
    tried: list[int] = []

    def attempt(rows: int) -> int:
        tried.append(rows)
        if rows > fits:
            raise torch.OutOfMemoryError("Tried to allocate")
        return -rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry.gc, "collect", lambda: 0)  # a hundredth of a second each
        if fits < 1:
            with pytest.raises(MemoryShortageError, match="1 rows"):
                halved(size, attempt)
            assert tried[-1] == 1
        else:
            result = halved(size, attempt)
            assert result == -tried[-1]
            assert tried[-1] <= fits
    assert all(one > other for one, other in pairwise(tried))
    assert len(tried) <= log2(size) + 2


def test_nothing_of_a_failed_attempt_is_held_in_the_next() -> None:
    """Within the except block it would be: the error holds its frames, and they their tensors."""
    kept: list[weakref.ref[Tensor]] = []

    def attempt(rows: int) -> bool:
        are_free = [reference_type() is None for reference_type in kept]
        activations = torch.ones(rows)
        kept.append(weakref.ref(activations))
        if rows > 1:
            raise torch.OutOfMemoryError
        return all(are_free)

    assert halved(8, attempt) is True
    assert len(kept) == 4
    try:
        attempt(2)
    except torch.OutOfMemoryError:
        assert not attempt(1)  # the check can fail


# A device --------------------------------------------------------------------------------------

H100 = chip("H100-SXM")
ROWS, SEQUENCE = 8, 256
MODEL = preset("llama-1m", vocabulary=8192, layers=1)


def context_bytes() -> int:
    """Of a chip's memory, what is not its programs'."""
    with torchtally.virtual_gpu(H100):
        return H100.total_memory_bytes - int(torch.cuda.mem_get_info()[0])


def micro_batches_of_steps(memory_bytes: int) -> list[int]:
    """Of whole training steps that are traced on a chip with so much memory for tensors."""
    small = replace(H100, program_memory_bytes=memory_bytes + context_bytes())
    sizes: list[int] = []

    def steps() -> None:
        how = precision("fp32")
        model = how.prepare(Transformer(MODEL), "cuda")
        stepper = Stepper(
            model, language_loss, how.wrap(build(model, ADAMW)), precision=how, device="cuda",
            micro_batch=ROWS, clip_norm=1.0,
        )  # fmt: skip
        for step in range(2):
            tokens = torch.randint(0, MODEL.vocabulary, (ROWS, SEQUENCE + 1), device="cuda")
            sizes.append(stepper(tokens, step=step).micro_batch)

    run = torchtally.run(steps, gpu=small, memory_is_limited=True)
    assert len(run.step_ends) == 2
    return sizes


@pytest.mark.thorough
def test_a_whole_training_is_lowered_until_it_fits() -> None:
    """Less memory, fewer rows, the same two steps; at the floor the error says which."""
    counts = [micro_batches_of_steps(number * MIB) for number in (4000, 200, 130)]
    assert counts[0] == [8, 8]
    assert counts[1] < counts[0]
    assert counts[2] < counts[1]
    assert counts[2][0] >= 1
    with pytest.raises(MemoryShortageError, match=r"with 1 of 8 rows of \(256,\)") as caught:
        micro_batches_of_steps(40 * MIB)
    assert isinstance(caught.value, TallyError)
    assert caught.value.exit_code == 1


# The host --------------------------------------------------------------------------------------

LIMITED = """\
import json, resource
import numpy as np, torch
from tests.train.steppers import ROWS, SEQUENCE, stepper, tokens
from torchtally.errors import TallyError
from torchtally.train.retry import explain_shortage

torch.set_num_threads(1)
it = stepper()
it(tokens(), step=0)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
huge = torch.zeros((400_000, SEQUENCE + 1), dtype=torch.int64)
tried, loss = [], it.loss
it.loss = lambda model, x, y: (tried.append(len(x)), loss(model, x, y))[1]
it.micro_batch = len(huge)

def attempt(work):
    before = len(tried)
    try:
        work()
    except BaseException as error:
        return [type(error).__name__, isinstance(error, TallyError), str(error),
                tried[before:], [cls.__name__ for cls in type(error.__cause__).__mro__]]

def explained(work):
    with explain_shortage("Take smaller batches."):
        work()

weights = [v.clone() for v in it.model.parameters()]
answers = {
    "bare": attempt(lambda: it(huge, step=1)),
    "explained": attempt(lambda: explained(lambda: it(huge, step=1))),
    "numpy": attempt(lambda: explained(lambda: np.ones(10**9))),
    "python": attempt(lambda: explained(lambda: bytearray(10**10))),
}
answers["as before"] = all(map(torch.equal, weights, it.model.parameters()))
it.micro_batch = ROWS
answers["goes on"] = it(tokens(), step=2).outcome
print(json.dumps(answers))
"""


def test_memory_of_the_host_ends_the_run_in_words() -> None:
    """PyTorch's RuntimeError is tried once and raised as it is; whoever runs it all explains it."""
    done = subprocess.run(warm(LIMITED), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    kind, is_told, text, tried, _ = loaded["bare"]
    assert (kind, is_told, tried) == ("RuntimeError", False, [400_000])
    assert HOST_ALLOCATOR in text
    for name, cause in (
        ("explained", "RuntimeError"), ("numpy", "MemoryError"), ("python", "MemoryError"),
    ):  # fmt: skip
        kind, is_told, text, tried, why = loaded[name]
        assert cause in why
        assert (kind, is_told) == ("MemoryShortageError", True)
        assert text.startswith("The host is out of memory: ")
        assert text.endswith("\nTake smaller batches.")
        assert len(tried) <= 1
    assert loaded["as before"]
    assert loaded["goes on"] == "updated"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError(HOST_ALLOCATOR),
        KeyboardInterrupt(),
        MemoryShortageError("said already"),
    ],
)
def test_what_is_no_shortage_of_memory_or_told_already_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, explain_shortage("Take smaller batches."):
        raise error
    assert caught.value is error


def test_a_devices_shortage_is_explained_too() -> None:
    with (
        pytest.raises(MemoryShortageError, match="The device is out of memory: 2 GiB\nShrink"),
        explain_shortage("Shrink."),
    ):
        raise torch.OutOfMemoryError("2 GiB")
