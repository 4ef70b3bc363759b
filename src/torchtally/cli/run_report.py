"""What `tally run` ends with: the trace, the report, limits, and changes that may help."""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from torchtally.cli.chip_names import say
from torchtally.cli.output import emit, is_coloured, look, width, write_or_emit
from torchtally.cli.own_errors import told
from torchtally.cli.run_state import RunState
from torchtally.errors import TallyError

if TYPE_CHECKING:
    from torchtally.fit.advisor import Advisor
    from torchtally.fit.network_advisor import NetworkAdvisor
    from torchtally.gates import Finding
    from torchtally.isolation.run import Isolation
    from torchtally.ledger import Ledger
    from torchtally.trace import Trace
    from torchtally.tracer.session import Recording
    from torchtally.tracer.stopper import ScriptOutcome

PROBED_STEPS = 2
"""At least, where changes are tried after a run that ran out of memory."""
COMPLETE = ("steps", "exit")
"""Endings of runs that went as the user asked."""
RANK_EXIT = 1
"""Where another rank failed: the job would have ended with it."""


def conclude(
    state: RunState, session: "Recording", isolated: "Isolation", outcome: "ScriptOutcome"
) -> int:
    """Save the trace and report, in the directory and with the files that the user has.

    Returns the exit code.
    """
    from torchtally.gates import GATE_EXIT
    from torchtally.runs.children import sigterm_raises
    from torchtally.tracer.idle import IDLE_EXIT, complaint

    def save_and_report() -> int:
        os.chdir(state.started_in)
        trace: Trace | None = None
        peers: list[Trace] = []
        with told("the trace", state.stderr):
            trace = session.trace(outcome.ending)
            trace, peers = gather_traces(trace, state)
        with told("the folder of the run's files", state.stderr):
            isolated.tidy()
        if trace is None:
            holds = not is_gated(state)
        else:
            holds = report(trace, peers, state)
            if outcome.exit_code == 0 and trace.ending != outcome.ending:
                return RANK_EXIT
        return outcome.exit_code if holds else outcome.exit_code or GATE_EXIT

    try:
        with sigterm_raises():
            code = isolated.outside(save_and_report)
    except TallyError as error:
        print(f"tally: error: {error}", file=state.stderr, flush=True)
        return error.exit_code
    if outcome.exit_code == 0 and (reason := complaint(session)):
        print(f"tally: error: {reason}", file=state.stderr, flush=True)
        return IDLE_EXIT
    return code


def gather_traces(trace: "Trace", state: RunState) -> "tuple[Trace, list[Trace]]":
    """The trace, and those of the other ranks that ran to the same end. Where one of them failed,
    that is how the run ended.
    """
    from msgspec.structs import replace

    ranks = state.ranks
    if ranks is None:
        return trace, []
    peers: list[Trace] = []
    ending = trace.ending
    if ending.kind in COMPLETE:
        peers = ranks.gather(trace, lambda text: say(text, is_quiet=state.options.is_terse))
        trace = replace(trace, peers=tuple(peer.world.rank for peer in peers))
        for peer in reversed(peers):
            if message := failure(peer):
                ending = replace(peer.ending, message=f"rank {peer.world.rank}: {message}")
    if ranks.is_first and (ending.kind not in COMPLETE or ending is not trace.ending):
        for rank, lines in ranks.failures():
            print(f"tally: rank {rank} failed:\n{lines}", file=state.stderr, flush=True)
    return replace(trace, ending=ending), peers


def failure(trace: "Trace") -> str:
    """How the script of another rank ended, in words; "" where it did so as asked."""
    ending = trace.ending
    return ending.message if ending.kind in COMPLETE else ending.message or ending.kind


def is_gated(state: RunState) -> bool:
    """Whether limits were asked for: none of them holds that cannot be looked at."""
    return bool(state.gates.limits) or state.gates.budget is not None


