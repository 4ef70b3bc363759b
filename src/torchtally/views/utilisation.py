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

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchtally.calibration.features import matrices
from torchtally.convention import Attention, conventional
from torchtally.cost import Kind, cost_of
from torchtally.errors import UsageError
from torchtally.hardware import Chip
from torchtally.ledger import Entry, Ledger
from torchtally.memory import parameters
from torchtally.record import Call, Phase, Role, TensorSpec, Trace
from torchtally.roofline.products import product_dtype
from torchtally.roofline.rates import REAL_OF_COMPLEX
from torchtally.views.bounds import NO_TIMES
from torchtally.views.table import Cell, Column, Table, Unit
from torchtally.views.throughput import tokens_of

EMBEDDINGS = ("aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only")


@dataclass(frozen=True, slots=True)
class Peak:
    """What a step's work is held against."""

    dtype: str
    """That most matrix products of the step are computed in; "" where there are none."""
    flop_per_s: float | None
    """None where the chip has no such number."""
    is_measured: bool
    """The best that was measured, as nobody promises a CPU's; else the promised dense rate."""

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
    """All that the step tells; none without times.

    Rules by parameters need token ids and a backward pass, the causal rule an operator that says
    that it is causal, PaLM's rule attention that is an operator rather than products.
    """
    if ledger.roofline is None:
        return ()
    chip, is_host = ledger.roofline.chip, ledger.roofline.is_host
    step_s = ledger.step_s or 0.0
    peak = peak_of(ledger, chip)

    def flops(key: str, name: str, convention: str, amount: int) -> Utilisation:
        per_s = amount / step_s if step_s else None
        return Utilisation(key, name, convention, amount, per_s, peak.flop_per_s, peak.description)

    def figures() -> Iterator[Utilisation]:
        if peak.dtype:
            yield from (flops(*it) for it in _counts(ledger))
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
    """MFU by the ledger's own convention of attention."""
    found = {it.key: it for it in utilisations(ledger)}
    return found.get("mfu_causal") if _is_causal(ledger) else found.get("mfu_full")


def _is_causal(ledger: Ledger) -> bool:
    return ledger.attention is Attention.CAUSAL and has_causal_attention(ledger.steady)


def _counts(ledger: Ledger) -> Iterator[tuple[str, str, str, int]]:
    """(key, name, convention, FLOPs) by every rule that applies."""
    full, causal = Attention.FULL, Attention.CAUSAL
    steady = ledger.steady
    is_causal = has_causal_attention(steady)
    yield (
        "mfu_full",
        "MFU, attention in full",
        "products of the forward and backward pass, attention counted in full",
        model_flops(steady, full),
    )
    if is_causal:
        yield (
            "mfu_causal",
            "MFU, causal by half",
            "the same, causal attention counted by half",
            model_flops(steady, causal),
        )
    yield from _by_parameters(ledger)
    executed = hardware_flops(steady, full)
    yield ("hfu_full", "HFU, attention in full", "all products done, recomputed ones too", executed)
    if is_causal:
        yield (
            "hfu_causal",
            "HFU, causal by half",
            "the same, causal attention counted by half",
            hardware_flops(steady, causal),
        )


def _by_parameters(ledger: Ledger) -> Iterator[tuple[str, str, str, int]]:
    tokens, weights = tokens_of(ledger), parameters(ledger.trace)
    if tokens is None or weights is None or not ledger.total.flops_backward:
        return
    inner = weights - embedding_parameters(ledger)
    yield ("mfu_6n", "MFU, 6N", "6 FLOPs a parameter and token", 6 * weights * tokens.size)
    yield (
        "mfu_6n_inner",
        "MFU, 6N, no embedding",
        "the same, parameters that are only looked up left out",
        6 * inner * tokens.size,
    )
    attention = attention_flops(ledger.steady)
    if attention:
        yield (
            "mfu_palm",
            "MFU, 6N + 12LHQT",
            "PaLM's: 6 FLOPs a parameter and token, and attention in full",
            6 * weights * tokens.size + attention,
        )


def model_flops(entries: Iterable[Entry], attention: Attention) -> int:
    """FLOPs of the matrix products of forward and backward, under a convention of attention."""
    wanted = (Phase.FORWARD, Phase.BACKWARD)
    return sum(
        count * _needed(call, kind, attention)
        for call, kind, phase, count in matmuls(entries)
        if phase in wanted
    )


def hardware_flops(entries: Iterable[Entry], attention: Attention) -> int:
    """FLOPs of all matrix products that are done, in any phase."""
    return sum(
        count * _executed(call, kind, attention) for call, kind, _, count in matmuls(entries)
    )


def attention_flops(entries: Iterable[Entry]) -> int:
    """Three times the forward pass of attention operators, in full: 12 L H Q T for each token."""
    return 3 * sum(
        count * _executed(call, kind, Attention.FULL)
        for call, kind, phase, count in matmuls(entries)
        if kind is Kind.ATTENTION and phase is Phase.FORWARD
    )


def has_causal_attention(entries: Iterable[Entry]) -> bool:
    """Any operator says that it is causal: a mask that is a tensor is not known to be."""
    return any(
        kind is Kind.ATTENTION and call.literal("is_causal") is True
        for call, kind, _, _ in matmuls(entries)
    )


