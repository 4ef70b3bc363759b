"""How long operators take on one chip: by its data sheet, and by measurements where there are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torchtally.chips import Chip
from torchtally.timing.calibration import Calibration, Issue
from torchtally.timing.calibration.features import is_tf32
from torchtally.timing.hosts import NO_HOST, HostCpu, host_of
from torchtally.timing.roofline.calibrated import Corrections
from torchtally.timing.roofline.collectives import Communicators
from torchtally.timing.roofline.datasheet import datasheet_kernel
from torchtally.timing.roofline.host import host_kernel
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.launches import is_in_graph, launches_of
from torchtally.timing.roofline.limits import gap_s
from torchtally.timing.roofline.rates import peak_of
from torchtally.timing.roofline.shared_power import (
    MULTIPLYING,
    Draw,
    product_draw,
    shares_power,
    waiting_draw,
)
from torchtally.timing.stragglers import slowest_of
from torchtally.trace import Call, ProcessGroup, World
from torchtally.work import Cost, Kind, cost_of, heart_of


@dataclass(frozen=True)
class Roofline:
    """One chip, and the calibration of such a device where there is one."""

    chip: Chip
    calibration: Calibration | None = None
    ranks: Communicators | None = None
    """Who communicates, in a run of several ranks."""
    host: HostCpu | None = None
    """The CPU that issues, in place of the calibrated one and of the chip's usual one."""

    def __repr__(self) -> str:
        basis = "data sheet" if self.calibration is None else "calibrated"
        return f"<Roofline of {self.chip.name}: {basis}>"

    def within(self, world: World, groups: Sequence[ProcessGroup]) -> "Roofline":
        """The same chip as one of many; itself for a run that communicates with nobody."""
        return replace(self, ranks=Communicators(world, groups)) if world.size > 1 else self

    @property
    def is_host(self) -> bool:
        """The chip is the CPU that runs the script: nothing overlaps with issuing operators."""
        return self.chip.vendor == "CPU"

    @property
    def issue(self) -> Issue:
        if self.host is None and self.calibration is not None:
            return self.calibration.issue
        return (self.host or host_of(self.chip)).issue

    def kernel(self, call: Call, kind: Kind, cost: Cost) -> Kernel:
        """The call by itself, of several ranks on the slowest of their GPUs. A product is never
        faster than the chip's data-sheet peak.

        Raises UsageError where the chip lacks a number that the time depends on.
        """
        modelled = self._model(call, kind, cost)
        if modelled.seconds > 0 and not modelled.bound.is_link and self.ranks is not None:
            modelled = replace(modelled, seconds=modelled.seconds * self.slowest)
        if self._corrections is None or modelled.seconds <= 0:
            return modelled
        factor, is_calibrated = self._corrections.factor(call, kind, cost)
        seconds = max(modelled.seconds * factor, self._floor_s(call, kind, cost))
        return replace(modelled, seconds=seconds, is_calibrated=is_calibrated)

    def gap_s(self, call: Call, kind: Kind, cost: Cost) -> float:
        """What passes before each of the call's kernels where they queue, together."""
        is_captured = is_in_graph(call) or self.host == NO_HOST
        return launches_of(call, kind, cost) * gap_s(self.chip, is_in_graph=is_captured)

    @property
    def shares_power(self) -> bool:
        """Products take as long as the kernels around them let them: ask `draw`."""
        return self._unlimited is not None

    def draw(self, call: Call, kind: Kind, cost: Cost, kernel: Kernel) -> Draw | None:
        """What the call's kernels take of the chip's power; None where it shares none."""
        if self._unlimited is None or kernel.seconds <= 0:
            return None
        if kind in MULTIPLYING:
            unlimited = self._unlimited.kernel(call, kind, cost)
            return product_draw(kernel, unlimited, call, cost, self.chip)
        return waiting_draw(kernel, self.chip)

    @cached_property
    def _unlimited(self) -> "Roofline | None":
        """The roofline without a limit of power; None where nothing is shared. A calibrated
        device's clocks are in its samples.
        """
        if self.calibration is not None or not shares_power(self.chip):
            return None
        return replace(self, chip=replace(self.chip, tdp_watts=None))

    @property
    def slowest(self) -> float:
        """How many times the mean of its GPUs the slowest one of a run takes."""
        return 1.0 if self.ranks is None else slowest_of(self.ranks.world.size)

    def _model(self, call: Call, kind: Kind, cost: Cost) -> Kernel:
        if not self.is_host:
            return datasheet_kernel(call, kind, cost, self.chip, self.ranks)
        assert self.calibration is not None, "a CPU has no data sheet, only a calibration"
        return host_kernel(call, kind, cost, self.calibration)

    def _queued_kernel(self, call: Call, kind: Kind, cost: Cost) -> Kernel:
        """A kernel as `tally bench` measures it: in a queue behind itself."""
        kernel = self._model(call, kind, cost)
        return replace(kernel, seconds=kernel.seconds + self.gap_s(call, kind, cost))

    def _floor_s(self, call: Call, kind: Kind, cost: Cost) -> float:
        """What physics allows a corrected product."""
        if self.is_host or kind is not Kind.PRODUCT:
            return 0.0
        heart = heart_of(call)
        if heart is not None:
            call, cost = heart, cost_of(heart)[1]
        dtype = "tf32" if is_tf32(call) else call.inputs[-1].dtype
        return cost.flops / peak_of(dtype, self.chip).flop_per_s

    @cached_property
    def _corrections(self) -> Corrections | None:
        if self.calibration is None:
            return None
        samples, reach = self.calibration.samples, self.calibration.reach
        # Samples of a profiler's trace, which have a reach, are of kernels alone.
        model = self._model if reach else self._queued_kernel
        return Corrections(samples, model, reach, has_rules=not self.is_host)
