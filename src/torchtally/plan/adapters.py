"""Low-rank adapters beside frozen matrices (LoRA, DoRA): their tensors, targets, FLOPs.

r: rank.  A matrix W of shape (out, in) is frozen; beside it A (r, in) and B (out, r) are trained:
x W' + x A' B' * scale. Hu et al. 2021, arXiv 2106.09685.

A frozen matrix needs no gradient of its own, so the backward pass has one product of it instead of
two, and what it was given is not kept. In the first layer nothing in front of the first adapter
needs a gradient at all.

DoRA (Liu et al. 2024, arXiv 2402.09353) trains a magnitude m of each output besides: the result is
m / |W + B A| times that of W + B A, the norm taken of each output's weights. PEFT computes
the product B A in every forward pass, whatever the number of tokens.

Routed experts and their router are no modules of one matrix in transformers 5. PEFT adds B A, for
each expert its own, to their weights in every forward pass, and keeps the sum: it is trained as
weights are. Gate and up are one matrix there, with adapters of twice the rank.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.architecture.model import Experts, FeedForward, LatentAttention, Layer, Model
from torchtally.plan.architecture.weights import ONCE, RECEPTANCE, Weight, layer_weights
from torchtally.plan.flops import attention_flops, head_flops, layer_attention_flops, token_flops
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit
from torchtally.work.convention import Convention

LORA = "Hu et al. 2021, arXiv 2106.09685"
DORA = "Liu et al. 2024, arXiv 2402.09353"
ALL = "all-linear"
"""Every matrix of every layer, as QLoRA recommends (arXiv 2305.14314, section 4)."""
FLOAT32_BYTES = 4
HALF_BYTES = 2
MIXER_INPUTS = ("mixer in", *(f"mixer {rows}" for rows in (
    "qkvz", "ba", "qkv", "q", "k", "v", "r", "z", "a", "b", "decay down",
    "gate down")))  # fmt: skip
"""What a recurrence's input is multiplied by."""
INPUTS = ("q", "k", "v", "qkv", "q down", "kv down", *MIXER_INPUTS)
"""What attention's input, or a recurrence's, is multiplied by."""
BEHIND = {"q up": "q down", "kv up": "kv down"}
"""Of latent attention: what the result of another matrix is multiplied by."""
MIXER_OUTPUT = "mixer out"
OUTPUT = "attention output"
DOWN = "down"
MERGED = ("router", "experts in", "experts out")
"""To whose weights adapters are added, before they are multiplied."""
PEFT_NAMES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "qkv_proj": "qkv", "c_attn": "qkv",
    "query_key_value": "qkv", "o_proj": OUTPUT, "o": OUTPUT, "out_proj": OUTPUT, "dense": OUTPUT,
    "gate_proj": "gate", "up_proj": "up", "gate_up_proj": "gate and up", "c_fc": "up", "fc1": "up",
    "dense_h_to_4h": "up", "down_proj": DOWN, "dense_4h_to_h": DOWN, "fc2": DOWN,
    "w1": "gate", "w3": "up", "w2": DOWN, "input_linear": "gate and up", "output_linear": DOWN,
    "q_a_proj": "q down", "q_b_proj": "q up", "kv_a_proj_with_mqa": "kv down", "kv_b_proj": "kv up",
    "key": "up", "value": DOWN, "receptance": RECEPTANCE,
    "shared_expert_gate": "shared gate", "gate": "router",
    "experts.gate_up_proj": "experts in", "experts.down_proj": "experts out",
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
    has_magnitude: bool = False
    """DoRA."""
    is_autocast: bool = False
    """Their products are run in half precision by `torch.autocast`."""

    @property
    def product_bytes(self) -> int:
        """Bytes of one number that their products are given."""
        return HALF_BYTES if self.is_autocast else self.itemsize_bytes

    def targets_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of these matrices that have an adapter."""
        return tuple(name for name in names if name in self.targets)

    def copies(self, given_bytes: int) -> bool:
        """A is given a copy of what the frozen matrix is given: cast, or with dropout. PEFT casts
        to float32, and autocast back again.
        """
        return self.dropout > 0 or self.copies_of(given_bytes)

    def copies_of(self, itemsize_bytes: int) -> bool:
        """A tensor of such numbers is cast for a product."""
        return self.itemsize_bytes != itemsize_bytes or self.is_autocast

    def keeps(self, name: str, given_bytes: int) -> bool:
        """What this frozen matrix is given is kept itself, for A."""
        return name in self.targets and not self.copies(given_bytes)


def adapter_of(
    model: Model,
    rank: int,
    targets: Sequence[str] = (ALL,),
    dropout: float = 0.0,
    *,
    has_magnitude: bool = False,
    is_autocast: bool = False,
) -> Adapter:
    """Adapters of a model's matrices, by our names of them or by transformers'.

    Raises UsageError for names that the model has no matrix of, for a model with recurrent layers,
    and for targets that leave out a part of a first layer of experts or latent attention.
    """
    adapter = Adapter(
        rank,
        frozenset(_target_names(model, targets)),
        dropout,
        has_magnitude=has_magnitude,
        is_autocast=is_autocast,
    )
    if adapter.targets_among(MERGED) and (dropout or has_magnitude):
        raise UsageError(
            f"{model.name}: adapters of experts have neither dropout nor magnitudes in PEFT.\n"
            "Leave --lora-dropout and --dora out, or name other matrices with --lora-targets."
        )
    first = FirstLayer(model.kinds[0], adapter)
    if not first.is_known:
        raise UsageError(
            f"{model.name}: adapters of {', '.join(sorted(adapter.targets))} alone are not counted "
            "here: its first layer has experts, latent attention or a recurrence.\n"
            f"Give all that its input is multiplied by, or {ALL}."
        )
    return adapter


def _target_names(model: Model, targets: Sequence[str]) -> Iterable[str]:
    """Our names of the targets."""
    names = matrix_names(model)
    if list(targets) == [ALL]:
        return _all_linear(model, names)
    chosen: set[str] = set()
    for target in targets:
        meant = {target} & {*names} or _modules(model).get(target, set()) & {*names}
        if not meant:
            raise UsageError(
                f"{model.name} has no matrix {target!r} in its layers. "
                f"{did_you_mean(target, names)} It has {', '.join(names)}; or {ALL}."
            )
        chosen |= meant
    return chosen


def _all_linear(model: Model, names: tuple[str, ...]) -> Iterable[str]:
    """PEFT's all-linear: modules that are linear, the head aside. Where it takes routed experts for
    such modules, it takes them in place of dense matrices and shared experts. Raises UsageError
    where it refuses some of these, or takes others besides.
    """
    for kind in model.kinds:
        if kind.recurrence is not None and kind.recurrence.has_bound_output:
            rest = ",".join(kind.recurrence.modules.values()).removesuffix(",out_proj")
            raise UsageError(
                f"{model.name}: PEFT refuses adapters of out_proj, which Mamba's kernels read, and "
                f"so {ALL}.\nGive --lora-targets {rest} and what else is to be adapted."
            )
    blocks = [kind.feed_forward for kind in model.kinds]
    mixtures = [block for block in blocks if isinstance(block, Experts)]
    others = {
        "matrices outside of the layers": model.embedding_width is not None,
        "the router": any(block.is_router_linear for block in mixtures),
    }
    for what in (what for what, is_meant in others.items() if is_meant):
        raise UsageError(
            f"{model.name}: {ALL} means {what}, too, which is not counted here.\n"
            "Name the layers' matrices with --lora-targets: q,k,v."
        )
    if any(block.are_all_linear for block in mixtures):
        return [name for name in names if name not in {"gate", "up", "gate and up", DOWN}]
    return [name for name in names if name not in MERGED]


def _modules(model: Model) -> dict[str, set[str]]:
    """Matrices by transformers' names of modules: in a hybrid several may be meant."""
    modules = {module: {name} for module, name in PEFT_NAMES.items()}
    for kind in model.kinds:
        if kind.recurrence is None:
            continue
        for name, module in kind.recurrence.modules.items():
            if module == "out_proj" and not kind.recurrence.is_beside_out_proj:
                modules[module] = set()
            modules.setdefault(module, set()).add(name)
    return modules


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
        for beside in (*_beside(weight, adapter.rank), *_magnitude(weight, adapter))
    )


