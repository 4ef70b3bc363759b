"""After a session torch is what it was before: nothing of ours stays behind."""

import contextlib
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.library import Library
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

import torchtally
from tests.virtual.untouched import changes, snapshot
from torchtally.errors import UsageError
from torchtally.virtual.compiling import request


@pytest.fixture(autouse=True)
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a session that compiles, `compiling/test_compiled.py` sees what it leaves."""
    monkeypatch.setattr(request, "find_spec", lambda name: None)


class ScriptError(Exception):
    """What the script below raises in the end."""


def script() -> None:
    """A little of everything, and an exception at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Dropout(0.1), nn.Linear(8, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    compiled = torch.compile(model)
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.utils.checkpoint.checkpoint(
                compiled, torch.ones(2, 4, device="cuda"), use_reentrant=False
            ).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    thread = threading.Thread(target=lambda: torch.zeros(2, device="cuda") + 1)
    thread.start()
    thread.join()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    torch.load(buffer, map_location="cuda")
    with torch.device("cuda"), torch.cuda.stream(torch.cuda.Stream()):
        torch.func.vmap(torch.sin)(torch.zeros(3))
        nn.functional.scaled_dot_product_attention(*[torch.zeros(1, 1, 4, 8)] * 3)
    torch.cuda.set_stream(torch.cuda.Stream())
    raise ScriptError


def fails_in_a_session() -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        script()


def fails_in_a_trace() -> None:
    torchtally.run(script, gpu="H100-SXM")


def stops_after_a_step() -> None:
    torchtally.run(script, gpu="A100-SXM", steps=1)


@pytest.mark.parametrize("run", [fails_in_a_session, fails_in_a_trace, stops_after_a_step])
def test_torch_is_untouched_afterwards(run: Callable[[], None]):
    with contextlib.suppress(ScriptError):
        run()  # what torch itself imports and caches when first used is there from now on
    before = snapshot()
    with contextlib.suppress(ScriptError):
        run()
    assert changes(before, snapshot()) == []


def test_a_default_device_set_inside_ends_with_the_session():
    before = snapshot()
    try:
        with torchtally.virtual_gpu("H100-SXM"):
            torch.set_default_device("cuda")
        assert changes(before, snapshot()) == []
        assert torch.zeros(2).tolist() == [0, 0]
    finally:
        torch.set_default_device(None)


def test_a_session_that_could_not_begin_leaves_nothing():
    before = snapshot()
    for chip in ("nobody's chip", "TPU-v5p"):
        with pytest.raises(torchtally.TallyError), torchtally.virtual_gpu(chip):
            pass
    assert changes(before, snapshot()) == []
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.cuda.is_available()


def test_the_first_session_of_a_process_leaves_nothing():
    """In a fresh process, where torch has cached nothing yet."""
    code = """
import torch, torchtally
from tests.virtual.untouched import changes, snapshot
before = snapshot()
with torchtally.virtual_gpu("H100-SXM"):
    model = torch.nn.Linear(2, 2).cuda()
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
print(changes(before, snapshot()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The checker itself is able to fail.


@contextlib.contextmanager
def an_attribute_left_behind() -> Iterator[None]:
    torch.Tensor.left_behind = 1  # type: ignore[attr-defined]
    yield
    del torch.Tensor.left_behind  # type: ignore[attr-defined]


@contextlib.contextmanager
def a_function_replaced() -> Iterator[None]:
    native = torch.cuda.is_available
    torch.cuda.is_available = lambda: native()
    yield
    torch.cuda.is_available = native


@contextlib.contextmanager
def a_kernel_registered() -> Iterator[None]:
    library = Library("aten", "IMPL")
    library.impl("mm", lambda a, b: a, "AutocastPrivateUse1")
    yield
    library._destroy()


@contextlib.contextmanager
def a_hook_registered() -> Iterator[None]:
    handle = register_optimizer_step_post_hook(lambda *args: None)
    yield
    handle.remove()


@contextlib.contextmanager
def a_key_included() -> Iterator[None]:
    with torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastPrivateUse1):
        yield


@contextlib.contextmanager
def a_default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize(
    ("leave", "name"),
    [
        (an_attribute_left_behind, "torch.Tensor: left_behind"),
        (a_function_replaced, "torch.cuda: is_available"),
        (a_kernel_registered, "dispatch of aten::mm"),
        (a_hook_registered, "optimizer post-hooks"),
        (TorchDispatchMode, "dispatch modes"),
        (a_key_included, "keys included"),
        (a_default_device, "default device"),
        (lambda: torch.autocast("cpu"), "autocast on cpu"),
        (torch.no_grad, "gradients"),
    ],
)
def test_the_checker_sees_what_is_left_behind(leave, name: str):
    before = snapshot()
    with leave():
        assert any(change.startswith(name) for change in changes(before, snapshot()))
    assert changes(before, snapshot()) == []


# Numbers.


def trained_on_the_host() -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_host_training_gives_the_same_numbers_before_and_after():
    before = trained_on_the_host()
    with contextlib.suppress(ScriptError):
        fails_in_a_trace()
    assert trained_on_the_host() == before


def test_host_training_gives_the_same_numbers_inside():
    before = trained_on_the_host()
    with torchtally.virtual_gpu("H100-SXM"):
        inside = trained_on_the_host()
    assert inside == before


def test_tensors_that_outlive_the_session_are_meta_tensors():
    with torchtally.virtual_gpu("H100-SXM"):
        kept = torch.zeros(4, device="cuda")
        assert kept.is_cuda
    assert kept.device.type == "meta"
    assert (kept + 1).shape == (4,)
    del kept
    with torchtally.virtual_gpu("H100-SXM") as gpu:
        assert gpu.allocated_bytes == 0


def test_sessions_follow_one_another_with_memory_of_their_own():
    for _ in range(2):
        with torchtally.virtual_gpu("H100-SXM") as gpu:
            kept = torch.zeros(128, device="cuda")
            assert gpu.peak_allocated_bytes == 512
    assert kept.shape == (128,)


def test_a_thread_that_outlives_the_session_does_no_harm():
    started, finish = threading.Event(), threading.Event()
    errors: list[object] = []

    def work() -> None:
        started.set()
        finish.wait(60)
        errors.append((torch.zeros(2) + 1).tolist())

    with torchtally.virtual_gpu("H100-SXM"):
        thread = threading.Thread(target=work)
        thread.start()
        started.wait(60)
    finish.set()
    thread.join()
    assert errors == [[1, 1]]
    assert torch.zeros(2).sum().item() == 0


def test_a_session_is_left_in_the_thread_that_entered_it() -> None:
    """Elsewhere is an error that leaves it as it was, so that it can still be left."""
    session = torchtally.virtual_gpu("T4")
    session.__enter__()
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(session.__exit__, None, None, None)
        with pytest.raises(
            UsageError, match="entered in the thread 'MainThread' and is being left"
        ):
            leaving.result()
    assert torch.ones(2, device="cuda").is_cuda
    session.__exit__(None, None, None)
    assert not torch.cuda.is_available()
    with torchtally.virtual_gpu("T4"):
        assert torch.cuda.is_available()
