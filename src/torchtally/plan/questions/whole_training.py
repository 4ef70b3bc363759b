"""How long does a whole training take, and cost: with saves, evaluations, failures, restarts?"""

from dataclasses import dataclass, replace
from math import ceil, log

from torchtally.errors import UsageError
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.closed_form import (
    BytePerS,
    Bytes,
    Chips,
    Seconds,
    TokenPerS,
    Tokens,
    closed_form,
)
from torchtally.plan.closed_form import Count as CountTerm
from torchtally.plan.goodput.interval import daly_interval_s, young_interval_s
from torchtally.plan.goodput.losses import (
    effective_mfu,
    failures,
    goodput,
    job_mtbf_s,
    no_spare,
    repeated_s,
    restarts_s,
    slower_s,
    unwritten_s,
)
from torchtally.plan.goodput.rates import FailureRate, rates
from torchtally.plan.goodput.simulation import Segments, lost_s, percentile
from torchtally.plan.memory import checkpoint_bytes, states, states_of_count
from torchtally.plan.quantity import Quantity, derive, of, total_s
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.bill import unknown_costs
from torchtally.plan.questions.plan_options import MODEL
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.training_time import beside_budget, training_time, used_by_time
from torchtally.plan.questions.uses import Fields, uses
from torchtally.plan.questions.whole_bill import rented, whole_bill
from torchtally.plan.questions.whole_forms import SCHEDULE
from torchtally.plan.questions.whole_options import WHOLE_TRAINING
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.table import Column, Table
from torchtally.units import Unit, format_seconds

SIMULATED = 1000
"""Trainings, of which percentiles are told."""
WORK = ("training", "evaluation", "slower")
LOST = ("repeated", "restarts")
"""Causes that are drawn at random."""
SHARES = (0.05, 0.5, 0.95)
MOST_PLAYED = 30_000
"""Failures of one training that are played in a few seconds."""
MOST_TRIES = 1000
"""Of a segment or a restart, until one passes."""
NO_FAILURES = "failures: none counted; give --mtbf 8h, or a published rate: --mtbf llama-3"


