"""Reports for a terminal, a pipe or a log: plain lines, in colour on a terminal.

Numbers are never cut. Names come from strangers: they are stripped of control characters and never
read as markup.
"""

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from torchtally.ledger import Uncounted, Untimed
from torchtally.progress import printable
from torchtally.report.diagnoses import diagnosis_sentences
from torchtally.report.effects import sections
from torchtally.report.generation import generation_sentences, generation_verdict
from torchtally.report.grid import INDENT, table_lines, wrap
from torchtally.report.key_figures import NAME_WIDTH, figure_lines, key_figures
from torchtally.report.odd_sizes import odd_size_sentences
from torchtally.report.placeholders import departure_sentences, placeholder_lines, times_text
from torchtally.report.plain import cut_left, cut_right
from torchtally.report.terminal import join
from torchtally.table import Table
from torchtally.trace import HostState, World
from torchtally.units import (
    format_bytes,
    format_count,
    format_flops,
    format_fraction,
    format_seconds,
)
from torchtally.views.lines import short_path
from torchtally.views.loading import SlowLoading
from torchtally.views.model_summary import ModelSummary
from torchtally.views.parameters import ModelParameters
from torchtally.views.script_work import ScriptWorkOfStep
from torchtally.views.shortage import Shortage, SurvivedShortage
from torchtally.views.step_time import StepTime
from torchtally.views.steps import RunShare
from torchtally.views.summary import Summary, Verdict, summarise

MOST_LISTED = 3
"""Of placeholders, notes and uncounted operators; the rest are numbered."""
TOP_HOLDERS = 8
ONE_LINE = 10**6
"""A width at which no sentence is wrapped: a page has a paragraph for each."""


def summary_text(
    summary: Summary, *, file: str = "", width: int = 80, is_coloured: bool = False
) -> str:
    """The one-page report. `file` is the trace's, for the commands it suggests."""
    return join(list(summary_lines(summary, file, width)), is_coloured)


def model_text(
    summary: ModelSummary, table: Table, *, width: int = 80, is_coloured: bool = False
) -> str:
    """What a model costs: does it fit, how long does a step take, and the tree of its modules."""
    return join(list(_model_lines(summary, table, width)), is_coloured)


def _model_lines(summary: ModelSummary, table: Table, width: int) -> Iterator[Text]:
    page = _page_of_model(summary)
    yield from _verdict(page, width)
    yield from _numbers(page, width)
    yield from _time(page, width)
    yield Text()
    for number, fact in enumerate(model_facts(summary)):
        yield from _prose(fact, width, "" if number else "bold")
    yield from table_lines(table, width)
    yield Text()
    yield from _doubts(page, width)


def model_facts(summary: ModelSummary) -> Iterator[str]:
    """Which model, and what it did."""
    count = format_count(summary.parameters)
    trained = summary.trained_parameters
    part = "" if trained == summary.parameters else f" ({format_count(trained)} of them trained)"
    yield f"{summary.root.facts.class_name}: {count} parameters{part}, called with {summary.inputs}"
    yield f"{summary.how}; {summary.ledger.convention.description}"


def summary_lines(summary: Summary, file: str, width: int) -> Iterator[Text]:
    yield from _verdict(summary, width)
    yield from _numbers(summary, width)
    yield from _departures(summary, width)
    yield from _ending_lines(summary, width)
    if summary.shortage is not None:
        yield Text()
        yield from table_lines(summary.shortage.holders.top(TOP_HOLDERS), width, is_brief=True)
    yield from _diagnoses(summary, width)
    if summary.total.count:
        yield from _time(summary, width)
    yield Text()
    yield from _name_lines(summary, width)
    yield from _scope(summary, width)
    if summary.total.count:
        yield from _tables(summary, width)
        yield Text()
    yield from _doubts(summary, width)
    yield from _effects(summary, width)
    if summary.total.count:
        yield from _next(summary, file)


