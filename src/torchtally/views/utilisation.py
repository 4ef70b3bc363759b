"""How much of what the chip promises a step uses: MFU, HFU and MBU, each by a named convention.

N: parameters.  L, H, Q, T: layers, heads, head dim, sequence.

MFU counts what the model asks for: the matrix products of the forward and backward pass, nothing
done again, no optimizer (PaLM, arXiv 2204.02311, appendix B; Megatron-LM, arXiv 2205.05198, section
5). The backward of attention counts twice its forward, although fused kernels compute the scores
again and so take two and a half times it. HFU counts what is done: with recomputation, the
optimizer's products, and fused attention's backward in full.

How attention counts makes honest MFUs differ, so they stand side by side: in full, causal by half,
or by the rule of six FLOPs for each parameter and token, which leaves attention out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.ledger import Entry, Ledger
from torchtally.table import Cell, Column, Table
from torchtally.trace import Phase, Role
from torchtally.units import Unit
from torchtally.views.bounds import NO_TIMES
from torchtally.views.matrix_work import (
    Work,
    attention_flops,
    dominant_dtype,
    executed_flops,
    needed_flops,
    works_of,
)
from torchtally.views.parameters import parameters_of
from torchtally.views.throughput import tokens_of
from torchtally.views.view import view
from torchtally.work.convention import Convention

EMBEDDINGS = ("aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only")


@dataclass(frozen=True, slots=True)
class PeakRate:
    """The peak that a step's work is compared with."""

    dtype: str
    """That most matrix products of the step are computed in; "" where there are none."""
    flop_per_s: float | None
    """None where the chip has no such number."""
    is_measured: bool
    """The best that was measured, for a CPU; else the dense rate of the data sheet."""

    @property
    def description(self) -> str:
        return f"{'best measured' if self.is_measured else 'promised dense'} {self.dtype}"


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
    works = works_of(ledger.reported)
    peak = _peak(works, chip)

    def flops(key: str, name: str, convention: str, amount: int) -> Utilisation:
        per_s = amount / step_s if step_s else None
        return Utilisation(key, name, convention, amount, per_s, peak.flop_per_s, peak.description)

    def figures() -> Iterator[Utilisation]:
        yield from (flops(*count) for count in _counts(ledger, works))
        moved = ledger.total.bytes
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


def model_utilisation(ledger: Ledger) -> Utilisation | None:
    """MFU by the ledger's own convention of attention; None without matrix products."""
    by_key = {utilisation.key: utilisation for utilisation in utilisations(ledger)}
    is_causal = ledger.convention is Convention.CAUSAL and "mfu_causal" in by_key
    return by_key.get("mfu_causal" if is_causal else "mfu_full")


def _counts(ledger: Ledger, works: Sequence[Work]) -> Iterator[tuple[str, str, str, int]]:
    """(key, name, convention, FLOPs) by every rule that applies."""
    if not works:
        return
    full, causal = Convention.FULL, Convention.CAUSAL
    is_causal = any(work.is_causal for work in works)
    how = ", attention in full" if any(work.is_attention for work in works) else ""
    by_half = "the same, causal attention counted by half"
    yield (
        "mfu_full",
        f"MFU{how}",
        f"products of the forward and backward pass{how}",
        needed_flops(works, full),
    )
    if is_causal:
        yield ("mfu_causal", "MFU, causal by half", by_half, needed_flops(works, causal))
    yield from _by_parameters(ledger, works)
    yield (
        "hfu_full",
        f"HFU{how}",
        f"all products done, recomputed ones too{how}",
        executed_flops(works, full),
    )
    if is_causal:
        yield ("hfu_causal", "HFU, causal by half", by_half, executed_flops(works, causal))


def _by_parameters(ledger: Ledger, works: Sequence[Work]) -> Iterator[tuple[str, str, str, int]]:
    tokens, parameters = tokens_of(ledger), parameters_of(ledger)
    if tokens is None or parameters is None or not ledger.total.flops_backward:
        return
    per_token_flops = parameters.flops_per_token
    inner = parameters.without(looked_up(ledger))
    frozen = " (frozen ones 4, or 2 where no gradient passes)" if parameters.frozen else ""
    rule = f"6 FLOPs a parameter and token{frozen}"
    yield ("mfu_6n", "MFU, 6N", rule, per_token_flops * tokens.size)
    yield (
        "mfu_6n_inner",
        "MFU, 6N, no embedding",
        "the same, parameters that are only looked up left out",
        inner.flops_per_token * tokens.size,
    )
    attention = attention_flops(works)
    if attention:
        yield (
            "mfu_palm",
            "MFU, 6N + 12LHQT",
            f"PaLM's: {rule}, and attention in full",
            per_token_flops * tokens.size + attention,
        )


