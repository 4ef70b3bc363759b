"""Collectives between devices: bytes on the network and in this device's memory.

`network_bytes` is the payload: the tensor a collective is about, whole. For all-gather it is the
gathered result, for reduce-scatter the tensor before it is reduced, for gather and scatter the
list at the root. How many of these bytes cross this device's link depends on the number of ranks
and the algorithm (a ring all-reduce moves 2 * (ranks - 1) / ranks of it: NCCL tests,
PERFORMANCE.md), which a layer above knows. Additions on the way are not counted.

The schemas of `c10d` do not say which tensors are written; the rules do.
"""

from collections.abc import Iterable

from torchtally.trace import Call, TensorSpec
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, one_pass, rule


def on_device_bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.bytes for spec in specs if spec.is_on_device)


def transfer(read: Iterable[TensorSpec], written: Iterable[TensorSpec]) -> Cost:
    """Payload: the larger side."""
    read, written = tuple(read), tuple(written)
    return Cost(
        bytes_read=on_device_bytes(read),
        bytes_written=on_device_bytes(written),
        network_bytes=max(sum(s.bytes for s in read), sum(s.bytes for s in written)),
    )


TARGETS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
SOURCES = ("input_tensors", "input_tensor", "input_list", "inputs", "input")


def tensors_named(call: Call, names: tuple[str, ...]) -> list[TensorSpec]:
    return [spec for name in names for spec in call.tensors(name)]


@rule(
    "c10d._allgather_base_ c10d.allgather_ c10d.allgather_coalesced_"
    " c10d.allgather_into_tensor_coalesced_ c10d._reduce_scatter_base_ c10d.reduce_scatter_"
    " c10d.reduce_scatter_tensor_coalesced_ c10d.alltoall_ c10d.alltoall_base_ c10d.gather_"
    " c10d.scatter_",
    kind=Kind.COMMUNICATION,
)
def into_outputs(call: Call) -> Cost:
    """Inputs read, outputs written."""
    return transfer(tensors_named(call, SOURCES), tensors_named(call, TARGETS))


@rule(
    "c10d.allreduce_ c10d.allreduce_coalesced_ c10d.reduce_ c10d.broadcast_",
    kind=Kind.COMMUNICATION,
)
def in_place(call: Call) -> Cost:
    """Read and written. Which rank is the root is not looked at: all are counted alike."""
    tensors = call.tensors("tensors")
    return transfer(tensors, tensors)


@rule("c10d.send _c10d_functional.isend", kind=Kind.COMMUNICATION)
def send(call: Call) -> Cost:
    return transfer(call.inputs, ())


@rule("c10d.recv_ c10d.recv_any_source_ _c10d_functional.irecv", kind=Kind.COMMUNICATION)
def receive(call: Call) -> Cost:
    return transfer((), call.inputs)


@rule("_c10d_functional.batch_p2p_ops", kind=Kind.COMMUNICATION)
def exchange(call: Call) -> Cost:
    """One tensor for each of the operations listed, "isend" or "irecv"."""
    listed = call.literal("op_list")
    operations = listed if isinstance(listed, tuple) else ()
    pairs = list(zip(operations, call.tensors("tensors"), strict=False))
    read = [spec for operation, spec in pairs if operation == "isend"]
    written = [spec for operation, spec in pairs if operation != "isend"]
    return transfer(read, ()) + transfer((), written)


@rule(
    "c10d.barrier c10d.monitored_barrier_ c10d.check_for_nan"
    " symm_mem.barrier symm_mem.put_signal symm_mem.wait_signal",
    kind=Kind.COMMUNICATION,
)
def barrier(call: Call) -> Cost:
    """A handful of bytes: none counted."""
    return Cost()


@rule(
    "_c10d_functional.all_gather_into_tensor _c10d_functional.all_gather_into_tensor_coalesced"
    " _c10d_functional.all_reduce _c10d_functional.all_reduce_coalesced"
    " _c10d_functional.all_to_all_single _c10d_functional.broadcast"
    " _c10d_functional.reduce_scatter_tensor _c10d_functional.reduce_scatter_tensor_coalesced"
    " _c10d_functional_autograd.all_gather_into_tensor _c10d_functional_autograd.all_to_all_single"
    " _c10d_functional_autograd.reduce_scatter_tensor _dtensor.shard_dim_alltoall",
    kind=Kind.COMMUNICATION,
)
def functional(call: Call) -> Cost:
    """The result is a tensor of its own, or in the `_` forms the input."""
    return transfer(call.inputs, call.outputs)


