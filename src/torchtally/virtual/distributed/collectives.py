"""Collectives, at their operators: what each writes, and what its tensors hold afterwards.

The other ranks are not there: each is assumed to hold what this one holds. So a gather repeats the
rank's own tensor, a sum multiplies it by the size of the group, and averages and maxima keep it:
losses, counts of tokens, sizes and objects that ranks tell each other come out as in a run whose
ranks are alike. What only another rank could know (a message received) is unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.trace import communicator_stream
from torchtally.virtual import values
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import SPECIAL, VirtualDispatch
from torchtally.virtual.distributed.reductions import reduction
from torchtally.virtual.distributed.work import VirtualWork, do_nothing
from torchtally.virtual.facts import assumption_of, routing
from torchtally.virtual.invocation import Invocation, tensors_in
from torchtally.virtual.storage import virtual_of
from torchtally.virtual.streams import current_stream_number
from torchtally.virtual.value_keeper import has_value, revive


@dataclass(frozen=True, slots=True)
class Members:
    """The ranks that take part: how many, and which of them is this one."""

    size: int
    rank: int


Effect = Callable[[Invocation, Members], None]
"""Lets the tensors of a call hold what they do after it."""


# What tensors hold afterwards.


def assign(target: Tensor, source: Tensor | None) -> None:
    """A tensor gets values, or is unknown from now on."""
    virtual = virtual_of(target)
    real = None if source is None or not has_value(source) else values.real_of(source)
    if virtual is None:
        if real is not None:
            target.copy_(real.reshape(target.shape))
        return
    if real is None or real.numel() != target.numel():
        virtual.forget()
        return
    revive(target)
    kept = values.real_of(target)
    if kept is not None:
        kept.copy_(real.reshape(kept.shape))


def has_parts(tensor: Tensor, count: int) -> bool:
    """Whether a collective can see a tensor as so many equal parts, in memory order."""
    return bool(count) and tensor.numel() % count == 0 and tensor.is_contiguous()


def part_of(tensor: Tensor, count: int, place: int) -> Tensor | None:
    """One of them; None where it cannot. There may be thousands: nobody makes all of them."""
    if not has_parts(tensor, count):
        return None
    length = tensor.numel() // count
    return tensor.view(-1).narrow(0, place * length, length)


def assign_parts(whole: Tensor, count: int, own: Tensor) -> None:
    """Every part has the values of this rank's; where those are not known, nothing is."""
    if not (has_value(own) and has_parts(whole, count)):
        assign(whole, None)
        return
    if virtual_of(whole) is not None:
        revive(whole)
    kept, real = values.real_of(whole), values.real_of(own)
    if kept is not None and real is not None:
        # Cloned: FSDP gathers in place, from a part of what it gathers into.
        kept.view(count, -1).copy_(real.reshape(1, -1).clone())


def reduce(tensor: Tensor, operation: str, size: int) -> None:
    """Reduces as many tensors like this one into it."""
    real = values.real_of(tensor) if has_value(tensor) else None
    if real is None or size == 1:
        return
    match operation:
        case "SUM":
            real.mul_(size)
        case "PRODUCT":
            real.pow_(size)
        case "BXOR" if size % 2 == 0:
            real.zero_()


def reduction_of(call: Invocation) -> str:
    """SUM, AVG, MAX, ...: as `ReduceOp` names it."""
    operation = call.argument("reduce_op")
    return operation.upper() if isinstance(operation, str) else reduction()


def arguments(call: Invocation, name: str) -> list[Any]:
    """An argument that is a tensor, or a list of tensors, or of lists of tensors, as a list."""
    argument = call.argument(name)
    return list(argument) if isinstance(argument, (list, tuple)) else [argument]


def all_reduce(call: Invocation, members: Members) -> None:
    operation = reduction_of(call)
    for tensor in arguments(call, "tensors"):
        reduce(tensor, operation, members.size)


