"""The ledger of a trace's file, as every command makes it that reads one."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtally.ledger import Ledger
    from torchtally.timing.roofline import Roofline

CONVENTIONS = ("full", "causal")


def add_convention(parser: argparse.ArgumentParser) -> None:
    """Add --convention."""
    parser.add_argument(
        "--convention",
        choices=CONVENTIONS,
        default="full",
        help="count causal attention in full (the default) or by half",
    )


def ledger_of_file(args: argparse.Namespace, roofline: "Roofline | None" = None) -> "Ledger":
    """Ledger of `args.file`, for its `--step` and `--convention`, with the ranks that ran with it.

    Args:
        args: of a command with these options.
        roofline: what times are predicted by; None for the chip that the run was traced for.

    Raises TraceFileError for a file that is not a whole trace.
    """
    import gc

    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline
    from torchtally.trace import Trace
    from torchtally.trace.peers import load_peers
    from torchtally.work.convention import Convention

    gc.disable()  # a short life with a million records, none of them garbage
    trace = Trace.load(args.file)
    return account(
        trace,
        convention=Convention(args.convention),
        roofline=roofline or known_roofline(trace.chip),
        step=args.step,
        peers=load_peers(trace, args.file),
    )