def _ending_lines(summary: Summary, width: int) -> Iterator[Text]:
    if summary.shortage is not None:
        yield from _shortage(summary.shortage, width)
        return
    if summary.survived is not None:
        yield from _prose(_survived(summary.survived), width, "yellow")
    yield from _ending(summary, width)


def _survived(shortage: SurvivedShortage) -> str:
    """That the script caught errors of memory; what it did without it may be another thing."""
    line = shortage.line
    place = f" at {posixpath.basename(line.file)}:{line.line}" if line else ""
    which = "of" if shortage.count == 1 else "the largest of"
    return (
        f"Out of memory {times_text(shortage.count)}, and the script went on: a request {which} "
        f"{format_bytes(shortage.requested_bytes)}{place}."
    )


def _diagnoses(summary: Summary, width: int) -> Iterator[Text]:
    """Why it costs what it costs, where something is wrong."""
    for sentence in diagnosis_sentences(summary.diagnoses, summary.own_root):
        yield from _prose(sentence, width, "yellow")


def _doubts(summary: Summary, width: int) -> Iterator[Text]:
    """What is counted, what is unknown, and what a real GPU would do otherwise."""
    if summary.total.count:
        yield from _coverage(summary, width)
        yield from _untimed_lines(summary.time, width)
    yield from _placeholders(summary, width)
    yield from _notes(summary, width)


# As sentences, for pages ------------------------------------------------------------------------


def opening_sentences(summary: Summary, *, is_titled: bool = False) -> tuple[str, ...]:
    """What the one-page report says above its tables, the verdict first; where a title names the
    script, without it.
    """
    parts = [
        _verdict(summary, ONE_LINE),
        _numbers(summary, ONE_LINE),
        _departures(summary, ONE_LINE),
        _ending_lines(summary, ONE_LINE),
    ]
    parts += [_diagnoses(summary, ONE_LINE)]
    parts += [_time(summary, ONE_LINE)] if summary.total.count else []
    parts += [] if is_titled else [_name_lines(summary, ONE_LINE)]
    return _sentences(*parts, _scope(summary, ONE_LINE))


def closing_sentences(summary: Summary) -> tuple[str, ...]:
    """What it says below them: what is counted, unknown or different, and which files changed."""
    return _sentences(_doubts(summary, ONE_LINE), _effects(summary, ONE_LINE))


