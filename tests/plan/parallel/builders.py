"""Small models, clusters and workloads whose sums can be done by hand."""

from dataclasses import replace
from typing import Any

from torchtally.chips.chip import Link
from torchtally.chips.clusters import Cluster, cluster
from torchtally.plan.architecture.model import Experts, FeedForward, Layer, Model, SelfAttention
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.pace import BEST
from torchtally.plan.parallel.step import Workload
from torchtally.plan.recipes import recipe


def llama(
    *,
    width: int = 1024,
    layers: int = 8,
    heads: int = 8,
    kv_heads: int | None = None,
    ffn: int = 4096,
    vocabulary: int = 32000,
    is_tied: bool = False,
) -> Model:
    return Model(
        name="llama",
        width=width,
        vocabulary=vocabulary,
        is_tied=is_tied,
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(
                    heads=heads, kv_heads=kv_heads or heads, head_dim=width // heads
                ),
                feed_forward=FeedForward(width=ffn, is_gated=True, activation="silu"),
            ),
        ),
    )


def mixture(
    *,
    experts: int = 8,
    active: int = 2,
    layers: int = 8,
    dense_layers: int = 0,
    shared_width: int = 0,
) -> Model:
    block = Experts(
        experts=experts,
        active=active,
        width=2048,
        is_gated=True,
        activation="silu",
        shared_width=shared_width,
    )
    plain = llama(layers=layers)
    mixed = replace(plain.kinds[0], feed_forward=block, count=layers - dense_layers)
    dense = (replace(plain.kinds[0], count=dense_layers),) if dense_layers else ()
    return replace(plain, kinds=(*dense, mixed))


def bare(parameters: int) -> Model:
    """A model of so many parameters, all in one matrix: what ZeRO's table counts."""
    attention = SelfAttention(heads=1, kv_heads=1, head_dim=1)
    block = FeedForward(width=1, is_gated=False, activation="relu")
    layer = Layer(count=1, attention=attention, feed_forward=block, norms=0)
    return Model(
        name="bare", width=1, vocabulary=parameters - 6, is_tied=True, norm="plain", kinds=(layer,)
    )


def workload(model: Model | None = None, chips: str = "8xH100-SXM", **fields: Any) -> Workload:
    given: dict[str, Any] = {
        "model": model or llama(),
        "cluster": cluster(chips),
        "sequence": 2048,
        "recipe": recipe("mixed"),
        "optimizer": optimizer("adamw"),
        "pace": BEST,
    }
    return Workload(**(given | fields))


def faster(nodes: Cluster, times: float, *, in_node: bool = True) -> Cluster:
    """The same chips with links so many times as fast, or with a network alone."""

    def scaled(link: Link | None) -> Link | None:
        if link is None or link.bytes_per_s_per_direction is None:
            return link
        speed = link.bytes_per_s_per_direction * times
        return replace(link, bytes_per_s_per_direction=speed)

    chip = nodes.chip
    node = None if chip.node is None else replace(chip.node, network=scaled(chip.node.network))
    link = scaled(chip.link) if in_node else chip.link
    return replace(nodes, chip=replace(chip, link=link, node=node))
