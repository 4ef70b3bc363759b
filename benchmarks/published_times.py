"""The data-sheet model of GPUs against kernel times that others measured and published.

No GPU is needed, and none was measured here: each row is a figure somebody published, with its
shape, its dtype, its chip and where it stands. Rows were chosen by rule, not by how well they fit:
the chip is named without doubt (or, for arithmetic, all variants of it promise the same), shape and
dtype are given, and what was timed is the device's work. Of DeepBench's long tables every eighth
product, every sixth convolution and every fifth network is taken. Rows from a table that also gave
the model a constant are marked, and left out of the medians.

    python -m benchmarks.published_times
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec import structs

from benchmarks.measuring import parser, write
from torchtally.chips import chip
from torchtally.timing.roofline.datasheet import datasheet_kernel
from torchtally.trace import Call, Literal, TensorSpec
from torchtally.work import cost_of

GPU = "cuda:0"


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure."""

    family: str
    chip: str
    label: str
    calls: tuple[Call, ...]
    """What was timed together, one call behind the other."""
    published_s: float
    source: str
    gave_a_constant: bool = False

    @property
    def predicted_s(self) -> float:
        return sum(seconds(call, self.chip) for call in self.calls)

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.published_s


def seconds(call: Call, chip_name: str) -> float:
    return datasheet_kernel(call, *cost_of(call), chip(chip_name)).seconds


# Calls --------------------------------------------------------------------------------------------


