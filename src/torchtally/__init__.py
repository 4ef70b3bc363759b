"""Run an unmodified PyTorch training script on a GPU that is not there, accounted line by line.

    import torchtally

    with torchtally.virtual_gpu("H100-SXM") as gpu:       # "cuda" is a simulated chip in here
        ...
    trace = torchtally.run(train, gpu="H100-SXM", steps=2)
    roofline = torchtally.roofline("H100-SXM")
    ledger = torchtally.account(trace, roofline=roofline)  # FLOPs, bytes, memory, time
    print(torchtally.by(ledger, "line"))                   # a table; print(ledger) is the report
    trace.save("run.tally")                                # torchtally.Trace.load reads it
    print(torchtally.summary(model, "8x512"))              # a model by itself, module by module

Names are imported when first used: `import torchtally` imports no torch.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtally.table.shown import renderers

if TYPE_CHECKING:
    from torchtally.checkpoints.durable import durable
    from torchtally.checkpoints.durable_callback import DurableCallback
    from torchtally.checkpoints.lightning_callback import LightningDurableCallback
    from torchtally.chips import Chip, chip, known_chips
    from torchtally.errors import TallyError
    from torchtally.integrations.notebook.commands import tally
    from torchtally.ledger import Ledger, account
    from torchtally.live.lightning_callback import LightningTallyCallback
    from torchtally.live.monitor import monitor
    from torchtally.live.trainer_callback import TallyCallback
    from torchtally.models.summary import summary
    from torchtally.numerics.model_numbers import numbers
    from torchtally.numerics.watch import NumbersWatch
    from torchtally.runs.function import run
    from torchtally.runs.recording import record
    from torchtally.timing.targets import roofline
    from torchtally.trace import Trace
    from torchtally.views import by
    from torchtally.views.number_formats import dtypes
    from torchtally.virtual.extensions.declared import declare_cost
    from torchtally.virtual.session import virtual_gpu

_HOMES = {
    "Chip": "chips",
    "DurableCallback": "checkpoints.durable_callback",
    "Ledger": "ledger",
    "LightningDurableCallback": "checkpoints.lightning_callback",
    "LightningTallyCallback": "live.lightning_callback",
    "TallyCallback": "live.trainer_callback",
    "TallyError": "errors",
    "Trace": "trace",
    "account": "ledger",
    "by": "views",
    "declare_cost": "virtual.extensions.declared",
    "chip": "chips",
    "dtypes": "views.number_formats",
    "durable": "checkpoints.durable",
    "known_chips": "chips",
    "NumbersWatch": "numerics.watch",
    "monitor": "live.monitor",
    "numbers": "numerics.model_numbers",
    "record": "runs.recording",
    "roofline": "timing.targets",
    "run": "runs.function",
    "summary": "models.summary",
    "tally": "integrations.notebook.commands",
    "virtual_gpu": "virtual.session",
}

__all__ = [
    "Chip",
    "DurableCallback",
    "Ledger",
    "LightningDurableCallback",
    "LightningTallyCallback",
    "NumbersWatch",
    "TallyCallback",
    "TallyError",
    "Trace",
    "account",
    "by",
    "chip",
    "declare_cost",
    "dtypes",
    "durable",
    "known_chips",
    "monitor",
    "numbers",
    "record",
    "roofline",
    "run",
    "summary",
    "tally",
    "virtual_gpu",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchtally' has no attribute {name!r}")
    return getattr(import_module(f"torchtally.{home}"), name)


def _renderer(form: str) -> Callable[[Any], str]:
    def render(value: Any) -> str:
        home = "integrations.notebook.page" if form == "page" else "report.shown"
        text: str = getattr(import_module(f"torchtally.{home}"), form)(value)
        return text

    return render


renderers.update({form: _renderer(form) for form in ("text", "html", "markdown", "page")})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext torchtally`: the magics `%%tally` and `%tally`."""
    from torchtally.integrations.notebook.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext torchtally`."""
    from torchtally.integrations.notebook.magics import unload

    unload(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