def model_sentences(summary: ModelSummary) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is said of a model above and below the tree of its modules."""
    page = _page_of_model(summary)
    above = _sentences(_verdict(page, ONE_LINE), _numbers(page, ONE_LINE), _time(page, ONE_LINE))
    return (*above, *model_facts(summary)), _sentences(_doubts(page, ONE_LINE))


def _page_of_model(summary: ModelSummary) -> Summary:
    # No script runs a model by itself: the code between its operators is ours.
    return replace(summarise(summary.ledger), script_work=None)


def _sentences(*parts: Iterator[Text]) -> tuple[str, ...]:
    return tuple(line.plain.strip() for lines in parts for line in lines)


# The parts --------------------------------------------------------------------------------------


def _tables(summary: Summary, width: int) -> Iterator[Text]:
    yield from table_lines(summary.phases, width, is_brief=True)
    rest = (
        summary.run_steps,
        summary.categories,
        summary.peak_lines,
        summary.lines,
        summary.library_lines,
    )
    for table in rest:
        if table is not None and table.rows:
            yield Text()
            yield from table_lines(table, width, is_brief=True)


def _prose(text: str, width: int, style: str = "") -> Iterator[Text]:
    for number, line in enumerate(wrap(text, width)):
        yield Text(line if number else line.strip(), style=style)


STYLES = {"fits": "bold green", "close": "bold yellow", "does not fit": "bold red"}
CLAIMS = {"close": "close to the limit of"}
"""Words of a claim, where they are not its own."""
CLOSE_MEANS = "Too close to call: the difference is within the error of such predictions."


def verdict(outcome: Verdict) -> str:
    """One line: does it fit, and by how much."""
    if not outcome.device:
        return claim(outcome)
    peak = format_bytes(outcome.reserved_bytes)
    if outcome.capacity_bytes is None:
        return f"peak {peak} {claim(outcome)}"
    has = format_bytes(outcome.capacity_bytes)
    if outcome.is_open:
        needed = format_bytes(outcome.needed_bytes)
        return f"{claim(outcome)}: needs {needed} or more, and has {has}"
    return f"{claim(outcome)}: peak {peak} of {has}"


def claim(outcome: Verdict) -> str:
    """The same without numbers."""
    chip = printable(outcome.chip)
    if not outcome.device:
        return f"nothing was allocated on the {chip}"
    if outcome.capacity_bytes is None:
        return f"on {chip}, whose memory is unknown"
    return f"{CLAIMS.get(outcome.claim, outcome.claim)} {chip}"


def _verdict(summary: Summary, width: int) -> Iterator[Text]:
    for caveat in summary.caveats:
        yield from _prose(caveat, width, "bold red")
    outcome = summary.verdict
    style = STYLES.get(outcome.claim, "bold")
    if generated := generation_verdict(summary.generation):
        yield from _prose(generated, width, "bold")
    yield from _prose(claim(outcome), width, style if outcome.device else "bold red")
    if outcome.device:
        return
    if summary.survived is not None:
        text = "What the script asked for did not fit."
    elif summary.ending.kind in ("steps", "exit") and not summary.ending.message:
        text = (
            "The script kept all its tensors on the CPU. Move them to the GPU: many scripts have "
            "an option for that (--device cuda), others need model.to('cuda') and inputs too."
        )
    else:
        text = "The script did not get that far."
    yield from map(Text, wrap(text, width))


def _numbers(summary: Summary, width: int) -> Iterator[Text]:
    """The five numbers, and what to know of them."""
    figures = list(key_figures(summary))
    if width == ONE_LINE:
        yield from (Text(figure.sentence) for figure in figures)
    else:
        yield from figure_lines(figures, width)
    yield from _prose(" ".join(filter(None, _remarks(summary))), width)


def _remarks(summary: Summary) -> Iterator[str]:
    outcome, step_time = summary.verdict, summary.time
    if outcome.device:
        yield f"Most is allocated in {outcome.peak_moment}."
        yield _besides(outcome)
    if step_time is None or not summary.total.count:
        return
    if step_time.shares:
        shares = (f"{format_fraction(share)} {bound}" for bound, share in step_time.shares)
        yield f"Time: {', '.join(shares)}."
    generation = summary.generation
    if generation is not None and not generation.is_trained_on:
        yield from generation_sentences(generation)
        return
    utilisation = step_time.utilisation
    if utilisation is not None and utilisation.peak_per_s is None:
        dtype = utilisation.of.rpartition(" ")[2]
        yield f"No MFU: most products are in {dtype}, for which the chip has no peak."
    if step_time.is_overhead_bound:
        yield _overhead(step_time)
    yield _slow_host(step_time)


def _departures(summary: Summary, width: int) -> Iterator[Text]:
    """What a value that does not exist has ended: figures may be of less than a real run's."""
    left, others = departure_sentences(summary.placeholders, summary.own_root)
    for sentence in left:
        yield from _prose(sentence, width, "yellow")
    yield from _more(others)


def _besides(outcome: Verdict) -> str:
    """A sentence about what is held outside of the allocator; "" where nothing is known of it."""
    nccl = outcome.communicators
    if not outcome.context_bytes:
        return ""
    low, high = map(format_bytes, (outcome.context_low_bytes, outcome.context_high_bytes))
    text = f"The CUDA context takes {low} to {high} more"
    if nccl.bytes:
        owners = (
            "one communicator" if nccl.communicators == 1 else f"{nccl.communicators} communicators"
        )
        text += f", NCCL for {owners} {format_bytes(nccl.bytes)} (estimated)"
    if outcome.trial_bytes:
        trials = format_bytes(outcome.trial_bytes)
        text += (
            f". torch.backends.cudnn.benchmark is set: trials of algorithms take up to {trials} "
            "of free memory, and release it"
        )
    return f"{text}.{' ' + CLOSE_MEANS if outcome.claim == 'close' else ''}"


