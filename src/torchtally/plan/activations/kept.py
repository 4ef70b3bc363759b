"""Bytes that the forward pass keeps for the backward pass: of a layer, the embedding and the head.

Counted tensor by tensor (`Saved`), as PyTorch's autograd keeps them: exact to a few bytes for most
models of transformers that the tests trace. The figures are of one micro-batch on one chip, under
`use_cache=False`; PyTorch rounds each tensor up to 512 bytes.

Known limits of EAGER, as traced at small widths. Falcon (multi-query), BLOOM, GPT-J, CodeGen,
GPT-Neo, MPT, Gemma 2 and gpt-oss take no fused attention in transformers: MATH is theirs. More than
is counted here keep GPT-J, CodeGen and GPT-Neo in bf16 (scores in both dtypes), 4 to 7 %; under
autocast, which squares in float32, Arcee, 19 %, and Nemotron, 6 %; gpt-oss under autocast, 5 %.
Less keep Falcon of the new architecture, 5 to 9 %; EXAONE 4 under autocast, 5 %. Llama 4 gives
every expert every token in transformers: its experts keep as many times more as there are experts
to each that is chosen. `torch.compile` keeps less than any of these, and is not known.
"""

from collections.abc import Iterator
from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.activations.attention import attention_saved, is_masked
from torchtally.plan.activations.feed_forward import choice_saved, experts_saved, feed_forward_saved
from torchtally.plan.activations.modules import is_made_again
from torchtally.plan.activations.operators import (
    STREAM,
    TOKENS,
    dropout_saved,
    norm_result_bytes,
    norm_saved,
    products_saved,
)
from torchtally.plan.activations.saved import ATTENTION, Region, Saved, saved_bytes
from torchtally.plan.activations.setting import (
    BOOL_BYTES,
    FLOAT32_BYTES,
    INT64_BYTES,
    LOSS_CHUNKS,
    AttentionKernel,
    Loss,
    Setting,
)
from torchtally.plan.adapters import DOWN, OUTPUT, FirstLayer
from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)
from torchtally.plan.architecture.weights import JOIN, Group, layer_weights
from torchtally.plan.closed_form import Bytes, Count, closed_form
from torchtally.plan.flops import Recompute
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.plan.recomputation import products_kept
from torchtally.units import Unit


def layers_activation_bytes(at: Setting, kind: Layer) -> Quantity:
    """Bytes of activations of all layers of a kind. With adapters the first layer of all keeps
    less.
    """
    one = layer_activation_bytes(at, kind)
    if at.adapter is None or kind is not at.model.kinds[0] or at.is_recomputed:
        return _times(kind.count, one)
    return _with_first(
        kind.count - 1,
        one,
        layer_activation_bytes(replace(at, first=FirstLayer(kind, at.adapter)), kind),
    )


def layer_activation_bytes(at: Setting, kind: Layer) -> Quantity:
    """Kept by one layer of this kind; recomputed, its input, and what it chose to keep. Around a
    layer that predicts, what joins its inputs is kept in any case.
    """
    if not kind.is_predicting:
        return _layer_bytes(at, kind)
    parts = {"layer": _layer_bytes(at, kind), "join": saved_bytes("join", _join_saved(at))}
    return total("a module's activations", Unit.BYTES, parts)


def _layer_bytes(at: Setting, kind: Layer) -> Quantity:
    if at.recompute is Recompute.FULL:
        return saved_bytes("a layer's input", [_input(at)])
    if at.recompute is Recompute.OPERATORS:
        return saved_bytes("a layer's kept results", _results_saved(at, kind))
    kept = layer_saved(at, kind)
    casts = layer_cast_bytes(at, kind) if at.recipe.is_autocast else of(0, Unit.BYTES)
    note = ", ".join(dict.fromkeys(saved.name for saved in kept))
    size = saved_bytes("a layer's tensors", kept, note)
    if not casts.value:
        return size.with_name("a layer's activations")
    return total("a layer's activations", Unit.BYTES, {"tensors": size, "weight_casts": casts})