def reduce_to_root(call: Invocation, members: Members) -> None:
    if call.argument("root_rank") == members.rank:
        all_reduce(call, members)


def keep(call: Invocation, members: Members) -> None:
    """A broadcast: what the root has is what this rank has."""


def receive(call: Invocation, members: Members) -> None:
    for tensor in arguments(call, "tensors"):
        assign(tensor, None)


def gather_into(target: str, source: str) -> Effect:
    """Each result is one tensor, of the parts of all ranks."""

    def effect(call: Invocation, members: Members) -> None:
        for whole, own in zip(arguments(call, target), arguments(call, source), strict=True):
            assign_parts(whole, members.size, own)

    return effect


def gather_lists(call: Invocation, members: Members) -> None:
    """Each result is a list of the tensors of all ranks; there is none but at the root."""
    outputs = call.argument("output_tensors") or ()
    for ranks, own in zip(outputs, arguments(call, "input_tensors"), strict=False):
        for tensor in ranks:
            assign(tensor, own)


def gather_coalesced(call: Invocation, members: Members) -> None:
    """A list per rank, of as many tensors as each has."""
    for of_rank in call.argument("output_lists"):
        for tensor, own in zip(of_rank, arguments(call, "input_list"), strict=True):
            assign(tensor, own)


def scatter_reduced(target: str, source: str) -> Effect:
    """Each result is this rank's part of a tensor, reduced over all ranks."""

    def effect(call: Invocation, members: Members) -> None:
        operation = reduction_of(call)
        for own, whole in zip(arguments(call, target), arguments(call, source), strict=True):
            if isinstance(whole, (list, tuple)):
                assign(own, whole[members.rank] if whole else None)
            else:
                assign(own, part_of(whole, members.size, members.rank))
            reduce(own, operation, members.size)

    return effect


def scatter(call: Invocation, members: Members) -> None:
    lists = call.argument("input_tensors") or ()
    sources = [tensors[members.rank] for tensors in lists] or [None]
    for own, source in zip(arguments(call, "output_tensors"), sources, strict=False):
        assign(own, source)


def exchange_lists(call: Invocation, members: Members) -> None:
    """What this rank sends to another is what it gets from it: loads are balanced."""
    pairs = zip(arguments(call, "output_tensors"), arguments(call, "input_tensors"), strict=True)
    for target, source in pairs:
        assign(target, source)


def exchange(call: Invocation, members: Members) -> None:
    target, source = call.argument("output"), call.argument("input")
    assign_exchanged(target, source, members)


def assign_exchanged(target: Tensor, source: Tensor, members: Members) -> None:
    """What this rank gets from another is what it sends to it: loads are balanced. Where they are
    not (counts of tokens, with an imbalance declared), the others send what this one keeps.
    """
    if source.numel() != target.numel():
        assign(target, None)
        return
    own = part_of(source, members.size, members.rank)
    if own is not None and routing.is_declared(assumption_of([virtual_of(source)])):
        assign_parts(target, members.size, own)
    else:
        assign(target, source)


