"""Every figure of the lecture's sentences, and what holds it.

Of a page's prose each number is one that the page's own blocks show, or stands in a phrase of
`COMPUTED` (made here from facts about chips, formats and models) or of `GIVEN` (published by
others: its source stands beside it). Single digits are words and coefficients, as in "4 S d".
"""

import math
import re

import torch

from torchtally import chip
from torchtally.number_formats import FORMATS
from torchtally.plan.architecture.lookup import model
from torchtally.plan.flops import token_flops
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import of
from torchtally.units import Unit

H100, A100 = chip("H100-SXM"), chip("A100-SXM")
assert H100.host_link is not None
LINK, MEMORY = H100.host_link.bytes_per_s_per_direction, H100.memory_bandwidth_bytes_per_s
BF16, FP32, TF32, FP8 = map(H100.peak_flop_per_s, ("bfloat16", "float32", "tf32", "float8_e4m3fn"))
assert H100.total_memory_bytes is not None
WEEK_S, DAY_S = 7 * 86400, 86400
LLAMA, GPT2 = model("llama-3-8b"), model("gpt2")
TABLE = LLAMA.vocabulary * LLAMA.width
LLAMA_SIZE = int(parameters(LLAMA).total.value)
LECTURE = "the lecture's own text or published output: numbers.md"
B, D, K = 16384, 32768, 8192


def days(chips: int, flop_per_s: float) -> float:
    """Of 70 B parameters and 15 T tokens."""
    return 6 * 70e9 * 15e12 / (chips * flop_per_s) / DAY_S


def smallest(name: str) -> float:
    """The least positive number of a dtype: a subnormal one."""
    info = torch.finfo(getattr(torch, name))
    return float(info.smallest_normal * info.eps)


