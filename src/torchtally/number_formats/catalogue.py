"""The formats, one row each: bits, names, what trainings use them for, who computes in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from torchtally.chips import SAME_RATE, Chip
from torchtally.errors import UsageError, did_you_mean
from torchtally.number_formats.blocks import BlockLayout, microscaling, nvfp4, symmetric
from torchtally.number_formats.layout import FloatLayout, IntegerLayout, Layout, Top

MX = BlockLayout(32, microscaling, (8,))
NVFP4 = BlockLayout(16, nvfp4, (1, 4, 3), needs_tensor=True)
ROW = BlockLayout(None, symmetric, (1, 8, 23))
GROUP = BlockLayout(128, symmetric, (1, 8, 23))
CDNA4 = "CDNA4"
"""AMD's architecture whose matrix cores read MX formats: CDNA 4 instruction set, V_MFMA_SCALE."""


def has_no_unit(_: Chip) -> bool:
    """No chip has a unit that its rates do not show."""
    return False


def has_block_scales(chip: Chip) -> bool:
    """NVIDIA's GPUs since Blackwell; other vendors' are named by their architectures."""
    return chip.is_cuda and chip.sm.has_block_scales


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """One way to store numbers."""

    name: str
    layout: Layout
    """Of one element."""
    use: str
    """In trainings and in inference."""
    source: str
    """Of the layout."""
    torch_name: str = ""
    """The dtype of torch, where it has one."""
    aliases: tuple[str, ...] = ()
    blocks: BlockLayout | None = None
    """How numbers share a scale. None: each stands for itself."""
    stored_bits: int | None = None
    """Of one element in memory, where it is more than the layout's."""
    note: str = ""
    peak: str = ""
    """The key of the chips' promised rates, where that is not `torch_name`."""
    unit: Callable[[Chip], bool] = has_no_unit
    """Which of NVIDIA's GPUs multiply it, besides those with a rate."""
    architectures: tuple[str, ...] = ()
    """Of other vendors, where chips of the table compute in it without a rate of its own."""

    @property
    def element_bits(self) -> int:
        return sum(self.layout.widths)

    @property
    def bits_per_number(self) -> float:
        """Bits in memory, with a number's part of the block's scale. A row's scale is too little to
        count.
        """
        bits = float(self.stored_bits or self.element_bits)
        if self.blocks is not None and self.blocks.size is not None:
            bits += sum(self.blocks.widths) / self.blocks.size
        return bits

    @property
    def letters(self) -> str:
        """The bits as letters, s for the sign, e for the exponent, m for the mantissa: "s ee m"."""
        if isinstance(self.layout, IntegerLayout):
            return "i" * self.layout.bits
        return " ".join(
            letter * width for letter, width in zip("sem", self.layout.widths, strict=True)
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.name, self.torch_name, *self.aliases) if name)

    def is_computed_by(self, chip: Chip) -> bool:
        """Whether the chip's matrix units, or the vector units for lack of them, multiply it."""
        key = self.peak or self.torch_name
        if key and SAME_RATE.get(key, key) in chip.peaks:
            return True
        if self.unit(chip):
            return True
        return chip.architecture.startswith(self.architectures) if self.architectures else False


IEEE = "IEEE 754-2019, table 3.5"
OFP8 = "OCP 8-bit Floating Point Specification 1.0; arXiv 2209.05433"
OCP_MX = "OCP Microscaling Formats Specification 1.0; arXiv 2310.10537"
E5M2 = FloatLayout(5, 2)
E4M3 = FloatLayout(4, 3, Top.ONE_NAN)
E3M2 = FloatLayout(3, 2, Top.NUMBERS)
E2M3 = FloatLayout(2, 3, Top.NUMBERS)
E2M1 = FloatLayout(2, 1, Top.NUMBERS)

