"""When the host waits for the device: `Trace.waits`, tick by tick."""

from collections.abc import Callable

import pytest
import torch

from tests.traces import names, traced
from torchtally.trace import Trace

pytestmark = pytest.mark.one_case_in(2)

Script = Callable[[torch.Tensor], object]

BIG = 1 << 20


def waits(script: Script, size: int = 8) -> tuple[list[str], tuple[int, ...]]:
    """What ran after the tensor was made and before the marker, and the waits counted from there.

    The marker, an operator after everything else, shows that a wait has its place between two.
    """

    def run() -> None:
        x = torch.zeros(size, device="cuda")
        script(x)
        torch.cos(torch.zeros(2, device="cuda"))

    trace = traced(run)
    ran = names(trace)
    assert ran[0] == "aten.zeros"
    assert ran[-2:] == ["aten.zeros", "aten.cos"]
    return ran[1:-2], tuple(tick - 1 for tick in trace.waits)


AT_ONCE: dict[str, Script] = {
    "synchronize": lambda x: torch.cuda.synchronize(),
    "accelerator": lambda x: torch.accelerator.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "side stream": lambda x: torch.cuda.Stream().synchronize(),
    "event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0]),
    "tolist": lambda x: x.tolist(),
    "print": str,
    "equal": lambda x: torch.equal(x, x),
    "pickle": lambda x: x.__reduce_ex__(2),
    "numpy": lambda x: x.numpy(force=True),
}
"""What waits and is no operator on the device."""


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("size", [8, BIG], ids=["with a value", "without"])
def test_the_host_waits_for_what_was_issued_before(name: str, size: int):
    ran, waited = waits(AT_ONCE[name], size)
    assert waited == (len(ran),)


AFTER: dict[str, tuple[Script, str]] = {
    "to the host": (lambda x: x.cpu(), "aten._to_copy"),
    "into the host": (lambda x: torch.zeros(8).copy_(x), "aten.copy_"),
    "into pageable memory": (lambda x: torch.zeros(8).copy_(x, non_blocking=True), "aten.copy_"),
    "to the device": (lambda x: torch.zeros(8).cuda(), "aten._to_copy"),
    "pinned to the device": (lambda x: torch.zeros(8).pin_memory().cuda(), "aten._to_copy"),
    "into the device": (lambda x: x.copy_(torch.zeros(8)), "aten.copy_"),
    "big to the device": (lambda x: torch.zeros(BIG).cuda(), "aten._to_copy"),
    "a number": (lambda x: torch.tensor(1.0, device="cuda"), "aten._to_copy"),
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero"),
    "masked_select": (lambda x: x.masked_select(x.bool()), "aten.masked_select"),
    "unique": (lambda x: x.unique(), "aten._unique2"),
    "repeats": (lambda x: x.repeat_interleave(x.long()), "aten.repeat_interleave"),
    "bincount": (lambda x: x.long().bincount(), "aten.bincount"),
    "host's indices": (lambda x: x[torch.tensor([1, 2])], "aten.index"),
}
"""Operators that wait, and which one of those that run."""


@pytest.mark.parametrize("name", AFTER)
def test_the_host_waits_for_the_operator_itself(name: str):
    script, operator = AFTER[name]
    ran, waited = waits(script)
    assert waited == (ran.index(operator) + 1,)


NEVER: dict[str, Script] = {
    "arithmetic": lambda x: (x + 1).sum(),
    "cast": lambda x: x.half(),
    "on the device": lambda x: x.copy_(x + 1),
    "asynchronous": lambda x: torch.zeros(8).pin_memory().cuda(non_blocking=True),
    "asynchronous, in place": lambda x: x.copy_(torch.zeros(8).pin_memory(), non_blocking=True),
    "asynchronous, of pageable memory": lambda x: torch.zeros(8).cuda(non_blocking=True),
    "asynchronous, to the host": lambda x: x.to("cpu", non_blocking=True),
    "asynchronous, into the host": lambda x: torch.zeros(8).pin_memory().copy_(x, True),
    "indices": lambda x: x[torch.arange(2, device="cuda")],
    "known size": lambda x: x.repeat_interleave(x.long(), output_size=8),
    "query": lambda x: torch.cuda.current_stream().record_event().query(),
    "stream waits": lambda x: torch.cuda.Stream().wait_stream(torch.cuda.current_stream()),
    "not recorded": lambda x: torch.cuda.Event().synchronize(),
    "the host's own": lambda x: (torch.ones(2).sum().item(), torch.zeros(BIG).add(1).pin_memory()),
    "the host's own values": lambda x: (torch.zeros(BIG).sum().item(), str(torch.zeros(BIG))),
    "nothing to give back": lambda x: torch.cuda.empty_cache(),
}


@pytest.mark.parametrize("name", NEVER)
def test_the_host_goes_on(name: str):
    assert waits(NEVER[name])[1] == ()


def test_a_mask_as_index_waits_for_its_count():
    ran, waited = waits(lambda x: x[x > 0])
    assert ran == ["aten.gt", "aten.nonzero", "aten.unbind", "aten.index"]
    assert waited == (2,)


def test_two_waits_with_nothing_between_are_one():
    _, waited = waits(lambda x: [x.tolist(), torch.cuda.synchronize(), x.add_(1), x.tolist()])
    assert waited == (0, 1)


def test_memory_given_back_to_the_driver():
    """cudaFree waits. Once there is nothing in the cache there is nothing to wait for."""

    def script() -> None:
        x = torch.zeros(BIG, device="cuda")
        del x
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        torch.zeros(8, device="cuda")

    assert traced(script).waits == (1,)


def test_memory_given_back_to_make_room():
    """Before the operator that needs it: 40 GiB are in the cache, and 50 do not fit beside."""

    def script() -> None:
        for size in (40 << 30, 50 << 30):
            torch.empty(size, dtype=torch.uint8, device="cuda")

    trace: Trace = traced(script)
    assert [op.clock for op in trace.ops] == [0, 1]
    assert trace.waits == (1,)


def test_a_loop_that_reads_its_loss_waits_once_a_step():
    def script() -> None:
        w = torch.zeros(4, device="cuda", requires_grad=True)
        stepper = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            loss = w.square().sum()
            loss.backward()
            stepper.step()
            stepper.zero_grad()
            loss.item()

    trace = traced(script)
    assert trace.waits == trace.step_ends
