"""What is known of one accelerator: types without a single number in them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from torchtally.chips.capabilities import CDNA4, OTHER, ROCM, Capability, capability
from torchtally.errors import UnsupportedError, UsageError

PEAK_DTYPES = (
    "float64",
    "float64_vector",
    "float32",
    "tf32",
    "float16",
    "float16_accumulate_float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fn_accumulate_float16",
    "float8_e4m3fnuz",
    "float4_e2m1fn_x2",
    "int8",
)
"""What a peak can be given for: torch's dtypes of the inputs, and four that torch has no name for.

Sums are kept in float32. "tf32" is float32 inputs with TF32 allowed. "float64" is the matrix unit
where there is one, "float64_vector" is without it. "..._accumulate_float16" is the faster rate
that GeForce keeps for sums in half precision.
"""

GCN = re.compile(r"gfx(\d+)(\d)[0-9a-f]")
"""LLVM's names of AMD's targets: generation, minor version, stepping."""
SAME_RATE = {"float8_e5m2": "float8_e4m3fn", "float8_e5m2fnuz": "float8_e4m3fnuz"}
"""Both 8-bit formats go through the same multipliers, so one number serves both."""


SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Peak:
    """A promised dense rate, in FLOP/s (operations per second for int8)."""

    flop_per_s: float
    source: str
    sparse_flop_per_s: float | None = None
    """The rate with 2:4 sparsity, where the vendor prints that one: twice the dense rate."""
    note: str = ""
    achieved_flop_per_s: float | None = None
    """The best that somebody measured and published, for large matrix products: not a promise."""
    achieved_source: str = ""
    """Where that was published, and on what it was measured. Never empty beside a figure."""


@dataclass(frozen=True, slots=True)
class Link:
    """A way out of the chip. Speeds are per direction; vendors often print the sum of both."""

    name: str
    bytes_per_s_per_direction: float | None = None
    chips: int | None = None
    """How many chips it joins at most, as 2 for a bridge. None: all those of a node."""
    has_multicast: bool = False
    """Its switch sends to many and adds up on the way (NVLink SHARP), so NCCL can use NVLS."""
    mesh: str = ""
    """How links join chips of a node directly, where there is no switch: a name of `MESHES`."""
    latency_s: float | None = None
    """What it takes longer than InfiniBand or RoCE within one data centre. None: nothing."""


@dataclass(frozen=True, slots=True)
class Node:
    """The server that a chip is usually sold in."""

    gpus: int
    name: str
    source: str
    network: Link | None = None
    """From one of its chips to another node: each chip's own share, in each direction."""
    network_cards: int | None = None
    """Cards (NICs) that carry that network. None: one for each chip."""
    cpu: str = ""
    """The vendor of its CPUs: "Intel", "AMD" or "Arm"; "" where no source gives it."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A chip of the same family that was measured."""

    chip: str
    reason: str
    """Why its rates hold: what the two have in common."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one seller asks for one chip on one day."""

    usd_per_hour: float
    source: str
    as_of: str
    """The day of the offer, as "2026-06-30", or as much of it as is known: "2026-06", "2026"."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Price:
    """What a chip costs: the median of the offers that are known, of which there is one at least.

    Sellers ask two to four times as much as others, so one offer is not the market.
    """

    offers: tuple[Offer, ...]

    @property
    def usd_per_hour(self) -> float:
        return median(offer.usd_per_hour for offer in self.offers)

    def cost_usd(self, seconds: float) -> float:
        """Cost of one chip for so long; of a started hour a part."""
        return seconds / SECONDS_PER_HOUR * self.usd_per_hour

    @property
    def lowest(self) -> float:
        return min(offer.usd_per_hour for offer in self.offers)

    @property
    def highest(self) -> float:
        return max(offer.usd_per_hour for offer in self.offers)

    @property
    def as_of(self) -> str:
        """Date of the oldest offer."""
        return min(offer.as_of for offer in self.offers)

    @property
    def source(self) -> str:
        """Who offers it."""
        return "; ".join(offer.source for offer in self.offers)

    @property
    def note(self) -> str:
        """How far to trust it."""
        if len(self.offers) == 1:
            (offer,) = self.offers
            return f"one offer of {offer.as_of}, not the market" if offer.as_of else ""
        return f"median of {self.many}, ${self.lowest:.2f} to ${self.highest:.2f}/h"

    @property
    def many(self) -> str:
        """How many offers of when: "4 offers of 2025 to 2026"."""
        years = sorted({offer.as_of[:4] for offer in self.offers if offer.as_of})
        when = " to ".join(dict.fromkeys((years[0], years[-1]))) if years else ""
        return f"{len(self.offers)} offers" + (f" of {when}" if when else "")


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What torch.cuda.get_device_properties says, by torch's names. None: no source gives it."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int | None
    L2_cache_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator as PyTorch sees one device. What no source gives is None or absent."""

    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    """Total memory as the driver's tool shows it; the label's figure if `is_memory_estimated`."""
    memory_bandwidth_bytes_per_s: float
    """As promised: no kernel reaches it."""
    peaks: Mapping[str, Peak] = field(hash=False)
    source: str
    """Where every number comes from, but for those in `sources`."""
    sources: Mapping[str, str] = field(hash=False, default_factory=dict)
    """Field name to source, for numbers that come from somewhere else."""
    aliases: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    """Names of whole families, of which it is the commonest variant."""
    driver_names: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    boost_clock_hz: float | None = None
    """The fastest clock that is promised. Power may hold a busy chip well below it."""
    tensor_clock_hz: float | None = None
    """The clock of the promised tensor rates, where it is not `boost_clock_hz`."""
    l2_cache_bytes: int | None = None
    program_memory_bytes: int | None = None
    """What a program is told it has: less than `memory_bytes` by what the driver keeps."""
    memory_label_bytes: int | None = None
    memory_type: str = ""
    is_memory_estimated: bool = False
    achieved_bandwidth_bytes_per_s: float | None = None
    """The best that somebody measured and published, reading and writing device memory."""
    link: Link | None = None
    host_link: Link | None = None
    node: Node | None = None
    tdp_watts: float | None = None
    measured_as: Sibling | None = None
    memory_as: Sibling | None = None
    """The one whose memory is nearer, where that is another."""
    inherited: Mapping[str, str] = field(hash=False, default_factory=dict)
    """Field name, or dtype of a peak, to the chip whose measurement or number it is scaled from."""
    price: Price | None = None
    note: str = ""

    def __repr__(self) -> str:
        return f"<Chip {self.name}: {self.architecture}, {self.memory_bytes} bytes>"

    @property
    def device_name(self) -> str:
        """The full name, as the driver and torch.cuda.get_device_name report it."""
        return self.driver_names[0] if self.driver_names else self.name

    @property
    def label_bytes(self) -> int:
        """The memory that people call the chip by."""
        return self.memory_label_bytes or self.memory_bytes

    @property
    def total_memory_bytes(self) -> int:
        """What a program can have at most: torch's total_memory, as closely as it is known."""
        return self.program_memory_bytes or self.memory_bytes

    @property
    def gcn_architecture(self) -> str:
        """LLVM's target of an AMD GPU, "gfx942"; "" for any other chip."""
        target = self.architecture.rpartition(" ")[2]
        return target if self.vendor == "AMD" and GCN.fullmatch(target) else ""

    @property
    def is_cuda(self) -> bool:
        """A CUDA device: torch's operators run on it by CUDA's libraries, which are modelled."""
        return self.compute_capability is not None

    @property
    def is_torch_cuda(self) -> bool:
        """A "cuda" device of torch's: CUDA's, or ROCm's."""
        return self.device_version is not None

    @property
    def sm(self) -> Capability:
        """What its multiprocessors can do, and CUDA's libraries on them."""
        if self.compute_capability is not None:
            return capability(self.compute_capability)
        gcn = self.gcn_architecture
        return (CDNA4 if gcn.startswith("gfx95") else ROCM) if gcn else OTHER

    @property
    def target(self) -> str:
        """A compiler's name of a CUDA device, "sm_90": chips of one target run the same kernels."""
        return "sm_{}{}".format(*self.compute_capability) if self.compute_capability else ""

    def with_target(self, target: str) -> "Chip":
        """The same chip, for which kernels of another target are chosen."""
        number = int(target.removeprefix("sm_"))
        return replace(self, compute_capability=divmod(number, 10))

    @property
    def capability_name(self) -> str:
        """The compute capability as nvidia-smi and data sheets write it, "9.0".

        "" of what is no CUDA device.
        """
        return "{}.{}".format(*self.compute_capability) if self.compute_capability else ""

    @property
    def device_version(self) -> tuple[int, int] | None:
        """What torch calls the capability of a "cuda" device; None of what is none.

        CUDA's compute capability, or of ROCm the target's first two numbers: (9, 4) of gfx942.
        """
        target = GCN.fullmatch(self.gcn_architecture)
        return (int(target[1]), int(target[2])) if target else self.compute_capability

    @property
    def properties(self) -> DeviceProperties:
        """The answer to torch.cuda.get_device_properties.

        Raises UnsupportedError for a chip that is not a CUDA device.
        """
        if self.device_version is None:
            raise UnsupportedError(
                f"{self.name} is not a CUDA device (no compute capability is known for it), "
                "so a script cannot ask for its CUDA properties. `tally gpus` lists those that are."
            )
        major, minor = self.device_version
        return DeviceProperties(
            name=self.device_name,
            major=major,
            minor=minor,
            total_memory=self.total_memory_bytes,
            multi_processor_count=self.multiprocessors,
            L2_cache_size=self.l2_cache_bytes,
        )

    @property
    def is_measured(self) -> bool:
        """Somebody published what it reaches itself, of products or of its memory's bandwidth."""
        reached = {dtype: peak.achieved_flop_per_s for dtype, peak in self.peaks.items()}
        reached["achieved_bandwidth_bytes_per_s"] = self.achieved_bandwidth_bytes_per_s
        return any(rate and name not in self.inherited for name, rate in reached.items())

    @property
    def siblings(self) -> tuple[str, ...]:
        """Chips by whose rates it is predicted where it has none of its own."""
        return tuple(dict.fromkeys(self.inherited.values()))

    def peak(self, dtype: str) -> Peak:
        """The dense peak for products of this dtype, spelled as torch does ("torch." may lead).

        Raises UsageError when the chip has no such number, as for bfloat16 on a V100.
        """
        plain = dtype.removeprefix("torch.")
        peak = self.peaks.get(SAME_RATE.get(plain, plain))
        if peak is None:
            raise UsageError(
                f"{self.name} has no peak for {plain}: its hardware has no such unit, or no source "
                f"gives the rate. It has {', '.join(sorted(self.peaks)) or 'none'}."
            )
        return peak

    def peak_flop_per_s(self, dtype: str) -> float:
        """The dense peak in FLOP/s. Raises UsageError when the chip has no such number."""
        return self.peak(dtype).flop_per_s

    def with_memory(self, memory_bytes: int) -> "Chip":
        """The same chip with so much memory for a program, at its user's word."""
        return replace(
            self,
            memory_bytes=memory_bytes,
            program_memory_bytes=None,
            sources={**self.sources, "memory_bytes": "yours"},
        )

    def with_peak(self, dtype: str, flop_per_s: float) -> "Chip":
        """The same chip with another promise for one dtype, at its user's word."""
        plain = SAME_RATE.get(dtype, dtype)
        promised = self.peaks.get(plain)
        peak = (
            replace(promised, flop_per_s=flop_per_s, source="yours")
            if promised
            else Peak(flop_per_s, "yours")
        )
        return replace(self, peaks={**self.peaks, plain: peak})

    def source_of(self, fact: str) -> str:
        """Source of the number in this field."""
        return self.sources.get(fact, self.source)
