"""Batches made ahead: the right ones, in order, bounded, and a thread that always ends."""

import signal
import subprocess
import threading
import time
import traceback
from itertools import islice

import numpy as np
import pytest
import torch

from tests.warm import warm
from torchtally.train.data.ring import Ring


def number(step: int, out: np.ndarray) -> None:
    """Batch i is full of i."""
    out[:] = np.arange(step, step + len(out))[:, None, None]


def data_threads() -> int:
    return sum(thread.name == "tally-data" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def no_thread_is_left() -> None:
    yield
    deadline_s = time.monotonic() + 5
    while data_threads() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert data_threads() == 0


@pytest.mark.parametrize("chunk_steps", [1, 4])
@pytest.mark.parametrize("depth", [1, 3])
def test_every_step_once_in_order(depth: int, chunk_steps: int) -> None:
    with Ring(number, range(5, 18), rows=2, width=4, depth=depth,
              chunk_steps=chunk_steps) as ring:  # fmt: skip
        kept = list(ring)
        assert next(ring, None) is None
    assert [batch.step for batch in kept] == list(range(5, 18))
    assert [batch.tokens.unique().tolist() for batch in kept] == [
        [number] for number in range(5, 18)
    ]
    assert all(batch.tokens.shape == (2, 4) and batch.tokens.dtype == torch.int64 for batch in kept)


def test_no_more_is_made_than_asked_for() -> None:
    """Three chunks of two ahead, and one that batches are taken from."""
    items: list[int] = []

    def fill(step: int, out: np.ndarray) -> None:
        items.append(step)

    with Ring(fill, range(1000), rows=1, width=2, depth=3, chunk_steps=2) as ring:
        time.sleep(0.1)
        assert items == [0, 2, 4]
        next(ring)
        next(ring)
        time.sleep(0.1)
        assert items == [0, 2, 4, 6]


def test_waiting_is_told() -> None:
    def slow(step: int, out: np.ndarray) -> None:
        time.sleep(0.05)

    with Ring(slow, range(1000), rows=1, width=2) as ring:
        assert next(ring).wait_s > 0.03
        time.sleep(0.2)
        assert next(ring).wait_s < 0.03


def test_what_the_thread_raises_is_raised_here_with_its_traceback() -> None:
    def failing(step: int, out: np.ndarray) -> None:
        if step == 3:
            raise OSError(5, "Input/output error", "train.bin")

    with Ring(failing, range(1000), rows=1, width=2) as ring:
        assert [batch.step for batch in islice(ring, 3)] == [0, 1, 2]
        with pytest.raises(OSError, match=r"train\.bin") as raised:
            next(ring)
        places = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert "failing" in places
        assert data_threads() == 0
        assert next(ring, None) is None


def test_leaving_the_block_ends_the_thread_whatever_happens() -> None:
    ring = Ring(number, range(1000), rows=1, width=2)
    with pytest.raises(KeyboardInterrupt), ring:
        raise KeyboardInterrupt
    assert data_threads() == 0
    ring.close()
    assert next(ring, None) is None


def test_a_hundred_rings_leave_no_thread() -> None:
    for _ in range(100):
        with Ring(number, range(1000), rows=1, width=2) as ring:
            next(ring)
    assert data_threads() == 0


@pytest.mark.thorough
def test_ctrl_c_while_waiting() -> None:
    """A read that hangs holds up neither the interrupt nor the end of the process."""
    program = (
        "import time, torchtally.train.data.ring as r\n"
        "r.JOIN_S = 0.1\n"
        "with r.Ring(lambda *_: time.sleep(600), range(9), rows=1, width=2) as ring:\n"
        "    print('waiting', flush=True); next(ring)"
    )
    own = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(warm(own + program), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT


ON_A_GPU = """\
import numpy as np, torch, torchtally
from torchtally.train.data.ring import Ring
def number(step, out):
    out[:] = np.arange(step, step + len(out))[:, None, None]
with torchtally.virtual_gpu("H100-SXM"):
    with Ring(number, range(11), rows=2, width=4, device="cuda", depth=2, chunk_steps=3) as ring:
        kept = list(ring)
    assert {batch.tokens.device.type for batch in kept} == {"cuda"}
    assert [batch.tokens.unique().tolist() for batch in kept] == [[n] for n in range(11)]
    assert torch.cuda.memory_allocated() == 4 * 512
    del kept, ring
    assert torch.cuda.memory_allocated() == 0
"""


def test_on_a_gpu() -> None:
    """On the simulated one, whose own streams and events are not of the types that annotations say:
    hence in a process without their checks. Two pinned buffers in turn, four copies of three steps.
    """
    done = subprocess.run(warm(ON_A_GPU), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
