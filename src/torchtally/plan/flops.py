"""FLOPs of one token: weights and attention, forward, backward and recomputation.

S: sequence.  h, D: heads, head dim of queries and keys.  v: head dim of values.  L: layers.

A multiply and an add are two FLOPs. Only matrix products count, as in every published MFU; the rest
is below a percent or two of them and is memory's matter. The backward pass of a product is two
products of its size: the gradients of its weight and of its input. Hence six for each parameter and
token: PaLM, arXiv 2204.02311, appendix B; Narayanan et al. 2021, arXiv 2104.04473, appendix.
"""

from dataclasses import dataclass
from enum import StrEnum

from torchtally.plan.architecture.geometry import geometry_of
from torchtally.plan.architecture.model import LatentAttention, Layer, Model
from torchtally.plan.architecture.weights import OF_THE_VOCABULARY, weights_of
from torchtally.plan.closed_form import Count, FlopsPerToken, Number, closed_form
from torchtally.plan.quantity import Amount, Quantity, derive, of, total
from torchtally.plan.recomputation import products_again
from torchtally.units import Unit
from torchtally.work.convention import Convention
from torchtally.work.geometry import Geometry

PER_TOKEN = Unit.FLOPS_PER_TOKEN
PALM = "PaLM, arXiv 2204.02311, appendix B"
FLASH_ATTENTION_2 = "FlashAttention-2, arXiv 2307.08691, section 4.1"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198"


class Recompute(StrEnum):
    """What the backward pass recomputes instead of keeping it (activation checkpointing)."""

    NONE = "none"
    SELECTIVE = "selective"
    """The scores of attention alone, as fused attention does by itself (Korthikanti 2022)."""
    OPERATORS = "op"
    """All of a layer but attention's kernel and every other product (`plan/recomputation.py`)."""
    FULL = "full"
    """Every layer, from its input."""


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """FLOPs for one token of a training step."""

    weights: Quantity
    """Forward, through every matrix that the token meets but the head's."""
    head: Quantity
    """Forward, the logits."""
    attention: Quantity
    """Forward, scores and their products with values, in all layers."""
    recurrence: Quantity
    """Forward, of mixers with a state in attention's place: their scans and convolutions."""
    forward: Quantity
    backward: Quantity
    recompute: Quantity
    model: Quantity
    """Forward and backward: what MFU counts."""
    hardware: Quantity
    """With recomputation: what HFU counts."""


def token_flops(
    model: Model,
    sequence: Amount,
    *,
    attention: Convention = Convention.FULL,
    recompute: Recompute = Recompute.NONE,
) -> TokenFlops:
    """FLOPs for one token of a training step on sequences of this length."""
    weights, head = weight_flops(model), head_flops(model)
    scores = attention_flops(model, sequence, attention)
    scans = recurrence_flops(model, sequence)
    parts = {"weights": weights, "attention": scores}
    parts |= {"recurrence": scans} if scans.value else {}
    forward = total("forward", PER_TOKEN, parts | {"logits": head})
    backward = derive("backward", PER_TOKEN, "2 * forward", PALM, forward=forward)
    again = (
        _products_again_flops(model)
        if recompute is Recompute.OPERATORS
        else recompute_flops(
            recompute, layers_flops=_sum("layers", weights, scores, scans), attention_flops=scores
        )
    )
    both = total("model FLOPs", PER_TOKEN, {"forward": forward, "backward": backward})
    hardware = total("hardware FLOPs", PER_TOKEN, {"model_flops": both, "recompute": again})
    return TokenFlops(weights, head, scores, scans, forward, backward, again, both, hardware)


def weight_flops(model: Model) -> Quantity:
    """Forward FLOPs of one token through every matrix but the head's: twice their elements.

    Of a mixture, through the experts that are chosen for it. Exact where the batch's tokens are.
    """
    matrices = (weight for weight in weights_of(model) if weight.name not in OF_THE_VOCABULARY)
    met = of(round(sum(weight.active_elements for weight in matrices)), Unit.PARAMETERS)
    return derive("weights", PER_TOKEN, "2 * active_parameters", PALM, active_parameters=met)


def head_flops(model: Model) -> Quantity:
    """Forward FLOPs of one token's logits: the embedding read once more where it is tied."""
    once = _logits_flops(model.embedding_width or model.width, model.vocabulary)
    return once if model.losses == 1 else _of_losses(model.losses, once)


@closed_form("logits", PER_TOKEN)
def _logits_flops(width: Count, vocabulary: Count) -> str:
    return "2 * width * vocabulary"


@closed_form("logits", PER_TOKEN)
def _of_losses(losses: Count, each: FlopsPerToken) -> str:
    return "losses * each"


