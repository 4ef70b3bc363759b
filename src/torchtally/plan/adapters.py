"""Low-rank adapters beside frozen matrices (LoRA): their tensors, their targets, their FLOPs.

r: rank.  A matrix W of shape (out, in) is frozen; beside it A (r, in) and B (out, r) are trained:
x W' + x A' B' * scale. Hu et al. 2021, arXiv 2106.09685.

A frozen matrix needs no gradient of its own, so the backward pass has one product of it instead of
two, and what it was given is not kept. In the first layer nothing in front of the first adapter
needs a gradient at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention
from torchtally.plan.architecture.weights import ONCE, Weight, layer_weights
from torchtally.plan.flops import attention_flops, head_flops, layer_attention_flops, token_flops
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit
from torchtally.work.convention import Convention

LORA = "Hu et al. 2021, arXiv 2106.09685"
ALL = "all-linear"
"""Every matrix of every layer, as QLoRA recommends (arXiv 2305.14314, section 4)."""
FLOAT32_BYTES = 4
INPUTS = ("q", "k", "v", "qkv")
"""What attention's input is multiplied by."""
OUTPUT = "attention output"
DOWN = "down"
PEFT_NAMES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "qkv_proj": "qkv", "c_attn": "qkv",
    "query_key_value": "qkv", "o_proj": OUTPUT, "o": OUTPUT, "out_proj": OUTPUT, "dense": OUTPUT,
    "gate_proj": "gate", "up_proj": "up", "gate_up_proj": "gate and up", "c_fc": "up", "fc1": "up",
    "dense_h_to_4h": "up", "down_proj": DOWN, "dense_4h_to_h": DOWN, "fc2": DOWN,
}  # fmt: skip
"""Modules as transformers calls them, which PEFT's `target_modules` name."""
PER_TOKEN = Unit.FLOPS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Adapter:
    """Adapters of one rank, in all layers."""

    rank: int
    targets: frozenset[str]
    """Names of the layers' matrices."""
    dropout: float = 0.0
    """Of what A is given."""
    itemsize_bytes: int = FLOAT32_BYTES
    """Of A and B. PEFT keeps them in float32 beside weights in half precision
    (`autocast_adapter_dtype`)."""

    def targeted(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of these matrices that have an adapter."""
        return tuple(name for name in names if name in self.targets)

    def copies(self, given_bytes: int) -> bool:
        """A is given a copy of what the frozen matrix is given: cast, or with dropout."""
        return self.itemsize_bytes != given_bytes or self.dropout > 0

    def keeps(self, name: str, given_bytes: int) -> bool:
        """What this frozen matrix is given is kept itself, for A."""
        return name in self.targets and not self.copies(given_bytes)


def adapter_of(
    model: Model, rank: int, targets: Sequence[str] = (ALL,), dropout: float = 0.0
) -> Adapter:
    """Adapters of a model's matrices, by our names of them or by transformers'.

    Raises UsageError for names that the model has no matrix of, and for a model with experts or
    latent attention, whose adapters are not known here.
    """
    for kind in model.kinds:
        if not (
            isinstance(kind.attention, SelfAttention) and isinstance(kind.feed_forward, FeedForward)
        ):
            raise UsageError(
                f"{model.name}: adapters beside experts or latent attention are not counted here.\n"
                "`tally run` counts them in a script that trains them."
            )
    names = matrix_names(model)
    if list(targets) == [ALL]:
        return Adapter(rank, frozenset(names), dropout)
    chosen = set()
    for target in targets:
        name = target if target in names else PEFT_NAMES.get(target, target)
        if name not in names:
            raise UsageError(
                f"{model.name} has no matrix {target!r} in its layers. "
                f"{did_you_mean(target, names)} It has {', '.join(names)}; or {ALL}."
            )
        chosen.add(name)
    return Adapter(rank, frozenset(chosen), dropout)


def matrix_names(model: Model) -> tuple[str, ...]:
    """The layers' matrices, each name once."""
    return tuple(dict.fromkeys(weight.name for weight in matrices_of(model, *model.kinds)))


def matrices_of(model: Model, *kinds: Layer) -> Iterator[Weight]:
    for kind in kinds:
        yield from (weight for weight in layer_weights(kind, model) if weight.uses)


def adapter_weights(model: Model, adapter: Adapter) -> tuple[Weight, ...]:
    """A and B beside each target."""
    return tuple(
        beside
        for weight in matrices_of(model, *model.kinds)
        if weight.name in adapter.targets
        for beside in _beside(weight, adapter.rank)
    )


def _beside(weight: Weight, rank: int) -> Iterator[Weight]:
    out, given = weight.shape
    yield Weight(f"{weight.name} A", weight.group, (rank, given), weight.count, ONCE)
    yield Weight(f"{weight.name} B", weight.group, (out, rank), weight.count, ONCE)


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """What of the first layer has a gradient: nothing in front of its first adapter."""

    kind: Layer
    adapter: Adapter

    @property
    def has_attention(self) -> bool:
        """Of queries, keys or values, hence of attention."""
        return bool(self.adapter.targeted(INPUTS))

    @property
    def has_stream(self) -> bool:
        """Behind attention's output."""
        return self.has_attention or OUTPUT in self.adapter.targets

    @property
    def has_second_input(self) -> bool:
        """Of what the feed-forward is given."""
        return self.has_stream and not self.kind.is_parallel

    def has_result(self, name: str) -> bool:
        """What this first matrix of the feed-forward makes."""
        return self.has_second_input or name in self.adapter.targets

    @property
    def has_inner(self) -> bool:
        """Between the feed-forward's matrices."""
        return self.has_second_input or bool(self.adapter.targets - {*INPUTS, OUTPUT, DOWN})

    def has_input(self, name: str) -> bool:
        """What this matrix is given has a gradient."""
        if name in INPUTS:
            return False
        if name == OUTPUT:
            return self.has_attention
        return self.has_inner if name == DOWN else self.has_second_input


@dataclass(frozen=True, slots=True)
class AdaptedFlops:
    """FLOPs for one token of a training step."""

    forward: Quantity
    backward: Quantity
    total: Quantity


def adapted_flops(
    model: Model,
    adapter: Adapter,
    sequence: Amount,
    attention: Convention = Convention.FULL,
    *,
    is_recomputed: bool = False,
) -> AdaptedFlops:
    """Products of frozen matrices once forward and once backward, of adapters as in any training.

    In the first layer, products without which no adapter gets its gradient are not run; but where
    layers are recomputed, transformers gives its input a gradient (`enable_input_require_grads`).
    What is recomputed is not in it.
    """
    plain = token_flops(model, sequence, attention=attention)
    beside = _parameters("adapters", adapter_weights(model, adapter))
    forward = derive(
        "forward", PER_TOKEN, "frozen + 2 * adapters", LORA, frozen=plain.forward, adapters=beside
    )
    first = FirstLayer(model.kinds[0], adapter)
    own = matrices_of(model, replace(model.kinds[0], count=1))
    unneeded = [weight for weight in own if not (is_recomputed or first.has_input(weight.name))]
    scores = attention_flops(model, sequence, attention)
    skipped = (
        of(0, PER_TOKEN)
        if first.has_attention or is_recomputed
        else layer_attention_flops(replace(model.kinds[0], count=1), sequence, attention)
    )
    backward = derive(
        "backward",
        PER_TOKEN,
        "2 * (frozen - unneeded) + head + 2 * (scores - first_scores)"
        " + 4 * adapters - 2 * first_adapters",
        LORA,
        "frozen matrices have no gradient, nor has what is in front of the first adapter",
        frozen=_parameters("matrices of layers", matrices_of(model, *model.kinds)),
        unneeded=_parameters("matrices whose input has no gradient", unneeded),
        head=head_flops(model),
        scores=scores,
        first_scores=skipped,
        adapters=beside,
        first_adapters=_parameters(
            "A of the first layer",
            [
                next(_beside(weight, adapter.rank))
                for weight in unneeded
                if weight.name in adapter.targets
            ],
        ),
    )
    both = derive(
        "FLOPs per token", PER_TOKEN, "forward + backward", forward=forward, backward=backward
    )
    return AdaptedFlops(forward, backward, both)


def _parameters(name: str, weights: Iterable[Weight]) -> Quantity:
    count = sum(weight.elements for weight in weights)
    return of(count, Unit.PARAMETERS).with_name(name)
