"""Small exports in the form of Nsight Systems, with times that a reader can add up."""

import sqlite3
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
PID, OTHER_PID = 700, 800
US = 1000
"""Tables are in nanoseconds."""

COLUMNS = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "id INT, name TEXT, totalMemory INT, smCount INT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT, uuid TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT NOT NULL, end INT NOT NULL, eventClass INT, "
    "globalTid INT, correlationId INT, nameId INT NOT NULL, returnValue INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INT NOT NULL, end INT NOT NULL, deviceId INT, "
    "contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT, "
    "shortName INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT NOT NULL, end INT NOT NULL, deviceId INT, "
    "contextId INT, streamId INT, correlationId INT, globalPid INT, bytes INT, copyKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INT NOT NULL, end INT NOT NULL, deviceId INT, "
    "contextId INT, streamId INT, correlationId INT, globalPid INT, value INT, bytes INT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INT NOT NULL, end INT NOT NULL, deviceId INT, "
    "contextId INT, streamId INT, correlationId INT, globalPid INT, graphId INT",
    "NVTX_EVENTS": "start INT NOT NULL, end INT, eventType INT, text TEXT, globalTid INT, "
    "textId INT, domainId INT",
}
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
SET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


class ExportMaker:
    """Rows of one process, unless another one is named; times are microseconds."""

    def __init__(self, gpu: str = "NVIDIA H100 80GB HBM3") -> None:
        self.tables: dict[str, list[Row]] = {}
        self.strings: dict[str, int] = {}
        self.correlations = 0
        self._add("TARGET_INFO_GPU", 3, gpu, 80 << 30, 132)
        self._add("TARGET_INFO_CUDA_DEVICE", 3, 0, PID, "GPU-0")

    def range(
        self, text: str, start: float, duration: float, *, thread: int = 1, by_number: bool = False
    ) -> None:
        number = self._string(text) if by_number else None
        said = None if by_number else text
        end = round((start + duration) * US)
        self._add("NVTX_EVENTS", round(start * US), end, 59, said, tid(thread), number, 0)

    def call(self, name: str, start: float, duration: float, *, thread: int = 1) -> None:
        self._call(name, start, duration, tid(thread))

    def launched(
        self,
        table: str,
        launched: float,
        start: float,
        duration: float,
        *more: Any,
        by: str = "cudaLaunchKernel_v7000",
        thread: int = 1,
        pid: int = PID,
    ) -> None:
        """A call of one microsecond, and what it starts. The first process counts correlations for
        itself, as every one does.
        """
        self.correlations += 1
        correlation = self.correlations
        self._call(by, launched, 1, tid(thread, pid))
        self._add(
            table, round(start * US), round((start + duration) * US), 0, 1, 7, correlation,
            pid << 24, *more,
        )  # fmt: skip

    def kernel(self, name: str, launched: float, start: float, duration: float, **to: Any) -> None:
        number = self._string(name)
        short = self._string("short")
        self.launched(KERNEL, launched, start, duration, number, short, **to)

    def _call(self, name: str, start: float, duration: float, thread: int) -> None:
        self._add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", round(start * US), round((start + duration) * US), 0,
            thread, self.correlations, self._string(name), 0,
        )  # fmt: skip

    def _add(self, table: str, *row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 10)

    def rows(self) -> dict[str, list[Row]]:
        return {
            "StringIds": [(number, text) for text, number in self.strings.items()],
            **self.tables,
        }

    def write(self, path: Path) -> Path:
        with sqlite3.connect(path) as connection:
            for table, rows in self.rows().items():
                connection.execute(f"CREATE TABLE {table} ({COLUMNS[table]})")
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.close()
        return path

    def write_parquet(self, folder: Path) -> Path:
        import pyarrow
        from pyarrow import parquet

        folder.mkdir()
        for table, rows in self.rows().items():
            names = [part.split()[0] for part in COLUMNS[table].split(", ")]
            columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
            parquet.write_table(pyarrow.table(columns), folder / f"{table}.parquet")
        return folder


def tid(thread: int, pid: int = PID) -> int:
    return (pid << 24) + thread


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
SQUARE = "[4096, 4096]"


def linear_step(maker: ExportMaker | None = None) -> ExportMaker:
    """A product of 4096 x 4096 x 4096 forward and its two backward, an update by mul_: in the words
    of `emit_nvtx(record_shapes=True)`.

    Device, microseconds: 30..230, 240..440, 440..640, 700..710: busy 610 of 680.
    """
    maker_used = maker or ExportMaker()
    maker_used.range("step 3", 0, 1000)
    maker_used.range(f"aten::linear, op_id = 6, sizes = [{SQUARE}, {SQUARE}, []]", 8, 55)
    maker_used.range(
        f"aten::mm, seq = 5, op_id = 7, sizes = [{SQUARE}, {SQUARE}], input_op_ids = [(6,0)]",
        10, 50, by_number=True,
    )  # fmt: skip
    maker_used.kernel(GEMM, 20, 30, 200)
    maker_used.range(
        "autograd::engine::evaluate_function: MmBackward0, seq = 5, op_id = 8", 100, 100, thread=2
    )
    maker_used.range(f"MmBackward0, seq = 5, op_id = 9, sizes = [{SQUARE}]", 101, 98, thread=2)
    for at, start in ((110, 240), (145, 440)):
        sizes = f"[{SQUARE}, {SQUARE}]"
        maker_used.range(f"aten::mm, op_id = {at}, sizes = {sizes}", at, 30, thread=2)
        maker_used.kernel(GEMM, at + 5, start, 200, thread=2)
    maker_used.range("Optimizer.step#SGD.step, op_id = 20", 290, 150)
    maker_used.range(f"aten::mul_, op_id = 21, sizes = [{SQUARE}, []]", 300, 100)
    maker_used.kernel(
        "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor"
        "<c10::BFloat16, c10::BFloat16, c10::BFloat16, MulFunctor<float>>>(int)",
        320, 700, 10,
    )  # fmt: skip
    return maker_used
