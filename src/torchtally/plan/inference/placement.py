"""How chips share a model that generates: tensor parallelism, replicas, experts spread over all.

Chips of one replica split every layer (Megatron-LM's split, `parallel/shards.py`); replicas have
sequences of their own. Experts are split among the chips of expert parallelism, whole, and chips of
other replicas send their tokens there: attention is data parallel, as DeepSeek-V3 is served
(arXiv 2412.19437, section 3.4).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from torchtally.chips import Cluster
from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Experts, Layer, Model, SelfAttention
from torchtally.plan.architecture.weights import Group, Weight, layer_weights, weights_of
from torchtally.plan.parallel.shards import WeightSplit, on_chip


@dataclass(frozen=True, slots=True)
class Placement:
    """Degrees of parallelism. All chips: tensor * replicas."""

    tensor: int = 1
    replicas: int = 1
    expert: int = 1
    """Chips among which experts are split; 1: experts are split as any feed-forward."""

    @property
    def chips(self) -> int:
        return self.tensor * self.replicas

    @property
    def name(self) -> str:
        words = [f"tp{self.tensor}"] if self.tensor > 1 else []
        words += [f"dp{self.replicas}"] if self.replicas > 1 else []
        words += [f"ep{self.expert}"] if self.expert > 1 else []
        return " ".join(words) or "one chip"

    def check(self, model: Model, cluster: Cluster) -> None:
        """Raises UsageError where it does not divide the model or fill the chips."""
        if self.chips != cluster.count:
            raise UsageError(
                f"--layout: tp {self.tensor} x dp {self.replicas} is {self.chips} chips and --gpus "
                f"has {cluster.count}."
            )
        for kind in model.kinds:
            for heads in kind.split:
                if heads % self.tensor:
                    raise UsageError(
                        f"--layout: tp {self.tensor} does not divide {heads} heads of {model.name}."
                    )
        if self.expert > 1 and not model.is_mixture:
            raise UsageError(
                f"--layout: ep {self.expert} needs a mixture of experts, and {model.name} is not "
                "one."
            )
        if self.chips % self.expert:
            raise UsageError(f"--layout: ep {self.expert} does not divide {self.chips} chips.")

    def shares(self, model: Model) -> Iterator[tuple[Weight, Weight]]:
        """Every weight of the model, and one chip's part of it."""
        layers = set()
        for kind in model.kinds:
            for weight in layer_weights(kind, model):
                layers.add(weight)
                yield weight, self.share(weight, kind)
        for weight in weights_of(model):
            if weight not in layers:
                yield weight, on_chip(weight, self._split)

    def share(self, weight: Weight, kind: Layer) -> Weight:
        """One chip's part of a layer's weight. A head of keys is whole, on several chips if need
        be; what does not divide is rounded up.
        """
        first, *rest = weight.shape
        if weight.group is Group.EXPERTS and self.expert > 1:
            return replace(weight, shape=(ceil(first / self.expert), *rest))
        attention = kind.attention
        if isinstance(attention, SelfAttention):
            rows = self.kv_heads(attention.kv_heads) * attention.head_dim
            if weight.name in ("k", "v", "k bias", "v bias"):
                return replace(weight, shape=(rows, *rest))
            if weight.name in ("qkv", "qkv bias"):
                queries = attention.heads * attention.head_dim // self.tensor
                return replace(weight, shape=(queries + 2 * rows, *rest))
        return on_chip(weight, self._split)

    @property
    def _split(self) -> WeightSplit:
        """Split of weights that expert parallelism does not split."""
        return WeightSplit(self.tensor, 1, self.tensor)

    def kv_heads(self, kv_heads: int) -> int:
        """Heads of keys and values, on one chip."""
        return ceil(kv_heads / self.tensor)

    def cached_layer(self, kind: Layer) -> Layer:
        """The layer as one chip keeps its keys and values: latent ones whole on every chip."""
        if not isinstance(kind.attention, SelfAttention):
            return kind
        kept = replace(kind.attention, kv_heads=self.kv_heads(kind.attention.kv_heads))
        return replace(kind, attention=kept)

    def expert_rows(self, block: Experts, tokens: int) -> tuple[float, float]:
        """(experts of one chip that get tokens, tokens of each), of so many tokens of a replica.

        Tokens choose experts equally often: of E, a token chooses a, and T tokens leave out a share
        (1 - a / E) ** T of them.
        """
        senders = max(1.0, self.expert / self.tensor)
        gathered = tokens * senders
        held = ceil(block.experts / self.expert)
        share = block.active / block.experts
        met = held * (1 - (1 - share) ** gathered)
        return met, gathered * share * held / met
