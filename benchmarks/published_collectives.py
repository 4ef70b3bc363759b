"""The network model against all-reduces and gathers that others measured and published.

    python -m benchmarks.published_collectives [--json FILE]

Rows name chip, ranks and payload without doubt. No constant of `timing.network` was fitted to them:
its constants are NCCL's own. Bus bandwidths are as nccl-tests defines them.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.measuring import parser, show, write
from torchtally.chips.clusters import cluster
from torchtally.timing.network import Algorithm, CollectiveKind, RankGroup, Transfer, collective

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LARGE_BYTES, SMALL_BYTES = 64 * MIB, MIB

STAS = "stas00/ml-engineering network/README.md @744d01e"
STAS_NCCL = "stas00/ml-engineering network/benchmarks/README.md @0cc3de5: nccl-tests, NCCL 2.30.7"
STAS_TORCH = "stas00/ml-engineering network/benchmarks/README.md @0cc3de5: through PyTorch"
AZURE = "Azure/AI-benchmarking-guide Azure_Results/{}_results.md: NCCL {}"
VTRAIN = "VIA-Research/vTrain trace/a100 @f8dda84: nccl-tests, version unknown"
VTRAIN_V100 = "VIA-Research/vTrain trace/v100 @f8dda84: nccl-tests, version unknown"
COREWEAVE = "coreweave/nccl-tests pull request 43"


@dataclass(frozen=True, slots=True)
class Measured:
    """One published bus bandwidth."""

    source: str
    chips: str
    """As `cluster` reads it."""
    group: RankGroup
    payload_bytes: int
    bus_gb_per_s: float
    kind: CollectiveKind = "all_reduce"
    algorithm: Algorithm | None = None
    """Where the measurement forced it."""

    @property
    def transfer(self) -> Transfer:
        where = cluster(self.chips)
        return collective(
            self.kind, self.payload_bytes, self.group, where, algorithm=self.algorithm
        )

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return self.bus_gb_per_s * 1e9 / self.transfer.bus_bytes_per_s


def rows() -> Iterator[Measured]:
    """All of them."""
    yield from single_nodes()
    yield from h200_by_size()
    yield from azure()
    yield from vtrain()
    yield from meshes()
    yield from many_nodes()


def single_nodes() -> Iterator[Measured]:
    """Large payloads, by the number of GPUs."""
    for ranks, speed in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1)):
        yield Measured(STAS, "8xH200-SXM", RankGroup(ranks), 8 * GIB, speed)
    yield Measured(STAS, "8xH200-SXM", RankGroup(8), 8 * GIB, 365.6, algorithm="ring")
    yield Measured(STAS, "8xH200-SXM", RankGroup(8), 16 * GIB, 361.4, "all_gather")
    yield Measured(STAS, "8xH200-SXM", RankGroup(8), 16 * GIB, 362.9, "reduce_scatter")
    for ranks, speed in ((5, 677.8), (6, 778.2), (8, 838.0)):
        yield Measured(STAS, "8xB200", RankGroup(ranks), 8 * GIB, speed)


H200_GB_PER_S = (
    3.20, 6.26, 12.40, 24.63, 48.30, 72.45, 91.48, 139.97, 182.03, 242.45, 298.44, 369.82, 411.21,
    442.27, 455.82, 464.00, 468.31, 473.10, 475.16, 480.70,
)  # fmt: skip
"""From 32 KiB to 16 GiB."""


def h200_by_size() -> Iterator[Measured]:
    for power, speed in enumerate(H200_GB_PER_S):
        yield Measured(STAS_NCCL, "8xH200-SXM", RankGroup(8), 32 * KIB << power, speed)


H100_GB_PER_S = (
    0.07, 0.14, 0.27, 0.53, 0.95, 1.71, 2.72, 5.40, 10.86, 21.35, 43.70, 81.93, 128.73, 172.13,
    234.45, 295.53, 361.78, 400.61, 423.38, 438.46, 466.35, 472.36, 475.54, 478.87,
)  # fmt: skip
GB200_GB_PER_S = (
    0.10, 0.19, 0.38, 0.76, 1.46, 2.88, 5.71, 11.29, 22.41, 44.07, 80.48, 110.43, 146.27, 253.46,
    331.09, 422.62, 550.73, 574.19, 593.53, 618.74, 646.87, 666.63, 673.06, 679.61,
)  # fmt: skip
A100_GB_PER_S = (
    0.04, 0.08, 0.17, 0.33, 0.67, 1.37, 2.70, 5.15, 10.11, 19.24, 36.22, 53.54, 71.43, 89.99,
    109.22, 132.77, 166.63, 174.18, 213.87, 221.58, 228.10, 230.22, 230.48, 231.58,
)  # fmt: skip
"""From 1 KiB to 8 GiB."""


def azure() -> Iterator[Measured]:
    """H100s with NVLS forced, GB200s (four of them) with rings."""
    h100, gb200 = AZURE.format("ND_H100_v5", "2.18.5"), AZURE.format("ND_GB200_v6", "2.25.1")
    a100 = AZURE.format("ND_A100_v4", "2.18.5")
    for power, speed in enumerate(H100_GB_PER_S):
        yield Measured(h100, "8xH100-SXM", RankGroup(8), KIB << power, speed, algorithm="NVLS")
    for power, speed in enumerate(GB200_GB_PER_S):
        yield Measured(gb200, "1x4xGB200", RankGroup(4), KIB << power, speed, algorithm="ring")
    for power, speed in enumerate(A100_GB_PER_S):
        yield Measured(a100, "8xA100-SXM", RankGroup(8), KIB << power, speed)


VTRAIN_GB_PER_S: dict[int, tuple[float, ...]] = {
    2: (23.72, 39.25, 68.55, 127.16, 165.81, 175.77, 184.39, 197.28),
    4: (30.60, 56.44, 81.37, 140.11, 185.11, 201.61, 208.73, 221.86),
    8: (19.78, 39.36, 76.62, 126.33, 202.52, 202.13, 217.25, 229.35),
}
VTRAIN_MIB = (1, 2, 4, 16, 64, 128, 256, 1024)


def vtrain() -> Iterator[Measured]:
    for ranks, speeds in VTRAIN_GB_PER_S.items():
        for mebibytes, speed in zip(VTRAIN_MIB, speeds, strict=True):
            yield Measured(VTRAIN, "8xA100-SXM", RankGroup(ranks), mebibytes * MIB, speed)


MESH_GB_PER_S: dict[int, tuple[float, float, float]] = {
    2: (14.95, 22.38, 22.55),
    3: (18.63, 44.65, 45.14),
    4: (23.38, 83.74, 85.36),
    5: (18.46, 36.36, 37.17),
    6: (17.57, 45.26, 45.74),
    7: (21.99, 84.24, 87.01),
    8: (22.96, 128.88, 134.51),
}


def meshes() -> Iterator[Measured]:
    """The first GPUs of a DGX-1."""
    for ranks, speeds in MESH_GB_PER_S.items():
        for mebibytes, speed in zip((1, 64, 1024), speeds, strict=True):
            size = mebibytes * MIB
            yield Measured(VTRAIN_V100, "8xV100-SXM-32GB", RankGroup(ranks), size, speed)


B200_NODES_GB_PER_S = (
    0.65, 1.27, 2.35, 4.06, 6.99, 12.47, 20.79, 31.63, 50.61, 71.80, 142.90, 197.77, 260.50,
    283.23, 309.91, 365.99, 371.26, 374.66, 376.14, 376.71,
)  # fmt: skip
"""From 32 KiB to 16 GiB, four nodes."""


def many_nodes() -> Iterator[Measured]:
    for power, speed in enumerate(B200_NODES_GB_PER_S):
        yield Measured(STAS_TORCH, "32xB200", RankGroup(32, 4), 32 * KIB << power, speed)
    for gibibytes, speed in ((0.5, 586.06), (1, 681.17), (2, 757.78), (4, 839.16), (8, 834.57)):
        size = int(gibibytes * GIB)
        yield Measured(COREWEAVE, "72xGB200", RankGroup(72), size, speed)


def errors(measured: Iterable[Measured]) -> list[float]:
    return [row.ratio - 1 for row in measured]


def median_error(measured: Iterable[Measured]) -> float:
    """Of |predicted / measured - 1| of seconds."""
    return median(abs(error) for error in errors(measured))


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    measured, by_source = list(rows()), dict[str, list[Measured]]()
    for row in measured:
        by_source.setdefault(row.source, []).append(row)
    for source, those in by_source.items():
        show(source, ("", "ranks", "MiB", "measured", "predicted", "ratio", "way"),
             [_cells(row) for row in those])  # fmt: skip
    summary = [_summary(source, those) for source, those in [*by_source.items(), ("all", measured)]]
    show("median errors of times", ("source", "rows", "all", ">= 64 MiB", "<= 1 MiB"), summary)
    entries = [
        {
            "source": row.source, "chips": row.chips, "ranks": row.group.ranks, "kind": row.kind,
            "payload_bytes": row.payload_bytes, "measured_gb_per_s": row.bus_gb_per_s,
            "predicted_gb_per_s": row.transfer.bus_bytes_per_s / 1e9, "way": row.transfer.way,
        }
        for row in measured
    ]  # fmt: skip
    write(args.json, {"rows": entries, "median_error": median_error(measured)})
    return 0


def _cells(row: Measured) -> tuple[str, ...]:
    transfer = row.transfer
    return (
        f"{row.chips} {row.kind}", f"{row.group.ranks}", f"{row.payload_bytes / MIB:.3f}",
        f"{row.bus_gb_per_s:.2f} GB/s", f"{transfer.bus_bytes_per_s / 1e9:.2f} GB/s",
        f"{row.ratio:.2f}", transfer.way,
    )  # fmt: skip


def _summary(source: str, measured: Sequence[Measured]) -> tuple[str, ...]:
    large = [row for row in measured if row.payload_bytes >= LARGE_BYTES]
    small = [row for row in measured if row.payload_bytes <= SMALL_BYTES]
    shares = [f"{median_error(rows):.1%}" if rows else "-" for rows in (measured, large, small)]
    return (source, f"{len(measured)}", *shares)


if __name__ == "__main__":
    sys.exit(main())
