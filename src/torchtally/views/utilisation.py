"""How much of what the chip promises a step uses: MFU, HFU and MBU, each by a named convention.

N: parameters.  L, H, Q, T: layers, heads, head dim, sequence.

MFU counts what the model asks for: the matrix products of the forward and backward pass, those of
evaluation where the time is that of a whole run, nothing repeated, no optimizer (PaLM, arXiv
2204.02311, appendix B; Megatron-LM, arXiv 2205.05198, section 5). The backward of attention counts
twice its forward, although fused kernels compute the scores again and so take two and a half times
it. HFU counts what is done: with recomputation, the optimizer's products, and fused attention's
backward in full.

How attention counts makes honest MFUs differ, so they stand side by side: in full, causal by half,
or by the rule of six FLOPs for each parameter and token, which leaves attention out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.ledger import Entry, Ledger
from torchtally.table import Cell, Column, Table
from torchtally.trace import FORWARD_PHASES, Phase, Role
from torchtally.units import Unit
from torchtally.views.bounds import NO_TIMES
from torchtally.views.columns import part_of
from torchtally.views.matrix_work import (
    Work,
    needed_flops,
    training_attention_flops,
    unit_of,
    works_of,
)
from torchtally.views.parameters import parameters_of
from torchtally.views.throughput import tokens_of
from torchtally.views.view import view
from torchtally.work.convention import Convention

EMBEDDINGS = ("aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only")


@dataclass(frozen=True, slots=True)
class PeakPart:
    """The FLOPs of one dtype, and the rate that the chip has for it."""

    dtype: str
    flops: int
    flop_per_s: float | None
    """None where the chip has no such number."""


@dataclass(frozen=True, slots=True)
class PeakRate:
    """The peak that a step's work is compared with: that of each dtype for the FLOPs in it."""

    parts: tuple[PeakPart, ...]
    """Most FLOPs first; none without matrix products."""
    is_measured: bool
    """The best that was measured, for a CPU; else the dense rate of the data sheet."""

    @property
    def dtype(self) -> str:
        """That most of the FLOPs are in; "" where there are none."""
        return self.parts[0].dtype if self.parts else ""

    @property
    def counted(self) -> tuple[PeakPart, ...]:
        """Those with a peak; none where most FLOPs have no peak."""
        if not self.parts or self.parts[0].flop_per_s is None:
            return ()
        return tuple(part for part in self.parts if part.flop_per_s)

    @property
    def counted_share(self) -> float:
        """Share of the FLOPs that have a peak."""
        return part_of(
            sum(part.flops for part in self.counted), sum(part.flops for part in self.parts)
        )

    @property
    def flop_per_s(self) -> float | None:
        """All FLOPs over the sum of the seconds that each dtype's would take at its own peak. None
        where there is no peak for most of them; those without one are left out.
        """
        ideal_s = sum(part.flops / part.flop_per_s for part in self.counted if part.flop_per_s)
        return sum(part.flops for part in self.counted) / ideal_s if ideal_s else None

    @property
    def split(self) -> tuple[PeakPart, ...]:
        """Most FLOPs first, where more than one dtype matters."""
        flops = sum(part.flops for part in self.counted)
        matter = tuple(part for part in self.counted if part.flops > SMALL_SHARE * flops)
        return matter if len(matter) > 1 else ()

    @property
    def description(self) -> str:
        """Text like "promised dense bfloat16", of all dtypes that matter to the rate as read."""
        what = "best measured" if self.is_measured else "promised dense"
        named = self.split or self.counted[:1] or self.parts[:1]
        names = " and ".join(part.dtype for part in named)
        own, rate = replace(self, parts=named).flop_per_s, self.flop_per_s
        others = [part.dtype for part in self.counted if part not in named]
        if not others or own is None or rate is None or abs(rate / own - 1) < LEGIBLE:
            return f"{what} {names}"
        return f"{what} {names}, with less than 1 % in {' and '.join(others)}"


SMALL_SHARE = 0.01
"""Of the FLOPs: a dtype below it is named only where it shows in the rate."""
LEGIBLE = 1e-5
"""Of a rate: 989.40 TFLOP/s read otherwise."""