def _magnitude(weight: Weight, adapter: Adapter) -> Iterator[Weight]:
    if adapter.has_magnitude:
        yield Weight(f"{weight.name} magnitude", weight.group, weight.shape[:1], weight.count)


def _beside(weight: Weight, rank: int) -> Iterator[Weight]:
    *experts, out, given = weight.shape
    uses = Fraction(0) if weight.name in MERGED else ONCE
    whole = rank_of(weight, rank) * prod(experts)
    yield Weight(f"{weight.name} A", weight.group, (whole, given), weight.count, uses)
    yield Weight(f"{weight.name} B", weight.group, (out, whole), weight.count, uses)


def rank_of(weight: Weight, rank: int) -> int:
    """Rank of one expert's adapter, or of a matrix'."""
    return rank * (weight.parts if weight.name == "experts in" else 1)


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """What of the first layer has a gradient: nothing in front of its first adapter."""

    kind: Layer
    adapter: Adapter

    @property
    def is_known(self) -> bool:
        """Every figure of it is: experts are given a gradient, latent queries and keys alike."""
        if self.kind.recurrence is not None:
            modules = self.kind.recurrence.modules
            return self.adapter.targets >= {name for name in modules if name in MIXER_INPUTS}
        ins = set(_attention_matrices(self.kind)) & set(INPUTS)
        is_whole = not self.has_attention or ins <= self.adapter.targets
        is_dense = isinstance(self.kind.feed_forward, FeedForward)
        return is_whole and (is_dense or self.has_second_input)

    @property
    def has_attention(self) -> bool:
        """Whether queries, keys or values, hence attention, have a gradient."""
        return bool(self.adapter.targets_among((*INPUTS, *BEHIND)))

    @property
    def has_stream(self) -> bool:
        """Whether the residual stream behind attention's output has a gradient."""
        outputs = (OUTPUT, MIXER_OUTPUT)
        return self.has_attention or bool(self.adapter.targets_among(outputs))

    @property
    def has_second_input(self) -> bool:
        """Whether what the feed-forward is given has a gradient."""
        return self.has_stream and not self.kind.is_parallel

    def has_result(self, name: str) -> bool:
        """What this first matrix of the feed-forward makes."""
        return self.has_second_input or name in self.adapter.targets

    @property
    def has_inner(self) -> bool:
        """Whether what lies between the feed-forward's matrices has a gradient."""
        others = {*INPUTS, *BEHIND, OUTPUT, MIXER_OUTPUT, DOWN}
        return self.has_second_input or bool(self.adapter.targets - others)

    def has_input(self, name: str) -> bool:
        """What this matrix is given has a gradient."""
        if name in INPUTS:
            return False
        if name in BEHIND:
            return BEHIND[name] in self.adapter.targets
        if name == OUTPUT or name.startswith("mixer "):
            return self.has_attention
        return self.has_inner if name == DOWN else self.has_second_input


