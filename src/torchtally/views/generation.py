"""What generating tokens takes: the first token, every other one, the KV cache."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from torchtally.ledger import Ledger, Total, narrow, sums
from torchtally.ledger.steps import TokenGeneration, TokenPass
from torchtally.table import Cell, Column, Table
from torchtally.trace import Phase
from torchtally.units import Unit
from torchtally.views.columns import part_of
from torchtally.views.utilisation import Utilisation, model_utilisation, utilisations
from torchtally.views.view import view

MOST_BLOCKS = 12
"""Of decoding passes, each a row; those in a block are alike but for what they attend to."""


@dataclass(frozen=True, slots=True)
class GenerationFigures:
    """Figures of the generation that is reported, alone or within a step. None: seconds without
    times.
    """

    generation: TokenGeneration
    is_trained_on: bool
    """It is a part of the training that is reported."""
    count: int
    """Generations of the run, or of the training steps that are reported."""
    prefill_tokens: int
    """Of each sequence."""
    sequences: int
    """In the batch; beams count."""
    decoded: int
    """Passes that decode, of the model that the tokens are for."""
    drafts: int
    """Passes of a smaller model that drafts for it."""
    first_token_s: float | None
    """Prefill, and choosing the first token."""
    prefill: Total
    decode: Total
    is_timed: bool
    pass_s: tuple[float, ...]
    """Of each decoding pass with all up to the next pass."""
    cache_bytes: int
    """At the end, as requested."""
    prefill_utilisation: Utilisation | None
    """MFU."""
    decode_utilisation: Utilisation | None
    """MBU: bytes moved over the promised bandwidth."""

    @property
    def token_s(self) -> float | None:
        """Seconds of a decoding pass: a token of every sequence. The median, since compiled code
        warms up in the first passes. With a draft model the mean of a pass and the drafts before
        it, of which as many tokens follow as are accepted.
        """
        if not self.is_timed:
            return None
        return self.decode.seconds / self.decoded if self.drafts else median(self.pass_s)

    @property
    def first_s(self) -> float | None:
        return self.pass_s[0] if self.is_timed else None

    @property
    def last_s(self) -> float | None:
        return self.pass_s[-1] if self.is_timed else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all sequences, while decoding. None where it depends on which drafts
        are accepted.
        """
        if not self.token_s or self.drafts:
            return None
        return self.sequences / self.token_s

    @property
    def kernel_share(self) -> float:
        """Share of decoding in which the device runs kernels; else it waits for the host."""
        return part_of(self.decode.kernel_s, self.decode.seconds)

    @property
    def cache_bytes_per_token(self) -> float:
        """Bytes by which the cache grew while decoding, for each token of all sequences."""
        passes = self.generation.decodes
        if len(passes) < 2:
            return 0.0
        grown = passes[-1].cache_bytes - passes[0].cache_bytes
        return grown / (len(passes) - 1)


def generation_figures(ledger: Ledger) -> GenerationFigures | None:
    """Figures of the reported period, or of the last generation that it trains on; else None."""
    period = ledger.reported_period
    rollouts = [each for each in ledger.course.rollouts if period.first <= each.first < period.end]
    generation = period.generation or next(reversed(rollouts), None)
    if generation is None:
        return None
    first, end = generation.first, generation.end
    entries = [entry for entry in ledger.reported if first <= entry.op.clock < end]
    prefill, decode = (
        narrow(ledger, (entry for entry in entries if entry.op.phase is phase))
        for phase in (Phase.PREFILL, Phase.DECODE)
    )
    totals = _pass_totals(ledger, generation.passes)
    prefills, decodes = generation.prefills, generation.decodes
    is_timed = ledger.is_timed
    return GenerationFigures(
        generation=generation,
        is_trained_on=period.generation is None,
        count=len(rollouts or ledger.course.generations),
        prefill_tokens=sum(each.tokens for each in prefills),
        sequences=decodes[-1].sequences,
        decoded=len(decodes),
        drafts=sum(not each.is_main for each in generation.passes),
        first_token_s=prefill.total.seconds if is_timed else None,
        prefill=prefill.total,
        decode=decode.total,
        is_timed=is_timed,
        pass_s=tuple(
            totals[place].seconds
            for place, each in enumerate(generation.passes)
            if each.is_main and each.is_decode
        ),
        cache_bytes=generation.passes[-1].cache_bytes,
        prefill_utilisation=model_utilisation(prefill),
        decode_utilisation=next(
            (each for each in utilisations(decode) if each.is_bytes and each.amount), None
        ),
    )