# Peaks -----------------------------------------------------------------------------------------


def model_flops(entries: Iterable[Entry], attention: Convention) -> int:
    """What MFU counts: products of forward and backward, under a convention of attention."""
    return needed_flops(works_of(entries), attention)


def peak_of(ledger: Ledger, chip: Chip) -> PeakRate:
    """The dense peak of the dtype in which most matrix FLOPs of the step are computed."""
    return _peak(works_of(ledger.reported), chip)


def _peak(works: Iterable[Work], chip: Chip) -> PeakRate:
    is_measured = chip.vendor == "CPU"
    dtype = dominant_dtype(works, chip)
    try:
        return PeakRate(dtype, chip.peak_flop_per_s(dtype) if dtype else None, is_measured)
    except UsageError:
        return PeakRate(dtype, None, is_measured)


# Parameters ------------------------------------------------------------------------------------


def looked_up(ledger: Ledger) -> set[int]:
    """Storages of the parameters that the step's forward pass only looks up. A tied weight, which
    a product reads as well, is not among them.
    """
    phase, storages = Phase.FORWARD, ledger.trace.storages
    parameters = {storage.number for storage in storages if storage.role is Role.PARAMETER}
    forward = [entry for entry in ledger.reported if entry.op.phase is phase]
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


def _read_by(entry: Entry) -> Iterator[int]:
    """The storages whose values an operator reads: no view's, nor what it writes over."""
    if not entry.kind.is_free:
        inputs = zip(entry.call.inputs, entry.op.inputs, strict=True)
        yield from (number for spec, number in inputs if not spec.is_written)


# The view --------------------------------------------------------------------------------------

COLUMNS = (
    Column("name", "figure", Unit.NAME),
    Column("fraction", "of peak", Unit.FRACTION),
    Column("flop_per_s", "reached", Unit.FLOP_PER_S),
    Column("peak_flop_per_s", "peak", Unit.FLOP_PER_S),
    Column("flops", "FLOPs", Unit.FLOPS, rank=1),
    Column("byte_per_s", "reached", Unit.BYTE_PER_S, rank=2),
    Column("peak_byte_per_s", "bandwidth", Unit.BYTE_PER_S, rank=2),
    Column("bytes", "bytes", Unit.BYTES, rank=3),
    Column("of", "which peak", Unit.TEXT, rank=4),
    Column("convention", "what counts", Unit.TEXT, rank=5),
)

DEFINITIONS = {
    "mfu_full": "MFU: products of the forward and backward pass, attention's backward as twice its "
    "forward.",
    "mfu_6n": "6N: six FLOPs for each trained parameter and token, four for a frozen one that "
    "gradients pass through, two for any other; 'no embedding' leaves out parameters that are only "
    "looked up.",
    "mfu_palm": "12LHQT adds attention in full, as PaLM does.",
    "hfu_full": "HFU: all products that are done, also those done again.",
    "mbu": "MBU: bytes read and written, of the memory's bandwidth.",
}
"""By the first row that needs it."""


@view("utilisation", "MFU by each convention, HFU and MBU", "time")
def utilisation(ledger: Ledger) -> Table:
    """MFU by every convention, HFU and MBU of the steady-state step at its predicted time."""
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
    return f"Peak: the {chip}'s {of}, in which most products are."


def _note(ledger: Ledger, utilisations: tuple[Utilisation, ...]) -> Iterator[str]:
    """What a reader must know: the peak, what each figure counts, and why a rule is missing."""
    flops = [utilisation for utilisation in utilisations if not utilisation.is_bytes]
    keys = {utilisation.key for utilisation in utilisations}
    yield peak_note(ledger, flops)
    yield from (text for key, text in DEFINITIONS.items() if key in keys)
    if (
        any("attention" in utilisation.name for utilisation in utilisations)
        and "mfu_causal" not in keys
    ):
        yield "No attention operator says that it is causal, so none counts by half."
    if flops and "mfu_6n" not in keys:
        yield "No token ids are looked up and trained on, so the rules by parameters do not apply."