@dataclass(frozen=True, slots=True)
class Utilisation:
    """One figure: work over time over what the chip promises."""

    key: str
    """Stable: "mfu_full"."""
    name: str
    convention: str
    """What is counted, in words."""
    amount: int
    """FLOPs of the step; of MBU bytes."""
    per_s: float | None
    """None for a step that takes no time."""
    peak_per_s: float | None
    """None where the chip has no such number."""
    of: str
    """Which peak: "promised dense bfloat16"."""

    @property
    def fraction(self) -> float | None:
        if self.per_s is None or self.peak_per_s is None:
            return None
        return self.per_s / self.peak_per_s

    @property
    def is_bytes(self) -> bool:
        return self.key == "mbu"

    @property
    def unit(self) -> str:
        """Unit of the amount."""
        return "bytes" if self.is_bytes else "flops"


# Figures ---------------------------------------------------------------------------------------


def utilisations(ledger: Ledger) -> tuple[Utilisation, ...]:
    """Every figure that applies to the step; none without times.

    Rules by parameters need token ids and a backward pass, the causal rule an operator that says
    that it is causal, PaLM's rule attention that is an operator rather than products.
    """
    if ledger.roofline is None:
        return ()
    chip, is_host = ledger.roofline.chip, ledger.roofline.is_host
    step_s = ledger.step_s or 0.0
    works = works_with_peak(works_of(ledger.reported), chip)

    def flops(key: str, name: str, convention: str, amount: int, count: Count) -> Utilisation:
        # Rules by parameters count what is trained, hence no time of evaluation.
        work_s = step_s - evaluation_s(ledger) if key in BY_PARAMETERS else step_s
        per_s = amount / work_s if work_s > 0 else None
        peak = _peak(works, chip, count)
        return Utilisation(key, name, convention, amount, per_s, peak.flop_per_s, peak.description)

    model_key = "mfu_causal" if ledger.convention is Convention.CAUSAL else "mfu_full"

    def figures() -> Iterator[Utilisation]:
        for count in _counts(ledger, works):
            figure = flops(*count)
            if not (is_above_peak(figure) and counts_too_much(figure, works)):
                yield figure
                if figure.key == model_key:
                    yield from in_dtypes(figure, _peak(works, chip, count[-1]), step_s)
        moved = sum(total.bytes for timed, total in ledger.sums(ledger.has_time).items() if timed)
        yield Utilisation(
            "mbu",
            "MBU",
            "bytes read and written, each operand once",
            moved,
            moved / step_s if step_s else None,
            chip.memory_bandwidth_bytes_per_s,
            "best measured bandwidth" if is_host else "promised bandwidth",
        )

    return tuple(figures())


IN_FULL = frozenset({"mfu_full", "hfu_full"})
BY_PARAMETERS = frozenset({"mfu_6n", "mfu_6n_inner", "mfu_palm"})
ROUNDING = 1e-9


def evaluation_s(ledger: Ledger) -> float:
    """Seconds of the reported period's evaluation; no single step has any."""
    if ledger.reported_period.step is not None:
        return 0.0
    evaluation = ledger.by_phase().get(Phase.EVALUATION)
    return evaluation.seconds if evaluation is not None else 0.0


PART = "of it in "


def in_dtypes(figure: Utilisation, peak: PeakRate, step_s: float) -> Iterator[Utilisation]:
    """Its parts in each dtype, where several matter: their fractions sum to its own."""
    for part in peak.split:
        yield replace(
            figure,
            key=f"{figure.key}_{part.dtype}",
            name=f"{PART}{part.dtype}",
            convention=f"the part of it that is computed in {part.dtype}",
            amount=part.flops,
            per_s=part.flops / step_s if step_s else None,
            peak_per_s=part.flop_per_s,
            of=PeakRate((part,), peak.is_measured).description,
        )


def is_above_peak(figure: Utilisation) -> bool:
    return figure.fraction is not None and figure.fraction > 1 + ROUNDING