def tensor(
    *shape: int, argument: str = "", dtype: str = "float16", device: str = GPU
) -> TensorSpec:
    """A contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(argument, shape, tuple(reversed(strides)), dtype, device, 0)


def call(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], **literals: Literal
) -> Call:
    """All tensors have storage of their own."""
    numbered = [
        structs.replace(spec, storage=number) for number, spec in enumerate((*inputs, *outputs))
    ]
    return Call(
        name,
        "default",
        tuple(numbered[: len(inputs)]),
        tuple(numbered[len(inputs) :]),
        tuple(literals.items()),
    )


def product(M: int, N: int, K: int, dtype: str) -> Call:
    number_format, literals = ("float32", {"allow_tf32": True}) if dtype == "tf32" else (dtype, {})
    inputs = (
        tensor(M, K, argument="self", dtype=number_format),
        tensor(K, N, argument="mat2", dtype=number_format),
    )
    return call("aten.mm", inputs, (tensor(M, N, dtype=number_format),), **literals)


def flops_of(calls: Iterable[Call]) -> int:
    return sum(cost_of(one)[1].flops for one in calls)


# Square products at TFLOP/s -----------------------------------------------------------------------

SQUARE_SIZES = (1024, 2048, 4096, 8192, 10240)
SQUARES: tuple[tuple[str, str, str, tuple[float, ...]], ...] = (
    ("H100-SXM", "float32", "79", (37.39, 49.58, 51.88, 51.81, 49.61)),
    ("H100-SXM", "tf32", "79", (119.60, 334.99, 402.15, 372.05, 376.66)),
    ("H100-SXM", "bfloat16", "79", (176.62, 676.59, 788.72, 797.51, 719.72)),
    ("RTX-4090", "float32", "78", (45.89, 53.84, 53.02, 53.41, 51.43)),
    ("RTX-4090", "tf32", "78", (59.47, 69.24, 84.44, 85.65, 84.50)),
    ("RTX-4090", "bfloat16", "78", (126.84, 164.81, 151.50, 160.17, 158.54)),
    ("A100-PCIe-40GB", "float32", "108", (8.99, 9.69, 15.52, 17.56, 16.67)),
    ("A100-PCIe-40GB", "tf32", "108", (61.02, 90.82, 108.32, 97.32, 102.05)),
    ("A100-PCIe-40GB", "bfloat16", "108", (94.89, 138.46, 234.14, 215.26, 211.72)),
    ("RTX-5090", "float32", "124", (47.76, 69.83, 64.50, 66.91, 65.46)),
    ("RTX-5090", "tf32", "124", (60.31, 71.15, 100.36, 114.19, 122.13)),
    ("RTX-5090", "bfloat16", "124", (93.44, 171.53, 182.19, 234.66, 236.99)),
)
"""(chip, dtype, issue of zzc0721/torch-performance-test-data, TFLOP/s of torch.matmul by size)."""

OTHER_SQUARES: tuple[tuple[str, str, int, float, str], ...] = (
    ("A100-PCIe", "float32", 1024, 16.008795, "triton-lang/triton issue 2491"),
    ("A100-PCIe", "float32", 2048, 17.604634, "triton-lang/triton issue 2491"),
    ("A100-PCIe", "float32", 3072, 17.992725, "triton-lang/triton issue 2491"),
    ("H100-SXM", "bfloat16", 4096, 716, "pranjalssh/fast.cu README"),
    ("H100-SXM", "bfloat16", 8192, 795, "pranjalssh/fast.cu README"),
    ("RTX-4090", "float16", 128, 1.304, "mli/transformers-benchmarks issue 4"),
    ("RTX-4090", "float16", 512, 46.890, "mli/transformers-benchmarks issue 4"),
    ("RTX-4090", "float16", 2048, 167.112, "mli/transformers-benchmarks issue 4"),
    ("RTX-4090", "float16", 8192, 158.596, "mli/transformers-benchmarks issue 4"),
)
"""TFLOP/s of cuBLAS. fast.cu says "H100"; 795 TFLOP/s are more than the PCIe card promises."""


def squares() -> Iterator[Row]:
    for name, dtype, issue, rates in SQUARES:
        source = f"zzc0721/torch-performance-test-data issue {issue}"
        for size, tflop_per_s in zip(SQUARE_SIZES, rates, strict=True):
            yield square(name, dtype, size, tflop_per_s, source)
    for row in OTHER_SQUARES:
        yield square(*row)


GAVE_CONSTANTS = ("triton-lang/triton issue 2491",)


def square(name: str, dtype: str, size: int, tflop_per_s: float, source: str) -> Row:
    calls = (product(size, size, size, dtype),)
    published_s = flops_of(calls) / (tflop_per_s * 1e12)
    label = f"{dtype} {size}^3"
    return Row("product", name, label, calls, published_s, source, source in GAVE_CONSTANTS)


# Products by time ---------------------------------------------------------------------------------

DEEPBENCH = "baidu-research/DeepBench results/train/DeepBench_NV_V100.xlsx @da81ba78, FP16 sheet"

DEEPBENCH_PRODUCTS: tuple[tuple[int, int, int, float], ...] = (
    (1760, 16, 1760, 20.0),
    (2048, 128, 2048, 31.0),
    (4096, 32, 4096, 52.0),
    (1760, 7000, 1760, 461.0),
    (2560, 64, 2560, 45.0),
    (1760, 7136, 1760, 452.0),
    (5128, 9124, 2560, 2478.0),
    (5128, 9124, 2560, 2598.0),
    (7680, 16, 2560, 104.0),
    (3072, 16, 1024, 16.0),
    (512, 16, 500000, 673.0),
    (7680, 24000, 2560, 9009.0),
    (8448, 48000, 2816, 21217.0),
    (6144, 48000, 2048, 11427.0),
    (4608, 32, 1536, 27.0),
    (512, 24000, 2816, 679.0),
    (512, 16, 512, 8.0),
    (1024, 24000, 2560, 1323.0),
    (1024, 48000, 2816, 2571.0),
    (512, 48000, 2560, 1375.0),
)
"""M, N, K and microseconds of cuBLAS on a V100 (DGX-1), float16 with float32 sums.