@rule(
    "_c10d_functional.all_gather_into_tensor_out _c10d_functional.reduce_scatter_tensor_out",
    kind=Kind.COMMUNICATION,
)
def functional_out(call: Call) -> Cost:
    return transfer(call.tensors("input"), call.tensors("out"))


@rule("symm_mem.get", kind=Kind.COMMUNICATION)
def get(call: Call) -> Cost:
    """Read in another GPU's memory, written in this one's."""
    return transfer((), call.tensors("target"))


@rule("symm_mem.put", kind=Kind.COMMUNICATION)
def put(call: Call) -> Cost:
    return transfer(call.tensors("source"), ())


@rule(
    "symm_mem.one_shot_all_reduce symm_mem.multimem_one_shot_all_reduce"
    " symm_mem.one_shot_all_reduce_copy",
    kind=Kind.COMMUNICATION,
)
def symmetric_reduction(call: Call) -> Cost:
    return transfer(call.inputs[:1], call.outputs)


@rule("symm_mem.two_shot_all_reduce_ symm_mem.multimem_all_reduce_", kind=Kind.COMMUNICATION)
def symmetric_in_place(call: Call) -> Cost:
    return transfer(call.tensors("input"), call.tensors("input"))


@rule(
    "symm_mem.one_shot_all_reduce_out symm_mem.multimem_one_shot_all_reduce_out"
    " symm_mem.two_shot_all_reduce_out symm_mem.multimem_all_gather_out"
    " symm_mem.reduce_scatter_out symm_mem.one_shot_all_reduce_copy_out",
    kind=Kind.COMMUNICATION,
)
def symmetric_out(call: Call) -> Cost:
    names = ("input", "symm_buffer")
    return transfer(tensors_named(call, names), tensors_named(call, ("out", "output")))


@rule(
    "symm_mem.all_to_all_vdev symm_mem.all_to_all_vdev_2d symm_mem.all_to_all_vdev_2d_offset",
    kind=Kind.COMMUNICATION,
)
def token_exchange(call: Call) -> Cost:
    """Cost of the rows that are sent and that come, where their numbers are known; else of the
    input.
    """
    row = call.tensor("input")
    row_bytes = row.bytes // max(1, row.shape[0])
    sent, received = (
        row_bytes * sum(part for part in literal if isinstance(part, int))
        if isinstance(literal := call.literal(name), tuple)
        else row.bytes
        for name in ("input_split_sizes", "output_split_sizes")
    )
    return Cost(bytes_read=sent, bytes_written=received, network_bytes=max(sent, received))


@rule("deep_ep.notify_dispatch", kind=Kind.COMMUNICATION)
def expert_counts(call: Call) -> Cost:
    """Cost of exchanging each rank's numbers of tokens by rank and by expert."""
    return transfer(
        tensors_named(call, ("per_rank", "per_expert", "in_rank")),
        tensors_named(call, ("received", "received_by_expert")),
    )


@rule("deep_ep.dispatch deep_ep.combine", kind=Kind.COMMUNICATION)
def expert_exchange(call: Call) -> Cost:
    """Cost of the rows that are sent and that come: a token is sent once to each rank it goes
    to.
    """
    row_bytes = sum(each.bytes // max(1, each.shape[0]) for each in call.tensors("sources"))
    sent, received = (
        row_bytes * sum(part for part in literal if isinstance(part, int))
        if isinstance(literal := call.literal(name), tuple)
        else 0
        for name in ("input_split_sizes", "output_split_sizes")
    )
    cost = transfer(call.tensors("sources"), call.tensors("targets"))
    extra_bytes = on_device_bytes((*call.tensors("bias"), *call.tensors("in_rank")))
    return Cost(
        bytes_read=cost.bytes_read + extra_bytes,
        bytes_written=cost.bytes_written,
        network_bytes=max(sent, received),
    )


@rule("deep_ep.layout", kind=Kind.INDEXING)
def expert_layout(call: Call) -> Cost:
    """Choices are read; which ranks a token goes to, and counts, are written."""
    return one_pass(call)