def working_activation_bytes(at: Setting) -> Quantity:
    """What the backward pass of one layer recomputes, of the kind that needs most.

    Fully recomputed, all that the layer keeps without, but for its input, which is there already;
    operator by operator, but for the kept results, too; selectively, what attention keeps between
    its operands and its result.
    """
    if at.recompute is Recompute.NONE and not at.modules:
        return of(0, Unit.BYTES, "working activations")
    sizes = {f"kind_{n}": _recompute_bytes(at, kind) for n, kind in enumerate(at.model.kinds)}
    formula = f"max({', '.join(sizes)})" if len(sizes) > 1 else "kind_0"
    return derive(
        "working activations", Unit.BYTES, formula, "", "one layer's, recomputed", **sizes
    )


def embedding_activation_bytes(at: Setting) -> Quantity:
    """Kept by the embedding, and what is there once for all layers: angles of positions.

    Token ids are among it: 8 bytes each, which the script itself holds as its batch.
    """
    return saved_bytes("embedding's activations", _embedding_saved(at), "token ids included")


def head_activation_bytes(at: Setting) -> Quantity:
    """Kept by the last norm, the head and the loss: above all the logits' softmax in float32.

    The last layer's result is among it, as what the norm is given.
    """
    size = saved_bytes("head's tensors", _head_saved(at))
    if at.model.losses > 1:
        size = _of_losses(at.model.losses, size)
    if not (at.has_weight_casts and at.recipe.is_autocast):
        return size.with_name("head's activations")
    casts = _cast_bytes(at, "vocabulary * embedding_width", _head_elements(at.model))
    return total("head's activations", Unit.BYTES, {"tensors": size, "weight_casts": casts})


def loss_bytes(at: Setting) -> Quantity:
    """Bytes of logits' size that the loss makes while it runs backward, besides what it has kept.

    PyTorch's own: the gradient of the log-probabilities, a tensor of zeros but for one of each row,
    and that of the logits. Megatron-LM's softmax becomes the gradient in its place, and is cast;
    one kernel writes the gradient alone. In chunks, what PyTorch's own takes in float32, of one.
    """
    name, logits, chunks = "gradient of the logits", f"{TOKENS} * vocabulary", {}
    match at.usual_loss:
        case Loss.PARALLEL | Loss.FUSED | Loss.COMPOSER:
            itemsize_bytes = at.inner_bytes
        case Loss.CHUNKED:
            itemsize_bytes = 3 * FLOAT32_BYTES
            logits, chunks = f"ceil({TOKENS} / chunks) * vocabulary", {"chunks": LOSS_CHUNKS}
        case _:
            itemsize_bytes = 2 * at.logit_bytes
    gradient = at.keep(name, logits, itemsize_bytes, Region.INNER, "the loss",
                       vocabulary=at.model.vocabulary, **chunks)  # fmt: skip
    return gradient.bytes.with_name(name)


def layer_cast_bytes(at: Setting, kind: Layer) -> Quantity:
    """Copies of one layer's matrices in the dtype of products, kept for their inputs' gradients.

    Made anew for each micro-batch. Without autocast they are made once in a step, and belong to the
    states. Under autocast, all but experts', whose products autocast does not know; until the
    forward pass is over, autocast itself holds those of all layers, recomputed or not
    (`held_cast_bytes`).
    """
    return _cast_bytes(at, "matrices", _matrix_elements(at, kind))


def held_cast_bytes(at: Setting) -> Quantity:
    """Copies of all matrices that autocast holds until the forward pass is over; 0 without.

    They come on top of the activations where layers are recomputed; else they are among those.
    """
    matrices = sum(kind.count * _matrix_elements(at, kind) for kind in at.model.kinds)
    whole = matrices + _head_elements(at.model) if at.is_mixed_eagerly else 0
    return _cast_bytes(at, "matrices", whole)