def _time(summary: Summary, width: int) -> Iterator[Text]:
    """What else the time of a step depends on, and what helps."""
    step_time = summary.time
    if step_time is None:
        yield from _prose(summary.no_time, width)
        return
    if step_time.network is not None and summary.world.size > 1:
        yield from map(Text, wrap(_network(step_time, summary.world), width))
    work = summary.script_work
    if work is not None and work.is_slower:
        yield from _prose(_script_work(work, summary.own_root), width, "yellow")
    if summary.loading is not None:
        yield from _prose(_loading(summary.loading, summary.own_root), width, "yellow")
    for sentence in odd_size_sentences(summary.odd_sizes, step_time.step_s, summary.own_root):
        yield from _prose(sentence, width)


def _script_work(work: ScriptWorkOfStep, own_root: str) -> str:
    """That the step does not have the time in which the script's own code runs."""
    frame = work.frame
    place = f", most of it before {short_path(frame.file, own_root)}:{frame.line}" if frame else ""
    return (
        f"The script's own code between operators is not included, and takes longer: "
        f"{format_seconds(work.script_s)} a step{place}, measured on this machine. A run would "
        f"wait for it: at most {1 / work.script_s:,.3g} steps/s."
    )


def _loading(slow: SlowLoading, own_root: str) -> str:
    """That the step does not have the time in which it waits for its batch."""
    loading = slow.loading
    frame = loading.frame
    place = f" of {short_path(frame.file, own_root)}:{frame.line}" if frame is not None else ""
    workers = {0: "without workers", 1: "with a worker"}
    how = workers.get(loading.workers, f"with {loading.workers} workers")
    return (
        f"Data loading is not included, and takes longer: on this machine the DataLoader{place}, "
        f"{how}, takes {format_seconds(loading.batch_s)} a batch. A run would wait for it."
    )


def _network(step_time: StepTime, world: World) -> str:
    """What the ranks of a run cost each other."""
    network = step_time.network
    assert network is not None
    step_s = step_time.step_s
    exposed = format_fraction(network.exposed_s / step_s) if step_s else ""
    waiting = ""
    if network.waiting_s and step_s:
        waiting = (
            f" It waits {format_seconds(network.waiting_s)} for other ranks "
            f"({format_fraction(network.waiting_s / step_s)})."
        )
    return (
        f"Rank {world.rank} of {world.size}: network {format_seconds(network.busy_s)}, "
        f"{format_fraction(network.hidden_share)} hidden, "
        f"{format_seconds(network.exposed_s)} exposed ({exposed} of the step).{waiting} Kernels "
        f"take {format_fraction(network.slowest - 1)} longer than on an average GPU: as on the "
        f"slowest of {world.size}."
    )


def _overhead(step_time: StepTime) -> str:
    helps = "a larger batch, a fused optimizer, torch.compile or CUDA graphs help."
    if step_time.is_host:
        return f"Much of the time goes into issuing small operators: {helps}"
    if step_time.is_waiting_for_host:
        idle = format_fraction(step_time.idle_share)
        return (
            f"The GPU stands idle {idle} of the time, since the host issues operators slower than "
            f"the GPU runs them: {helps}"
        )
    return f"Many kernels are too small to fill the GPU: {helps}"


def _slow_host(step_time: StepTime) -> str:
    """What a range of CPUs does to a step that waits for its host, or would."""
    slow = step_time.slow_host
    if slow is None:
        return ""
    return (
        f"Its kernels alone take {format_seconds(step_time.kernel_s)}; with a CPU as slow as that "
        f"{slow.host}, the step takes {format_seconds(slow.step_s)} (--by host)."
    )