def counts_too_much(figure: Utilisation, works: Iterable[Work]) -> bool:
    """Whether it may count what is not computed: the masked half of causal attention, parameters
    that a token does not meet. Where that is more than the chip can do it is left out, with a note.
    """
    is_causal = any(work.is_causal for work in works)
    return figure.key in BY_PARAMETERS or (is_causal and figure.key in IN_FULL)


def laws_broken(ledger: Ledger) -> list[str]:
    """What claims more than the chip can do, in words: a mistake of ours wherever it happens."""
    return [
        f"{figure.name} is {figure.fraction} of the {figure.of}"
        for figure in utilisations(ledger)
        if is_above_peak(figure)
    ]


def model_utilisation(ledger: Ledger) -> Utilisation | None:
    """MFU by the ledger's own convention of attention; None without matrix products.

    Causal attention counts by half, too, where in full it would be more than the chip can do.
    """
    by_key = {utilisation.key: utilisation for utilisation in utilisations(ledger)}
    is_causal = ledger.convention is Convention.CAUSAL or "mfu_full" not in by_key
    return by_key.get("mfu_causal" if is_causal and "mfu_causal" in by_key else "mfu_full")


def model_split(ledger: Ledger) -> tuple[Utilisation, ...]:
    """The parts of that MFU in each dtype, where several matter."""
    model = model_utilisation(ledger)
    prefix = "" if model is None else f"{model.key}_"
    parts = (figure for figure in utilisations(ledger) if figure.key.startswith(prefix))
    return tuple(part for part in parts if part.name.startswith(PART)) if prefix else ()


def _counts(ledger: Ledger, works: Sequence[Work]) -> Iterator[tuple[str, str, str, int, "Count"]]:
    """(key, name, convention, FLOPs, by which to weight the peaks) by every rule that applies."""
    if not works:
        return
    full, causal = Convention.FULL, Convention.CAUSAL
    needed, needed_causal = partial(needed_flops_of, full), partial(needed_flops_of, causal)
    executed, executed_causal = partial(executed_flops_of, full), partial(executed_flops_of, causal)
    is_causal = any(work.is_causal for work in works)
    how = ", attention in full" if any(work.is_attention for work in works) else ""
    by_half = "the same, causal attention counted by half"
    also = ", and of evaluation" if any(work.phase is Phase.EVALUATION for work in works) else ""
    yield (
        "mfu_full",
        f"MFU{how}",
        f"products of the forward and backward pass{also}{how}",
        sum(map(needed, works)),
        needed,
    )
    if is_causal:
        amount = sum(map(needed_causal, works))
        yield ("mfu_causal", "MFU, causal by half", by_half, amount, needed_causal)
    yield from _by_parameters(ledger, works)
    yield (
        "hfu_full",
        f"HFU{how}",
        f"all products, recomputed ones included{how}",
        sum(map(executed, works)),
        executed,
    )
    if is_causal:
        amount = sum(map(executed_causal, works))
        yield ("hfu_causal", "HFU, causal by half", by_half, amount, executed_causal)


def _by_parameters(
    ledger: Ledger, works: Sequence[Work]
) -> Iterator[tuple[str, str, str, int, "Count"]]:
    tokens, parameters = tokens_of(ledger), parameters_of(ledger)
    if tokens is None or parameters is None or not ledger.total.flops_backward:
        return
    per_token_flops = parameters.flops_per_token
    inner = None if looks_up_gathered(ledger) else parameters.without(looked_up(ledger))
    frozen = " (frozen ones 4, or 2 where no gradient passes)" if parameters.frozen else ""
    rule = f"6 FLOPs a parameter and token{frozen}"
    needed = partial(needed_flops_of, Convention.FULL)
    yield ("mfu_6n", "MFU, 6N", rule, per_token_flops * tokens.size, needed)
    if inner is not None:
        yield (
            "mfu_6n_inner",
            "MFU, 6N, no embedding",
            "the same, without parameters that are only looked up",
            inner.flops_per_token * tokens.size,
            needed,
        )
    attention = training_attention_flops(works)
    if attention:
        yield (
            "mfu_palm",
            "MFU, 6N + 12LHQT",
            f"PaLM's: {rule}, and attention in full",
            per_token_flops * tokens.size + attention,
            needed,
        )


