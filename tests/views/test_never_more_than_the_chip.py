"""No trace uses more of a chip than it has: MFU, HFU and MBU of random traces."""

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder, copy_in_call, factory_call, mm_call, spec
from torchtally.chips import chip, known_chips
from torchtally.ledger import account
from torchtally.timing.roofline import Roofline
from torchtally.trace import Call, Literal, Phase, Role, Trace
from torchtally.views.utilisation import laws_broken, model_utilisation, utilisations

SIZES = st.sampled_from([1, 7, 64, 100, 512, 1000, 4096, 16384])
DTYPES = st.sampled_from(["float32", "bfloat16", "float16", "float64", "complex64"])
CHIPS = st.sampled_from([known.name for known in known_chips()])


def product(draw: st.DrawFn) -> Call:
    m, k, n = (draw(SIZES) for _ in range(3))
    dtype = draw(DTYPES)
    return mm_call(m, k, n, dtype, allow_tf32=dtype == "float32" and draw(st.booleans()))


def attention(draw: st.DrawFn) -> Call:
    batch, heads, dim = (draw(st.sampled_from([1, 3, 16, 64, 128])) for _ in range(3))
    length = draw(st.sampled_from([1, 17, 128, 1024, 8192]))
    specs = tuple(
        spec(batch, heads, length, dim, argument=name, dtype="bfloat16", storage=number)
        for number, name in enumerate(("query", "key", "value"))
    )
    name = "aten._scaled_dot_product_flash_attention"
    if draw(st.booleans()):
        name += "_backward"
    literals = (("is_causal", True),) if draw(st.booleans()) else ()
    out = spec(batch, heads, length, dim, dtype="bfloat16", storage=3)
    return Call(name, "default", specs, (out,), literals)


def local_attention(draw: st.DrawFn) -> Call:
    """Heads second: a window of flash-attention's, or a mask whose values are known."""
    batch, heads, dim = (draw(st.sampled_from([1, 3, 16, 64, 128])) for _ in range(3))
    length, window = draw(st.sampled_from([17, 1024, 8192])), draw(st.sampled_from([0, 7, 1000]))
    shape = (batch, length, heads, dim)
    specs = [
        spec(*shape, argument=name, dtype="bfloat16", storage=number)
        for number, name in enumerate(("query", "key", "value"))
    ]
    literals: tuple[tuple[str, Literal], ...] = (
        ("window_size_left", window),
        ("is_causal", draw(st.booleans())),
    )
    name = "aten._flash_attention_forward"
    if draw(st.booleans()):
        name = "aten._efficient_attention_forward"
        specs.append(spec(length, length, argument="bias", dtype="bfloat16", storage=4))
        queries, keys = batch * heads * length, min(length, window + 1)
        literals = (("attended", (queries * keys, queries * keys // 2)),)
    out = spec(*shape, dtype="bfloat16", storage=3)
    return Call(name, "default", tuple(specs), (out,), literals)


def elementwise(draw: st.DrawFn) -> Call:
    shape, dtype = (draw(SIZES), draw(SIZES)), draw(DTYPES)
    left, right = (
        spec(*shape, argument=name, dtype=dtype, storage=number)
        for number, name in enumerate(("self", "other"))
    )
    return Call("aten.add", "Tensor", (left, right), (spec(*shape, dtype=dtype, storage=2),))


def lookup(draw: st.DrawFn) -> Call:
    rows, width, tokens = draw(SIZES), draw(SIZES), draw(SIZES)
    weight = spec(rows, width, argument="weight", storage=0)
    ids = spec(tokens, 4, argument="indices", dtype="int64", storage=1)
    return Call("aten.embedding", "default", (weight, ids), (spec(tokens, 4, width, storage=2),))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A step of up to twelve operators after one that makes a weight, perhaps with waits."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(64, 64), role=Role.PARAMETER)
    builder.end_step()
    kinds = st.sampled_from(
        [product, product, attention, local_attention, elementwise, lookup, None]
    )
    phases = [Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER]
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(kinds)
        call = copy_in_call(draw(SIZES), 64) if kind is None else kind(draw)
        phase = draw(st.sampled_from(phases))
        builder.differentiated.append(builder.clock)
        inputs = [weight if spec.is_on_device else -1 for spec in call.inputs]
        builder.run(call, inputs, phase=phase)
        if draw(st.booleans()):
            builder.wait()
    builder.end_step()
    return builder.build()


def test_a_large_product_uses_most_of_the_chip() -> None:
    """The law is near enough to be broken."""
    builder = TraceBuilder()
    builder.run(mm_call(16384, 16384, 16384, "bfloat16"), (0, 0))
    ledger = account(builder.build(), roofline=Roofline(chip("H100-SXM")))
    shown = model_utilisation(ledger)
    assert shown is not None
    assert shown.fraction is not None
    assert 0.6 < shown.fraction < 1


def test_bytes_of_unknown_time_are_not_of_the_bandwidth() -> None:
    """MBU of a chip without a rate in 16 bits: a product there moves bytes in no known time."""
    builder = TraceBuilder()
    builder.run(factory_call(1024, 1024))
    for _ in range(3):
        builder.run(mm_call(4096, 4096, 4096, "bfloat16"), (0, 0))
    builder.run(copy_in_call(64, 64), (-1,))
    ledger = account(builder.build(), roofline=Roofline(chip("MI455X")))
    assert [each.count for each in ledger.untimed] == [3]
    (mbu,) = (figure for figure in utilisations(ledger) if figure.is_bytes)
    timed = [entry for entry in ledger.reported if entry.call.name != "aten.mm"]
    assert mbu.amount == sum(ledger.costs[e.op.call].cost.bytes for e in timed)
    assert mbu.amount > 0


@given(trace=traces(), name=CHIPS)
def test_no_trace_uses_more_than_the_chip_has(trace: Trace, name: str) -> None:
    ledger = account(trace, roofline=Roofline(chip(name)))
    assert laws_broken(ledger) == []
    shown = model_utilisation(ledger)
    if shown is not None and shown.fraction is not None:
        assert 0 <= shown.fraction <= 1 + 1e-9