@dataclass(frozen=True, slots=True)
class AdaptedFlops:
    """FLOPs for one token of a training step."""

    forward: Quantity
    backward: Quantity
    total: Quantity
    each_pass: Quantity
    """Of a micro-batch besides, whatever its tokens: B and A multiplied out (DoRA, experts)."""


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
    again = _run_again(adapter, matrices_of(model, *model.kinds))
    forward = derive(
        "forward",
        PER_TOKEN,
        "frozen + 2 * again + 2 * adapters",
        LORA,
        frozen=plain.forward,
        again=_parameters("recomputed matrices", again),
        adapters=beside,
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
        "2 * (frozen - unneeded) + head + 2 * (scores - first_scores) + 2 * scans - convolutions"
        " + 4 * adapters - 2 * first_adapters",
        LORA,
        "frozen matrices have no gradient, nor has anything before the first adapter",
        frozen=_parameters(
            "matrices of layers",
            [*matrices_of(model, *model.kinds), *again, *_merged_weights(model, adapter)],
        ),
        unneeded=_parameters(
            "matrices whose input has no gradient", [*unneeded, *_run_again(adapter, unneeded)]
        ),
        head=head_flops(model),
        scores=scores,
        first_scores=skipped,
        scans=plain.recurrence,
        convolutions=_convolution_flops(model),
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
    return AdaptedFlops(forward, backward, both, _merging_flops(model, adapter))


def _convolution_flops(model: Model) -> Quantity:
    """Forward, of one token: their kernels are frozen, and have no gradient."""
    states = ((kind.count, kind.recurrence.state) for kind in model.kinds if kind.recurrence)
    products = sum(count * state.channels * state.kernel for count, state in states)
    return derive("convolutions", PER_TOKEN, "2 * products", products=of(products, Unit.COUNT))


def _run_again(adapter: Adapter, weights: Iterable[Weight]) -> list[Weight]:
    """Frozen matrices that DoRA multiplies a second time: by what dropout has left of its input."""
    if not (adapter.has_magnitude and adapter.dropout):
        return []
    return [weight for weight in weights if weight.name in adapter.targets]


def _merged_weights(model: Model, adapter: Adapter) -> list[Weight]:
    """Targets whose weights have a gradient, with the adapters added to them."""
    names = adapter.targets_among(MERGED)
    return [weight for weight in matrices_of(model, *model.kinds) if weight.name in names]


def _merging_flops(model: Model, adapter: Adapter) -> Quantity:
    """FLOPs of DoRA's A of the identity, then B of that, forward alone: 2 r i (i + o) beside each
    target. Of a router 2 r i o, and twice that backward; of experts once more:
    `register_parametrization` (torch/nn/utils/parametrize.py) runs what it registers, for its
    shape.
    """
    merged = sum(
        weight.elements * rank_of(weight, adapter.rank) * (3 if weight.name == "router" else 4)
        for weight in _merged_weights(model, adapter)
    )
    normed = adapter.rank * sum(
        weight.count * weight.shape[1] * sum(weight.shape)
        for weight in matrices_of(model, *model.kinds)
        if adapter.has_magnitude and weight.name in adapter.targets
    )
    return derive(
        "FLOPs of a pass, besides",
        Unit.FLOPS,
        "2 * (normed + merged)",
        DORA,
        "B and A multiplied out, whatever the tokens",
        normed=of(normed, Unit.COUNT),
        merged=of(merged, Unit.COUNT),
    )


def _attention_matrices(kind: Layer) -> tuple[str, ...]:
    """Those that attention's input, or what comes of it, is multiplied by."""
    match kind.attention:
        case LatentAttention(query_rank=None):
            return ("q", "kv down", "kv up")
        case LatentAttention():
            return ("q down", "q up", "kv down", "kv up")
        case _:
            return ()


def _parameters(name: str, weights: Iterable[Weight]) -> Quantity:
    """Those that one token is multiplied by."""
    count = sum((weight.active_elements for weight in weights), start=Fraction(0))
    return of(round(count), Unit.PARAMETERS).with_name(name)