EFFECTS: dict[str, Effect] = {
    "allreduce_": all_reduce,
    "allreduce_coalesced_": all_reduce,
    "reduce_": reduce_to_root,
    "broadcast_": keep,
    "_allgather_base_": gather_into("output_tensor", "input_tensor"),
    "allgather_into_tensor_coalesced_": gather_into("outputs", "inputs"),
    "allgather_": gather_lists,
    "allgather_coalesced_": gather_coalesced,
    "gather_": gather_lists,
    "_reduce_scatter_base_": scatter_reduced("output_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": scatter_reduced("outputs", "inputs"),
    "reduce_scatter_": scatter_reduced("output_tensors", "input_tensors"),
    "scatter_": scatter,
    "alltoall_": exchange_lists,
    "alltoall_base_": exchange,
    "send": keep,
    "recv_": receive,
    "recv_any_source_": receive,
    "barrier": keep,
    "monitored_barrier_": keep,
}
"""Operators of `c10d`, and what they do to their tensors."""

RETURNED = {
    "allreduce_": "tensors",
    "broadcast_": "tensors",
    "_allgather_base_": "output_tensor",
    "allgather_": "output_tensors",
    "_reduce_scatter_base_": "output_tensor",
    "reduce_scatter_": "output_tensors",
    "scatter_": "output_tensors",
    "alltoall_": "output_tensors",
}
"""Arguments that an operator returns before its `Work`."""

WAITED_BY_HOST = frozenset(["barrier", "monitored_barrier_"])
"""The host waits for the device with them (ProcessGroupNCCL::WorkNCCL::synchronizeInternal)."""


# Running them.


def run(mode: VirtualDispatch, call: Invocation, name: str) -> Any:
    """An operator of `c10d`: its effect, its record, and a `Work` to wait for."""
    group = private.process_group(call.argument("process_group"))
    announce(mode, call, group)
    EFFECTS[name](call, Members(group.size(), group.rank()))
    tick = mode.observer.clock
    is_on_device = record(mode, call, ())
    if name in WAITED_BY_HOST and is_on_device:
        mode.host_waits()
    returned = call.argument(RETURNED[name]) if name in RETURNED else None
    tensors = tensors_in([returned] if isinstance(returned, Tensor) else returned)
    if returned is None:
        tensors = call.inputs
    if mode.groups.coalescing is not None:
        mode.groups.coalesced += call.inputs

    stream = call.stream if is_on_device and not is_blocking(call) else None
    arrive = exchange_message(mode, call, name, group)
    work = VirtualWork(
        tensors,
        waiting(mode, stream, tick + 1, arrive),
        on_future=lambda tensors: mode.groups.promise(tensors, stream, tick + 1),
        is_blocking=stream is None or mode.groups.coalescing is not None,
    )
    mode.groups.begin(work)
    if name == "monitored_barrier_":
        return None
    return work.boxed() if returned is None else (returned, work.boxed())


def exchange_message(
    mode: VirtualDispatch, call: Invocation, name: str, group: Any
) -> Callable[[], None]:
    """Send what another rank that is simulated receives; returns what takes over what it sent."""
    messages = mode.groups.messages
    if messages is not None and name == "send":
        messages.send(group, call.argument("dst"), arguments(call, "tensors"))
    if messages is None or name != "recv_":
        return do_nothing
    arrive = messages.receive(group, call.argument("src"), arguments(call, "tensors"), assign)
    if mode.groups.coalescing is not None:
        mode.groups.arrivals.append(arrive)
    return arrive


def waiting(
    mode: VirtualDispatch, stream: int | None, until: int, arrive: Callable[[], None]
) -> Callable[[], None]:
    """Has the current stream wait for another; for none of what is done already."""

    def wait() -> None:
        arrive()
        if stream is not None:
            mode.observer.stream_waited(current_stream_number(), stream, until)

    return wait


def announce(mode: VirtualDispatch, call: Invocation, group: Any) -> int:
    """Note the group of a collective, and the stream that it runs on; returns the group's number.

    The communicator's stream first waits for the current one (`syncStream` of ProcessGroupNCCL).
    A call with `async_op=False` runs on the current stream itself.
    """
    number = mode.groups.number(group)
    call.settings = (("group", number),)
    if not is_blocking(call):
        call.stream = communicator_stream(number, peer_of(mode, call))
        mode.observer.stream_waited(call.stream, current_stream_number(), mode.observer.clock)
    return number


PEERS = {"send": "dst", "recv_": "src"}
"""By operator: the argument that names the other rank, by its number in the group."""


def peer_of(mode: VirtualDispatch, call: Invocation) -> int | None:
    """Peer with whom a rank communicates alone, on a communicator for the two."""
    name = PEERS.get(call.operator.name.partition(".")[2])
    if name is None or mode.groups.coalescing is not None:
        return None
    peer = call.argument(name)
    return peer if isinstance(peer, int) else None


def is_blocking(call: Invocation) -> bool:
    """`async_op=False`, whose default in the schema is True."""
    return "async_op" in call.operator.arguments and call.argument("async_op") is False


def record(mode: VirtualDispatch, call: Invocation, outputs: Sequence[Tensor]) -> bool:
    """Notify the observer; whether the collective ran on the device."""
    _ = call.signature  # the recorder wants the numbers of storages
    home = next((virtual.home for virtual in call.virtuals if virtual is not None), None)
    if isinstance(home, DeviceMemory):
        mode.notify(call, outputs, home)
        return True
    mode.observer.host_operator_ran()
    return False


def run_functional(mode: VirtualDispatch, call: Invocation) -> Any:
    """A collective that makes its results: it is under way until `wait_tensor`."""
    group = private.process_group(call.argument("group_name"))
    number = announce(mode, call, group)
    tick = mode.observer.clock
    result = mode.run(call)
    name = call.operator.name.partition(".")[2]
    for own, output in zip(call.inputs, tensors_in(result), strict=False):
        settle(name, call, own, output, Members(group.size(), group.rank()))
        virtual = virtual_of(output)
        if virtual is not None and isinstance(virtual.home, DeviceMemory):
            mode.groups.pending[virtual] = (communicator_stream(number), tick + 1)
    return result


def settle(name: str, call: Invocation, own: Tensor, output: Tensor, members: Members) -> None:
    """What a new tensor holds."""
    if name.startswith("all_reduce"):
        if output is not own:
            assign(output, own)
        reduce(output, reduction_of(call), members.size)
    elif name.startswith("all_gather"):
        assign_parts(output, members.size, own)
    elif name.startswith("broadcast"):
        if output is not own:
            assign(output, own)
    elif name == "all_to_all_single":
        assign_exchanged(output, own, members)
    elif name.startswith("reduce_scatter"):
        assign(output, part_of(own, members.size, members.rank))
        reduce(output, reduction_of(call), members.size)
    else:
        assign(output, None)


def wait_tensor(mode: VirtualDispatch, call: Invocation) -> Tensor:
    """The current stream waits for a functional collective; its tensor is the same."""
    tensor: Tensor = call.args[0]
    virtual = virtual_of(tensor)
    pending = None if virtual is None else mode.groups.pending.pop(virtual, None)
    if pending is not None:
        mode.observer.stream_waited(current_stream_number(), *pending)
    return tensor


def overloads(namespace: str) -> Iterator[tuple[str, Any]]:
    """(name, overload) of the collectives of a namespace that this torch has."""
    operators = getattr(torch.ops, namespace)
    names = EFFECTS if namespace == "c10d" else FUNCTIONAL
    for name in names:
        if hasattr(operators, name):
            yield name, getattr(operators, name).default


FUNCTIONAL = tuple(
    """
    all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_ all_gather_into_tensor
    all_gather_into_tensor_out all_gather_into_tensor_coalesced reduce_scatter_tensor
    reduce_scatter_tensor_out reduce_scatter_tensor_coalesced all_to_all_single broadcast broadcast_
    """.split()
)


def register() -> None:
    """Enter the handlers; once, where torch has collectives."""

    def handler(name: str) -> Callable[[VirtualDispatch, Invocation], Any]:
        return lambda mode, call: run(mode, call, name)

    if not torch.distributed.is_available():
        return
    private.functional_collectives()  # registers its operators when it is imported
    for name, overload in overloads("c10d"):
        SPECIAL[overload] = handler(name)
    for _, overload in overloads("_c10d_functional"):
        SPECIAL[overload] = run_functional
    SPECIAL[torch.ops._c10d_functional.wait_tensor.default] = wait_tensor
    SPECIAL[torch.ops._dtensor.shard_dim_alltoall.default] = run_functional