Matrices stand by columns, so the same product by rows is (N, K) @ (K, M). Dimensions along which
memory runs are padded to multiples of 8, as DeepBench does (gemm_bench.cu, PAD_KERNELS): 5124 to
5128 everywhere, 7133 to 7136 where the second matrix is transposed.
"""

AO = "pytorch/ao pull request 3342"


def products_by_time() -> Iterator[Row]:
    for M, N, K, microseconds in DEEPBENCH_PRODUCTS:
        yield timed("V100-SXM-16GB", "float16", (N, M, K), microseconds, DEEPBENCH)
    yield timed("H100-PCIe", "bfloat16", (16640, 5120, 8192), 3223.73, AO)
    yield timed("H100-PCIe", "bfloat16", (16640, 8192, 5120), 3243.3, AO)


def timed(
    name: str, dtype: str, dims: tuple[int, int, int], microseconds: float, source: str
) -> Row:
    label = f"{dtype} {dims[0]} x {dims[1]} x {dims[2]}"
    return Row("product", name, label, (product(*dims, dtype),), microseconds * 1e-6, source)


# Convolutions -------------------------------------------------------------------------------------

Time = float | None
DEEPBENCH_CONVOLUTIONS: tuple[tuple[tuple[int, ...], Time, Time, Time], ...] = (
    ((4, 1, 161, 700, 32, 5, 20, 0, 0, 2, 2), 591.0, None, 1028.0),
    ((16, 32, 79, 341, 32, 5, 10, 0, 0, 2, 2), 310.0, 299.0, 541.0),
    ((8, 3, 108, 108, 64, 3, 3, 1, 1, 2, 2), 35.0, None, 39.0),
    ((8, 64, 112, 112, 128, 3, 3, 1, 1, 1, 1), 185.0, 300.0, 258.0),
    ((16, 64, 112, 112, 128, 3, 3, 1, 1, 1, 1), 355.0, 374.0, 423.0),
    ((16, 192, 28, 28, 32, 5, 5, 2, 2, 1, 1), 82.0, 54.0, 115.0),
    ((8, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1), 37.0, 44.0, 58.0),
    ((8, 256, 14, 14, 1024, 1, 1, 0, 0, 2, 2), 16.0, 42.0, 14.0),
    ((16, 128, 28, 28, 512, 1, 1, 0, 0, 2, 2), 17.0, 26.0, 29.0),
    ((16, 1, 161, 700, 64, 5, 5, 1, 1, 2, 2), 535.0, None, 2754.0),
    ((16, 256, 20, 84, 512, 5, 5, 1, 1, 2, 2), 727.0, 808.0, 675.0),
    ((8, 128, 28, 28, 512, 1, 1, 0, 0, 1, 1), 22.0, 29.0, 32.0),
    ((8, 256, 14, 14, 1024, 1, 1, 0, 0, 1, 1), 19.0, 36.0, 29.0),
    ((16, 64, 112, 112, 64, 1, 1, 0, 0, 1, 1), 71.0, 81.0, 82.0),
    ((16, 512, 28, 28, 256, 1, 1, 0, 0, 2, 2), 25.0, 42.0, 30.0),
    ((16, 512, 7, 7, 512, 3, 3, 1, 1, 1, 1), 71.0, 135.0, 47.0),
)
"""Batch, channels in, height, width, channels out, filter height and width, padding and stride of
both; microseconds forward, of the input's gradient and of the filter's."""


def convolutions() -> Iterator[Row]:
    for shape, forward_us, input_us, filter_us in DEEPBENCH_CONVOLUTIONS:
        label = f"{shape[0]}x{shape[1]}x{shape[2]}x{shape[3]}, {shape[4]} of {shape[5]}x{shape[6]}"
        for way, one, microseconds in (
            ("forward", convolution(shape), forward_us),
            ("input", convolution_backward(shape, (True, False, False)), input_us),
            ("filter", convolution_backward(shape, (False, True, False)), filter_us),
        ):
            if microseconds is not None:
                yield Row(
                    "convolution",
                    "V100-SXM-16GB",
                    f"{way} {label}",
                    (one,),
                    microseconds * 1e-6,
                    DEEPBENCH,
                )


def convolution_tensors(shape: tuple[int, ...]) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Input, filter, result."""
    batch, channels, height, width, out, tall, wide, pad_h, pad_w, step_h, step_w = shape
    rows = (height + 2 * pad_h - tall) // step_h + 1
    columns = (width + 2 * pad_w - wide) // step_w + 1
    return (
        tensor(batch, channels, height, width, argument="input"),
        tensor(out, channels, tall, wide, argument="weight"),
        tensor(batch, out, rows, columns),
    )


def convolution(shape: tuple[int, ...]) -> Call:
    data, weight, result = convolution_tensors(shape)
    return call("aten.convolution", (data, weight), (result,), groups=1)


def convolution_backward(shape: tuple[int, ...], output_mask: tuple[bool, bool, bool]) -> Call:
    data, weight, result = convolution_tensors(shape)
    inputs = (structs.replace(result, argument="grad_output"), data, weight)
    outputs = [data] if output_mask[0] else [weight]
    outputs = [structs.replace(spec, argument="") for spec in outputs]
    return call("aten.convolution_backward", inputs, outputs, groups=1, output_mask=output_mask)


