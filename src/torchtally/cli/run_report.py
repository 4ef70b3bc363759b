"""What `tally run` ends with: the trace, the report, limits, and changes that may help."""

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from torchtally.cli.chip_names import say
from torchtally.cli.output import emit, is_coloured, look, width, write_or_emit
from torchtally.cli.own_errors import told
from torchtally.errors import TallyError

if TYPE_CHECKING:
    from torchtally.fit.advisor import Advisor
    from torchtally.fit.network_advisor import NetworkAdvisor
    from torchtally.gates import Finding
    from torchtally.isolation.run import Isolation
    from torchtally.ledger import Ledger
    from torchtally.trace import Trace
    from torchtally.tracer.script_file import Script
    from torchtally.tracer.session import Recording
    from torchtally.tracer.stopper import ScriptOutcome

PROBED_STEPS = 2
"""At least, where changes are tried after a run that ran out of memory."""
COMPLETE = ("steps", "exit")
"""Endings of runs that went as the user asked."""
RANK_EXIT = 1
"""Where another rank failed: the job would have ended with it."""


def conclude(
    script: "Script",
    session: "Recording",
    isolated: "Isolation",
    outcome: "ScriptOutcome",
    args: argparse.Namespace,
) -> int:
    """Save the trace and report, in the directory and with the files that the user has.

    Returns the exit code.
    """
    from torchtally.gates import GATE_EXIT
    from torchtally.runs.children import sigterm_raises
    from torchtally.tracer.idle import IDLE_EXIT, complaint

    def save_and_report() -> int:
        os.chdir(args.started_in)
        trace: Trace | None = None
        peers: list[Trace] = []
        with told("the trace", args.stderr):
            trace = session.trace(outcome.ending)
            trace, peers = gather_traces(trace, args)
        with told("the folder of the run's files", args.stderr):
            isolated.tidy()
        if trace is None:
            holds = not is_gated(args)
        else:
            holds = report(script, trace, peers, args)
            if outcome.exit_code == 0 and trace.ending != outcome.ending:
                return RANK_EXIT
        return outcome.exit_code if holds else outcome.exit_code or GATE_EXIT

    try:
        with sigterm_raises():
            code = isolated.outside(save_and_report)
    except TallyError as error:
        print(f"tally: error: {error}", file=args.stderr, flush=True)
        return error.exit_code
    if outcome.exit_code == 0 and (reason := complaint(session)):
        print(f"tally: error: {reason}", file=args.stderr, flush=True)
        return IDLE_EXIT
    return code


def gather_traces(trace: "Trace", args: argparse.Namespace) -> "tuple[Trace, list[Trace]]":
    """The trace, and those of the other ranks that ran to the same end. Where one of them failed,
    that is how the run ended.
    """
    from msgspec.structs import replace

    ranks = args.ranks
    if ranks is None:
        return trace, []
    peers: list[Trace] = []
    ending = trace.ending
    if ending.kind in COMPLETE:
        peers = ranks.gather(trace, lambda text: say(text, is_quiet=args.quiet))
        trace = replace(trace, peers=tuple(peer.world.rank for peer in peers))
        for peer in reversed(peers):
            if message := failure(peer):
                ending = replace(peer.ending, message=f"rank {peer.world.rank}: {message}")
    if ranks.is_first and (ending.kind not in COMPLETE or ending is not trace.ending):
        for rank, lines in ranks.failures():
            print(f"tally: rank {rank} failed:\n{lines}", file=args.stderr, flush=True)
    return replace(trace, ending=ending), peers


def failure(trace: "Trace") -> str:
    """How the script of another rank ended, in words; "" where it did so as asked."""
    ending = trace.ending
    return ending.message if ending.kind in COMPLETE else ending.message or ending.kind


def is_gated(args: argparse.Namespace) -> bool:
    """Whether limits were asked for: none of them holds that cannot be looked at."""
    return bool(args.gates.limits) or args.gates.budget is not None


def report(
    script: "Script", trace: "Trace", peers: "list[Trace]", args: argparse.Namespace
) -> bool:
    """Write the trace, then say what is in it. Says it, too, when the trace cannot be written.
    Whether all limits hold.

    After a run that ended for want of memory, changes are tried that may make it fit; after one
    of several ranks those that may hide more of its collectives.
    """
    import gc

    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline

    advisor, network_advisor = advisors(script, trace, args)
    gc.disable()  # a million records, none of them garbage
    failed: TallyError | None = None
    try:
        with told("the trace's file", args.stderr):
            trace.save(args.trace_place)
            args.is_saved = True
    except TallyError as error:
        failed = error
    ledger: Ledger | None = None
    findings: Sequence[Finding] | None = None
    with told("the account", args.stderr):
        ledger = account(trace, roofline=known_roofline(trace.chip), peers=peers)
    if ledger is None:
        return not is_gated(args)
    if not args.quiet:
        show_page(ledger, args)
    with told("the limits' check", args.stderr):
        findings = args.gates.findings(ledger)
        show_findings(findings, args)
    if trace.ending.kind in COMPLETE:
        with told("the budget", args.stderr):
            update_budget(ledger, args)
    try:
        with told("the advice", args.stderr):
            if trace.final_refusal is not None and not args.no_advice:
                advise(advisor, ledger, args)
            elif trace.ending.kind in COMPLETE and not args.no_advice and not peers:
                advise_network(network_advisor, ledger, args)
    finally:
        write_files(ledger, advisor, network_advisor, findings or (), args)
    if failed is not None:
        raise failed
    if findings is None:
        return not is_gated(args)
    return all(finding.holds for finding in findings)


