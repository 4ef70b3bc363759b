"""How a plan names what it speaks of."""

from torchtally.hardware import Cluster
from torchtally.napkin.quantity import of
from torchtally.planning.answer import Part
from torchtally.planning.request import Request
from torchtally.units import Unit, format_count


def subject_named(request: Request) -> str:
    """The model: "llama-3-70b (70.55 B parameters)"."""
    found = request.of_subject
    size = f"{format_count(int(found.parameters.value))} parameters"
    return f"{found.name} ({size})" if found.name else size


def chips_named(cluster: Cluster) -> tuple[Part, ...]:
    """As in "1,024 H100-SXM"."""
    return of(cluster.count, Unit.CHIPS).named("chips"), f" {cluster.chip.name}"