# Peaks -----------------------------------------------------------------------------------------


def model_flops(entries: Iterable[Entry], attention: Convention) -> int:
    """What MFU counts: products of forward and backward, under a convention of attention."""
    return needed_flops(works_of(entries), attention)


Count = Callable[[Work], int]
"""FLOPs of a work, by some rule."""


def needed_flops_of(attention: Convention, work: Work) -> int:
    """What MFU counts of it."""
    return needed_flops((work,), attention)


def executed_flops_of(attention: Convention, work: Work) -> int:
    return work.executed_flops(attention)


def peak_of(ledger: Ledger, chip: Chip) -> PeakRate:
    """The dense peaks of the dtypes in which the step's products are computed, for its MFU."""
    return _peak(works_of(ledger.reported), chip, partial(needed_flops_of, ledger.convention))


def works_with_peak(works: Sequence[Work], chip: Chip) -> Sequence[Work]:
    """All works, where most of their FLOPs have no peak; else those that have one: what the chip
    has no rate for has no time either.
    """
    peak = _peak(works, chip, partial(executed_flops_of, Convention.FULL))
    counted = {part.dtype for part in peak.counted}
    return [work for work in works if unit_of(work, chip) in counted] if counted else works


def _peak(works: Iterable[Work], chip: Chip, count: Count) -> PeakRate:
    flops: Counter[str] = Counter()
    for work in works:
        flops[unit_of(work, chip)] += count(work)
    if not flops.total():  # nothing but recomputation: the dtype is that of what is there
        flops = Counter(dict.fromkeys(flops, 1))
    parts = (PeakPart(dtype, n, _rate(chip, dtype)) for dtype, n in flops.most_common() if n)
    return PeakRate(tuple(parts), is_measured=chip.vendor == "CPU")


def _rate(chip: Chip, dtype: str) -> float | None:
    try:
        return chip.peak_flop_per_s(dtype)
    except UsageError:
        return None


# Parameters ------------------------------------------------------------------------------------


def looked_up(ledger: Ledger) -> set[int]:
    """Storages of the parameters that the step's forward pass only looks up. A tied weight, which
    a product reads as well, is not among them.
    """
    storages = ledger.trace.storages
    parameters = {storage.number for storage in storages if storage.role is Role.PARAMETER}
    forward = [entry for entry in ledger.reported if entry.op.phase in FORWARD_PHASES]
    tables = {
        number
        for entry in forward
        if entry.call.name in EMBEDDINGS
        for number in entry.op.inputs
        if number in parameters
    }
    others = {
        number
        for entry in forward
        if entry.call.name not in EMBEDDINGS and not tables.isdisjoint(entry.op.inputs)
        for number in _read_by(entry)
    }
    return tables - others


def looks_up_gathered(ledger: Ledger) -> bool:
    """Whether a table was gathered from its shards: then which parameters it is, is not known."""
    gathered = ledger.memory.communication.gathered
    return any(
        entry.call.name in EMBEDDINGS and not gathered.isdisjoint(entry.op.inputs)
        for entry in ledger.reported
    )


def _read_by(entry: Entry) -> Iterator[int]:
    """The storages whose values an operator reads: no view's, nor what it writes over."""
    if not entry.kind.is_free:
        inputs = zip(entry.call.inputs, entry.op.inputs, strict=True)
        yield from (number for spec, number in inputs if not spec.is_written)


# The view --------------------------------------------------------------------------------------

COLUMNS = (
    Column("name", "figure", Unit.NAME),
    Column("peak_share", "of peak", Unit.FRACTION),
    Column("flop_per_s", "reached", Unit.FLOP_PER_S),
    Column("peak_flop_per_s", "peak", Unit.FLOP_PER_S),
    Column("flops", "FLOPs", Unit.FLOPS, rank=1),
    Column("bytes_per_s", "reached", Unit.BYTE_PER_S, rank=2),
    Column("peak_bytes_per_s", "bandwidth", Unit.BYTE_PER_S, rank=2),
    Column("bytes", "bytes", Unit.BYTES, rank=3),
    Column("peak", "which peak", Unit.TEXT, rank=4),
    Column("basis", "what counts", Unit.TEXT, rank=5),
)

