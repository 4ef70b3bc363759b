"""Collectives of a profile: calls of c10d with group and payload, as a simulated run has them.

NCCL's kernels say what they do since PyTorch 2.3 ("Collective name", elements, dtype, group).
Before that, the arguments of the operator of c10d say it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.profiles import Arguments, DeviceActivity, Profile
from torchtally.profiles.profile import DEVICE, Collective
from torchtally.trace import Call, ProcessGroup, TensorSpec
from torchtally.trace.op import UNRECORDED

KERNELS = ("nccl", "rccl")

CALLS = {
    "allreduce": ("c10d.allreduce_", "tensors", "tensors"),
    "allreduce_coalesced": ("c10d.allreduce_coalesced_", "tensors", "tensors"),
    "broadcast": ("c10d.broadcast_", "tensors", "tensors"),
    "_broadcast_oop": ("c10d.broadcast_", "tensors", "tensors"),
    "reduce": ("c10d.reduce_", "tensors", "tensors"),
    "_reduce_oop": ("c10d.reduce_", "tensors", "tensors"),
    "all_gather": ("c10d._allgather_base_", "input_tensor", "output_tensor"),
    "allgather": ("c10d._allgather_base_", "input_tensor", "output_tensor"),
    "_allgather_base": ("c10d._allgather_base_", "input_tensor", "output_tensor"),
    "allgather_into_tensor_coalesced": ("c10d._allgather_base_", "input_tensor", "output_tensor"),
    "reduce_scatter": ("c10d._reduce_scatter_base_", "input_tensor", "output_tensor"),
    "_reduce_scatter_base": ("c10d._reduce_scatter_base_", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced": (
        "c10d._reduce_scatter_base_",
        "input_tensor",
        "output_tensor",
    ),
    "all_to_all": ("c10d.alltoall_base_", "input", "output"),
    "all_to_allv": ("c10d.alltoall_base_", "input", "output"),
    "alltoall": ("c10d.alltoall_base_", "input", "output"),
    "alltoall_base": ("c10d.alltoall_base_", "input", "output"),
    "send": ("c10d.send", "tensors", "tensors"),
    "recv": ("c10d.recv_", "tensors", "tensors"),
    "barrier": ("c10d.barrier", "", ""),
}
"""By the name that NCCL's process group gives its profiler: the operator, the names of its inputs
and outputs (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, RECORD_PARAM_COMMS)."""

DTYPES = {
    "Float": "float32", "BFloat16": "bfloat16", "Half": "float16", "Double": "float64",
    "Int": "int32", "Long": "int64", "Byte": "uint8", "Char": "int8", "Bool": "bool",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
}  # fmt: skip


@dataclass
class GroupNumbers:
    """Process groups by number; those that a kernel alone names are added."""

    numbers: dict[str, int] = field(default_factory=dict)
    rows: list[ProcessGroup] = field(default_factory=list)

    def number(self, name: str, size: int) -> int:
        group = self.numbers.get(name)
        if group is None:
            group = self.numbers[name] = len(self.rows)
            self.rows.append(ProcessGroup(name, "", tuple(range(max(size, 1)))))
        return group

    @property
    def table(self) -> tuple[ProcessGroup, ...]:
        return tuple(self.rows)


def groups_of(profile: Profile) -> GroupNumbers:
    groups = GroupNumbers()
    for group in profile.groups:
        if group.name not in groups.numbers:
            groups.numbers[group.name] = len(groups.rows)
            groups.rows.append(ProcessGroup(group.name, group.description, group.ranks))
    return groups


def is_collective(activity: DeviceActivity) -> bool:
    return activity.collective is not None or activity.name.lower().startswith(KERNELS)


def collective_call(
    activities: Sequence[DeviceActivity], name: str, arguments: Arguments, groups: GroupNumbers
) -> Call | None:
    """The call of what launched a kernel of a communication library; None where none did."""
    kernel = next((each for each in activities if is_collective(each)), None)
    if kernel is None:
        return None
    collective = kernel.collective
    if collective is not None and collective.name in CALLS and collective.dtype in DTYPES:
        return describe(collective, groups)
    plain = name.replace("::", ".", 1)
    known = plain if plain.startswith("c10d.") else f"nccl.{family(kernel.name)}"
    return Call(known, "", (), (), UNRECORDED)


def describe(collective: Collective, groups: GroupNumbers) -> Call:
    operator, source, target = CALLS[collective.name]
    dtype = DTYPES[collective.dtype]
    inputs = []
    if source:
        inputs.append(spec(source, collective.elements_in, dtype, 0, is_written=source == target))
    if target and target != source:
        inputs.append(spec(target, collective.elements_out, dtype, 1, is_written=True))
    number = groups.number(collective.group, collective.group_size)
    return Call(operator, "", tuple(inputs), (), (("group", number),), is_mutating=True)


def spec(argument: str, elements: int, dtype: str, storage: int, *, is_written: bool) -> TensorSpec:
    return TensorSpec(argument, (elements,), (1,), dtype, DEVICE, storage, is_written)


def family(kernel: str) -> str:
    """What a kernel does: "AllReduce" of "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)"."""
    parts = kernel.partition("(")[0].split("_")
    return parts[1] if len(parts) > 1 else parts[0]


assert set(DTYPES.values()) <= set(DTYPE_BYTES)