_LISTED = (
    NumberFormat(
        name="fp64", torch_name="float64", aliases=("double",), layout=FloatLayout(11, 52),
        use="checking gradients (gradcheck) and scientific computing; Python's own float",
        source=IEEE, unit=attrgetter("is_cuda"),
    ),
    NumberFormat(
        name="fp32", torch_name="float32", aliases=("float", "single"), layout=FloatLayout(8, 23),
        use="torch's default; master weights, optimizer state, sums inside products, losses",
        source=IEEE,
    ),
    NumberFormat(
        name="tf32", layout=FloatLayout(8, 10), stored_bits=32, peak="tf32",
        use='products of fp32 matrices, by torch.set_float32_matmul_precision("high")',
        note="stored as fp32; the matrix unit reads the first 19 bits of it",
        source="NVIDIA, A100 Tensor Core GPU Architecture",
    ),
    NumberFormat(
        name="fp16", torch_name="float16", aliases=("half",), layout=FloatLayout(5, 10),
        use="mixed precision with loss scaling, on chips without bf16; inference",
        source=IEEE,
    ),
    NumberFormat(
        name="bf16", torch_name="bfloat16", layout=FloatLayout(8, 7),
        use="weights, activations, gradients and products of most training: the range of fp32",
        source="arXiv 1905.12322",
    ),
    NumberFormat(
        name="fp8_e4m3", torch_name="float8_e4m3fn", aliases=("e4m3", "e4m3fn"), layout=E4M3,
        use="weights and activations in products, with a scale for each tensor, row or block",
        note="without inf; what is too large saturates, before PyTorch 2.13 it was NaN on the CPU",
        source=OFP8,
    ),
    NumberFormat(
        name="fp8_e5m2", torch_name="float8_e5m2", aliases=("e5m2",), layout=E5M2,
        use="gradients in the products of the backward pass: more range, fewer digits",
        source=OFP8,
    ),
    NumberFormat(
        name="fp6_e3m2", aliases=("e3m2",), layout=E3M2,
        use="elements of MX blocks; weights at inference",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="fp6_e2m3", aliases=("e2m3",), layout=E2M3,
        use="elements of MX blocks; weights at inference",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="fp4_e2m1", torch_name="float4_e2m1fn_x2", aliases=("e2m1", "fp4"), layout=E2M1,
        use="elements of MX and NVFP4 blocks, never alone; torch packs two into a byte",
        source=OCP_MX, unit=has_block_scales,
    ),
    NumberFormat(
        name="mxfp8_e4m3", layout=E4M3, blocks=MX,
        use="all products of a training on Blackwell, gradients too (arXiv 2506.08027)",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="mxfp8_e5m2", layout=FloatLayout(5, 2, saturates=True), blocks=MX,
        use="gradients, where e4m3 is too narrow for a block",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="mxfp6_e3m2", layout=E3M2, blocks=MX,
        use="inference; trainings so far are studies (arXiv 2310.10537)",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="mxfp6_e2m3", layout=E2M3, blocks=MX,
        use="inference; weights and activations of studies (arXiv 2310.10537)",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="mxfp4", aliases=("mxfp4_e2m1",), layout=E2M1, blocks=MX,
        use="weights of experts, as gpt-oss is published; inference",
        source=OCP_MX, unit=has_block_scales, architectures=(CDNA4,),
    ),
    NumberFormat(
        name="nvfp4", layout=E2M1, blocks=NVFP4,
        use="inference, and trainings with a few layers in bf16 (arXiv 2509.25149)",
        note="each tensor has one fp32 scale more",
        source="arXiv 2509.25149, section 2", unit=has_block_scales,
    ),
    NumberFormat(
        name="int8", torch_name="int8", layout=IntegerLayout(8), blocks=ROW,
        use="inference: weights and activations, one scale for a row (LLM.int8())",
        source="arXiv 2208.07339, section 2.1",
    ),
    NumberFormat(
        name="int4", layout=IntegerLayout(4), blocks=GROUP,
        use="weights at inference, one scale for a group of 128 (GPTQ, AWQ)",
        note="products are taken in fp16 or bf16, but for the int4 units from Turing to Ada",
        source="arXiv 2210.17323, section 5", unit=attrgetter("sm.has_int4"),
    ),
)  # fmt: skip
FORMATS: Mapping[str, NumberFormat] = {listed.name: listed for listed in _LISTED}


def choose_formats(names: Sequence[str]) -> tuple[NumberFormat, ...]:
    """The formats of these names, as torch spells them or we do; "mxfp8" are all that begin so.

    All formats where no name is given. Raises UsageError for an unknown one.
    """
    if not names:
        return _LISTED
    rows = [row for name in names for row in _format_named(name)]
    return tuple(dict.fromkeys(rows))


def _format_named(name: str) -> tuple[NumberFormat, ...]:
    bare = name.strip().lower().removeprefix("torch.")
    exact = tuple(row for row in _LISTED if bare in row.names)
    begun = tuple(row for row in _LISTED if row.name.startswith(f"{bare}_"))
    if not (exact or begun):
        known = [known for row in _LISTED for known in row.names]
        raise UsageError(f"Unknown number format {name[:40]!r}. {did_you_mean(bare, known)}")
    return exact or begun