def _used(request: Request) -> Fields:
    return {*used_by_time(request), *WHOLE_TRAINING, "optimizer", "global_batch", "sequence"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A training's steps and what interrupts them. Seconds are Quantities; None: not counted."""

    training_s: Quantity
    evaluating: Quantity
    save_s: Quantity
    """That the training stands still for one."""
    written_s: Quantity
    """Until a save can be loaded, after that."""
    restart_s: Quantity
    start_s: Quantity
    interval_s: Quantity
    slower_share: tuple[Quantity, Quantity] | None
    """(time of a repair, nodes) of an elastic training."""

    def causes(self, mtbf_s: Quantity | None) -> dict[str, Quantity]:
        """Every second of the training, by what it goes to."""
        work = {"training": self.training_s, "evaluation": self.evaluating}
        if self.slower_share is not None and mtbf_s is not None:
            repair, nodes = self.slower_share
            if repair.value >= mtbf_s.value * nodes.value:
                raise UsageError("--repair: nodes fail faster than they are repaired.")
            steps = total_s("work", **work)
            work["slower"] = slower_s(steps, repair, mtbf_s, nodes)
        segments, each = self.segments(total_s("work", **work))
        saving = saving_s(segments, self.save_s)
        causes = {**work, "saving": saving, "starting": self.start_s}
        if mtbf_s is None:
            return causes
        longest_s = max(each.value + self.save_s.value, self.restart_s.value)
        if longest_s > log(MOST_TRIES) * mtbf_s.value:
            raise UsageError(
                f"Failures every {format_seconds(mtbf_s.value)} end more than {MOST_TRIES:,} tries "
                f"of {format_seconds(longest_s)}, a restart or the work up to a save and the save: "
                "save more often or faster (--checkpoint-every, --checkpoint-bandwidth), or check "
                "--mtbf and --restart."
            )
        lost = repeated_s(segments, each, self.save_s, mtbf_s)
        if self.written_s.value:
            again = unwritten_s(segments, each, self.save_s, self.written_s, mtbf_s)
            lost = total_s("repeated work", destroyed=lost, unwritten=again)
        restarts = restarts_s(segments, each, self.save_s, self.restart_s, mtbf_s)
        return {**causes, "repeated": lost, "restarts": restarts}

    def saved_for(self, mtbf_s: Quantity) -> "Whole":
        """The training with saves as often as costs least at another rate of failures."""
        interval = written_within(daly_interval_s(self.save_s, mtbf_s), self.written_s)
        return replace(self, interval_s=interval)

    def segments(self, work_s: Quantity) -> tuple[Quantity, Quantity]:
        """(number of saves, seconds of work before each)."""
        count = saves(work_s, self.interval_s)
        return count, between_saves_s(work_s, count)


@closed_form("saves", Unit.COUNT)
def saves(work_s: Seconds, interval_s: Seconds) -> str:
    """Saves, one for each interval that begins; the last one is at the end."""
    return "ceil(work_s / interval_s)"


@closed_form("work between saves", Unit.SECONDS)
def between_saves_s(work_s: Seconds, saves: CountTerm) -> str:
    return "work_s / saves"


@closed_form("saving", Unit.SECONDS)
def saving_s(saves: CountTerm, save_s: Seconds) -> str:
    """Seconds in which the training stands still for saves."""
    return "saves * save_s"


@closed_form("evaluation", Unit.SECONDS, "", "a forward pass is a third of a step's FLOPs")
def evaluating_s(evaluations: CountTerm, tokens: Tokens, tokens_per_s: TokenPerS) -> str:
    """Seconds of all evaluations, at the MFU of the training."""
    return "evaluations * tokens / (3 * tokens_per_s)"


@closed_form("writing a checkpoint", Unit.SECONDS)
def written_s(checkpoint: Bytes, byte_per_s: BytePerS) -> str:
    """Seconds that all chips together take."""
    return "checkpoint / byte_per_s"


@closed_form("copying a checkpoint", Unit.SECONDS)
def copied_s(checkpoint: Bytes, chips: Chips, byte_per_s: BytePerS) -> str:
    """Seconds in which each chip moves its share."""
    return "checkpoint / (chips * byte_per_s)"


@uses(MODEL, _used)
def whole_training(request: Request) -> Answer:
    """Seconds by cause, goodput, saves, and the bill; percentiles of simulated trainings."""
    steps = training_time(request)
    mtbf = _mtbf(request)
    whole = _whole(request, steps, mtbf)
    causes = whole.causes(mtbf)
    seconds = total_s("whole training", **causes)
    share = goodput(causes["training"], seconds)
    mfu = next(part for part in steps.headline if _is_of(part, Unit.FRACTION))
    assert isinstance(mfu, Quantity)
    bills = whole_bill(request, seconds)
    counted: tuple[Quantity, ...] = ()
    played: tuple[Table, ...] = ()
    if mtbf is not None:
        counted = (failures(seconds, mtbf), mtbf)
        is_played = counted[0].value <= MOST_PLAYED
        played = _percentiles(whole, causes, mtbf) if is_played else ()
    tables = (_by_cause(causes, seconds), *played)
    return Answer(
        question="whole-training",
        headline=(
            seconds,
            f" for all of {subject_text(request)} on ",
            *chips_text(request.of_cluster),
            ", ",
            share,
            " of it training",
            *beside_budget(request, bills),
        ),
        figures=(
            seconds,
            share,
            effective_mfu(mfu, share),
            whole.interval_s,
            *_young(request, whole, mtbf),
            whole.save_s,
            *counted,
            *bills,
        ),
        tables=(*tables, *rented(request, whole, mtbf)),
        assumptions=(
            *(text for text in steps.assumptions if not text.startswith("MFU is of")),
            "A failure stops all chips, and they go on from the last checkpoint.",
            "A start loads the checkpoint at the speed at which it is saved.",
        ),
        unknown=(
            *unknown_costs(request, request.chip),
            *((NO_FAILURES,) if mtbf is None else ()),
            *((f"percentiles: of more than {MOST_PLAYED:,} failures",)
              if counted and not played else ()),
            *(("start: give --restart 10min",) if request.restart is None else ()),
            *(("evaluation: give --evaluate-every 1000 --evaluation-tokens 5M",)
              if request.evaluate_every is None else ()),
            "stragglers, and failures that corrupt numbers silently",
        ),
    )  # fmt: skip


def _is_of(part: object, unit: Unit) -> bool:
    return isinstance(part, Quantity) and part.unit is unit


def _mtbf(request: Request) -> Quantity | None:
    """Mean time between failures of all chips, the user's or by a published rate."""
    rate = request.mtbf
    if rate is None:
        return None
    if isinstance(rate, FailureRate):
        return job_mtbf_s(rate.failure_chip_hours, request.of_chips)
    return of(rate, Unit.SECONDS).with_name("mean time between failures")


def _whole(request: Request, steps: Answer, mtbf: Quantity | None) -> Whole:
    training = steps.figures[0]
    save, written = _save(request)
    load = total_s("loading", save=save, written=written)
    start, restart = _restart(request, load, mtbf)
    interval = written_within(_interval(request, steps, save, mtbf), written)
    elastic = None
    if request.elastic:
        if mtbf is None or request.repair_s is None:
            raise UsageError("--elastic needs --mtbf and --repair: for how long is a node away?")
        nodes = of(_nodes(request), Unit.COUNT).with_name("nodes")
        elastic = (_repair(request), nodes)
    elif request.repair_s is not None and request.spares is None:
        raise UsageError("--repair counts with --spares or --elastic: add one of them.")
    return Whole(training, _evaluation(request, steps), save, written, restart, start, interval,
                 elastic)  # fmt: skip


def written_within(interval: Quantity, written: Quantity) -> Quantity:
    """The interval, but no shorter than a checkpoint is written."""
    if written.value <= interval.value:
        return interval
    return written.with_name("checkpoint interval").with_note("as long as one is written")


def _nodes(request: Request) -> int:
    cluster = request.of_cluster
    return ceil(cluster.count / cluster.node_size)


def _repair(request: Request) -> Quantity:
    assert request.repair_s is not None
    return of(request.repair_s, Unit.SECONDS).with_name("repair of a node")


def _optimizer_steps(steps: Answer, option: str) -> Quantity:
    found = next((figure for figure in steps.figures if figure.name == "optimizer steps"), None)
    if found is None:
        raise UsageError(f"{option} counts optimizer steps: add --batch (and --sequence).")
    return found


def _evaluation(request: Request, steps: Answer) -> Quantity:
    if (request.evaluate_every is None) != (request.evaluation_tokens is None):
        raise UsageError("--evaluate-every and --evaluation-tokens are given together.")
    if request.evaluate_every is None or request.evaluation_tokens is None:
        return of(0, Unit.SECONDS).with_name("evaluation")
    count = _optimizer_steps(steps, "--evaluate-every")
    evaluations = derive(
        "evaluations", Unit.COUNT, "floor(steps / every)", steps=count,
        every=of(request.evaluate_every, Unit.COUNT).with_name("steps between evaluations"),
    )  # fmt: skip
    speed = next(figure for figure in steps.figures if figure.unit is Unit.TOKEN_PER_S)
    return evaluating_s(evaluations, request.evaluation_tokens, speed)


def _save(request: Request) -> tuple[Quantity, Quantity]:
    """(seconds that a save stops the training, seconds until it can be loaded after that)."""
    subject = request.of_subject
    state = (
        states_of_count(subject.parameters, request.recipe, request.optimizer)
        if subject.model is None
        else states(weights_of(subject.model), request.recipe, request.optimizer)
    )
    size, chip = checkpoint_bytes(state), request.chip
    nothing = of(0, Unit.SECONDS).with_name("written at once")
    if request.checkpoints == "memory":
        if request.checkpoint_byte_per_s is not None:
            raise UsageError("--checkpoints memory uses the nodes' network: leave "
                             "--checkpoint-bandwidth out.")  # fmt: skip
        network = None if chip.node is None else chip.node.network
        speed = None if network is None else network.bytes_per_s_per_direction
        if speed is None:
            raise UsageError(f"--checkpoints memory: the network of the {chip.name} is unknown; "
                             "give --network 8x400Gb/s.")  # fmt: skip
        return copied_s(size, request.of_chips, speed), nothing
    if request.checkpoint_byte_per_s is None:
        raise UsageError(
            f"A checkpoint has {size.value / 1e9:,.4g} GB: give the speed of the disk or object "
            "store, all chips together: --checkpoint-bandwidth 20GB/s."
        )
    written = written_s(size, request.checkpoint_byte_per_s)
    if request.checkpoints == "sync":
        return written, nothing
    host = None if chip.host_link is None else chip.host_link.bytes_per_s_per_direction
    if host is None:
        raise UsageError(f"--checkpoints async: the host link of the {chip.name} is unknown.")
    return copied_s(size, request.of_chips, host), written


def _restart(request: Request, load: Quantity, mtbf: Quantity | None) -> tuple[Quantity, Quantity]:
    """(seconds of the first start, which loads nothing; of a restart)."""
    stages = {
        name.replace("-", "_"): of(seconds, Unit.SECONDS).with_name(name)
        for name, seconds in (request.restart or {}).items()
    }
    start = total_s("starting", **stages)
    if request.spares is not None:
        if mtbf is None or request.repair_s is None or SCHEDULE not in stages:
            raise UsageError(
                "--spares saves the stage `schedule`: give --mtbf, --repair 4h and "
                "--restart schedule=5min,compile=3min."
            )
        if request.elastic:
            raise UsageError("--spares and --elastic: give one of them.")
        share = no_spare(request.spares, _repair(request), mtbf)
        stages[SCHEDULE] = derive("schedule, without a spare", Unit.SECONDS, "share * schedule",
                                  share=share, schedule=stages[SCHEDULE])  # fmt: skip
    elif request.elastic:
        stages.pop(SCHEDULE, None)
    return start, total_s("restart", **stages, load=load)


def _interval(request: Request, steps: Answer, save: Quantity, mtbf: Quantity | None) -> Quantity:
    asked = request.checkpoint_every
    assert asked is not None
    if asked.seconds is not None:
        return of(asked.seconds, Unit.SECONDS).with_name("checkpoint interval")
    if asked.steps is not None:
        return derive(
            "checkpoint interval", Unit.SECONDS, "every * training_s / steps",
            every=of(asked.steps, Unit.COUNT).with_name("steps between saves"),
            training_s=steps.figures[0], steps=_optimizer_steps(steps, "--checkpoint-every"),
        )  # fmt: skip
    if mtbf is None:
        raise UsageError(
            "--checkpoint-every auto depends on failures: give your own, --mtbf 8h, or a "
            f"published rate: --mtbf {' or '.join(rates())}."
        )
    return daly_interval_s(save, mtbf)


def _young(request: Request, whole: Whole, mtbf: Quantity | None) -> tuple[Quantity, ...]:
    """The first-order interval beside the one that was taken."""
    return () if mtbf is None else (young_interval_s(whole.save_s, mtbf),)


def _by_cause(causes: dict[str, Quantity], seconds: Quantity) -> Table:
    rows = tuple((name, cause.value, cause.value / seconds.value) for name, cause in causes.items())
    return Table(
        title="Where the time goes",
        columns=(
            Column("cause", "", Unit.NAME),
            Column("seconds", "time", Unit.SECONDS),
            Column("run_share", "share", Unit.FRACTION),
        ),
        rows=rows,
        totals=("total", seconds.value, 1.0),
    )


def _percentiles(whole: Whole, causes: dict[str, Quantity], mtbf: Quantity) -> tuple[Table, ...]:
    """What simulated trainings take, beside what is expected."""
    work = {name: causes[name] for name in WORK if name in causes}
    count, each = whole.segments(total_s("work", **work))
    segments = Segments(
        int(count.value),
        each.value,
        whole.save_s.value,
        whole.restart_s.value,
        mtbf.value,
        whole.written_s.value,
    )
    lost = lost_s(segments, SIMULATED)
    kept = sum(cause.value for name, cause in causes.items() if name not in LOST)
    expected = kept + sum(causes[name].value for name in LOST)
    rows = [
        ("expected, closed form", expected),
        ("mean of simulated", kept + sum(lost) / len(lost)),
        *((f"{share:.0%} take at most", kept + percentile(lost, share)) for share in SHARES),
    ]
    table = Table(
        title=f"{SIMULATED} simulated trainings",
        columns=(Column("name", "", Unit.NAME), Column("seconds", "time", Unit.SECONDS)),
        rows=tuple(rows),
        totals=(None, None),
    )
    return (table,)