def layer_saved(at: Setting, kind: Layer) -> list[Saved]:
    """Every tensor that one layer of this kind keeps under the recomputation of `at`."""
    return [
        saved for saved in _layer_saved(at, kind) if not is_made_again(saved.name, kind, at.modules)
    ]


def _layer_saved(at: Setting, kind: Layer) -> Iterator[Saved]:
    stream = at.stream_bytes
    input_bytes = norm_result_bytes(at, stream) if kind.norms else stream
    if at.adapter is not None:
        one = layer_weights(replace(kind, count=1), at.model)
        at = replace(at, shapes={weight.name: weight.shape for weight in one if weight.uses})
    if at.first is not None:
        yield from _first_layer_saved(at, kind, at.first, input_bytes)
        return
    if kind.norms:
        yield from norm_saved(at, "attention's norm", stream, is_input=True)
    yield from _mixers_saved(at, kind, input_bytes)
    if at.dropout:
        yield from dropout_saved(at, "attention")
    if kind.norms >= 2:
        yield from _second_norm_saved(at, kind)
    has_input = kind.norms == 1 and kind.is_parallel
    match kind.feed_forward:
        case FeedForward():
            yield from feed_forward_saved(
                at, kind.feed_forward, input_bytes, is_input_kept=has_input
            )
        case Experts():
            yield from experts_saved(at, kind.feed_forward, input_bytes)
    if at.dropout and kind.feed_forward is not None:
        yield from dropout_saved(at, "feed-forward")
    for n in range(2, kind.norms):
        yield from norm_saved(at, f"norm {n + 1}, of a result", at.inner_bytes)


def _input(at: Setting) -> Saved:
    return at.keep("input", STREAM, at.stream_bytes)


def _results_kept(at: Setting, kind: Layer) -> frozenset[str]:
    return frozenset({ATTENTION, *(weight.name for weight in products_kept(kind, at.model))})


def _results_saved(at: Setting, kind: Layer) -> Iterator[Saved]:
    """A layer's input, and the results that recomputation by operators keeps.

    Eagerly, also those that no gradient reads: torch.utils.checkpoint keeps what its policy names.
    The compiler's partitioner does not. Raises UsageError where the operators are
    others: with adapters, recurrences, and attention by matrix products.
    """
    unknown = {
        "adapters": at.adapter is not None,
        "recurrences": kind.recurrence is not None,
        "attention by matrix products": at.kernel is AttentionKernel.MATH,
        "multi-token prediction": kind.is_predicting,
    }
    for what in (name for name, is_there in unknown.items() if is_there):
        raise UsageError(
            f"Selective recomputation is not modelled with {what}: use --recompute full or none."
        )
    yield _input(at)
    everything = layer_saved(at.without_recompute(), kind)
    read = {saved.result_of: saved for saved in everything}
    for weight in products_kept(kind, at.model):
        if weight.name in read:
            yield read[weight.name]
            continue
        is_by_rows = weight.name in BY_ROWS
        if is_by_rows and at.is_fused:
            continue
        whole = is_by_rows or weight.name in UNSPLIT
        yield at.keep(f"result of {weight.name}", f"{TOKENS} * rows", at.inner_bytes,
                       Region.WHOLE if whole else Region.INNER, "kept by its policy",
                       rows=weight.shape[0])  # fmt: skip
    yield from (saved for saved in everything if saved.result_of == ATTENTION)
    if at.is_sequence_parallel:
        for name in (OUTPUT, DOWN)[: 1 if at.is_fused else 2]:
            yield at.keep(f"reduced result of {name}", STREAM, at.inner_bytes)
    if isinstance(kind.feed_forward, Experts):
        yield from choice_saved(at, kind.feed_forward)


BY_ROWS = frozenset({OUTPUT, DOWN})
"""Matrices that tensor parallelism splits by rows: their results have the stream's width."""
UNSPLIT = frozenset({"q down", "kv down"})
"""And those that every chip has whole."""


