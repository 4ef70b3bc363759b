"""What one chip of a layout sends in a training step: each kind of parallelism by itself.

b: micro-batch.  s: sequence.  d: width.  t, c, e: chips of tensor, context, expert parallelism.
"""

from dataclasses import dataclass

from torchtally.chips import Cluster
from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.architecture.model import Experts, FeedForward, LatentAttention, Layer, Model
from torchtally.plan.closed_form import (
    Bytes,
    BytesEach,
    BytesPerParameter,
    Chips,
    Count,
    ParameterCount,
    Seconds,
    Tokens,
    closed_form,
)
from torchtally.plan.parallel.communication import (
    Traffic,
    add_up,
    all_gather,
    all_reduce,
    all_to_all,
    group,
    nothing,
    reduce_scatter,
    repeat,
    send,
)
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.quantity import Amount, Quantity, of, total
from torchtally.plan.recipes import Recipe
from torchtally.timing.network import RankGroup
from torchtally.units import Unit

SHOEYBI = "Shoeybi et al. 2019, arXiv 1909.08053, section 3"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2"
RING_ATTENTION = "Liu et al. 2023, arXiv 2310.01889"
ZERO = "ZeRO, arXiv 1910.02054, section 7"


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of each kind of parallelism, and how many ranks share a node."""

    tensor: RankGroup
    context: RankGroup
    replicas: RankGroup
    """All that hold the same weights."""
    shards: RankGroup
    """Those that share their states."""
    copies: RankGroup
    """Those that hold the same share of them, one in each group of `shards`."""
    expert: RankGroup
    expert_replicas: RankGroup
    expert_shards: RankGroup
    stages_cross_nodes: bool


def groups(layout: Layout, cluster: Cluster) -> Groups:
    """Groups by Megatron-LM's order of chips: tensor, context, data, pipeline."""
    t, replicas, shards = layout.tensor, layout.replicas, layout.shards
    return Groups(
        tensor=group(t, 1, cluster),
        context=group(layout.context, t, cluster),
        replicas=group(replicas, t, cluster),
        shards=group(shards, t, cluster),
        copies=group(replicas // shards, t * shards, cluster),
        expert=group(layout.expert, layout.expert_split, cluster),
        expert_replicas=group(layout.expert_replicas, layout.expert_chips, cluster),
        expert_shards=group(layout.expert_shards, layout.expert_chips, cluster),
        stages_cross_nodes=layout.chips > cluster.node_size,
    )


def tensor_traffic(
    layer: Layer, model: Model, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """Traffic of one layer and micro-batch, forward: what follows attention, and what the
    feed-forward.

    Two all-reduces, or with sequence parallelism an all-gather and a reduce-scatter for each of
    them, which send as much. Backward sends the same again, and full recomputation too. Of a
    mixture, what is routed to experts is gathered by the chips that share each expert: as often as
    there are experts for a token. What predicts gathers its two inputs and its product's result.
    """
    plain = _tokens_bytes(model, layout, sequence, recipe)
    block, t, shared_by = layer.feed_forward, layout.tensor, layout.expert_split
    parts = {}
    if layer.is_predicting:
        parts["join"] = _summing(_joined_bytes(plain), t, layout, cluster, recipe)
    if layer.has_mixer:
        parts["attention"] = _summing(plain, t, layout, cluster, recipe)
    if isinstance(block, Experts):
        routed = _gathered_rows_bytes(plain, block.active, shared_by, t)
        parts["experts"] = _summing(routed, shared_by, layout, cluster, recipe)
    if isinstance(block, FeedForward) or (isinstance(block, Experts) and block.shared_width):
        parts["feed_forward"] = _summing(plain, t, layout, cluster, recipe)
    return add_up("tensor parallelism", parts)


def outer_tensor_traffic(
    model: Model, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """Traffic of one micro-batch, forward and backward: embedding and head, each split by
    vocabulary, as often as there are losses.
    """
    tokens = _tokens_bytes(model, layout, sequence, recipe)
    once = _summing(tokens, layout.tensor, layout, cluster)
    times = of(2 * model.losses, Unit.COUNT)
    return repeat("embedding and head", once, times, "forward and backward")


def context_traffic(
    layer: Layer, model: Model, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """Traffic of one layer and micro-batch, forward: keys and values visit the other chips of the
    ring.
    """
    if layout.context == 1:
        return nothing("context parallelism")
    hop = _hop(layer, layout, sequence, recipe, cluster)
    return repeat("context parallelism", hop, of(layout.context - 1, Unit.COUNT), RING_ATTENTION)


def context_traffic_backward(
    layer: Layer, model: Model, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """Traffic of one layer and micro-batch: keys and values visit the others again, and their
    gradients go with them, and one hop further, home.
    """
    c = layout.context
    if c == 1:
        return nothing("context parallelism")
    hop = _hop(layer, layout, sequence, recipe, cluster)
    return repeat("context parallelism", hop, of(c - 1 + c, Unit.COUNT), RING_ATTENTION)


def _hop(
    layer: Layer, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """A chip's keys and values, to the next one."""
    ring = group(layout.context, layout.tensor, cluster)
    attention = layer.attention
    assert attention is not None, "context parallelism is refused without"
    heads = attention.heads if isinstance(attention, LatentAttention) else attention.kv_heads
    value_dim = (
        attention.value_head_dim if isinstance(attention, LatentAttention) else attention.head_dim
    )
    sizes = (heads, attention.head_dim, value_dim, recipe.activation_bytes)
    block = _keys_and_values_bytes(
        layout.micro_batch, sequence, layout.context, *sizes, layout.tensor
    )
    return send(block, crosses_nodes=ring.nodes > 1, cluster=cluster)


@closed_form("keys and values", Unit.BYTES, RING_ATTENTION)
def _keys_and_values_bytes(
    batch: Count, sequence: Tokens, context: Chips, heads: Count, head_dim: Count,
    value_head_dim: Count, itemsize: BytesEach, tensor: Chips,
) -> str:  # fmt: skip
    return "batch * sequence / context * heads * (head_dim + value_head_dim) * itemsize / tensor"


def expert_traffic(
    layer: Layer, model: Model, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """Traffic of one layer and micro-batch, forward: tokens to their experts, and back.

    Experts are assumed to be chosen equally often. Chips of tensor parallelism send a part each.
    Fused implementations send a token to each node once, and from there to its experts (DeepEP).
    """
    block = layer.feed_forward
    if not isinstance(block, Experts) or layout.expert == 1:
        return nothing("expert parallelism")
    tokens = _tokens_bytes(model, layout, sequence, recipe)
    routed = _routed_bytes(tokens, block.active, layout.stream_split)
    among = group(layout.expert, layout.expert_split, cluster)
    is_fused = layout.implementation is Implementation.FUSED
    if is_fused and among.nodes > 1:
        once = _once_a_node(routed, block.active, among, cluster)
    else:
        once = all_to_all(routed, among, cluster, is_staged=not is_fused)
    return repeat("expert parallelism", once, of(2, Unit.COUNT), "dispatch and combine")


def _once_a_node(routed: Quantity, active: int, among: RankGroup, cluster: Cluster) -> Traffic:
    """Traffic between nodes of one copy for each node that has some of a token's experts; at the
    same time copies that have come go on within the node, to each of those experts.
    """
    copies = _between_nodes_bytes(routed, among.nodes, active)
    between = all_to_all(copies, among, cluster)
    inside = all_to_all(routed, RankGroup(among.per_node), cluster, is_staged=False)
    sent = total("sent", Unit.BYTES, {"between": between.sent, "inside": inside.sent})
    return Traffic(sent, _slower_s(between.seconds, inside.seconds), 1.0)


@closed_form(
    "tokens between nodes",
    Unit.BYTES,
    "deepseek-ai/DeepEP, README: from the RDMA domain to the NVLink domain",
)
def _between_nodes_bytes(routed: Bytes, nodes: Count, active: Count) -> str:
    return "routed / active * nodes * (1 - (1 - 1 / nodes) ** active)"


@closed_form("all-to-all", Unit.SECONDS)
def _slower_s(between_s: Seconds, inside_s: Seconds) -> str:
    return "max(between_s, inside_s)"


@closed_form("routed tokens", Unit.BYTES, "GShard, arXiv 2006.16668")
def _routed_bytes(tokens: Bytes, active: Count, tensor: Chips) -> str:
    return "tokens * active / tensor"


def pipeline_traffic(
    model: Model, layout: Layout, sequence: Amount, recipe: Recipe, cluster: Cluster
) -> Traffic:
    """Traffic of one micro-batch, from one stage to the next: what a chunk of layers passes on,
    forward.

    Each chip of tensor parallelism sends its part (Narayanan 2021, section 4.1). Backward sends
    the same, and every chunk of an interleaved schedule does.
    """
    if layout.pipeline == 1:
        return nothing("pipeline")
    part = _passed_bytes(_tokens_bytes(model, layout, sequence, recipe), layout.tensor)
    crosses = groups(layout, cluster).stages_cross_nodes
    return send(part, crosses_nodes=crosses, cluster=cluster)


@closed_form("passed on", Unit.BYTES, "Narayanan et al. 2021, arXiv 2104.04473, section 4.1")
def _passed_bytes(tokens: Bytes, tensor: Chips) -> str:
    return "tokens / tensor"


def gradient_traffic(
    parameters: Amount, layout: Layout, recipe: Recipe, cluster: Cluster, *, of_experts: bool
) -> Traffic:
    """Traffic of the gradients of so many parameters of one chip, once.

    All-reduced; where states are shared, reduce-scattered in the group that shares them, and the
    shares all-reduced across groups.
    """
    among = groups(layout, cluster)
    size = _bytes(parameters, recipe.gradient_bytes).with_name("gradients")
    if layout.shard is Sharding.NONE:
        copies = among.expert_replicas if of_experts else among.replicas
        return all_reduce(size, copies, cluster)
    shards = among.expert_shards if of_experts else among.shards
    parts = {"in_group": reduce_scatter(size, shards, cluster)}
    if among.copies.ranks > 1:
        share = _share_bytes(size, shards.ranks)
        parts["across"] = all_reduce(share, among.copies, cluster)
    return add_up("gradients", parts)


def gather_traffic(
    parameters: Amount, layout: Layout, recipe: Recipe, cluster: Cluster, *, of_experts: bool
) -> Traffic:
    """Traffic of so many parameters of one chip, gathered once from those that share them.

    With parameters shared (ZeRO-3, FSDP) forward and backward need them, in every micro-batch; with
    only the optimizer's state, once in a step, after it. They travel in the dtype of products'
    operands before any cast to 8 bits.
    """
    if layout.shard is Sharding.NONE:
        return nothing("weights")
    among = groups(layout, cluster)
    size = _bytes(parameters, gathered_itemsize_bytes(recipe))
    return all_gather(size, among.expert_shards if of_experts else among.shards, cluster)


def gathered_itemsize_bytes(recipe: Recipe) -> int:
    """Bytes of a weight as it is gathered: FSDP's `param_dtype`, the weights' own or a narrower
    one.
    """
    if recipe.has_8_bit_weights:
        return DTYPE_BYTES[recipe.products]
    return min(recipe.weight_bytes, DTYPE_BYTES[recipe.activations])


def _summing(
    payload: Quantity, chips: int, layout: Layout, cluster: Cluster, recipe: Recipe | None = None
) -> Traffic:
    """The partial sums of tensor parallelism among so many chips made whole, once. What a product
    in 8 bits is given is gathered in them, behind a norm as before a gradient's products
    (Transformer Engine's and torchao's layers); sums are not made in 8 bits.
    """
    among = group(chips, 1, cluster)
    if not layout.is_sequence_parallel:
        return all_reduce(payload, among, cluster)
    gathered = payload
    if recipe is not None and recipe.is_quantised:
        gathered = _quantised(payload, recipe.activation_bytes / recipe.cast_bytes)
    parts = {
        "gather": all_gather(gathered, among, cluster),
        "scatter": reduce_scatter(payload, among, cluster),
    }
    return add_up("gather and scatter", parts)


def _tokens_bytes(model: Model, layout: Layout, sequence: Amount, recipe: Recipe) -> Quantity:
    """A micro-batch's tokens on one chip, each as wide as the model."""
    each = (model.width, recipe.activation_bytes)
    return _micro_batch_bytes(layout.micro_batch, sequence, layout.context, *each)


@closed_form("tokens", Unit.BYTES, SHOEYBI)
def _micro_batch_bytes(
    batch: Count, sequence: Tokens, context: Chips, width: Count, itemsize: BytesEach
) -> str:
    return "batch * sequence / context * width * itemsize"


@closed_form("joined", Unit.BYTES, "Megatron-LM, multi_token_prediction.py: eh_proj")
def _joined_bytes(tokens: Bytes) -> str:
    """Three gathers, where a sum is two."""
    return "3 / 2 * tokens"


@closed_form("rows", Unit.BYTES, "each chip of tensor parallelism routes its part of the tokens")
def _gathered_rows_bytes(tokens: Bytes, active: Count, shared_by: Chips, tensor: Chips) -> str:
    return "tokens * active * shared_by / tensor"


@closed_form("in 8 bits", Unit.BYTES)
def _quantised(payload: Bytes, itemsize: BytesEach) -> str:
    return "payload / itemsize"


@closed_form("share", Unit.BYTES)
def _share_bytes(whole: Bytes, parts: Chips) -> str:
    return "whole / parts"


@closed_form("weights", Unit.BYTES, ZERO)
def _bytes(parameters: ParameterCount, bytes_each: BytesPerParameter) -> str:
    return "parameters * bytes_each"