def short(value: float, digits: int = 1) -> str:
    """As a page writes it: "1.5e21"."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def added(size: int) -> int:
    return -size % 512


FORWARD = token_flops(LLAMA, of(8192, Unit.TOKENS))
LLAMA_MATRICES = 2 * (LLAMA_SIZE - TABLE)

COMPUTED: dict[int, tuple[str, ...]] = {
    1: (
        f"40e9 and {H100.total_memory_bytes * 8 / 16 / 1e9:.1f}e9 differ in what is called 80 GB",
        f"CUDA reports {H100.total_memory_bytes / 2**30:.2f} GiB: "
        f"{H100.total_memory_bytes / 1e9:.2f}e9 bytes, {H100.total_memory_bytes / 80e9 - 1:.1%} "
        f"more".replace("%", " %"),
        f"990e12 x 0.5 = {short(990e12 * 0.5, 2)} up to 5e14 and gets "
        f"{days(1000, 4.95e14 * 1.01):.0f} days. 5e14 gives {days(1024, 5e14):.1f} days with 1024",
        f"{days(1000, 5e14):.0f} is what 1000 chips take",
        f"8 A100s for 2 weeks: {short(8 * WEEK_S * A100.peak_flop_per_s('bfloat16'))} FLOPs",
        f"two are {short(2 * round(8 * WEEK_S * A100.peak_flop_per_s('bfloat16'), -20))}",
        f"{short(8 * WEEK_S * 989.5e12)} for {short(2 * 4.8e21)}",
        f"2 + 2 + 8 = {2 + 2 + 8} bytes: 8 x 80e9 / 12 = {8 * 80 / 12:.1f}e9 parameters",
    ),
    2: (
        f"subnormals end at {short(smallest('bfloat16'))}, fp32's at {short(smallest('float32'))}",
        f"fp16 has {1 - int(math.log2(torch.finfo(torch.float16).eps))}, so the next numbers are "
        f"{int(256 * (1 + torch.finfo(torch.bfloat16).eps))} and "
        f"{int(2048 * (1 + torch.finfo(torch.float16).eps))}",
    ),
    3: (f"carries at most {LINK / 1e9:.0f} GB/s, the H100's own memory {MEMORY / 1e12:.2f} TB/s",),
    6: (
        f"2 x {B} x {D} x {K} = {2 * B * D * K:,}".replace(",", " "),
        f"for each of {B} x {K} = " + f"{B * K:,} elements".replace(",", " "),
        f"= {short(8 * WEEK_S * 989.5e12)}: one week. Two are {short(2 * 4.8e21)}",
        f"2 n^3 / n^2 = 2 n = 1000`, so n = {1000 // 2}",
    ),
    7: (
        f"The first is {53.9 / 51.4 - 1:.0%} above the prediction".replace("%", " %"),
        f"fp32 takes {784.9 / 51.4:.0f} times as long",
        f"keeps {FORMATS['tf32'].layout.widths[2]} bits of the mantissa: {TF32 / 1e12:.1f} TFLOP/s",
        f"data sheet says {FP32 / 1e12:.0f}e12",
    ),
    8: (
        f"= {6 * B * (D * D + D * K) / 1e12:.1f} T, these 2 B D D = {2 * B * D * D / 1e12:.1f} "
        f"T are not run: "
        f"{2 * D * D / (6 * (D * D + D * K)):.0%}".replace("%", " %"),
    ),
    9: (
        f"standard deviation {math.sqrt(16384):.0f} and 1",
        f"+-3: {3 * math.sqrt(16384):.0f} of them",
        f"sqrt(4096) = {math.sqrt(4096):.0f}: after ten 64^10 = {short(64.0**10)}. fp16, which "
        f"ends at "
        f"{torch.finfo(torch.float16).max:.0f}, overflows",
        f"bf16 reaches {short(torch.finfo(torch.bfloat16).max)}, which",
        f"with 64^22 = {short(64.0**22)}",
    ),
    10: (
        f"{2.8e12 / 2 / 1e12:.1f}e12 tokens, {1.4e12 / 1.2e6 / DAY_S:.1f} days. "
        f"It reads {1.2 * 2:.1f} MB/s",
    ),
    11: (f"multiples of 512 bytes, it costs {512} for each tensor: nothing for a matrix, "
         f"{512 // 64} bytes a parameter for a vector of 64",),
    12: (
        f"the {2 * 2 * 4 * 4} of the first layer's 2 B D D",
        f"rounded up by at most {max(added(size) for size in range(4, 4096, 4))}: "
        f"11 x 508 = {11 * 508} bytes are 1 % of that at D = "
        f"{next(side for side in range(1, 999) if 32 * side**2 + 12 * side >= 558800)}",
        "below 1 % of the sum",
    ),
    15: (
        f"(1/{2 / torch.finfo(torch.bfloat16).eps * 2:.0f} to "
        f"1/{2 / torch.finfo(torch.bfloat16).eps:.0f} of it)",
        f"2^{math.log2(smallest('float16')):.0f} = {short(smallest('float16'))}, and gradients "
        f"up to half of that, "
        f"{short(smallest('float16') / 2)}, are 0",
        f"is 2 + 2 + 4 + 8 = {2 + 2 + 4 + 8} bytes",
        f"counts {2 + 2 + 8}, without",
    ),
    16: (
        f"one of 16 bits for 32 weights makes {4 + 16 / 32}",
        f"an e4m3 for 16 weights also {FORMATS['nvfp4'].bits_per_number:.1f}",
        f"for 128 weights: {4 + 2 * 16 / 128}",
        f"{FP8 / 1e12:.0f}e12 / {MEMORY / 1e12:.2f}e12 = {FP8 / MEMORY:.0f} FLOPs a byte, hence "
        f"some {FP8 / MEMORY / 2:.0f} sequences",
    ),
    17: (
        f"{TABLE / 1e9:.2f} B of {LLAMA_SIZE / 1e9:.2f} B in a table that is only looked up, so "
        f"its matrices take "
        f"{LLAMA_MATRICES / 1e9:.1f} GFLOPs a token forward where 2 N is "
        f"{2 * LLAMA_SIZE / 1e9:.1f}; attention in "
        f"full at 8192 tokens takes {FORWARD.attention.value / 1e9:.1f} more, and the rule is "
        f"{1 - 2 * LLAMA_SIZE / FORWARD.forward.value:.0%} too low".replace("%", " %"),
        f"d = {GPT2.width} that is {6 * GPT2.width} tokens; causal attention needs half of the "
        f"scores, then {12 * GPT2.width}",
    ),
    18: (
        f"5 x 2 + 4 x 3 = {5 * 2 + 4 * 3} tensors of 2 n bytes, "
        f"{22 * 2 * 16384**2 / 2**30:.0f} GiB here",
    ),
    19: (
        f"one of {8 * 80} GB",
        f"bytes of gradients: {2 * 7 / 8 * 2:.1f} P for n = 8",
        f"x 2 P = {3 * 7 / 8 * 2:.2f} P",
        f"{16} bytes",
    ),
}  # fmt: skip
"""By page; a phrase stands there word by word."""

GIVEN: dict[int, dict[str, str]] = {
    1: {
        "sold as 80 GB and has 80 GiB of chips": "NVIDIA's data sheet",
        "The lecture counts 80e9 bytes": LECTURE,
        "The lecture of 2025": LECTURE,
        "the one of 2026": LECTURE,
        "the lecture of 2026": LECTURE,
    },
    2: {"[page 16]": "a link"},
    3: {
        "published for the A100 (5120 bytes a clock)": "NVIDIA A100 whitepaper, A100 L2 Cache",
        "PCIe 5.0 with 16 lanes": "chips.toml: host_link of H100-SXM",
        "takes some 600 MiB (an estimate)": "the page's exercise prints what is not free",
    },
    4: {"steps through the first two dimensions are 4 and 12 apart": "strides (4, 12, 1) above it"},
    5: {"transpose(-2, -1)": "code", "what -2 and -1 are": "code"},
    6: {
        "GPT-3 (2020) | 3.14e23": "Brown et al. 2020, arXiv 2005.14165, table D.1",
        "GPT-4 (2023), a guess | 2e25": LECTURE,
        "order of 2023, revoked in 2025 | 1e26": "Executive Order 14110, section 4.2(b)",
        "8 * (60 * 60 * 24 * 7) * h100_flop_per_sec": LECTURE,
        "have 1000 times the FLOPs": "the exercise's question",
    },
    7: {
        "printed 53.9 TFLOP/s (MFU 0.799) in fp32 and 463.9 TFLOP/s (0.469)": LECTURE,
        "At or over 0.5 is good": LECTURE,
        "The lecture has 67.5e12": LECTURE,
    },
    8: {"(2024)": LECTURE, "mended in 2025": LECTURE},
    9: {
        "show 18.9 and -1.5 (2025), 61.7 and 0.6 (2024)": LECTURE,
        "ten layers of width 4096": "the exercise's question",
        "the largest of 16 x 4096 outputs": "the block below it",
    },
    10: {"2.8 TB of LLaMA's data": LECTURE, "2.8 TB of tokens": LECTURE,
         "at the 1.2 M tokens/s of page 1": "page 1 prints tokens/s 1.21 M/s"},
    11: {},
    12: {},
    13: {"weights are 0, 1, ..., 15": "torch.arange(16) in the block below it"},
    14: {
        "3.5 GB/s is what a data centre's disk": "heise.de/-4720224",
        "Llama 3's 16,384 GPUs": "arXiv 2407.21783, section 3.3",
        "section 3.3.1": "a link",
        "section 3.3.4": "a link",
        "Young, 1974": "CACM 17(9), 530",
    },
    15: {"is faster\" (2025)": LECTURE, "the lecture of 2026": LECTURE},
    19: {"The bill of page 12": "a link"},
}  # fmt: skip
"""By page: phrases whose figures others published, or that only name something, and where from."""

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?: \d{3})*(?:\.\d+)?(?:e-?\d+)?")
BLOCK = re.compile(r"^```.*?^```$", re.M | re.S)


def prose(page: str) -> str:
    """A page's sentences on one line, without title, blocks, captions, anchors, addresses."""
    text = re.sub(r"^(# .*|!\[.*)$", "", BLOCK.sub("", page), flags=re.M)
    text = re.sub(r'<a id="[^"]*"></a>', "", text)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def held(number: int) -> tuple[str, ...]:
    """The phrases of a page whose figures are computed or given."""
    return (*COMPUTED.get(number, ()), *GIVEN.get(number, {}))


