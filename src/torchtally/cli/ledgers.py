"""The ledger of a trace's file, as every command makes it that reads one."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchtally.cli.chip_names import say_variants
from torchtally.errors import UsageError
from torchtally.options import CHIP, FILE, Form, OptionRecord, each, own, positive_count

if TYPE_CHECKING:
    from torchtally.ledger import Ledger
    from torchtally.timing.roofline import Roofline

CONVENTIONS = ("full", "causal")
"""By name: their home takes long to import."""
StepSelection = int | tuple[int, int] | Literal["all"]


def step_selection(text: str) -> StepSelection:
    """A step, the first and last of several, or "all". Raises UsageError otherwise."""
    if text == "all":
        return "all"
    first, dots, last = text.partition("..")
    return (positive_count(first), positive_count(last)) if dots else positive_count(first)


STEP = Form("N|N..M|all", step_selection)


@dataclass(frozen=True, kw_only=True)
class TraceOptions(OptionRecord):
    """A trace's file, and how it is accounted for."""

    file: str = own("FILE", "a trace, as `tally run -o FILE` wrote it", FILE)
    step: StepSelection | None = own(
        "--step",
        "totals of step N, of N..M, or of the whole run ('all'); default: a step that is like "
        "others. A single step excludes evaluation",
        STEP,
    )
    convention: str = own(
        "--convention",
        "count causal attention in full (the default) or by half",
        choices=each(*CONVENTIONS),
        default="full",
    )


@dataclass(frozen=True, kw_only=True)
class TimedOptions(TraceOptions):
    """A trace's file, and the chip that it is timed on."""

    gpu: str | None = own("--gpu", "another chip to time the run on", CHIP)


def ledger_of_file(options: TraceOptions, roofline: "Roofline | None" = None) -> "Ledger":
    """Ledger of a trace's file, with the ranks that ran with it.

    `roofline` is what times are predicted by; None for the chip that the run was traced for.
    Raises TraceFileError for a file that is not a whole trace.
    """
    import gc

    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline
    from torchtally.trace import Trace
    from torchtally.trace.peers import load_peers
    from torchtally.work.convention import Convention

    gc.disable()  # a short life with a million records, none of them garbage
    trace = Trace.load(options.file)
    return account(
        trace,
        convention=Convention(options.convention),
        roofline=roofline or known_roofline(trace.chip),
        step=options.step,
        peers=load_peers(trace, options.file),
    )


def timed_ledger(options: TimedOptions) -> "Ledger":
    """Ledger of a trace's file, timed on the chip that is named. Raises TraceFileError, or
    UsageError for an unknown chip or step.
    """
    say_variants([options.gpu] if options.gpu else [])
    return ledger_of_file(options, chip_of(options.gpu) if options.gpu else None)


def chip_of(name: str) -> "Roofline":
    """What times are predicted by on the chip of this name. Raises UsageError for a cluster."""
    from torchtally.chips import cluster
    from torchtally.timing.targets import roofline

    if re.match(r"\s*\d+\s*[xX\u00d7]", name) is None:
        return roofline(name)
    several = cluster(name)
    if several.count == 1:
        return roofline(several.chip.name)
    raise UsageError(
        f"--gpu {name}: a trace covers one GPU and cannot tell what {several.count} would send "
        "each other.\n"
        f"For one of them: --gpu {several.chip.name}. `tally plan MODEL --gpus {name.strip()} "
        "--search` lays a model out over all of them."
    )