def _pass_totals(ledger: Ledger, passes: Sequence[TokenPass]) -> dict[int, Total]:
    """Totals by the pass's index; -1: before the first."""
    firsts = [each.first for each in passes]
    last_end = passes[-1].end if passes else 0

    def place(tick: int) -> int:
        return bisect_right(firsts, tick) - 1 if tick < last_end else len(passes)

    return sums(ledger.reported, ledger.times.slots, lambda entry: place(entry.op.clock))


# The view --------------------------------------------------------------------------------------


@view("token", "of a run that generates: prefill and decoding, pass by pass, and the KV cache")
def tokens(ledger: Ledger) -> Table:
    """The passes of the reported period's generations; decoding passes in blocks."""
    period = ledger.reported_period
    passes = [
        each
        for generation in (*ledger.course.generations, *ledger.course.rollouts)
        for each in generation.passes
        if period.first <= each.first < period.end
    ]
    totals = _pass_totals(ledger, passes)
    blocks = list(_blocks(passes))
    rows = []
    if totals.keys() - set(range(len(passes))):
        outside = sum((totals.get(place, Total()) for place in (-1, len(passes))), start=Total())
        rows.append(_row(ledger, outside, 0, ("outside of passes", None, None, None)))
    for block in blocks:
        chosen = [passes[place] for place in block]
        total = sum((totals.get(place, Total()) for place in block), start=Total())
        last = chosen[-1]
        texts = (_name(chosen, block), last.sequences, last.tokens, last.cache_bytes)
        rows.append(_row(ledger, total, len(block), texts))
    whole = (*_numbers(ledger, ledger.total, len(passes)), None, None, None, None)
    return Table(
        title="Generated tokens, pass by pass",
        columns=_columns(is_timed=ledger.is_timed),
        rows=tuple(rows),
        totals=whole,
        note="A pass is one run of the model over some tokens of each sequence, with everything "
        "up to the next. The KV cache is as of a row's last pass.",
    )


def _blocks(passes: Sequence[TokenPass]) -> list[range]:
    """Places of passes that are shown as one row: alike, and at most so many."""
    decoding = sum(each.is_decode for each in passes)
    most = -(-decoding // MOST_BLOCKS)
    blocks: list[range] = []
    for place, each in enumerate(passes):
        before = passes[place - 1] if place else None
        is_alike = (
            before is not None
            and each.is_decode
            and (before.is_decode, before.is_main, before.sequences)
            == (each.is_decode, each.is_main, each.sequences)
        )
        if is_alike and len(blocks[-1]) < most:
            blocks[-1] = range(blocks[-1].start, place + 1)
        else:
            blocks.append(range(place, place + 1))
    return blocks


def _name(passes: Sequence[TokenPass], block: range) -> str:
    phase = "decode" if passes[0].is_decode else "prefill"
    what = phase if passes[0].is_main else f"draft, {phase}"
    first, last = block.start + 1, block.stop
    return f"{first} {what}" if first == last else f"{first} to {last} {what}"


def _row(
    ledger: Ledger, total: Total, count: int, texts: tuple[str, int | None, int | None, int | None]
) -> tuple[Cell, ...]:
    return (*_numbers(ledger, total, count), *texts)


def _numbers(ledger: Ledger, total: Total, count: int) -> tuple[Cell, ...]:
    timed: tuple[Cell, ...] = ()
    if ledger.is_timed:
        timed = (total.seconds, total.kernel_s)
    return (count, *timed, total.flops, total.bytes)


def _columns(*, is_timed: bool) -> tuple[Column, ...]:
    times = (
        Column("seconds", "time", Unit.SECONDS),
        Column("kernel_s", "kernels", Unit.SECONDS, rank=1),
    )
    return (
        Column("count", "passes", Unit.COUNT, rank=2),
        *(times if is_timed else ()),
        Column("flops", "FLOPs", Unit.FLOPS),
        Column("bytes_moved", "moved", Unit.BYTES),
        Column("passes", "pass", Unit.NAME),
        Column("sequences", "sequences", Unit.COUNT, rank=3),
        Column("tokens", "tokens each", Unit.COUNT, rank=1),
        Column("cache_bytes", "KV cache", Unit.BYTES),
    )