def matmuls(entries: Iterable[Entry]) -> list[tuple[Call, Kind, Phase, int]]:
    """Each distinct call of matrix work, in each phase, and how often it is made."""
    count: Counter[tuple[int, Phase]] = Counter()
    calls: dict[int, tuple[Call, Kind]] = {}
    for it in entries:
        if it.cost.flops and it.kind.is_matmul:
            key = id(it.op.call)
            calls[key] = (it.op.call, it.kind)
            count[key, it.op.phase] += 1
    return [(*calls[key], phase, times) for (key, phase), times in count.items()]


def _executed(call: Call, kind: Kind, attention: Attention) -> int:
    _, cost = cost_of(call)
    return conventional(cost, call, kind, attention).flops


def _needed(call: Call, kind: Kind, attention: Attention) -> int:
    """As executed, but a fused attention's backward without making the scores again.

    Of its products, 3 D + 2 E FLOPs for every point (D, E: head dims of keys and values), those of
    the forward pass twice are 2 D + 2 E.
    """
    flops = _executed(call, kind, attention)
    if kind is not Kind.ATTENTION or not call.name.endswith("backward"):
        return flops
    D, E = call.tensor("query").shape[-1], call.tensor("value").shape[-1]
    return flops * (2 * D + 2 * E) // (3 * D + 2 * E) if D or E else flops


# Peaks -----------------------------------------------------------------------------------------


def peak_of(ledger: Ledger, chip: Chip) -> Peak:
    """The dense peak of the dtype that most matrix FLOPs of the step ran in."""
    count: Counter[str] = Counter()
    for call, kind, _, times in matmuls(ledger.steady):
        dtype, _ = product_dtype(call, operand(call, kind))
        count[_unit(dtype, chip)] += times * _executed(call, kind, Attention.FULL)
    is_measured = ledger.roofline is not None and ledger.roofline.is_host
    if not count:
        return Peak("", None, is_measured)
    dtype = max(count, key=lambda it: count[it])
    try:
        return Peak(dtype, chip.peak_flop_per_s(dtype), is_measured)
    except UsageError:
        return Peak(dtype, None, is_measured)


def _unit(dtype: str, chip: Chip) -> str:
    """Complex numbers are multiplied as real ones; a chip without TF32 knows none."""
    if dtype == "tf32" and "tf32" not in chip.peaks:
        return "float32"
    return REAL_OF_COMPLEX.get(dtype, dtype)


def operand(call: Call, kind: Kind) -> TensorSpec:
    """An input that is multiplied, rather than added, scaled by or looked at."""
    if kind is Kind.PRODUCT and (found := matrices(call)) is not None:
        return found[0]
    named = call.tensors("query") or call.tensors("weight")
    return named[0] if named else call.inputs[0]


# Parameters ------------------------------------------------------------------------------------


def embedding_parameters(ledger: Ledger) -> int:
    """Elements of the parameters that the step's forward pass only looks up. A tied weight, which
    a product reads as well, is none of them.
    """
    looked_up, multiplied = set[int](), set[int]()
    elements: dict[int, int] = {}
    sizes = parameter_bytes(ledger.trace)
    for entry in ledger.steady:
        op = entry.op
        if op.phase is not Phase.FORWARD or entry.kind.is_free:
            continue
        is_lookup = op.call.name in EMBEDDINGS
        for spec, number in zip(op.call.inputs, op.inputs, strict=True):
            if number not in sizes or spec.is_written:
                continue
            (looked_up if is_lookup else multiplied).add(number)
            elements[number] = sizes[number] // spec.itemsize_bytes
    return sum(elements[it] for it in looked_up - multiplied)


def parameter_bytes(trace: Trace) -> dict[int, int]:
    """Size of every parameter's storage, by its number."""
    return {it.number: it.requested_bytes for it in trace.storages if it.role is Role.PARAMETER}


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

DEFINITIONS = (
    "MFU: products of the forward and backward pass, attention's backward as twice its forward. "
    "6N: six FLOPs for each parameter and token; 'no embedding' leaves out parameters that are "
    "only looked up; 12LHQT adds attention in full, as PaLM does. HFU: all products that are "
    "done, also those done again. MBU: bytes read and written, of the memory's bandwidth."
)


def utilisation(ledger: Ledger) -> Table:
    """MFU by every convention, HFU and MBU of the steady-state step at its predicted time."""
    found = utilisations(ledger)
    flops = [it for it in found if not it.is_bytes]
    return Table(
        title="How much of the chip a step uses",
        columns=COLUMNS,
        rows=tuple(
            (
                it.name,
                it.fraction,
                *_cells(it),
                it.of,
                it.convention,
            )
            for it in found
        ),
        totals=(None,) * len(COLUMNS),
        note=f"{peak_note(ledger, flops)} {DEFINITIONS} {_missing(flops)}".rstrip()
        if found
        else NO_TIMES,
    )


def _cells(it: Utilisation) -> tuple[Cell, ...]:
    """Reached, peak and amount, in FLOPs or in bytes."""
    figures, nothing = (it.per_s, it.peak_per_s, it.amount), (None, None, None)
    return (*nothing, *figures) if it.is_bytes else (*figures, *nothing)


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


def _missing(flops: list[Utilisation]) -> str:
    """Why a rule is not among the rows."""
    keys = {it.key for it in flops}
    reasons = (
        ("mfu_causal", "No attention operator says that it is causal, so none counts by half."),
        ("mfu_6n", "No token ids are looked up and trained on, so there is no rule by parameters."),
    )
    return " ".join(reason for key, reason in reasons if flops and key not in keys)