def report(trace: "Trace", peers: "list[Trace]", state: RunState) -> bool:
    """Write the trace, then say what is in it. Says it, too, when the trace cannot be written.
    Whether all limits hold.

    After a run that ended for want of memory, changes are tried that may make it fit; after one
    of several ranks those that may hide more of its collectives.
    """
    import gc

    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline

    advisor, network_advisor = advisors(trace, state)
    gc.disable()  # a million records, none of them garbage
    failed: TallyError | None = None
    try:
        with told("the trace's file", state.stderr):
            trace.save(state.trace_place)
            state.is_saved = True
    except TallyError as error:
        failed = error
    ledger: Ledger | None = None
    findings: Sequence[Finding] | None = None
    with told("the account", state.stderr):
        ledger = account(trace, roofline=known_roofline(trace.chip), peers=peers)
    if ledger is None:
        return not is_gated(state)
    if not state.options.is_terse:
        show_page(ledger, state)
    if state.options.asks_sparsity:
        with told("the view by sparsity", state.stderr):
            show_view(ledger, "sparsity", state)
    with told("the limits' check", state.stderr):
        findings = state.gates.findings(ledger)
        if not state.options.brief:
            show_findings(findings, state)
    if trace.ending.kind in COMPLETE:
        with told("the budget", state.stderr):
            update_budget(ledger, state)
    try:
        with told("the advice", state.stderr):
            if trace.final_refusal is not None:
                advise(advisor, ledger, state)
            elif trace.ending.kind in COMPLETE and not peers and not state.options.brief:
                advise_network(network_advisor, ledger, state)
    finally:
        if state.options.brief:
            answer_briefly(ledger, advisor, findings or (), state)
        write_files(ledger, advisor, network_advisor, findings or (), state)
    if failed is not None:
        raise failed
    if findings is None:
        return not is_gated(state)
    return all(finding.holds for finding in findings)


PARTS = ("phase", "category", "line", "repeated-module")
"""Views that are shown each by itself where the page cannot be made."""


def show_page(ledger: "Ledger", state: RunState) -> None:
    """The page about the run; where an error of ours is in its way, the parts that can be made."""
    from torchtally.report.formats import render
    from torchtally.report.ledger import ledger_report
    from torchtally.report.text import verdict
    from torchtally.views.summary import judge

    with told("the report", state.stderr):
        page = ledger_report(ledger, file=state.options.output, columns=state.options.columns)
        show(state, render(page, state.options.format, look(state.stderr)))
        return
    with told("the verdict", state.stderr):
        show(state, f"{verdict(judge(ledger))}\n")
    for name in PARTS:
        with told(f"the view by {name}", state.stderr):
            show_view(ledger, name, state)


def show_view(ledger: "Ledger", name: str, state: RunState) -> None:
    """A view by itself, as text."""
    from torchtally.report.formats import render
    from torchtally.report.report import table_report
    from torchtally.views import by

    show(state, "\n" + render(table_report(by(ledger, name)), "text", look(state.stderr)))


def answer_briefly(
    ledger: "Ledger", advisor: "Advisor", findings: "Sequence[Finding]", state: RunState
) -> None:
    """The brief report, and its document where --json asks for it; then keep the run's figures
    for the next one.
    """
    from torchtally.brief.answer import brief_answer
    from torchtally.brief.last_run import figures_of, keep, load
    from torchtally.report.brief import brief_report
    from torchtally.report.formats import render

    place = state.last_run
    with told("the brief report", state.stderr):
        answer = brief_answer(
            ledger,
            last=None if place is None else load(place),
            changes=advisor.results,
            needed_bytes=advisor.needed_bytes,
            findings=findings,
        )
        report = brief_report(answer)
        if not state.options.quiet:
            show(state, render(report, state.options.format, look(state.stderr)))
        if state.options.json is not None:
            write_or_emit(render(report, "json", look(state.stderr)), state.options.json)
    trace = ledger.trace
    if place is not None and trace.ending.kind in COMPLETE and trace.final_refusal is None:
        with told("the record of this run", state.stderr):
            keep(figures_of(ledger, time.time()), place)