PARTS = ("phase", "category", "line", "repeated-module")
"""Views that are shown each by itself where the page cannot be made."""


def show_page(ledger: "Ledger", args: argparse.Namespace) -> None:
    """The page about the run; where an error of ours is in its way, the parts that can be made."""
    from torchtally.report.formats import render
    from torchtally.report.ledger import ledger_report
    from torchtally.report.report import table_report
    from torchtally.report.text import verdict
    from torchtally.views import by
    from torchtally.views.summary import judge

    with told("the report", args.stderr):
        page = ledger_report(ledger, file=args.output, columns=args.columns)
        show(args, render(page, args.format, look(args.stderr)))
        return
    with told("the verdict", args.stderr):
        show(args, f"{verdict(judge(ledger))}\n")
    for name in PARTS:
        with told(f"the view by {name}", args.stderr):
            show(args, "\n" + render(table_report(by(ledger, name)), "text", look(args.stderr)))


def write_files(
    ledger: "Ledger",
    advisor: "Advisor",
    network_advisor: "NetworkAdvisor",
    findings: "Sequence[Finding]",
    args: argparse.Namespace,
) -> None:
    """What --json and --html ask for."""
    from torchtally.cli.report import write_page
    from torchtally.report.formats import render
    from torchtally.report.ledger import ledger_report

    if args.json_place is not None:
        with told("the JSON document", args.stderr):
            page = ledger_report(
                ledger,
                changes=advisor.results,
                timed_changes=network_advisor.results,
                unchanged=network_advisor.unchanged,
                findings=findings,
            )
            write_or_emit(render(page, "json", look(args.stderr)), args.json_place)
    if args.html_place is not None:
        with told("the interactive page", args.stderr):
            write_page(ledger, args.html_place)


def advisors(
    script: "Script", trace: "Trace", args: argparse.Namespace
) -> "tuple[Advisor, NetworkAdvisor]":
    """Advisors on memory and on the network: they run the script again as it ran here."""
    from torchtally.fit.advisor import Advisor
    from torchtally.fit.network_advisor import NetworkAdvisor

    run_s = time.monotonic() - args.started_s
    variables = args.launch.environment if args.launch else None
    # Those that it took, and the one that it could not complete.
    steps = max(PROBED_STEPS, len(trace.step_ends) + 1)
    advisor = Advisor(
        script,
        args.gpus.chip,
        steps=steps,
        run_s=run_s,
        writes=args.writes,
        network=args.network,
        world=args.world,
        variables=variables,
    )
    network_advisor = NetworkAdvisor(
        script,
        args.gpus.chip.name,
        steps=len(trace.step_ends),
        run_s=run_s,
        what_ifs=args.what_if,
        writes=args.writes,
        network=args.network,
        world=args.world,
        variables=variables,
        compares=args.compares,
    )
    return advisor, network_advisor


def show_findings(findings: "Sequence[Finding]", args: argparse.Namespace) -> None:
    """Every limit; of a quiet run those that do not hold."""
    from torchtally.report.gates import findings_text

    is_quiet = args.quiet
    shown = [finding for finding in findings if not (is_quiet and finding.holds)]
    if shown:
        separator = "" if is_quiet else "\n"
        text = findings_text(shown, width=width(), is_coloured=is_coloured(args.stderr))
        show(args, separator + text)


def update_budget(ledger: "Ledger", args: argparse.Namespace) -> None:
    """Write the run's figures, where --update asks for it."""
    budget = args.gates.update(ledger)
    if budget is not None:
        message = f"{args.budget}: the budget of `{budget.run}` on {budget.gpu} is written"
        say(message, is_quiet=args.quiet)


def advise(advisor: "Advisor", ledger: "Ledger", args: argparse.Namespace) -> None:
    """Try changes, and show what each of them does."""
    from torchtally.report.advice import advice_text

    if not advises(args):
        return
    advisor.advise(ledger, progress_stream(args))
    if not args.quiet:
        show(args, advice_text(advisor, width(), is_coloured=is_coloured(args.stderr)))


def advise_network(advisor: "NetworkAdvisor", ledger: "Ledger", args: argparse.Namespace) -> None:
    """Try the changes that collectives suggest, and a run without its own; show what they
    do.
    """
    from torchtally.report.advice import network_advice_text

    if not advises(args):
        return
    advisor.compare(ledger, progress_stream(args))
    advisor.advise(ledger, progress_stream(args))
    if not args.quiet:
        colour = is_coloured(args.stderr)
        show(args, network_advice_text(advisor, ledger, width(), is_coloured=colour))


def advises(args: argparse.Namespace) -> bool:
    """A quiet run without --json has nowhere to say what changes would do."""
    return not args.quiet or args.json is not None


def progress_stream(args: argparse.Namespace) -> TextIO | None:
    return None if args.quiet else args.stderr


def show(args: argparse.Namespace, text: str) -> None:
    emit(text, args.stderr, is_coloured=is_coloured(args.stderr))
    args.stderr.flush()
