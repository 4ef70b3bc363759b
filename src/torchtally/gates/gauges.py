"""The quantities of a run that can be limited, and what shows where they come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from torchtally.ledger import Ledger, Total
from torchtally.table import Table
from torchtally.units import Unit
from torchtally.views import by
from torchtally.views.lines import lines
from torchtally.views.parameters import parameters_of
from torchtally.views.peak import peak_lines
from torchtally.views.summary import caveats_of, reserved_bytes_of, why_no_time
from torchtally.views.throughput import throughput
from torchtally.views.utilisation import model_utilisation

TOP_LINES = 5


@dataclass(frozen=True, slots=True)
class GaugeReading:
    """What a gauge shows of one run."""

    value: float | None
    """None where it is unknown."""
    doubt: str = ""
    """Why it is unknown, or may be another; "" where it is what it is."""
    is_most: bool | None = False
    """A doubtful value is what the quantity is at most, not at least; None: neither."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A quantity of a run."""

    name: str
    summary: str
    key: str
    """In documents, where the same quantity has one name."""
    unit: Unit
    read: Callable[[Ledger], GaugeReading]
    evidence: Callable[[Ledger], Table]
    """The lines that it comes from, largest first."""
    is_better_lower: bool = True

    def reading(self, ledger: Ledger) -> GaugeReading:
        """Reading of a gauge; of a run that was not the one that was asked for, nothing is
        certain.
        """
        reading = self.read(ledger)
        doubts = caveats_of(ledger)
        return replace(reading, doubt=doubts[0], is_most=None) if doubts else reading


def _sorted_lines(column: str) -> Callable[[Ledger], Table]:
    def table(ledger: Ledger) -> Table:
        by_line = lines(ledger)
        has_column = column in [each.name for each in by_line.columns]
        return (by_line.sorted_by(column) if has_column else by_line).top(TOP_LINES)

    return table


def _peak_lines(ledger: Ledger) -> Table:
    return peak_lines(ledger).top(TOP_LINES)


def _memory_gauge(read: Callable[[Ledger], int]) -> Callable[[Ledger], GaugeReading]:
    """Gauge of memory: exact, but of a run that never used the GPU."""

    def reading(ledger: Ledger) -> GaugeReading:
        if not ledger.memory.device:
            return GaugeReading(None, "nothing was allocated on the GPU")
        return GaugeReading(read(ledger))

    return reading


def _work(read: Callable[[Total], int]) -> Callable[[Ledger], GaugeReading]:
    """Gauge of FLOPs: those of operators without a rule are missing."""

    def reading(ledger: Ledger) -> GaugeReading:
        missing = ledger.coverage.uncounted
        if not ledger.reported:
            return GaugeReading(None, "no operator ran")
        doubt = f"operators without a rule are left out: {_names(missing)}" if missing else ""
        return GaugeReading(read(ledger.total), doubt)

    return reading


def _names(operators: tuple[object, ...]) -> str:
    return ", ".join(str(getattr(operator, "op", ""))[:80] for operator in operators[:3])


def _step(ledger: Ledger) -> GaugeReading:
    if ledger.step_s is None or not ledger.reported:
        return GaugeReading(None, why_no_time(ledger) or "no operator ran")
    untimed = ledger.untimed
    return GaugeReading(
        ledger.step_s, f"operators of unknown time: {_names(untimed)}" if untimed else ""
    )


def _mfu(ledger: Ledger) -> GaugeReading:
    utilisation = model_utilisation(ledger) if ledger.step_s else None
    if utilisation is None or utilisation.fraction is None:
        return GaugeReading(None, why_no_time(ledger) or "no matrix product with a known peak")
    return GaugeReading(utilisation.fraction, _step(ledger).doubt, is_most=True)


def _rate(name: str) -> Callable[[Ledger], GaugeReading]:
    def reading(ledger: Ledger) -> GaugeReading:
        rates = throughput(ledger)
        per_s = None if rates is None else getattr(rates, name)
        if per_s is None:
            return GaugeReading(
                None, why_no_time(ledger) or "no operator shows the size of the batch"
            )
        return GaugeReading(per_s, _step(ledger).doubt, is_most=True)

    return reading


def _parameters(ledger: Ledger) -> GaugeReading:
    parameters = parameters_of(ledger)
    return (
        GaugeReading(None, "no model was seen")
        if parameters is None
        else GaugeReading(parameters.elements)
    )


_LISTED = (
    Gauge("peak", "peak bytes allocated", "peak_allocated_bytes", Unit.BYTES,
          _memory_gauge(lambda ledger: ledger.memory.peak_bytes), _peak_lines),
    Gauge("reserved", "peak bytes that the allocator reserves", "peak_reserved_bytes", Unit.BYTES,
          _memory_gauge(reserved_bytes_of), _peak_lines),
    Gauge("saved", "bytes held from the forward to the backward pass", "bytes_saved", Unit.BYTES,
          _memory_gauge(lambda ledger: ledger.total.bytes_saved), _sorted_lines("bytes_saved")),
    Gauge("step", "predicted time of a step", "step_s", Unit.SECONDS,
          _step, _sorted_lines("seconds")),
    Gauge("flops", "FLOPs of a step", "flops", Unit.FLOPS,
          _work(attrgetter("flops")), _sorted_lines("flops_forward")),
    Gauge("forward", "FLOPs of its forward pass", "flops_forward", Unit.FLOPS,
          _work(attrgetter("flops_forward")), _sorted_lines("flops_forward")),
    Gauge("backward", "FLOPs of its backward pass", "flops_backward", Unit.FLOPS,
          _work(attrgetter("flops_backward")), _sorted_lines("flops_backward")),
    Gauge("recompute", "FLOPs of recomputation", "flops_recompute", Unit.FLOPS,
          _work(attrgetter("flops_recompute")), _sorted_lines("flops_recompute")),
    Gauge("parameters", "parameters of the model", "parameters", Unit.PARAMETERS,
          _parameters, lambda ledger: by(ledger, "repeated-module").top(TOP_LINES)),
    Gauge("mfu", "model FLOPs utilisation", "mfu", Unit.FRACTION,
          _mfu, _sorted_lines("seconds"), is_better_lower=False),
    Gauge("tokens/s", "tokens a second, of all ranks", "tokens_per_s", Unit.TOKEN_PER_S,
          _rate("tokens_per_s"), _sorted_lines("seconds"), is_better_lower=False),
    Gauge("samples/s", "samples a second, of all ranks", "samples_per_s", Unit.NUMBER,
          _rate("samples_per_s"), _sorted_lines("seconds"), is_better_lower=False),
)  # fmt: skip
GAUGES: Mapping[str, Gauge] = {gauge.name: gauge for gauge in _LISTED}
"""By name, in the order of the help."""