# Recurrent networks -------------------------------------------------------------------------------

GATES = {"Vanilla": 1, "LSTM": 4, "GRU": 3}
DEEPBENCH_NETWORKS: tuple[tuple[str, int, int, int, float, float], ...] = (
    ("Vanilla", 1760, 16, 50, 2958.0, 2388.0),
    ("Vanilla", 2048, 32, 50, 3243.0, 3118.0),
    ("Vanilla", 2560, 64, 50, 4782.0, 3961.0),
    ("LSTM", 512, 128, 25, 858.0, 1340.0),
    ("LSTM", 2048, 16, 25, 2209.0, 2566.0),
    ("LSTM", 4096, 32, 25, 5742.0, 6813.0),
    ("LSTM", 1536, 32, 50, 3878.0, 4171.0),
    ("GRU", 2816, 32, 750, 91629.0, 80289.0),
    ("GRU", 2048, 32, 375, 22887.0, 27260.0),
    ("GRU", 1536, 32, 187, 12438.0, 13449.0),
    ("GRU", 512, 32, 1, 89.0, 181.0),
)
"""Hidden size, sequences, steps; microseconds forward and backward (inputs and weights together).
DeepBench lets cuDNN skip the product of the inputs: its FLOP/s count the hidden state's alone."""


def networks() -> Iterator[Row]:
    for kind, hidden, sequences, steps, forward_us, backward_us in DEEPBENCH_NETWORKS:
        label = f"{kind} hidden {hidden}, {sequences} x {steps} steps"
        inputs = (
            tensor(steps, sequences, 0, argument="input"),
            tensor(GATES[kind] * hidden, 0, argument="weight"),
            tensor(GATES[kind] * hidden, hidden, argument="weight"),
        )
        result = tensor(steps, sequences, hidden)
        forward = call("aten._cudnn_rnn", inputs, (result,), weight_stride0=2)
        backward = call(
            "aten._cudnn_rnn_backward",
            inputs,
            (result,),
            weight_stride0=2,
            output_mask=(True, True, True, True),
        )
        for way, one, microseconds in (
            ("forward", forward, forward_us),
            ("backward", backward, backward_us),
        ):
            label_of_way = f"{way} {label}"
            published_s = microseconds * 1e-6
            yield Row("recurrent", "V100-SXM-16GB", label_of_way, (one,), published_s, DEEPBENCH)


# Attention ----------------------------------------------------------------------------------------

FLASH_B200 = "Dao-AILab/flash-attention issue 1589"
FLASH_ON_B200: tuple[tuple[int, int, float, float], ...] = (
    (32, 512, 308.40, 243.05),
    (16, 1024, 359.30, 280.64),
    (8, 2048, 380.99, 301.61),
    (4, 4096, 306.94, 314.71),
    (2, 8192, 343.07, 329.09),
    (1, 16384, 379.44, 333.95),
)
"""Batch, tokens, TFLOP/s forward and backward of FlashAttention-2: 32 heads of 64, not causal."""

EFFICIENT_A100 = "facebookresearch/xformers pull request 587, column main"
EFFICIENT_BACKWARD_ON_A100: tuple[tuple[str, int, float], ...] = (
    ("float16", 88, 651.2),
    ("float32", 88, 2330.6),
    ("float16", 80, 621.9),
    ("float32", 80, 2229.2),
    ("float16", 64, 459.5),
    ("float32", 64, 1262.5),
)
"""dtype, head dim, microseconds of memory-efficient attention backward: 384 heads of 197 tokens.
Which A100 is not said: all promise the same arithmetic, which bounds these."""


def attention(
    batch: int, heads: int, tokens: int, head: int, dtype: str, kernel: str, *, backward: bool
) -> Call:
    names = ("query", "key", "value")
    specs = [tensor(batch, heads, tokens, head, argument=name, dtype=dtype) for name in names]
    result = tensor(batch, heads, tokens, head, dtype=dtype)
    name = f"aten._scaled_dot_product_{kernel}_attention"
    if not backward:
        return call(name, specs, (result,), is_causal=False)
    grad = structs.replace(result, argument="grad_out")
    out = structs.replace(result, argument="out")
    gradients = (result, result, result)
    return call(f"{name}_backward", (grad, *specs, out), gradients, is_causal=False)


