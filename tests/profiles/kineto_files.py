"""Small traces in the form of torch.profiler, with times that a reader can add up."""

import gzip
import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]

H100: Json = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132
}  # fmt: skip
HOST, DEVICE = 100, 0


class TraceMaker:
    """Events of one process: operators on a thread, kernels on a device."""

    def __init__(self, device: Json | None = None) -> None:
        self.devices = [H100 if device is None else device]
        self.events: list[Json] = []
        self.correlations = 0

    def operator(
        self,
        name: str,
        start: float,
        duration: float,
        shapes: list[Any] | None = None,
        types: list[str] | None = None,
        values: list[str] | None = None,
        *,
        thread: int = 1,
        **args: Any,
    ) -> None:
        if shapes is not None:
            args |= {
                "Input Dims": shapes,
                "Input Strides": [contiguous(shape) for shape in shapes],
                "Input type": types,
                "Concrete Inputs": values or [""] * len(shapes),
            }
        self._add("cpu_op", name, start, duration, thread, args)

    def kernel(
        self, name: str, launched: float, start: float, duration: float,
        *, thread: int = 1, stream: int = 7, category: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        """A launch of one microsecond, and what it starts."""
        self.correlations += 1
        link = {"correlation": self.correlations}
        self._add("cuda_runtime", "cudaLaunchKernel", launched, 1, thread, link)
        on = {**link, "device": 0, "stream": stream, **args}
        self._add(category, name, start, duration, stream, on, process=DEVICE)

    def python(self, name: str, start: float, duration: float, *, thread: int = 1) -> None:
        self._add("python_function", name, start, duration, thread, {"Python id": 1})

    def annotation(self, name: str, start: float, duration: float, *, thread: int = 1) -> None:
        self._add("user_annotation", name, start, duration, thread, {})

    def wait(self, start: float, duration: float, *, thread: int = 1) -> None:
        self._add("cuda_runtime", "cudaStreamSynchronize", start, duration, thread, {})

    def memory(self, at: float, size: int, address: int, allocated: int, reserved: int) -> None:
        self.events.append(
            {
                "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": HOST, "tid": 1,
                "ts": at, "args": {
                    "Bytes": size, "Addr": address, "Device Type": 1, "Device Id": 0,
                    "Total Allocated": allocated, "Total Reserved": reserved,
                },
            }
        )  # fmt: skip

    def _add(
        self, category: str, name: str, start: float, duration: float, thread: int, args: Json,
        process: int = HOST,
    ) -> None:  # fmt: skip
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start,
             "dur": duration, "args": args}
        )  # fmt: skip

    def document(self, **more: Any) -> Json:
        return {
            "schemaVersion": 1,
            "deviceProperties": self.devices,
            **more,
            "traceEvents": self.events,
            "traceName": "x",
        }

    def write(self, path: Path, **more: Any) -> Path:
        text = json.dumps(self.document(**more)).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def contiguous(shape: list[Any]) -> list[Any]:
    if shape and isinstance(shape[0], list):
        return [contiguous(inner) for inner in shape]
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


BF16 = "c10::BFloat16"


def linear_step(maker: TraceMaker | None = None) -> TraceMaker:
    """A step: a linear layer of 4096 x 4096 x 4096 forward and backward, an update by mul_.

    Host, microseconds: step 0..1000; forward 10..60 (launch at 20), backward 100..200 on thread 2
    (launches at 120 and 150), update 300..400 (launch at 320).
    Device: 30..230, 240..440, 440..640, 700..710: busy 610 of 680.
    """
    maker_used = maker or TraceMaker()
    matrix = [4096, 4096]
    maker_used.annotation("ProfilerStep#3", 0, 1000)
    maker_used.python("train.py(3): main", 0, 1000)
    maker_used.python("nn.Module: Linear_0", 5, 70)
    maker_used.python("model.py(40): forward", 6, 60)
    maker_used.operator(
        "aten::linear", 8, 55, [matrix, matrix, []], [BF16, BF16, ""], **{"Sequence number": -1}
    )
    maker_used.operator(
        "aten::mm", 10, 50, [matrix, matrix], [BF16, BF16],
        **{"Sequence number": 5, "Fwd thread id": 0},
    )  # fmt: skip
    maker_used.kernel("sm90_xmma_gemm_bf16bf16", 20, 30, 200)
    engine = {"Sequence number": 5, "Fwd thread id": 1}
    maker_used.operator(
        "autograd::engine::evaluate_function: MmBackward0", 100, 100, thread=2, **engine
    )
    maker_used.operator("MmBackward0", 101, 98, [matrix], [BF16], thread=2, **engine)
    maker_used.operator("aten::mm", 110, 30, [matrix, matrix], [BF16, BF16], thread=2)
    maker_used.kernel("sm90_xmma_gemm_bf16bf16", 120, 240, 200, thread=2)
    maker_used.operator("aten::mm", 145, 30, [matrix, matrix], [BF16, BF16], thread=2)
    maker_used.kernel("sm90_xmma_gemm_bf16bf16", 150, 440, 200, thread=2)
    maker_used.annotation("Optimizer.step#SGD.step", 290, 150)
    maker_used.operator("aten::mul_", 300, 100, [matrix, []], [BF16, "double"], ["", "0.5"])
    maker_used.kernel("vectorized_elementwise_kernel<4, MulFunctor>", 320, 700, 10)
    maker_used.memory(11, 2048, 1 << 20, 101_000 + 2048, 2 << 20)
    maker_used.memory(350, -2048, 1 << 20, 101_000, 2 << 20)
    return maker_used
