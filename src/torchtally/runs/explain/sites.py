"""Python stacks of a profiler as places of a trace.

The profiler names a call by the file and *first* line of its function, and a module by its class
and a counter ("nn.Module: Linear_3"). Paths of installed packages and of the script's folder are
both relative to an entry of `sys.path`, so which is which is told by the name of the package.
"""

import re
import sys
from functools import cache
from importlib.metadata import packages_distributions

from torchtally.profiles import Profile
from torchtally.profiles.profile import NOWHERE
from torchtally.trace import Frame, Site

FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.+)", re.DOTALL)
MODULE = "nn.Module: "
INSTALLED = ("site-packages/", "dist-packages/")
INTERNAL = ("torch/", "torch\\", "torchtally/", "<")
MOST_FRAMES = 40

NO_SITE = Site("", "", ())
DRIVERS = frozenset(
    """
    accelerate apex composer datasets deepspeed diffusers einops fairscale fastai flash_attn
    huggingface_hub ignite jaxtyping lightning lightning_fabric liger_kernel litgpt megatron
    mmengine numpy peft pytorch_lightning sentence_transformers sglang timm torchaudio torchtitan
    torchtune torchvision tqdm transformer_engine transformers triton trl ultralytics unsloth vllm
    xformers
    """.split()
)
"""Packages that call models, known as such also where they are not installed."""


class Sites:
    """The distinct places of a profile, by number; the first is nowhere."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._numbers: dict[Site, int] = {NO_SITE: 0}
        self._by_stack: dict[int, int] = {NOWHERE: 0}

    def number(self, stack: int) -> int:
        number_of_site = self._by_stack.get(stack)
        if number_of_site is None:
            site = self._site(stack)
            number_of_site = self._by_stack[stack] = self._numbers.setdefault(
                site, len(self._numbers)
            )
        return number_of_site

    @property
    def table(self) -> tuple[Site, ...]:
        return tuple(self._numbers)

    def recomputes(self, stack: int) -> bool:
        """Whether it is below torch.utils.checkpoint."""
        return any("torch/utils/checkpoint.py" in name for name in self._names(stack))

    def _names(self, stack: int) -> list[str]:
        """Innermost first."""
        names = []
        while stack != NOWHERE:
            row = self._profile.stacks[stack]
            names.append(row.name)
            stack = row.parent
        return names

    def _site(self, stack: int) -> Site:
        frames: list[Frame] = []
        modules: list[str] = []
        for name in self._names(stack):
            if name.startswith(MODULE):
                # "Linear_3" is the third Linear that was called: "Linear.3", so that views see a
                # repeated module as they do in a list of modules.
                class_name, _, number = name.removeprefix(MODULE).rpartition("_")
                modules.append(f"{class_name}.{number}" if class_name else number)
            elif (python_frame := frame(name)) is not None and len(frames) < MOST_FRAMES:
                frames.append(python_frame)
        path = ".".join(reversed(modules))
        innermost = modules[0].partition(".")[0] if modules else ""
        return Site(path, innermost, tuple(frames))


@cache
def frame(name: str) -> Frame | None:
    """None for torch's own code, Python's, and functions in C."""
    match = FRAME.fullmatch(name)
    if match is None or match["file"].startswith(INTERNAL) or is_of_python(match["file"]):
        return None
    function = match["function"]
    return Frame(
        match["file"], int(match["line"]), function, f"def {function}", is_own(match["file"])
    )


def is_of_python(path: str) -> bool:
    if any(part in path for part in INSTALLED):
        return "/torch/" in path
    top = path.split("/")[0].removesuffix(".py")
    is_absolute = path.startswith("/")
    return "/lib/python3" in path if is_absolute else top in sys.stdlib_module_names


def is_own(path: str) -> bool:
    """The script's own code, as far as its path tells."""
    if any(part in path for part in INSTALLED):
        return False
    top, slash, _ = path.partition("/")
    return not slash or top == "" or (top not in DRIVERS and top not in installed_packages())


@cache
def installed_packages() -> frozenset[str]:
    """Top-level packages that are installed here."""
    return frozenset(packages_distributions())
