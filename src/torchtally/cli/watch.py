"""`tally watch`: a running training beside its prediction, from its log or profiler's traces."""

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.output import emit, width
from torchtally.options import CHIP, FILE, Form, OptionRecord, own
from torchtally.progress import StatusLine, is_terminal, printable
from torchtally.units import parse_fraction

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtally.ledger import Ledger
    from torchtally.live.watcher import Watcher, WatchEvent

SUMMARY = "follow a running training's log or traces, beside what was predicted"

EPILOG = """\
examples:
  python train.py | tee train.log               in one terminal, and in another
  tally watch train.log --against run.tally     what `tally run -o run.tally` predicted
  tally watch runs/1                            a folder of `tally train`, or of traces
  tally watch trace_folder --against run.tally --tolerance 5%
  tally watch train.log --once --json           what is in it now, as JSON lines

Logs of nanoGPT, nanochat, llm.c, torchtitan, Megatron-LM, Hugging Face's Trainer and `tally train`
are known; of a folder those named *.log, *.out and log.jsonl, and the traces that
torch.profiler.tensorboard_trace_handler writes (*.pt.trace.json, *.gz). A log may be truncated or
replaced (`tail -F`); a trace is read when it is whole.

A warning is printed when the median of the last 5 steps differs from the prediction by more than
the tolerance, when memory exceeds it, and when nothing arrives for 3 times as long as usual.

Exit code: 0 with --once, 2 where there is nothing to watch; 130 on Ctrl-C, after a summary.
"""


@dataclass(frozen=True, kw_only=True)
class WatchOptions(OptionRecord):
    """Follow a training while it runs: step time, tokens/s, MFU and memory as it measures them,
    beside what a simulated run predicted.
    """

    path: str = own(
        "PATH",
        "a log, waited for if it does not exist yet; or a folder of logs and traces",
        Form("FOLDER|LOG"),
    )
    against: str | None = own(
        "--against", "the prediction: a simulated run (tally run -o FILE)", FILE
    )
    gpu: str | None = own(
        "--gpu",
        "the GPU it runs on, if it differs from the prediction's or no trace names it",
        CHIP,
    )
    tolerance: float = own(
        "--tolerance",
        "how far steps and memory may differ from the prediction (default 10%%)",
        Form("T", parse_fraction),
        default=0.1,
    )
    once: bool = own("--once", "report what is there now, and exit")
    json: bool = own("--json", "JSON lines on stdout")


def command(options: WatchOptions) -> int:
    """Follow until interrupted. Raises UsageError for what cannot be followed."""
    from torchtally.cli import INTERRUPTED
    from torchtally.cli.chip_names import say_variants
    from torchtally.live.following import Waiting, follow
    from torchtally.live.prediction import UNPREDICTED, prediction_of
    from torchtally.live.watcher import Watcher

    if options.gpu is not None:
        say_variants([options.gpu])
    predicted = (
        UNPREDICTED if options.against is None else prediction_of(options.against, options.gpu)
    )
    watcher = Watcher(predicted, options.tolerance)
    begin(options, watcher)
    events = follow(
        options.path,
        watcher,
        lambda path: account_of(path, options.gpu),
        Waiting(time.monotonic, time.sleep),
        is_once=options.once,
    )
    # What is piped, and what is there already, is one line for each event.
    is_live = not options.json and not options.once
    is_drawn = is_live and sys.stdout is not None and is_terminal(sys.stdout)
    code = 0
    with StatusLine(sys.stdout, is_quiet=not is_drawn, width=width()) as status:
        show = printer(options, status if is_drawn else None)
        try:
            for event in events:
                show(event)
        except KeyboardInterrupt:
            status.erase()
            code = INTERRUPTED
    end(options, watcher)
    return code


def account_of(path: str, gpu: str | None) -> "Ledger":
    """A profiler's trace, accounted for."""
    from torchtally.ledger import account
    from torchtally.runs.explaining import explain
    from torchtally.timing.targets import known_roofline

    trace = explain(path, gpu)
    return account(trace, roofline=known_roofline(trace.chip))


def begin(options: WatchOptions, watcher: "Watcher") -> None:
    """The prediction, once."""
    from torchtally.live.documents import json_line, watch_document
    from torchtally.live.sentences import prediction_text
    from torchtally.report.grid import wrap

    if options.json:
        emit(json_line(watch_document(options.path, options.tolerance, watcher.predicted)))
    elif watcher.predicted.file:
        emit("\n".join(wrap(prediction_text(watcher.predicted), width())).lstrip() + "\n")


def printer(options: WatchOptions, status: StatusLine | None) -> "Callable[[WatchEvent], None]":
    """What shows an event: as a line of JSON, as the line of a terminal, or as one that stays."""
    from torchtally.live.documents import event_document, json_line
    from torchtally.live.sentences import event_text, heading_of
    from torchtally.live.watcher import Happening

    shown = options.path

    def show(event: "WatchEvent") -> None:
        nonlocal shown
        if options.json:
            emit(json_line(event_document(event)))
            return
        text = printable(event_text(event))
        heading, file = "", heading_of(event)
        if file not in (shown, options.path):
            heading = f"==> {printable(file)} <==\n"
        shown = file
        if status is None:
            emit(f"{heading}{text}\n")
        elif event.what is not Happening.STEP:
            status.say(f"{heading}{text}")
        else:  # the next line is drawn over it
            if heading:
                status.say(heading)
            status.draw(text)

    return show


def end(options: WatchOptions, watcher: "Watcher") -> None:
    """The summary."""
    from torchtally.live.documents import json_line, summary_document
    from torchtally.live.sentences import summary_text

    if not options.json:
        emit(summary_text(watcher, width()))
        return
    for record in watcher.records.values():
        emit(json_line(summary_document(record)))