def _mixers_saved(at: Setting, kind: Layer, input_bytes: int) -> Iterator[Saved]:
    if kind.attention is not None:
        yield from attention_saved(at, kind.attention, input_bytes)
    if kind.recurrence is not None:
        yield from kind.recurrence.saved(at, input_bytes)


def _first_layer_saved(
    at: Setting, kind: Layer, first: FirstLayer, input_bytes: int
) -> Iterator[Saved]:
    """Saved tensors of adapters' first layer: its input has no gradient, so its first norm keeps
    nothing.
    """
    yield from _mixers_saved(at, kind, input_bytes)
    if at.dropout and first.has_stream:
        yield from dropout_saved(at, "attention")
    if kind.norms >= 2 and first.has_second_input:
        yield from _second_norm_saved(at, kind)
    has_input = kind.norms == 1 and kind.is_parallel
    match kind.feed_forward:
        case FeedForward():
            yield from feed_forward_saved(
                at,
                kind.feed_forward,
                input_bytes,
                is_input_kept=has_input,
                has_inner=first.has_inner,
            )
        case Experts():
            yield from experts_saved(at, kind.feed_forward, input_bytes)
    if at.dropout:
        yield from dropout_saved(at, "feed-forward")
    for n in range(2, kind.norms):
        yield from norm_saved(at, f"norm {n + 1}, of a result", at.inner_bytes)


def _second_norm_saved(at: Setting, kind: Layer) -> Iterator[Saved]:
    """The norm before the feed-forward.

    Where that runs beside attention, both norms are given the same tensor, and keep it once unless
    each has cast it for itself.
    """
    first, *others = norm_saved(at, "feed-forward's norm", at.stream_bytes)
    if not (kind.is_parallel and first.itemsize_bytes == at.stream_bytes):
        yield first
    yield from others


def _embedding_saved(at: Setting) -> Iterator[Saved]:
    whole, is_trained = Region.WHOLE, at.adapter is None
    if is_trained:
        yield at.keep("token ids", TOKENS, INT64_BYTES, whole, "gradients of the rows looked up")
    if at.model.positions and is_trained:
        yield at.keep("positions", "sequence", INT64_BYTES, whole, "gradients of their rows")
    for size in sorted({_turned_head_dim(kind) for kind in at.model.kinds} - {0}):
        yield at.keep(
            "cosines and sines of positions",
            "2 * sequence * head_dim",
            at.stream_bytes,
            whole,
            "turning queries and keys",
            head_dim=size,
        )
    if at.is_recomputed and any(is_masked(at, kind.attention) for kind in at.model.kinds):
        yield at.keep("mask", "sequence * keys", BOOL_BYTES, whole, "attention, recomputed")
    # Of recomputed layers, transformers gives the first one's input a gradient, too.
    has_gradient = is_trained or at.is_recomputed
    is_made_again = at.is_recomputed and at.model.is_embedding_norm_recomputed
    if at.model.has_embedding_norm and has_gradient and not is_made_again:
        yield from norm_saved(at, "embedding's norm", at.stream_bytes)
    if at.embedding_dropout and has_gradient:
        yield from dropout_saved(at, "embedding")


def _turned_head_dim(kind: Layer) -> int:
    match kind.attention:
        case LatentAttention():
            return kind.attention.rotary_head_dim
        case SelfAttention() if kind.attention.is_rotary:
            return kind.attention.head_dim
        case _:
            return 0


def _join_saved(at: Setting) -> Iterator[Saved]:
    """Saved tensors in front of a layer that predicts. The state that it is given is kept before:
    by the norm behind the layers, and where norms do not cast, as theirs.
    """
    yield at.keep(
        "token ids further on", TOKENS, INT64_BYTES, Region.WHOLE, "gradients of the rows looked up"
    )
    given = at.stream_bytes
    yield from norm_saved(at, "embedding's norm", given)
    state, *others = norm_saved(at, "state's norm", given)
    yield from others if state.itemsize_bytes == given else (state, *others)
    result = norm_result_bytes(at, given)
    yield from products_saved(at, "state and embedding", f"2 * {STREAM}", result, (JOIN,))


