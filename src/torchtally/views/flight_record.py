"""A rank's collectives in the words of PyTorch's flight recorder, as if the run had had one.

Keys and names are those of a dump of ProcessGroupNCCL (torch/csrc/distributed/c10d/
FlightRecorder.hpp, version 2.10), which `torchfrtrace` reads. Times are predicted. Messages that go
out in one batch are listed each by itself, without the entry that ends the batch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from torchtally.ledger import Entry, Ledger
from torchtally.ledger.spans import spans_of
from torchtally.trace import Call, ProcessGroup, TensorSpec
from torchtally.trace.peers import MESSAGES
from torchtally.work import Kind
from torchtally.work.communication import SOURCES, TARGETS, tensors_named

Field = str | int | float | bool | list[object] | tuple[object, ...] | dict[str, object] | None
Record = dict[str, Field]

VERSION = "2.10"
NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "allreduce_coalesced",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "_all_gather_base",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "_all_gather_base",
    "all_gather_into_tensor_out": "_all_gather_base",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base_": "_reduce_scatter_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "reduce_scatter_tensor_out": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "monitored_barrier_": "barrier",
    "recv_any_source_": "recv",
}
"""Operators that the recorder has by another name than their own without the last "_"."""
DTYPES = {
    "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double",
    "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
    "bool": "Bool", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
}  # fmt: skip
"""As C++ prints them."""


def flight_record(ledger: Ledger) -> Record:
    """All that the rank's process groups did in the run."""
    trace = ledger.trace
    return {
        "version": VERSION,
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": description(group),
                "ranks": str(list(group.ranks)),
            }
            for group in trace.groups
        },
        "pg_status": {},
        "entries": list(_entries(ledger)),
    }


SYMMETRIC = "symm_mem."
"""Operators on memory of other ranks, of which NCCL's process group knows nothing."""


def description(group: ProcessGroup) -> str:
    return group.description or "undefined"


def _entries(ledger: Ledger) -> Iterator[Record]:
    spans = spans_of(ledger)
    collectives: Counter[int] = Counter()
    messages: Counter[tuple[int, int]] = Counter()
    operations: Counter[int] = Counter()
    for entry in ledger.entries:
        number = entry.call.literal("group")
        is_nccls = not entry.call.name.startswith(SYMMETRIC)
        if entry.kind is not Kind.COMMUNICATION or not isinstance(number, int) or not is_nccls:
            continue
        group = ledger.trace.groups[number]
        operations[number] += 1
        peer = entry.call.literal(MESSAGES.get(entry.call.name, ""))
        is_message = isinstance(peer, int) and not isinstance(peer, bool)
        if is_message and isinstance(peer, int):
            messages[number, peer] += 1
        else:
            collectives[number] += 1
        span = spans[entry.number]
        yield {
            "record_id": sum(operations.values()) - 1,
            "pg_id": number,
            "process_group": (group.name, description(group)),
            "collective_seq_id": collectives[number],
            "p2p_seq_id": messages[number, peer] if is_message and isinstance(peer, int) else 0,
            "op_id": operations[number],
            "profiling_name": f"nccl:{_name(entry.call, ledger.trace.world.rank, group)}",
            "time_created_ns": round(span.start_s * 1e9),
            "time_discovered_started_ns": round((span.start_s + span.waiting_s) * 1e9),
            "time_discovered_completed_ns": round(span.end_s * 1e9),
            "duration_ms": (span.end_s - span.start_s - span.waiting_s) * 1e3,
            **_tensors(entry.call),
            "timeout_ms": 600_000,
            "state": "completed",
            "retired": True,
            "is_p2p": is_message,
            "frames": _frames(entry),
        }


def _name(call: Call, rank: int, group: ProcessGroup) -> str:
    """Name as the recorder spells it; of a message with both ends, by their numbers in the
    group.
    """
    name = call.name.rpartition(".")[2]
    name = NAMES.get(name, name.removesuffix("_"))
    peer = call.literal(MESSAGES.get(call.name, ""))
    own = group.ranks.index(rank)
    if name == "send":
        return f"send {own}->{peer}"
    return f"recv {own}<-{peer}" if name == "recv" else name


def _tensors(call: Call) -> Record:
    """Sizes and dtypes read and written; an in-place collective has its tensors in both."""
    name = call.name.rpartition(".")[2]
    both = call.tensors("tensors")
    read = both or tensors_named(call, SOURCES)
    written = both or tensors_named(call, TARGETS) or list(call.outputs)
    return {
        "input_sizes": _sizes(read, is_flat=name == "reduce_scatter_"),
        "input_dtypes": _dtypes(read),
        "output_sizes": _sizes(written, is_flat=name == "allgather_"),
        "output_dtypes": _dtypes(written),
    }


def _sizes(specs: Sequence[TensorSpec], *, is_flat: bool) -> list[object]:
    """NCCL's process group communicates a list of equal tensors as one."""
    shapes = [list(spec.shape) for spec in specs]
    if is_flat and shapes and all(shape == shapes[0] for shape in shapes):
        return [[len(shapes), *shapes[0]]]
    return [*shapes]


def _dtypes(specs: Sequence[TensorSpec]) -> list[object]:
    return [*dict.fromkeys(DTYPES.get(spec.dtype, spec.dtype) for spec in specs)]


def _frames(entry: Entry) -> list[object]:
    """The innermost first."""
    return [
        {"name": frame.function, "filename": frame.file, "line": frame.line}
        for frame in reversed(entry.site.frames)
    ]