def attentions() -> Iterator[Row]:
    for batch, tokens, *rates in FLASH_ON_B200:
        for way, tflop_per_s in zip(("forward", "backward"), rates, strict=True):
            calls = (
                attention(batch, 32, tokens, 64, "float16", "flash", backward=way != "forward"),
            )
            published_s = flops_of(calls) / (tflop_per_s * 1e12)
            label = f"flash {way} {batch} x 32 x {tokens} x 64"
            yield Row("attention", "B200", label, calls, published_s, FLASH_B200, True)
    for dtype, head, microseconds in EFFICIENT_BACKWARD_ON_A100:
        calls = (attention(384, 1, 197, head, dtype, "efficient", backward=True),)
        label = f"efficient backward {dtype} 384 x 1 x 197 x {head}"
        yield Row("attention", "A100-SXM", label, calls, microseconds * 1e-6, EFFICIENT_A100)


# Kernels that go by bytes -------------------------------------------------------------------------

NORM_BACKWARD_ON_GB300: tuple[tuple[int, int, float], ...] = (
    (4096, 6144, 77.7),
    (4096, 8192, 97.0),
    (16384, 6144, 279.4),
    (16384, 8192, 338.7),
    (65536, 6144, 1065.2),
    (65536, 8192, 1313.8),
)
"""Rows, columns and microseconds of ATen's layer norm backward, bfloat16, no bias."""
NORM_BACKWARD = "meta-pytorch/KernelAgent pull request 133, column ATen"


def layer_norm(rows: int, columns: int, dtype: str) -> Call:
    inputs = (
        tensor(rows, columns, argument="input", dtype=dtype),
        tensor(columns, argument="weight", dtype=dtype),
        tensor(columns, argument="bias", dtype=dtype),
    )
    outputs = (
        tensor(rows, columns, dtype=dtype),
        tensor(rows, 1, dtype="float32"),
        tensor(rows, 1, dtype="float32"),
    )
    return call("aten.native_layer_norm", inputs, outputs)


def layer_norm_backward(rows: int, columns: int, dtype: str) -> Call:
    inputs = (
        tensor(rows, columns, argument="grad_out", dtype=dtype),
        tensor(rows, columns, argument="input", dtype=dtype),
        tensor(rows, 1, argument="mean", dtype="float32"),
        tensor(rows, 1, argument="rstd", dtype="float32"),
        tensor(columns, argument="weight", dtype=dtype),
    )
    outputs = (tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype))
    mask = (True, True, False)
    return call("aten.native_layer_norm_backward", inputs, outputs, output_mask=mask)


def streams() -> Iterator[Row]:
    for rows, columns, microseconds in NORM_BACKWARD_ON_GB300:
        one = layer_norm_backward(rows, columns, "bfloat16")
        label = f"layer norm backward {rows} x {columns}"
        yield Row("streaming", "GB300", label, (one,), microseconds * 1e-6, NORM_BACKWARD)
    one = layer_norm(8192, 768, "float32")
    moved = 2 * 4 * 8192 * 768
    label = "layer norm float32 8192 x 768"
    source = "karpathy/llm.c pull request 600, kernel 5"
    yield Row("streaming", "RTX-3090", label, (one,), moved / 773.13e9, source)
    source = "karpathy/llm.c pull request 645, kernel 6"
    yield Row("streaming", "A100-SXM", label, (one,), 42.5e-6, source)


# Copies and collectives ---------------------------------------------------------------------------

COPIES_ON_4090: tuple[tuple[int, float, float, float, float], ...] = (
    (1, 13.73, 22.51, 9.21, 25.42),
    (4, 17.07, 23.57, 11.31, 26.62),
    (16, 18.42, 23.85, 12.34, 26.55),
)
"""MiB; GB/s to the device from pageable and pinned memory, and from the device to both."""
COPIES = "NVlabs/cuda-oxide pull request 976"


