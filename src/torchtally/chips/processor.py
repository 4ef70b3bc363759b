"""What a CPU is, and could do at best, by what the operating system says of it."""

import platform
from pathlib import Path

FLOPS_PER_CYCLE = (("avx512f", 64.0), ("fma", 32.0), ("avx", 16.0))
"""Of one core in float32, by the widest instructions that it knows: two units, each a multiply and
an add (AVX without FMA: one unit of each) on 16 or 8 numbers at a time. Intel, "64 and IA-32
Architectures Optimization Reference Manual", chapter 2. Some Xeons have one unit for 512 bits, and
AMD's before Zen 5 do those in two halves: such CPUs reach half of this.
"""


def model_name(cpuinfo: str) -> str:
    """The CPU's own name in the text of Linux' /proc/cpuinfo; "" where it has none."""
    return next((processor.get("model name", "") for processor in _processors(cpuinfo)), "")


def processor_name() -> str:
    """What the operating system calls this machine's CPU; "" where nothing tells."""
    try:
        return model_name(Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:
        return platform.processor()


def estimated_flop_per_s(cpuinfo: str, threads: int | None = None) -> float | None:
    """Cores x clock x FLOPs per cycle in float32; None where the text does not tell one of them.

    Of `threads` cores at most. The clock is the fastest that a core shows at this moment: not the
    highest it may rise to for a while.
    """
    processors = _processors(cpuinfo)
    cores = {
        (processor.get("physical id", ""), processor.get("core id", str(n)))
        for n, processor in enumerate(processors)
    }
    clocks_hz = [_number(processor.get("cpu MHz", "")) * 1e6 for processor in processors]
    flags = set(processors[0].get("flags", "").split()) if processors else set()
    per_cycle = next((flops for flag, flops in FLOPS_PER_CYCLE if flag in flags), None)
    clock_hz = max(clocks_hz, default=0.0)
    if per_cycle is None or clock_hz <= 0:
        return None
    return min(len(cores), threads or len(cores)) * clock_hz * per_cycle


def _processors(cpuinfo: str) -> list[dict[str, str]]:
    """A block of "key : value" for each processor."""
    blocks = (block.splitlines() for block in cpuinfo.split("\n\n") if block.strip())
    pairs = ([line.partition(":") for line in block if ":" in line] for block in blocks)
    return [{key.strip(): value.strip() for key, _, value in block} for block in pairs]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
