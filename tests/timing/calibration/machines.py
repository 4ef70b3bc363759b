"""An invented machine for tests: round figures."""

from msgspec.structs import replace

from tests.builders import copy_in_call, mm_call, spec
from torchtally.timing.calibration import Calibration, Issue, Sample
from torchtally.trace import Call

ISSUE = Issue(forward_s=1e-5, backward_s=8e-6, optimizer_s=6e-6, view_s=2e-6, launch_s=0.0)


def add_call(n: int, dtype: str = "float32") -> Call:
    """12 n bytes in float32."""
    inputs = tuple(
        spec(n, argument=name, dtype=dtype, storage=at) for at, name in enumerate(("self", "other"))
    )
    return Call("aten.add", "Tensor", inputs, (spec(n, dtype=dtype, storage=2),))


SAMPLES = (
    Sample(mm_call(64, 64, 64), 1e-5),
    Sample(mm_call(1024, 1024, 1024), 2e-2),
    Sample(add_call(1000), 2e-6),
    Sample(add_call(100_000), 1e-4),
    Sample(copy_in_call(1000, is_pinned=True, non_blocking=True), 1e-5),
)

HOST = Calibration(
    device="Some CPU @ 1.00GHz",
    kind="cpu",
    torch_version="2.13.0",
    date="2026-11-21",
    memory_bytes=2**34,
    threads=2,
    peak_flop_per_s={"float32": 2e11},
    bandwidth_bytes_per_s=2e10,
    first_touch_s_per_byte=2.5e-10,
    issue=ISSUE,
    samples=SAMPLES,
    conditions={"platform": "none"},
)

H100 = replace(HOST, device="NVIDIA H100 80GB HBM3", kind="cuda", threads=None)
