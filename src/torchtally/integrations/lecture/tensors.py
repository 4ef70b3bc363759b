"""Exercises of pages 1 to 6: napkins, formats, bytes, views, dimensions, FLOPs.

B, S, H, D: batch, sequence, heads, width of one.
"""

from torchtally.chips import chip
from torchtally.integrations.lecture.exercise import exercise
from torchtally.integrations.lecture.own_script import (
    GIB,
    KIB,
    MIB,
    cell,
    kind_share,
    largest_storage,
    peak,
)

H100 = chip("H100-SXM")
BF16 = H100.peak_flop_per_s("bfloat16")
MEMORY = H100.memory_bandwidth_bytes_per_s
DAY_S = 86400
PERCENT = "That is in percent: a share is from 0 to 1."

TENSORS = (
    exercise(
        "1.1",
        "How many days do 8e9 parameters and 15e12 tokens take on 512 H100 at 40 % MFU, with "
        f"{BF16 / 1e12:.1f}e12 FLOP/s of each?",
        "days",
        6 * 8e9 * 15e12 / (512 * BF16 * 0.4) / DAY_S,
        "6 x parameters x tokens / (chips x peak x MFU), divided by 86400 seconds.",
        (2 * 8e9 * 15e12 / (512 * BF16 * 0.4) / DAY_S, "2 is the forward pass alone: page 8."),
        (6 * 8e9 * 15e12 / (512 * BF16) / DAY_S, "At its peak no training runs: where is the MFU?"),
    ),
    exercise(
        "1.2",
        "With SGD with momentum instead of AdamW, all in fp32: how many 1e9 parameters fit 8 cards "
        "of 80e9 bytes, before activations?",
        "1e9 parameters",
        8 * 80 / (4 + 4 + 4),
        "A parameter, its gradient and one moment are 12 bytes: 640e9 / 12.",
        (8 * 80 / 16, "16 bytes are AdamW's, which has two moments."),
        (8 * 80 / 8, "The moment is missing: its optimizer has a state, too."),
    ),
    exercise(
        "1.3",
        "How many days do 1,000,000 steps of your script take (`tally show mine.tally`: step)?",
        "days",
        lambda ledger: ledger.total.seconds * 1e6 / DAY_S,
        "The predicted step times a million, divided by 86400 seconds.",
        (lambda ledger: ledger.total.seconds * 1e6 / 3600, "Those are hours."),
    ),
    exercise(
        "2.1",
        "What is the next number after 1 in bf16, minus 1?",
        "a number",
        2.0**-7,
        "Seven bits of mantissa behind the leading 1: 2^-7.",
        (2.0**-8, "bf16 stores 7 bits; the eighth significant one, the leading 1, is not stored."),
        (2.0**-10, "That is fp16's: it has 10 bits of mantissa."),
    ),
    exercise(
        "2.2",
        "What is the largest number of a format with 4 exponent bits, 3 mantissa bits, bias 7 and, "
        "at the largest exponent, only the last mantissa taken for NaN (e4m3)?",
        "a number",
        1.75 * 2.0 ** (15 - 7),
        "Exponent 15 - 7 = 8, mantissa 1.75, since 1.875 is NaN: 448.",
        (1.875 * 2.0**8, "All mantissa bits set at the largest exponent is the NaN."),
        (1.875 * 2.0**7, "e4m3 has no infinity: its largest exponent holds numbers, too."),
    ),
    exercise(
        "2.3",
        "How many GiB would your script's parameters take in 8 bits, if they are fp32 now "
        "(`--by category`)?",
        "GiB",
        peak("parameters", 4 * GIB),
        "A quarter of what they take at the peak.",
        (peak("parameters", 2 * GIB), "Half of it is 16 bits."),
        (peak("parameters", 8 * GIB), "fp32 has 32 bits, four times 8."),
    ),
    exercise(
        "3.1",
        "How many MiB does a bf16 tensor of shape (32, 4096, 4096) take?",
        "MiB",
        32 * 4096 * 4096 * 2 / MIB,
        "32 x 4096 x 4096 elements of 2 bytes.",
        (32 * 4096 * 4096 * 4 / MIB, "4 bytes are fp32's."),
        (32 * 4096 * 4096 / MIB, "That is the number of elements: each has 2 bytes."),
    ),
    exercise(
        "3.2",
        "A list holds 1000 CUDA tensors of one fp32 number each. How many KiB are allocated?",
        "KiB",
        1000 * 512 / KIB,
        "Each takes 512 bytes, the least that the allocator gives.",
        (1000 * 4 / KIB, "The allocator rounds up: see the exercise of the page."),
        (1000 * 2 * KIB, "2 MiB are reserved once, and small tensors are cut out of them."),
    ),
    exercise(
        "3.3",
        "How many GiB does your script hold at its peak (`tally show mine.tally`: allocated)?",
        "GiB",
        lambda ledger: ledger.memory.peak_bytes / GIB,
        "Allocated, not reserved: what tensors take.",
        (lambda ledger: ledger.memory.peak_bytes / 1e9, "Those are GB: GiB are 1024^3 bytes."),
    ),
    exercise(
        "4.1",
        "x has shape (8, 16, 32) and is contiguous. At which place of its storage is x[2, 3, 4]?",
        "a place, from 0",
        2 * 512 + 3 * 32 + 4,
        "2 x 512 + 3 x 32 + 4, with the strides (512, 32, 1).",
        (2 * 8 + 3 * 16 + 4, "A stride is the product of the sizes behind it, not a size."),
        (2 + 3 * 8 + 4 * 128, "Rows first: the last dimension has stride 1."),
    ),
    exercise(
        "4.2",
        "x is fp32 of shape (4096, 8192) on the GPU. How many MiB does x.T.contiguous() move, read "
        "and written together?",
        "MiB",
        2 * 4096 * 8192 * 4 / MIB,
        "128 MiB are read and 128 MiB are written.",
        (4096 * 8192 * 4 / MIB, "It is read, and written as well."),
        (0, "The transpose is a view; making it contiguous is a copy."),
    ),
    exercise(
        "4.3",
        "How many views does the forward pass of your script's step make (`--by layout`: total)?",
        "views",
        lambda ledger: ledger.total.views,
        "The total of the views' column.",
        (lambda ledger: ledger.total.copies, "Those are the copies."),
        (lambda ledger: ledger.total.views + ledger.total.copies, "Copies are counted with them."),
    ),
    exercise(
        "5.1",
        'einsum(x, y, "b s h d, b t h d -> b h s t") with b 4, s 128, t 256, h 8, d 64: how many '
        "numbers has the result?",
        "numbers",
        4 * 8 * 128 * 256,
        "b x h x s x t.",
        (4 * 8 * 128 * 256 * 64, "d is not in the output: it is summed."),
        (4 * 128 * 256, "h stays, for each head by itself."),
    ),
    exercise(
        "5.2",
        "The same einsum: how many FLOPs?",
        "FLOPs",
        2 * 4 * 8 * 128 * 256 * 64,
        "A multiply and an add for each of b, h, s, t and d.",
        (4 * 8 * 128 * 256 * 64, "A multiply and an add are two."),
        (2 * 4 * 8 * 128 * 256, "d is summed: each number of the result takes d multiplications."),
    ),
    exercise(
        "5.3",
        "How many MiB has the largest storage at your script's peak (`--by peak-storage --top 1`)? "
        "Write its dimensions beside it.",
        "MiB",
        largest_storage,
        "The view's largest row: the product of its dimensions times the bytes of one number.",
        (lambda ledger: largest_storage(ledger) * MIB / 1e6, "Those are MB."),
    ),
    exercise(
        "6.1",
        "How many TFLOPs has a product of (8192, 4096) with (4096, 14336)?",
        "1e12 FLOPs",
        2 * 8192 * 4096 * 14336 / 1e12,
        "2 B D K.",
        (8192 * 4096 * 14336 / 1e12, "A multiply and an add are two."),
        ((8192 * 4096 + 4096 * 14336) / 1e12, "Each row meets each column: the sizes multiply."),
    ),
    exercise(
        "6.2",
        "At which n does a product of two n x n matrices in bf16 take as long by its FLOPs as by "
        f"its bytes ({BF16 / 1e12:.1f}e12 FLOP/s, {MEMORY / 1e12:.2f}e12 bytes/s; two matrices are "
        "read, one is written)?",
        "n",
        3 * BF16 / MEMORY,
        "2 n^3 / peak = 6 n^2 / bandwidth, so n = 3 x peak / bandwidth.",
        (BF16 / MEMORY, "That is the intensity it needs: the product's is n / 3."),
        (1.5 * BF16 / MEMORY, "A number of bf16 has 2 bytes."),
    ),
    exercise(
        "6.3",
        "Which share of your script's FLOPs is in products, attention included (`--json`: "
        "totals.flops_matmul of totals.flops)?",
        "a share from 0 to 1",
        lambda ledger: ledger.total.flops_matmul / ledger.total.flops,
        "The FLOPs of products, convolutions and attention over all.",
        (lambda ledger: 100 * ledger.total.flops_matmul / ledger.total.flops, PERCENT),
        (kind_share("product", "flops"), "Attention is products, too: add its kind."),
        (
            lambda ledger: (
                cell(ledger, "kind", "product", "seconds", "kind") / ledger.total.seconds
            ),
            "That is their share of the time.",
        ),
    ),
)
