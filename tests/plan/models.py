"""Random decoders of every kind, small enough to be counted by hand if need be."""

from hypothesis import strategies as st

from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)

SMALL = st.integers(1, 64)
FLAG = st.booleans()
ACTIVATION = st.sampled_from(["silu", "gelu_new", "gelu", "relu"])


@st.composite
def self_attentions(draw: st.DrawFn) -> SelfAttention:
    kv_heads, head_dim = draw(st.integers(1, 8)), draw(SMALL)
    return SelfAttention(
        heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        has_bias=draw(FLAG),
        has_output_bias=draw(FLAG),
        window=draw(st.none() | st.integers(1, 8192)),
        head_norm_sizes=draw(st.sampled_from([(), (head_dim, head_dim)])),
        is_fused=draw(FLAG),
    )


LATENT = st.builds(
    LatentAttention,
    heads=SMALL,
    query_rank=st.none() | SMALL,
    kv_rank=SMALL,
    plain_head_dim=SMALL,
    rotary_head_dim=SMALL,
    value_head_dim=SMALL,
)
FEED_FORWARDS = st.builds(
    FeedForward, width=SMALL, is_gated=FLAG, activation=ACTIVATION, has_bias=FLAG
)


@st.composite
def experts(draw: st.DrawFn) -> Experts:
    count = draw(st.integers(1, 32))
    return Experts(
        experts=count,
        active=draw(st.integers(1, count)),
        width=draw(SMALL),
        is_gated=draw(FLAG),
        activation=draw(ACTIVATION),
        shared_width=draw(st.integers(0, 64)),
        has_shared_gate=draw(FLAG),
        has_bias=draw(FLAG),
        has_router_bias=draw(FLAG),
    )


LAYERS = st.builds(
    Layer,
    count=st.integers(1, 100),
    attention=self_attentions() | LATENT,
    feed_forward=FEED_FORWARDS | experts(),
    norms=st.integers(1, 4),
)


def models() -> st.SearchStrategy[Model]:
    return st.builds(
        Model,
        name=st.just("random"),
        width=SMALL,
        vocabulary=st.integers(1, 100_000),
        kinds=st.lists(LAYERS, min_size=1, max_size=3).map(tuple),
        is_tied=FLAG,
        norm=st.sampled_from(["rms", "layer", "plain"]),
        positions=st.sampled_from([0, 1024]),
        has_head_bias=FLAG,
    )