def write_files(
    ledger: "Ledger",
    advisor: "Advisor",
    network_advisor: "NetworkAdvisor",
    findings: "Sequence[Finding]",
    state: RunState,
) -> None:
    """What --json and --html ask for."""
    from torchtally.cli.report import write_page
    from torchtally.report.formats import render
    from torchtally.report.ledger import ledger_report

    if state.options.json is not None and not state.options.brief:
        with told("the JSON document", state.stderr):
            page = ledger_report(
                ledger,
                changes=advisor.results,
                timed_changes=network_advisor.results,
                unchanged=network_advisor.unchanged,
                findings=findings,
            )
            write_or_emit(render(page, "json", look(state.stderr)), state.options.json)
    if state.options.html is not None:
        with told("the interactive page", state.stderr):
            write_page(ledger, state.options.html)


def advisors(trace: "Trace", state: RunState) -> "tuple[Advisor, NetworkAdvisor]":
    """Advisors on memory and on the network: they run the script again as it ran here."""
    from torchtally.fit.advisor import Advisor
    from torchtally.fit.network_advisor import NetworkAdvisor

    request = state.request
    run_s = time.monotonic() - state.started_s
    # Those that it took, and the one that it could not complete.
    steps = max(PROBED_STEPS, len(trace.step_ends) + 1)
    advisor = Advisor(
        state.script,
        request.target,
        steps=steps,
        run_s=run_s,
        writes=request.writes,
        network=request.network,
        world=request.world,
        variables=request.variables,
    )
    network_advisor = NetworkAdvisor(
        state.script,
        request.target.name,
        steps=len(trace.step_ends),
        run_s=run_s,
        what_ifs=request.what_ifs,
        writes=request.writes,
        network=request.network,
        world=request.world,
        variables=request.variables,
        compares=bool(state.options.changes) and state.options.advises,
    )
    return advisor, network_advisor


def show_findings(findings: "Sequence[Finding]", state: RunState) -> None:
    """Every limit; of a quiet run those that do not hold."""
    from torchtally.report.gates import findings_text

    is_quiet = state.options.quiet
    shown = [finding for finding in findings if not (is_quiet and finding.holds)]
    if shown:
        separator = "" if is_quiet else "\n"
        text = findings_text(shown, width=width(), is_coloured=is_coloured(state.stderr))
        show(state, separator + text)


def update_budget(ledger: "Ledger", state: RunState) -> None:
    """Write the run's figures, where --update asks for it."""
    budget = state.gates.update(ledger)
    if budget is not None:
        message = f"{state.options.budget}: the budget of `{budget.run}` on {budget.gpu} is written"
        say(message, is_quiet=state.options.quiet)


def advise(advisor: "Advisor", ledger: "Ledger", state: RunState) -> None:
    """Try changes, and show what each of them does."""
    from torchtally.report.advice import advice_text

    if not state.options.advises:
        return
    advisor.advise(ledger, progress_stream(state))
    if not state.options.is_terse:
        show(state, advice_text(advisor, width(), is_coloured=is_coloured(state.stderr)))


def advise_network(advisor: "NetworkAdvisor", ledger: "Ledger", state: RunState) -> None:
    """Try the changes that collectives suggest, and a run without its own; show what they
    do.
    """
    from torchtally.report.advice import network_advice_text

    if not state.options.advises:
        return
    advisor.compare(ledger, progress_stream(state))
    advisor.advise(ledger, progress_stream(state))
    if not state.options.quiet:
        colour = is_coloured(state.stderr)
        show(state, network_advice_text(advisor, ledger, width(), is_coloured=colour))


def progress_stream(state: RunState) -> TextIO | None:
    return None if state.options.is_terse else state.stderr


def show(state: RunState, text: str) -> None:
    emit(text, state.stderr, is_coloured=is_coloured(state.stderr))
    state.stderr.flush()