def host_copy(moved_bytes: int, *, to_device: bool, is_pinned: bool) -> Call:
    host = structs.replace(tensor(moved_bytes, dtype="uint8", device="cpu"), is_pinned=is_pinned)
    device = tensor(moved_bytes, dtype="uint8")
    source, target = (host, device) if to_device else (device, host)
    return call("aten._to_copy", (structs.replace(source, argument="self"),), (target,))


def copies() -> Iterator[Row]:
    for mebibytes, *rates in COPIES_ON_4090:
        ways = ((True, False), (True, True), (False, False), (False, True))
        for (to_device, is_pinned), gb_per_s in zip(ways, rates, strict=True):
            moved = mebibytes * 2**20
            one = host_copy(moved, to_device=to_device, is_pinned=is_pinned)
            direction = "to device" if to_device else "to host"
            memory = "pinned" if is_pinned else "pageable"
            label = f"{direction}, {memory}, {mebibytes} MiB"
            yield Row("copy", "RTX-4090", label, (one,), moved / (gb_per_s * 1e9), COPIES)
    moved = 512 * 2**20
    one = host_copy(moved, to_device=True, is_pinned=True)
    label = "to device, pinned, 512 MiB"
    source = "NVIDIA/nvbandwidth issue 42"
    yield Row("copy", "A100-SXM-40GB", label, (one,), moved / 25.13e9, source)


ALL_REDUCES: tuple[tuple[int, float], ...] = ((2**30, 9306.7), (2**31, 18535.0), (2**32, 36943.0))
"""Bytes and microseconds between two H100 PCIe joined by bridges."""


def all_reduces() -> Iterator[Row]:
    for moved, microseconds in ALL_REDUCES:
        floats = tensor(moved // 4, argument="input", dtype="float32")
        result = structs.replace(floats, argument="")
        one = call("_c10d_functional.all_reduce", (floats,), (result,), group_size=2)
        label = f"all-reduce of {moved >> 30} GiB, 2 ranks"
        source = "NVIDIA/nccl issue 1161"
        yield Row("collective", "H100-PCIe", label, (one,), microseconds * 1e-6, source)


FAMILIES: tuple[Callable[[], Iterator[Row]], ...] = (
    squares,
    products_by_time,
    convolutions,
    networks,
    attentions,
    streams,
    copies,
    all_reduces,
)


def published() -> list[Row]:
    """Every row."""
    return [row for family in FAMILIES for row in family()]


def independent(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row.gave_a_constant]


def median_error(rows: Iterable[Row]) -> float:
    """Of |predicted / published - 1|."""
    return median(abs(row.ratio - 1) for row in rows)


# Report -------------------------------------------------------------------------------------------


def lines(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{'chip':<15} {'kernel':<50} {'predicted':>11} {'published':>11} {'ratio':>6}  source"
    for row in rows:
        mark = "*" if row.gave_a_constant else " "
        yield (
            f"{row.chip:<15} {row.label:<50} {row.predicted_s * 1e6:>8.1f} us "
            f"{row.published_s * 1e6:>8.1f} us {row.ratio:>6.2f}{mark} {row.source}"
        )
    yield ""
    counted = independent(rows)
    for title, key in (("family", by_family), ("chip", by_chip)):
        yield f"{title:<15} {'rows':>5} {'median error':>13} {'median ratio':>13}"
        for name, group in grouped(counted, key).items():
            ratio = median(row.ratio for row in group)
            yield f"{name:<15} {len(group):>5} {median_error(group):>12.0%} {ratio:>13.2f}"
        yield ""
    within = sum(abs(row.ratio - 1) <= 0.3 for row in counted)
    yield (
        f"All {len(counted)} rows: median error {median_error(counted):.1%}; "
        f"{within} within 30 %. Rows marked * gave a constant and are left out."
    )


def by_family(row: Row) -> str:
    return row.family


def by_chip(row: Row) -> str:
    return row.chip


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[key(row)].append(row)
    return grouped


def main() -> None:
    args = parser(__doc__).parse_args()
    rows = published()
    print("\n".join(lines(rows)))
    counted = independent(rows)
    write(args.json, {
        "rows": [{"kernel": row.label, "chip": row.chip, "published_s": row.published_s,
                  "predicted_s": row.predicted_s} for row in counted],
        "median_error": median_error(counted),
    })  # fmt: skip


if __name__ == "__main__":
    main()
