"""The time of an operator on the CPU, before any correction: arithmetic, bytes and fresh memory."""

from torchtally.timing.calibration import Calibration
from torchtally.timing.constants import FRESH_BYTES
from torchtally.timing.roofline.copies import is_host_copy
from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.limits import NOTHING
from torchtally.trace import Call
from torchtally.work import Cost, Kind


def host_kernel(call: Call, kind: Kind, cost: Cost, machine: Calibration) -> Kernel:
    """A kernel at the best rates this machine showed. Views take nothing, the uncounted is unknown:
    0.

    A copy from the host to the device takes nothing where the host is the device.
    """
    if kind is Kind.COPY and is_host_copy(call):
        return NOTHING
    compute_s = cost.flops / rate(call, machine) if kind.is_matmul else 0.0
    memory_s = cost.bytes / machine.bandwidth_bytes_per_s
    memory_s += fresh_bytes(call) * machine.first_touch_s_per_byte
    if compute_s > memory_s:
        return Kernel(compute_s, Bound.COMPUTE)
    return Kernel(memory_s, Bound.MEMORY)


def rate(call: Call, machine: Calibration) -> float:
    """FLOP/s of products in the call's dtype, or in float32 where that was not measured."""
    peaks = machine.peak_flop_per_s
    dtype = call.inputs[0].dtype if call.inputs else "float32"
    return peaks.get(dtype) or peaks["float32"]


def fresh_bytes(call: Call) -> int:
    """Bytes of results in blocks so large that their memory comes from the operating system each
    time.
    """
    came_in = {spec.storage for spec in call.inputs}
    return sum(
        spec.bytes
        for spec in call.outputs
        if spec.storage not in came_in and spec.bytes >= FRESH_BYTES
    )
