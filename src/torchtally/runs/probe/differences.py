"""Differences between chips in a script's way: what another one would choose, and what it is asked.

A run on one chip speaks for another when attention's kernels are the same on both and the script
never asks the chip for anything that differs. Workspaces differ, too, but their sizes follow from
the calls: see `Allocations.scratch_calls`.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from torchtally.chips import Chip
from torchtally.virtual import attention
from torchtally.virtual.attention import Backend, Query
from torchtally.virtual.stand_ins import StandIn

QUESTIONS = tuple(
    """
    get_device_capability get_device_properties get_device_name get_arch_list is_tf32_supported
    mem_get_info get_memory_info set_per_process_memory_fraction
    """.split()
)
"""Functions of `torch.cuda` and `torch.accelerator` whose answer depends on the chip."""


class Differences:
    """Differences of one run, between its chip and those of other targets."""

    def __init__(self, chip: Chip, others: Sequence[str]) -> None:
        self.chip = chip
        self.alike = {*others, chip.target}
        """Compilers' targets that would have chosen the same kernels so far."""
        self.questions: list[str] = []
        """What the script asked the chip, in its words."""

    def stand_ins(self) -> list[StandIn]:
        questions = [
            StandIn(owner, name, self.noticing(owner, name))
            for owner in (torch.cuda, torch.cuda.memory, torch.accelerator)
            for name in QUESTIONS
            if hasattr(owner, name)
        ]
        emulated: Any = torch.cuda.is_bf16_supported

        def is_bf16_supported(including_emulation: bool = True) -> bool:
            if not including_emulation:
                self.note("torch.cuda.is_bf16_supported")
            answer: bool = emulated(including_emulation)
            return answer

        return [
            *questions,
            StandIn(torch.cuda, "is_bf16_supported", is_bf16_supported),
            StandIn(attention, "choose", self.choose(attention.choose)),
        ]

    def noticing(self, owner: ModuleType, name: str) -> Callable[..., Any]:
        native = getattr(owner, name)

        def ask(*args: Any, **kwargs: Any) -> Any:
            self.note(f"{owner.__name__}.{name}")
            return native(*args, **kwargs)

        return ask

    def note(self, question: str) -> None:
        if question not in self.questions:
            self.questions.append(question)

    def choose(self, native: Callable[[Chip, Query], Backend]) -> Callable[[Chip, Query], Backend]:
        def chosen(chip: Chip, query: Query) -> Backend:
            backend = native(chip, query)
            for other in tuple(self.alike):
                if other != chip.target:
                    try:
                        is_same = native(chip.with_target(other), query) is backend
                    except RuntimeError:  # no kernel at all there
                        is_same = False
                    if not is_same:
                        self.alike.discard(other)
            return backend

        return chosen