DEFINITIONS = {
    "mfu_full": "MFU: products of the forward and backward pass, attention's backward as twice its "
    "forward.",
    "mfu_6n": "6N: six FLOPs for each trained parameter and token, four for a frozen one that "
    "gradients pass through, two for any other; 'no embedding' excludes parameters that are "
    "only looked up.",
    "mfu_palm": "12LHQT adds attention in full, as PaLM does.",
    "hfu_full": "HFU: all products, recomputed ones included.",
    "mbu": "MBU: bytes read and written, of the memory's bandwidth.",
}
"""By the first row that needs it."""


@view("utilisation", "MFU by each convention, HFU and MBU", "time")
def utilisation(ledger: Ledger) -> Table:
    """MFU by every convention, HFU and MBU of the reported period at its predicted time."""
    figures = utilisations(ledger)
    return Table(
        title="How much of the chip a step uses",
        columns=COLUMNS,
        rows=tuple(
            (
                utilisation.name,
                utilisation.fraction,
                *_cells(utilisation),
                utilisation.of,
                utilisation.convention,
            )
            for utilisation in figures
        ),
        note=" ".join(_note(ledger, figures)) if figures else NO_TIMES,
    )


def _cells(utilisation: Utilisation) -> tuple[Cell, ...]:
    """Reached, peak and amount, in FLOPs or in bytes."""
    figures, nothing = (
        (utilisation.per_s, utilisation.peak_per_s, utilisation.amount),
        (None, None, None),
    )
    return (*nothing, *figures) if utilisation.is_bytes else (*figures, *nothing)


def peak_note(ledger: Ledger, flops: list[Utilisation]) -> str:
    """Which peak the fractions are of, or why there are none."""
    assert ledger.roofline is not None
    chip = ledger.roofline.chip.name
    if not flops:
        return "The step has no matrix products, so there is no MFU."
    of = flops[0].of
    if flops[0].peak_per_s is None:
        dtype = of.rpartition(" ")[2]
        return f"No MFU: most products are in {dtype}, for which the {chip} has no peak."
    if " and " in of:
        return f"Peak: the {chip}'s {of}. The FLOPs of each dtype are compared with its own peak."
    return f"Peak: the {chip}'s {of}, in which most products are."


def _left_out(ledger: Ledger, keys: set[str]) -> Iterator[str]:
    """Figures that are not shown, and why."""
    assert ledger.roofline is not None
    works = works_of(ledger.reported)
    chip = ledger.roofline.chip
    counted = works_with_peak(works, chip)
    above = [name for key, name, *_ in _counts(ledger, counted) if key not in keys]
    if above:
        yield (
            "Left out, since it counts FLOPs that are not computed and would exceed the peak: "
            f"{', '.join(above)}."
        )
    without = sorted({unit_of(work, chip) for work in works if work not in counted})
    if without:
        yield f"In no figure: products in {', '.join(without)}, for which {chip.name} has no peak."


def _note(ledger: Ledger, utilisations: tuple[Utilisation, ...]) -> Iterator[str]:
    """What a reader must know: the peak, what each figure counts, and why a rule is missing."""
    flops = [utilisation for utilisation in utilisations if not utilisation.is_bytes]
    keys = {utilisation.key for utilisation in utilisations}
    yield peak_note(ledger, flops)
    yield from _left_out(ledger, keys)
    yield from (text for key, text in DEFINITIONS.items() if key in keys)
    if (
        any("attention" in utilisation.name for utilisation in utilisations)
        and "mfu_causal" not in keys
    ):
        yield "No attention operator is marked as causal, so none counts by half."
    if flops and "mfu_6n" not in keys:
        yield "No token ids are looked up and trained on, so the rules by parameters do not apply."