def missing_phrases(number: int, page: str) -> list[str]:
    """Phrases that the page does not say: its figures or its words differ."""
    return [phrase for phrase in held(number) if phrase not in prose(page)]


def unheld_figures(number: int, page: str) -> list[str]:
    """Numbers of the prose that nothing holds: neither a phrase nor a block of the page."""
    text = prose(page)
    for phrase in sorted(held(number), key=len, reverse=True):
        text = text.replace(phrase, " ")
    printed = {digits(match) for block in BLOCK.findall(page) for match in NUMBER.findall(block)}
    return [
        match
        for match in NUMBER.findall(text)
        if len(digits(match)) > 1 and digits(match) not in printed
    ]


def digits(number: str) -> str:
    return re.sub(r"[ ,]", "", number)


PRODUCT_ROW = re.compile(
    r"^\| (?P<name>FLOP/s of the product|its MFU|its seconds|its FLOP/s)[^|]*\|[^|]*"
    r"\|(?P<ours>[^|]*)\|",
    re.M,
)


def unprinted_predictions(numbers: str) -> list[str]:
    """What numbers.md says of the product's speed, and its own commands do not print."""
    printed = " ".join(BLOCK.findall(numbers))
    return [
        figure
        for row in PRODUCT_ROW.finditer(numbers)
        for figure in re.findall(r"[\d.]+(?:e12)?", row["ours"])
        if figure not in printed
    ] + [
        phrase
        for call_s in re.findall(r"bfloat16: ([\d.]+) s", printed)
        for phrase in (
            f"predicted are {1e3 * float(call_s):.2f} ms for one",
            f"{5 * (18.96 - 1e3 * float(call_s)):.1f} ms to explain",
        )
        if phrase not in " ".join(numbers.split())
    ]