def attention_flops(
    model: Model, sequence: Amount, attention: Convention = Convention.FULL
) -> Quantity:
    """Forward FLOPs of one token's attention in all layers: scores, and their product with values.

    FULL counts every token with every other, masked or not (PaLM), but in a window or a chunk with
    as many as it has. CAUSAL counts what the mask leaves: half, or less at a window's edges.
    """
    S = of(sequence, Unit.TOKENS, "sequence")
    parts = {
        f"kind_{n}": layer_attention_flops(kind, S, attention) for n, kind in enumerate(model.kinds)
    }
    return total("attention", PER_TOKEN, parts)


def layer_attention_flops(layer: Layer, sequence: Amount, attention: Convention) -> Quantity:
    """Those of one kind of layer, in all its layers."""
    mixer = layer.attention
    if mixer is None:
        return derive("attention", PER_TOKEN, "0")
    S = of(sequence, Unit.TOKENS, "sequence")
    value_dim = mixer.value_head_dim if isinstance(mixer, LatentAttention) else mixer.head_dim
    keys = keys_seen(geometry_of(mixer, int(S.value)), attention)
    return _scores_flops(layer.count, mixer.heads, mixer.head_dim, value_dim, keys)


def recurrence_flops(model: Model, sequence: Amount) -> Quantity:
    """Forward FLOPs of one token's scans and convolutions, by the published algorithms: they grow
    with a chunk, not with the sequence.
    """
    S = max(int(of(sequence, Unit.TOKENS).value), 1)
    parts = {
        f"kind_{n}": _scans_flops(kind.count, kind.recurrence.scan_flops(S))
        for n, kind in enumerate(model.kinds)
        if kind.recurrence is not None
    }
    return total("recurrence", PER_TOKEN, parts) if parts else derive("recurrence", PER_TOKEN, "0")


@closed_form("recurrence", PER_TOKEN)
def _scans_flops(layers: Count, scan: FlopsPerToken) -> str:
    return "layers * scan"


@closed_form("attention", PER_TOKEN, PALM)
def _scores_flops(
    layers: Count, heads: Count, head_dim: Count, value_head_dim: Count, keys_seen: Number
) -> str:
    return "2 * layers * heads * (head_dim + value_head_dim) * keys_seen"


def keys_seen(geometry: Geometry, attention: Convention) -> Quantity:
    """Tokens with which one token's attention is counted, on average over a sequence.

    In full: all, or as many as a window or a chunk has. Causal: half of them, which leaves out half
    of the diagonal, as Megatron-LM and FlashAttention count. A window W sees W tokens, but for the
    first W of a sequence; a chunk C is a sequence by itself, and so is the rest that is left over.
    """
    name, unit = "keys seen", Unit.NUMBER
    S = of(geometry.queries, Unit.TOKENS, "sequence")
    is_full = attention is Convention.FULL
    if geometry.chunk is not None:
        C = of(geometry.chunk, Unit.TOKENS)
        if is_full:
            return derive(name, unit, "min(sequence, chunk)", sequence=S, chunk=C)
        rest = of(geometry.queries % geometry.chunk, Unit.TOKENS)
        formula = "((sequence - rest) * chunk + rest**2) / (2 * sequence)"
        return derive(name, unit, formula, sequence=S, chunk=C, rest=rest)
    if geometry.before is not None:
        W = of(geometry.before + 1, Unit.TOKENS)
        if is_full:
            return derive(name, unit, "min(sequence, window)", sequence=S, window=W)
        return derive(name, unit, "window - window**2 / (2 * sequence)", sequence=S, window=W)
    if is_full:
        return derive(name, unit, "sequence", sequence=S)
    return derive(name, unit, "sequence / 2", FLASH_ATTENTION_2, sequence=S)


def recompute_flops(
    recompute: Recompute, *, layers_flops: Amount, attention_flops: Amount
) -> Quantity:
    """What the backward pass recomputes: every layer's forward, or attention's, or nothing.

    The head is not recomputed. Korthikanti et al. 2022, arXiv 2205.05198, section 5 and appendix A.
    Selective recomputation is counted as done: attention's two products once more, 4 B L s^2 h in
    the paper's letters, which makes the s/6h of its equation 7 a 2s/9h. Its equation 8 prints s/3h,
    as if three times as much were repeated: HFU by it is 0.5 to 1.4 points higher in its table 5
    (`docs/published.md`).
    """
    if recompute is Recompute.NONE:
        return derive("recompute", PER_TOKEN, "0")
    is_full = recompute is Recompute.FULL
    word = "forward_of_layers" if is_full else "forward_of_attention"
    again = of(layers_flops if is_full else attention_flops, PER_TOKEN)
    return derive("recompute", PER_TOKEN, word, KORTHIKANTI, **{word: again})


def _products_again_flops(model: Model) -> Quantity:
    elements = sum(
        kind.count * weight.active_elements
        for kind in model.kinds
        for weight in products_again(kind, model)
    )
    met = of(round(elements), Unit.PARAMETERS)
    return derive("recompute", PER_TOKEN, "2 * recomputed_parameters", recomputed_parameters=met)


def _sum(name: str, *parts: Quantity) -> Quantity:
    return total(name, PER_TOKEN, {f"part_{n}": quantity for n, quantity in enumerate(parts)})
