"""How long operators take on one chip: by its data sheet, and by measurements where there are."""

from dataclasses import dataclass
from functools import cached_property

from torchtally.calibration import Calibration, Issue
from torchtally.calibration.features import is_tf32
from torchtally.cost import Cost, Kind
from torchtally.hardware import Chip
from torchtally.record import Call
from torchtally.roofline.calibrated import Corrections
from torchtally.roofline.datasheet import datasheet_kernel
from torchtally.roofline.host import host_kernel
from torchtally.roofline.kernel import Kernel
from torchtally.roofline.rates import peak_of

ESTIMATED_ISSUE = Issue(
    forward_s=10e-6, backward_s=7e-6, optimizer_s=8e-6, view_s=3e-6, launch_s=3e-6
)
"""What a host takes per operator where nobody measured it: estimates.

Between 5 and 10 us is what PyTorch's own developers give for an eager operator (the figures in
"Accelerating PyTorch with CUDA Graphs", pytorch.org/blog, and in its dispatcher's benchmarks);
modules and autograd come on top in the forward pass. `tally bench` measures it.
"""


@dataclass(frozen=True)
class Roofline:
    """One chip, and what was measured on one like it."""

    chip: Chip
    calibration: Calibration | None = None

    @property
    def is_host(self) -> bool:
        """The chip is the CPU that runs the script: nothing overlaps with issuing operators."""
        return self.chip.vendor == "CPU"

    @property
    def issue(self) -> Issue:
        return ESTIMATED_ISSUE if self.calibration is None else self.calibration.issue

    def kernel(self, call: Call, kind: Kind, cost: Cost) -> Kernel:
        """The call by itself. Nobody is faster than the chip's promised peak for products.

        Raises UsageError where the chip lacks a number that the time depends on.
        """
        modelled = self._model(call, kind, cost)
        if self._corrections is None or modelled.seconds <= 0:
            return modelled
        factor, is_calibrated = self._corrections.factor(call, kind, cost)
        seconds = max(modelled.seconds * factor, self._floor_s(call, kind, cost))
        return Kernel(seconds, modelled.bound, is_calibrated)

    def _model(self, call: Call, kind: Kind, cost: Cost) -> Kernel:
        if not self.is_host:
            return datasheet_kernel(call, kind, cost, self.chip)
        assert self.calibration is not None, "a CPU is known by its calibration alone"
        return host_kernel(call, kind, cost, self.calibration)

    def _floor_s(self, call: Call, kind: Kind, cost: Cost) -> float:
        """What physics allows a corrected product."""
        if self.is_host or kind is not Kind.PRODUCT:
            return 0.0
        dtype = "tf32" if is_tf32(call) else call.inputs[-1].dtype
        return cost.flops / peak_of(dtype, self.chip).flop_per_s

    @cached_property
    def _corrections(self) -> Corrections | None:
        if self.calibration is None:
            return None
        return Corrections(self.calibration.samples, self._model)