def _untimed_lines(step_time: StepTime | None, width: int) -> Iterator[Text]:
    if step_time is None or not step_time.untimed:
        return
    text = f"Time unknown, missing from all totals, of {step_time.untimed_ops} operators:"
    yield from _prose(text, width, "yellow")
    yield from _operators(step_time.untimed, width)


def _operators(missing: Sequence[Untimed | Uncounted], width: int) -> Iterator[Text]:
    """The first of them, with how often each was called and why it is missing."""
    for operator in missing[:MOST_LISTED]:
        name = cut_left(operator.op, NAME_WIDTH)
        text = f"{name} x {operator.count} ({operator.reason[:200]})"
        yield from map(Text, wrap(text, width))
    yield from _more(len(missing) - MOST_LISTED)


def _shortage(shortage: Shortage, width: int) -> Iterator[Text]:
    """Lines on where memory ran out, and of what."""
    refusal = shortage.refusal
    requested, free = format_bytes(refusal.requested_bytes), format_bytes(refusal.free_bytes)
    allocated = format_bytes(refusal.allocated_bytes)
    unused = format_bytes(refusal.reserved_bytes - refusal.allocated_bytes)
    yield from _prose(
        f"Out of memory in {shortage.moment}: requested {requested}, with {allocated} "
        f"allocated, {unused} reserved but unusable for it, and {free} of the chip free.",
        width,
        "yellow",
    )
    line = shortage.site.line
    if line is not None and line.text:
        yield Text(f"{INDENT}{cut_right(printable(line.text), width - len(INDENT))}")


NOT_INSTALLED = """\
Scripts run in the Python in which torchtally is installed: install what the script needs
there, or torchtally beside it."""


def _ending(summary: Summary, width: int) -> Iterator[Text]:
    ending = summary.ending
    is_complete = summary.steps or summary.generates
    how = {
        "steps": "",
        "exit": "" if is_complete else "The script ended by itself before a training step.",
        "exception": "The script failed; the report covers what ran before.",
        "time": "Out of time; the report covers what ran before.",
        "interrupted": "Interrupted; the report covers what ran before.",
    }.get(ending.kind, f"Ended by {ending.kind}; the report covers what ran before.")
    if how:
        yield from _prose(f"{how} {ending.message[:400]}".strip(), width, "yellow")
    if ending.message.startswith("ModuleNotFoundError"):
        yield from _prose(NOT_INSTALLED, width)


def _name_lines(summary: Summary, width: int) -> Iterator[Text]:
    yield Text(cut_right(summary.script, width), style="bold")


def _scope(summary: Summary, width: int) -> Iterator[Text]:
    """Which part of the run is reported, and how large the model is."""
    utilisation = summary.time and summary.time.utilisation
    parts = [
        f"per {summary.period.name}",
        _parameters(summary.parameters),
        "" if utilisation and ", " in utilisation.name else summary.convention,
    ]
    yield from _prose(", ".join(part for part in parts if part), width)
    if summary.unlike:
        yield from _prose(summary.unlike, width, "yellow")
    if summary.period.generation is not None and summary.run.was_stopped:
        yield Text(f"{INDENT}The script was stopped there; without --tokens it runs to its end.")
    if summary.run.steps:
        yield from map(Text, wrap(_run(summary), width))
    if summary.host_state is not None:
        yield from _prose(_on_host(summary.host_state), width, "yellow")


def _run(summary: Summary) -> str:
    """What share of all that was run is reported, and where it ended."""
    run = summary.run
    models = f" of {run.models} models" if run.models > 1 else ""
    parts = [
        f"{run.steps} step{'s' * (run.steps > 1)}{models}",
        f"{format_flops(run.total.flops)}",
        *([] if run.reported.seconds is None else [format_seconds(run.total.seconds)]),
    ]
    text = f"The run: {', '.join(parts)}."
    if summary.period.step is not None and run.total.count > summary.total.count:
        text += f" This step is {_share(run.reported)}."
    # Less than that is the beginning of a step at which the script was stopped.
    if run.evaluation.flops or (run.evaluation.seconds or 0.0) >= 0.001:
        text += f" Evaluation, outside of all steps, is {_share(run.evaluation)}."
    if run.was_stopped:
        text += " The script was stopped there; --steps all runs it to its end."
    return text


