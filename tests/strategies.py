"""Random traces, small and lawful, for property tests."""

from hypothesis import strategies as st

from tests.builders import (
    TraceBuilder,
    copy_in_call,
    factory_call,
    frame,
    mm_call,
    site,
    unknown_call,
)
from torchtally.trace import Ending, Note, Phase, Placeholder, Role, Trace, Use

CALLS = (
    mm_call(2, 3, 4),
    mm_call(2, 3, 4, allow_tf32=True),
    mm_call(64, 64, 64, "bfloat16"),
    unknown_call(),
    copy_in_call(8, 8),
    copy_in_call(8, 8, is_pinned=True, non_blocking=True),
)
FACTORIES = (factory_call(100), factory_call(1000, dtype="int64"))
SITES = (
    site(),
    site(frame(line=3)),
    site(frame("lib.py", 7, is_own=False), frame(line=3), module="h.0.mlp", module_class="MLP"),
    site(frame("lib.py", 7, is_own=False), frame(line=3), module="h.1.mlp", module_class="MLP"),
    site(frame("lib.py", 9, is_own=False), module="", module_class="GPT"),
    site(frame(line=9), module="h.1", module_class="Block"),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to forty operators; storages die, the host waits and steps end at random."""
    builder = TraceBuilder()
    alive: list[int] = []
    for _ in range(draw(st.integers(0, 40))):
        chosen = {
            "site": draw(st.sampled_from(SITES)),
            "phase": draw(st.sampled_from(Phase)),
            "role": draw(st.sampled_from([None, None, None, *Role])),
        }
        if draw(st.integers(0, 4)) == 0:
            builder.reserve(draw(st.integers(0, 1 << 24)))
        builder.stream = draw(st.sampled_from([0, 0, 0, 7]))
        call = draw(st.sampled_from(CALLS if alive else FACTORIES))
        sources = st.sampled_from(alive) if alive else st.nothing()
        inputs = [draw(sources) if spec.is_on_device else -1 for spec in call.inputs]
        alive.append(builder.run(call, inputs, **chosen))
        doomed = draw(st.sets(st.sampled_from(alive), max_size=3))
        builder.free(*doomed)
        alive = [number for number in alive if number not in doomed]
        if draw(st.integers(0, 4)) == 0:
            builder.wait()
        if draw(st.integers(0, 9)) == 0:
            builder.end_step()
    return builder.build(
        ending=Ending(draw(st.sampled_from(["steps", "exit", "exception"])), draw(st.text())),
        placeholders=draw(st.lists(PLACEHOLDERS, max_size=2)),
        notes=draw(st.lists(st.builds(Note, st.text(), st.integers(1, 9)), max_size=2)),
    )


PLACEHOLDERS = st.builds(
    Placeholder,
    st.none() | st.builds(frame, st.text(), st.integers(0, 99), st.text()),
    st.just("aten._local_scalar_dense"),
    st.text(),
    st.integers(1, 9),
    st.sampled_from(Use),
)