def _head_saved(at: Setting) -> Iterator[Saved]:
    input_bytes = at.stream_bytes
    if at.model.has_final_norm:
        yield from norm_saved(at, "last norm", input_bytes)
        input_bytes = norm_result_bytes(at, input_bytes)
    yield from products_saved(at, "input of the head", STREAM, input_bytes, ("head",))
    if at.usual_loss is Loss.CHUNKED:
        yield at.keep("gradient of the head's input", STREAM, at.inner_bytes, why="of all chunks")
        return
    if at.model.has_capped_logits and not at.is_fused:
        yield at.keep("capped logits", f"{TOKENS} * vocabulary", at.inner_bytes, Region.INNER,
                       "tanh", vocabulary=at.model.vocabulary)  # fmt: skip
    name, itemsize_bytes, why = (
        ("logits", at.inner_bytes, "the loss's gradient")
        if at.is_loss_one_kernel
        else ("log-probabilities", at.logit_bytes, "softmax of the loss: the logits' gradient")
    )
    yield at.keep(name, f"{TOKENS} * vocabulary", itemsize_bytes, Region.INNER, why,
                   vocabulary=at.model.vocabulary)  # fmt: skip
    if not at.is_fused:
        yield at.keep("labels", TOKENS, INT64_BYTES, Region.WHOLE, "one token further, a copy")
        yield at.keep("loss and its weight", "2", FLOAT32_BYTES, Region.WHOLE, "the mean")


def _recompute_bytes(at: Setting, kind: Layer) -> Quantity:
    everything = layer_saved(at.without_recompute(), kind)
    if at.is_recomputed:
        there = _results_kept(at, kind) if at.recompute is Recompute.OPERATORS else frozenset()
        again = saved_bytes(
            "recomputed",
            [saved for saved in everything if not saved.is_input and saved.result_of not in there],
        )
        if not at.recipe.is_autocast:
            return again
        casts = layer_cast_bytes(at, kind)
        return total("recomputed", Unit.BYTES, {"tensors": again, "weight_casts": casts})
    if at.kernel is not AttentionKernel.MATH and not at.modules:
        return of(0, Unit.BYTES, "recomputed")
    whole, kept = saved_bytes("whole", everything), saved_bytes("kept", layer_saved(at, kind))
    return derive("recomputed", Unit.BYTES, "max(whole - kept, 0)", whole=whole, kept=kept)


def _matrix_elements(at: Setting, kind: Layer) -> int:
    weights = layer_weights(replace(kind, count=1), at.model)
    return sum(
        layer_weight.elements
        for layer_weight in weights
        if layer_weight.uses
        and not (layer_weight.group is Group.EXPERTS and at.is_mixed_eagerly)
        and (at.first is None or at.first.has_input(layer_weight.name))
    )


def _cast_bytes(at: Setting, word: str, elements: int) -> Quantity:
    return derive(
        "weight casts",
        Unit.BYTES,
        "elements * itemsize / tensor",
        "",
        word,
        elements=of(elements if at.has_weight_casts else 0, Unit.PARAMETERS),
        itemsize=of(at.operand_bytes, Unit.BYTES_EACH),
        tensor=at.words["tensor"],
    )


def _head_elements(model: Model) -> int:
    return model.vocabulary * (model.embedding_width or model.width)


@closed_form("head's tensors", Unit.BYTES)
def _of_losses(losses: Count, each: Bytes) -> str:
    return "losses * each"


@closed_form("layers' activations", Unit.BYTES)
def _with_first(others: Count, one: Bytes, first: Bytes) -> str:
    return "others * one + first"


@closed_form("layers' activations", Unit.BYTES)
def _times(layers: Count, one: Bytes) -> str:
    return "layers * one"