def _on_host(state: HostState) -> str:
    return (
        f"The optimizer runs on the host, on {format_count(state.elements)} parameters: "
        f"{format_bytes(state.bytes)} there with gradients and state. Its time is not predicted "
        "and not part of any step."
    )


def _share(share: RunShare) -> str:
    flops = f"{format_fraction(share.flops)} of the FLOPs"
    return (
        flops
        if share.seconds is None
        else f"{flops} and {format_fraction(share.seconds)} of the time"
    )


def _parameters(parameters: ModelParameters | None) -> str:
    """Parameters of a model, and how many are trained where some are frozen."""
    if parameters is None or not parameters.elements:
        return ""
    count = f"{format_count(parameters.elements)} parameters"
    if parameters.is_rank_share:
        count += " on this rank"
    elif parameters.own_elements != parameters.elements:
        count += f" ({format_count(parameters.own_elements)} on this rank)"
    if not parameters.frozen:
        return count
    if not parameters.trained:
        return f"{count} (all frozen)"
    return f"{count} ({format_count(parameters.trained)} of them trained)"


def _coverage(summary: Summary, width: int) -> Iterator[Text]:
    coverage = summary.coverage
    free = "views, metadata or sleeps" if coverage.sleeps else "views or metadata"
    if not coverage.uncounted:
        text = f"Operators counted: {coverage.counted}; {coverage.free} more are {free}."
        yield from _prose(f"{text} Every operator has a rule.", width)
        return
    text = f"Operators counted: {coverage.counted}; {coverage.free} are {free}."
    yield from _prose(
        f"{text} NOT counted, missing from all totals: {coverage.uncounted_ops}.", width, "yellow"
    )
    yield from _operators(coverage.uncounted, width)


def _placeholders(summary: Summary, width: int) -> Iterator[Text]:
    listed, others = placeholder_lines(summary.placeholders, summary.own_root)
    if listed:
        yield from _prose("Placeholders for values that virtual tensors do not have:", width)
        for line in listed:
            yield from map(Text, wrap(line, width))
        yield from _more(others)


def _notes(summary: Summary, width: int) -> Iterator[Text]:
    if not summary.notes:
        return
    yield from _prose("Differences from a real GPU:", width)
    for note in summary.notes[:MOST_LISTED]:
        times = f" ({times_text(note.count)})" if note.count > 1 else ""
        yield from map(Text, wrap(f"{note.text[:400]}{times}", width))
    yield from _more(len(summary.notes) - MOST_LISTED)


def _effects(summary: Summary, width: int) -> Iterator[Text]:
    for sentence, lines in sections(summary.surroundings, summary.own_root):
        yield from _prose(sentence, width)
        for line in lines:
            yield from map(Text, wrap(printable(line), width))


def _more(count: int) -> Iterator[Text]:
    """How many are not listed."""
    if count > 0:
        yield Text(f"{INDENT}and {count} more: --json lists all")


def _next(summary: Summary, file: str) -> Iterator[Text]:
    if not file:
        return
    name = shlex.quote(printable(file))
    line = "library-line" if summary.library_lines is not None else "line"
    yield Text()
    yield Text("Next", style="bold")
    yield Text(f"{INDENT}tally show {name} --by module --top 20   ({line}, bound, op, growth)")
    yield Text(f"{INDENT}tally report {name}: a page for a browser; tally view: in the terminal")
    if summary.script.endswith(".py"):
        script = shlex.quote(printable(summary.script))
        yield Text(f"{INDENT}tally fit {script} --vary ...: the largest batch that fits")
