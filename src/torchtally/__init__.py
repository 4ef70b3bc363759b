"""Run an unmodified PyTorch training script on a GPU that is not there, accounted line by line.

    import torchtally

    with torchtally.virtual_gpu("H100-SXM") as gpu:       # "cuda" is a simulated chip in here
        ...
    trace = torchtally.trace(train, gpu="H100-SXM", steps=2)
    roofline = torchtally.roofline("H100-SXM")
    ledger = torchtally.account(trace, roofline=roofline)  # FLOPs, bytes, memory, time
    print(torchtally.by(ledger, "line"))

Names are imported when first used: `import torchtally` imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtally.errors import TallyError
    from torchtally.hardware import Chip, chip, chips
    from torchtally.ledger import Ledger, account
    from torchtally.record import Trace
    from torchtally.record.file import read_trace, write_trace
    from torchtally.targets import roofline
    from torchtally.tracing import trace
    from torchtally.views import by
    from torchtally.virtual.session import virtual_gpu

_HOMES = {
    "Chip": "hardware",
    "Ledger": "ledger",
    "TallyError": "errors",
    "Trace": "record",
    "account": "ledger",
    "by": "views",
    "chip": "hardware",
    "chips": "hardware",
    "read_trace": "record.file",
    "roofline": "targets",
    "trace": "tracing",
    "virtual_gpu": "virtual.session",
    "write_trace": "record.file",
}

__all__ = [
    "Chip",
    "Ledger",
    "TallyError",
    "Trace",
    "account",
    "by",
    "chip",
    "chips",
    "read_trace",
    "roofline",
    "trace",
    "virtual_gpu",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchtally' has no attribute {name!r}")
    return getattr(import_module(f"torchtally.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
