"""The page of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, UnsetType, field

from torchtally.report.documents.account import (
    ConventionPart,
    CoveragePart,
    LinePart,
    NotePart,
    convention_part,
    in_line,
)
from torchtally.report.documents.costs import (
    LineCosts,
    ModuleCosts,
    OperatorCosts,
    TotalsPart,
    lines_part,
    modules_part,
    operators_part,
)
from torchtally.report.documents.limits import LimitPart, limits_part
from torchtally.report.documents.memory import HostStatePart, MemoryPart, memory_part
from torchtally.report.documents.time import (
    GenerationPart,
    ThroughputPart,
    TimePart,
    UtilisationPart,
    generation_part,
    throughput_part,
    time_part,
)
from torchtally.report.keys import (
    Bytes,
    Count,
    Document,
    DocumentPart,
    Flops,
    Fraction,
    Seconds,
    filled,
    key,
)
from torchtally.report.prose import in_words

if TYPE_CHECKING:
    from torchtally.fit.network_advisor import TimedChange, TimedRun
    from torchtally.fit.results import ChangeResult
    from torchtally.gates import Finding
    from torchtally.ledger import Ledger
    from torchtally.views.real_run import RealRun


class EndingPart(DocumentPart, frozen=True):
    kind: Annotated[str, key("Of what the row or part is")]
    message: Annotated[str, key("Of an exception")]


class SharePart(DocumentPart, frozen=True):
    flops: Annotated[Fraction | None, key("Of the FLOPs of all rows")] = field(name="flops_share")
    seconds: Annotated[Fraction | None, key("Of the time of all rows")] = field(
        name="seconds_share"
    )


class WholeRunPart(DocumentPart, frozen=True):
    steps: Count
    models: Annotated[Count, key("Models that a run trains")]
    flops: Annotated[Flops, key("Work of all phases; a multiply and an add are two operations")]
    seconds: Annotated[Seconds | None, key("Of the step, or of the length that was asked for")]
    was_stopped: Annotated[bool, key("Whether the script was stopped before its end")]
    steps_differ: Annotated[str, key("How the steps of a run differ")]
    reported: Annotated[SharePart, key("Of the run, for the period that totals are of")] = field(
        name="reported_share"
    )
    evaluation: Annotated[SharePart, key("Of the run, for evaluation")] = field(
        name="evaluation_share"
    )


class DiagnosisPart(LinePart, frozen=True):
    rule: Annotated[str, key("By which a cause was found")]
    cause: Annotated[str, key("Of lost or idle time, or of what a run costs")]
    remedy: Annotated[str, key("What to change")]
    cost_bytes: Annotated[Bytes, key("Held for a cause, at the peak or with every step more")]


class PlaceholderPart(LinePart, frozen=True):
    op: str = field(name="operator")
    given: Annotated[str, key("The placeholder that was given for a value")]
    use: Annotated[str, key("What it is used for")]
    count: Count


class EffectPart(LinePart, frozen=True):
    kind: str
    name: str
    count: Count
    bytes: Bytes
    placeholder_bytes: Annotated[Bytes, key("Of bytes written: values that no simulated GPU has")]


class LoadingPart(LinePart, frozen=True):
    workers: Annotated[Count, key("Processes that load batches in parallel; 0: the script itself")]
    batch_s: Annotated[
        Seconds,
        key("From one batch of a DataLoader to the next, on the machine that simulated the run"),
    ]


class ScriptWorkPart(LinePart, frozen=True):
    script_s: Annotated[
        Seconds,
        key(
            "Of the script's own code between two steps' ends, "
            "on the machine that simulated the run"
        ),
    ]


class ChangePart(DocumentPart, frozen=True):
    change: Annotated[str, key("A change that was tried")]
    what_ifs: Annotated[list[str], key("Changes, as --what-if takes them")]
    settings: Annotated[str, key("As for PYTORCH_CUDA_ALLOC_CONF")] = field(
        name="allocator_settings"
    )
    arguments: Annotated[list[str] | None, key("Of the script")]
    peak_reserved_bytes: Bytes
    saved_bytes: Annotated[Bytes, key("What a change saves of the peak")]
    fits: bool


class TimedChangePart(DocumentPart, frozen=True):
    what_if: Annotated[str, key("As --what-if takes it")]
    step_s: Seconds
    saved_s: Seconds
    peak_reserved_bytes: Bytes


class UnchangedPart(DocumentPart, frozen=True):
    step_s: Seconds
    peak_reserved_bytes: Bytes
    peak_allocated_bytes: Bytes


class LostPart(DocumentPart, frozen=True):
    reason: str
    kernels: Annotated[Count, key("Kernels")]
    seconds: Seconds


class UncountedKernelPart(DocumentPart, frozen=True):
    operator: str
    kernel_s: Seconds


class MeasuredPart(DocumentPart, frozen=True):
    made_by: Annotated[str, key("The tool, or the expression, that made it")]
    file: str
    has_shapes: Annotated[bool, key("Whether a recording has shapes")]
    has_lines: Annotated[bool, key("Whether a recording has stacks")]
    has_memory: Annotated[bool, key("Whether a recording has the allocator's events")]
    device_s: Annotated[Seconds, key("Between the first and the last kernel of a recording")]
    step_s: Seconds
    computing_s: Annotated[Seconds, key("In which the device computes")]
    exposed_s: Annotated[Seconds, key("Of the network, without overlap with kernels")]
    waiting_s: Annotated[Seconds, key("In which a rank waits for others")]
    kernel_s: Seconds
    counted_s: Annotated[Seconds, key("Of kernels whose work a rule counts")]
    timed_s: Annotated[Seconds, key("Of kernels that the roofline can time")]
    roofline_s: Annotated[Seconds, key("By the roofline, of those kernels that it can time")]
    lost: Annotated[list[LostPart], key("What a recording lacks")]
    idle_causes_s: Annotated[dict[str, Seconds], key("Seconds of idle time by cause")]
    uncounted: list[UncountedKernelPart]


class RunDocument(Document, tag="run/1", frozen=True):
    """Page of a run: `tally run`, `tally show`, `tally explain`."""

    script: Annotated[str, key("With its arguments")]
    chip: Annotated[str, key("Name of a GPU")]
    torch_version: Annotated[str, key("Of PyTorch")]
    steps: Annotated[Count, key("Training steps")]
    per: Annotated[str, key("The period that totals are of")]
    parameters: Annotated[Count | None, key("Parameters; tied ones once")]
    own_parameters: Annotated[
        Count | None,
        key("Parameters of a module without those inside it; of a model, those of this rank"),
    ]
    trained_parameters: Annotated[Count | None, key("Parameters that have gradients")]
    is_rank_share: Annotated[bool, key("Whether parameters may be one rank's part of the model's")]
    convention: Annotated[ConventionPart, key("How attention is counted")]
    ending: Annotated[EndingPart, key("How the run ended")]
    run: Annotated[WholeRunPart, key("All that was run")]
    host_state: Annotated[HostStatePart | None, key("Of optimizer state that is kept on the host")]
    diagnoses: Annotated[list[DiagnosisPart], key("Causes of what a run costs, the dearest first")]
    totals: Annotated[TotalsPart, key("Of the period; of a table, sums over all rows")]
    memory: Annotated[MemoryPart, key("Of the whole run")]
    time: Annotated[TimePart | None, key("Of the period; null where the chip's speed is unknown")]
    utilisation: Annotated[list[UtilisationPart], key("By every convention")]
    generation: Annotated[GenerationPart | None, key("Of tokens; null for what generates none")]
    throughput: Annotated[ThroughputPart | None, key("Per second")]
    lines_below: Annotated[LinePart, key("The line of the user's own below which `lines` are")]
    lines: Annotated[list[LineCosts], key("Of code")]
    modules: Annotated[list[ModuleCosts], key("Of the model")]
    ops: Annotated[list[OperatorCosts], key("Operators by name")]
    coverage: Annotated[CoveragePart, key("What was counted, and what was not")]
    placeholders: Annotated[list[PlaceholderPart], key("Values that were read and did not exist")]
    caveats: Annotated[
        list[str],
        key("What the whole report rests on, where the run was not the one that was asked for"),
    ]
    notes: Annotated[list[NotePart], key("About the trace")]
    effects: Annotated[list[EffectPart], key("What the script did outside of its GPU")]
    loading: Annotated[list[LoadingPart], key("DataLoaders, whose time is in no other figure")]
    script_work: Annotated[
        ScriptWorkPart | None,
        key("The script's own code between operators, whose time is in no other figure"),
    ]
    facts: Annotated[dict[str, str], key("About the run, by name")]
    changes: Annotated[list[ChangePart] | UnsetType, key("That were tried to make a run fit")] = (
        UNSET
    )
    timed_changes: Annotated[
        list[TimedChangePart] | UnsetType,
        key("Changes that were tried to hide more of the network"),
    ] = UNSET
    unchanged: Annotated[UnchangedPart | UnsetType, key("The run without --what-if's changes")] = (
        UNSET
    )
    limits: Annotated[list[LimitPart] | UnsetType, key("That were asserted")] = UNSET
    measured: Annotated[MeasuredPart | UnsetType, key("What was measured")] = UNSET


def run_document(
    ledger: "Ledger",
    *,
    changes: "Sequence[ChangeResult] | None" = None,
    timed_changes: "Sequence[TimedChange]" = (),
    unchanged: "TimedRun | None" = None,
    findings: "Sequence[Finding]" = (),
    run: "RealRun | None" = None,
) -> RunDocument:
    """All of a ledger but its single operators. `changes` were tried to make the run fit,
    `timed_changes` to hide more of its network; `unchanged` is the run without its own changes,
    `findings` are of its limits, and `run` is what a profiler measured.
    """
    from torchtally.diagnosis import diagnose
    from torchtally.views.parameters import parameters_of
    from torchtally.views.script_work import script_work
    from torchtally.views.summary import caveats_of
    from torchtally.views.utilisation import utilisations

    trace, parameters = ledger.trace, parameters_of(ledger)
    return filled(
        RunDocument,
        trace,
        steps=len(trace.step_ends),
        per=ledger.period,
        convention=convention_part(ledger),
        run=_whole_run_part(ledger),
        parameters=parameters and parameters.elements,
        own_parameters=parameters and parameters.own_elements,
        trained_parameters=parameters and parameters.trained,
        is_rank_share=parameters is not None and parameters.is_rank_share,
        diagnoses=[
            in_line(DiagnosisPart, each.line, each, cause=in_words(each.cause))
            for each in diagnose(ledger)
        ],
        totals=ledger.total,
        memory=memory_part(ledger),
        time=time_part(ledger),
        utilisation=utilisations(ledger),
        throughput=throughput_part(ledger),
        generation=generation_part(ledger),
        lines_below=in_line(LinePart, ledger.delegate),
        lines=lines_part(ledger),
        modules=modules_part(ledger),
        ops=operators_part(ledger),
        coverage=ledger.coverage,
        placeholders=[in_line(PlaceholderPart, each.frame, each) for each in trace.placeholders],
        caveats=list(caveats_of(ledger)),
        effects=[in_line(EffectPart, each.frame, each) for each in trace.effects],
        loading=[in_line(LoadingPart, each.frame, each) for each in trace.loading],
        script_work=(work := script_work(ledger)) and in_line(ScriptWorkPart, work.frame, work),
        changes=UNSET if changes is None else list(map(_change_part, changes)),
        timed_changes=timed_changes or UNSET,
        unchanged=unchanged or UNSET,
        limits=limits_part(findings) if findings else UNSET,
        measured=UNSET if run is None else _measured_part(ledger, run),
    )


def _whole_run_part(ledger: "Ledger") -> WholeRunPart:
    """All that was run, and what share of it the reported period is."""
    from torchtally.views.steps import run_shares, unlike

    run = run_shares(ledger)
    return filled(
        WholeRunPart,
        run,
        flops=run.total.flops,
        seconds=run.total.seconds if ledger.is_timed else None,
        steps_differ=unlike(ledger),
    )


def _change_part(result: "ChangeResult") -> ChangePart:
    return filled(ChangePart, result, result.change, change=result.change.text)


def _measured_part(ledger: "Ledger", run: "RealRun") -> MeasuredPart:
    return filled(
        MeasuredPart,
        ledger.trace.measured,
        run,
        idle_causes_s=dict(run.idle),
        uncounted=[UncountedKernelPart(*pair) for pair in run.uncounted],
    )
