"""What the measured machine is, and the conditions it was measured under."""

import os
import platform
import shutil
import subprocess

import torch

from torchtally.chips.processor import processor_name


def name(device: torch.device) -> str:
    """What the driver, or the processor itself, calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name() or output_of("sysctl", "-n", "machdep.cpu.brand_string") or "CPU"


def memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def conditions(device: torch.device) -> dict[str, str]:
    """Versions, clocks, limits: whatever is known and may matter."""
    system = f"{platform.system()} {platform.machine()}"
    conditions = {"platform": system, "python": platform.python_version()}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        conditions |= {
            "compute_capability": f"{major}.{minor}",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            **gpu_conditions(device.index or 0),
        }
    else:
        conditions["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    return conditions


QUERIED = tuple(
    """
    driver_version clocks.sm clocks.max.sm clocks.mem power.limit power.draw temperature.gpu
    """.split()
)


def gpu_conditions(index: int) -> dict[str, str]:
    """Conditions as nvidia-smi reports them; empty where nvidia-smi is missing."""
    query = ",".join(QUERIED)
    line = output_of(
        "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", str(index)
    )
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(QUERIED):
        return {}
    return dict(zip(QUERIED, values, strict=True))


def output_of(*command: str) -> str:
    """What a command prints; "" where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
