"""Seconds of work of one chip: a micro-batch through one layer, the head, the optimizer's step.

M, K, N: (M, K) @ (K, N).  b: micro-batch.  s: sequence.  S: tokens of one chip.

Products and attention take as long as `timing.roofline` says of their real shapes, after they
were split over chips; all the rest goes by bytes (`passes.py`). The host is assumed to be ahead of
the device, and what overlaps on one chip, nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.activations.modules import recomputed_in
from torchtally.plan.activations.setting import USUAL_LOSS, AttentionKernel, Implementation
from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.flops import Recompute
from torchtally.plan.mixers.base import Recurrence
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel import passes
from torchtally.plan.parallel.attention import attention_s, is_given_mask
from torchtally.plan.parallel.kernels import ROOFLINE, KernelTimes, PassTimes, word_of
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.passes import MemoryPasses
from torchtally.plan.parallel.recurrence import BACKWARD_KERNELS, FORWARD_KERNELS, scan_s
from torchtally.plan.parallel.shards import BY_INPUTS, experts_run, layer_on_chip, rows_of
from torchtally.plan.quantity import Quantity, derive, of, total_s
from torchtally.plan.recipes import Recipe, Scaling
from torchtally.plan.recomputation import products_again
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class ChipWork:
    """One chip's seconds for one micro-batch."""

    forward: Quantity
    input_gradients: Quantity
    """The half of the backward pass that the stage before waits for."""
    weight_gradients: Quantity
    attention: Quantity
    """What of `forward` is attention: keys and values travel meanwhile."""
    attention_backward: Quantity
    streaming: Quantity
    """What of all of these is no product: it goes by bytes, at memory's speed."""
    again_by_operators: Quantity
    """What of `forward` recomputation by operators makes again."""
    forward_launches: int
    backward_launches: int
    """Kernels: both halves of the backward pass."""
    forward_expert_launches: int = 0
    """Those among them whose sizes the router decides: experts' products and what is around."""
    backward_expert_launches: int = 0
    module_launches: int = 0
    """Of modules that are recomputed by themselves; 0: nothing is, or all of the layer."""


@dataclass(frozen=True, slots=True)
class Products:
    """Products with several matrices, one each in the forward pass and two in the backward pass."""

    forward: Quantity
    inputs: Quantity
    """Gradients of the inputs."""
    weights: Quantity
    again: Quantity
    """Forward, those that recomputation by operators makes again."""
    matrices: int


NOTHING_S = of(0.0, Unit.SECONDS)
NO_PRODUCTS = Products(NOTHING_S, NOTHING_S, NOTHING_S, NOTHING_S, 0)
NO_ATTENTION = PassTimes(NOTHING_S, NOTHING_S, 0, 0)


def layer_work(
    kind: Layer, model: Model, layout: Layout, sequence: int, work: KernelTimes
) -> ChipWork:
    """One layer of this kind. Raises UsageError where the chip lacks a number it depends on."""
    weights = layer_on_chip(kind, model, layout)
    tokens = layout.tokens(sequence)
    products = _products(weights, kind, model, tokens, layout, work)
    attention = attention_s(kind, model, sequence, layout, work)
    moved = layer_streams(kind, model, weights, sequence, layout, work)
    if kind.recurrence is not None:
        moved.append(_recurrence_s(kind.recurrence, tokens, sequence, layout, work))
    forward, backward = _expert_launches(weights, moved)
    whole = _work(products, moved, attention)
    if layout.modules:
        again, launches = modules_again(kind, model, layout, sequence, work)
        whole = replace(whole, again_by_operators=again, module_launches=launches)
    return replace(whole, forward_expert_launches=forward, backward_expert_launches=backward)


def modules_again(
    kind: Layer, model: Model, layout: Layout, sequence: int, work: KernelTimes
) -> tuple[Quantity, int]:
    """Seconds and kernels of the modules of this layer that are recomputed by themselves."""
    weights = layer_on_chip(kind, model, layout)
    tokens = layout.tokens(sequence)
    again = recomputed_in(kind, layout.modules)
    terms = {
        f"product_{n}": work.products(weight, rows_of(weight, kind, tokens, layout))[0]
        for n, weight in enumerate(weights)
        if weight.uses and any(weight.name in each.matrices for each in again)
    }
    launches = len(terms)
    for n, pair in enumerate(layer_streams(kind, model, weights, sequence, layout, work)):
        if any(pair.forward.name in each.streams for each in again):
            terms[f"pass_{n}"] = pair.forward
            launches += pair.forward_launches
    return total_s("recomputed modules", **terms), launches


def _expert_launches(weights: tuple[Weight, ...], moved: list[PassTimes]) -> tuple[int, int]:
    """Launches of products, of what sorts tokens, and of activations: forward and backward."""
    matrices = sum(weight.group is Group.EXPERTS and weight.uses > 0 for weight in weights)
    around = [pair for pair in moved if matrices and pair.forward.name in ("routing", "activation")]
    forward = matrices + sum(pair.forward_launches for pair in around)
    return forward, 2 * matrices + sum(pair.backward_launches for pair in around)


def _recurrence_s(
    recurrence: Recurrence, tokens: int, sequence: int, layout: Layout, work: KernelTimes
) -> PassTimes:
    recipe = work.recipe
    there, back = (
        scan_s(
            recurrence, tokens, sequence, layout.inner_split, work.chip, recipe.activations,
            recipe.activation_bytes, work.bandwidth_bytes_per_s, is_backward=is_backward,
        )
        for is_backward in (False, True)
    )  # fmt: skip
    back = back.with_name("recurrence, backward")
    return PassTimes(there, back, FORWARD_KERNELS, BACKWARD_KERNELS)


def recompute_s(work: ChipWork, layout: Layout) -> Quantity:
    """Seconds of recomputation in a layer's backward pass.

    Selective recomputation is attention's scores, which fused attention recomputes in any case.
    """
    if layout.recompute is Recompute.FULL:
        return work.forward.with_name("recomputation")
    if layout.recompute is Recompute.OPERATORS or layout.modules:
        return work.again_by_operators.with_name("recomputation")
    if layout.recompute is Recompute.SELECTIVE and layout.kernel is AttentionKernel.MATH:
        return work.attention.with_name("recomputation")
    return derive("recomputation", Unit.SECONDS, "0")


def head_work(model: Model, layout: Layout, sequence: int, work: KernelTimes) -> ChipWork:
    """The last norm, the logits and their loss, each as often as there are losses."""
    tokens, losses = layout.tokens(sequence), model.losses
    vocabulary = ceil(model.vocabulary / layout.inner_split)
    recipe = work.recipe
    inner = model.embedding_width or model.width
    matrices = [Weight("head", Group.HEAD, (vocabulary, inner))]
    if inner != model.width:
        # From the layers' width to the head's, and before them from the embedding's.
        matrices += 2 * [Weight("narrowing", Group.HEAD, (inner, model.width))]
    products = _sums([work.products(matrix, tokens) for matrix in losses * matrices])
    size = recipe.activation_bytes
    how = work.loss or USUAL_LOSS[layout.implementation]
    streams = [
        work.stream("loss", losses * tokens * vocabulary, passes.loss(how, size)),
        work.stream(
            "last norm",
            losses * tokens // layout.stream_split * model.width,
            passes.norm(
                model.norm,
                layout.implementation,
                stream_bytes(recipe, layout.implementation),
                is_wide=model.has_wide_norm,
            ),
        ),
    ]
    return _work(products, streams)


def embedding_work(model: Model, layout: Layout, sequence: int, work: KernelTimes) -> ChipWork:
    """Rows looked up, and their gradients added up in zeros of the table's size."""
    tokens = layout.tokens(sequence)
    recipe, size = work.recipe, work.recipe.activation_bytes
    rows = work.stream("rows", tokens * model.width, MemoryPasses(2 * size, 3 * size))
    table = ceil(model.vocabulary / layout.inner_split) * model.width
    zeros = work.stream("table", table, MemoryPasses(0, 2 * recipe.gradient_bytes, 0, 1))
    return _work(NO_PRODUCTS, [rows, zeros])


def optimizer_s(
    weights: Iterable[Weight],
    shards: int,
    optimizer: Optimizer,
    implementation: Implementation,
    work: KernelTimes,
) -> Quantity:
    """The optimizer's step over one chip's share of these weights, by the bytes that it moves.

    At least its state, the updated weights and the gradients once each way; operators over lists
    of tensors move more. Products of Muon's orthogonalisation are not in it.
    """
    tensors, recipe = tuple(weights), work.recipe
    numbers = sum(weight.elements for weight in tensors)
    updated = recipe.master_bytes or recipe.weight_bytes
    copies = recipe.weight_bytes if recipe.master else 0
    cast = recipe.gradient_bytes + updated if recipe.gradient_bytes != updated else 0
    accesses = passes.optimizer_accesses(implementation, optimizer.name)
    if accesses is None:
        state = 2 * optimizer.state_bytes(tensors, recipe.state_bytes)
        size = state + numbers * (2 * updated + copies + recipe.gradient_bytes)
    else:
        size = numbers * (accesses * max(updated, recipe.state_bytes) + copies + cast)
        size += numbers * updated if copies else 0
    return derive(
        "optimizer",
        Unit.SECONDS,
        "moved / shards / bandwidth_bytes_per_s",
        ROOFLINE,
        f"{optimizer.name}, {implementation}",
        moved=of(size, Unit.BYTES),
        shards=of(shards, Unit.CHIPS),
        bandwidth_bytes_per_s=of(work.bandwidth_bytes_per_s, Unit.BYTE_PER_S),
    )


def _products(
    weights: tuple[Weight, ...],
    kind: Layer,
    model: Model,
    tokens: int,
    layout: Layout,
    work: KernelTimes,
) -> Products:
    """All products with the layer's weights."""
    matrices = [weight for weight in weights if weight.uses]
    products = [work.products(weight, rows_of(weight, kind, tokens, layout)) for weight in matrices]
    names = {weight.name for weight in products_again(kind, model)}
    pairs = zip(matrices, products, strict=True)
    return _sums(products, [product[0] for weight, product in pairs if weight.name in names])


def _sums(products: list[tuple[Quantity, ...]], again: Iterable[Quantity] = ()) -> Products:
    """Sums over products with several matrices."""
    forward, inputs, gradients = (
        {f"product_{n}": product for n, product in enumerate(each)}
        for each in zip(*products, strict=True)
    )
    return Products(
        total_s("products", **forward),
        total_s("gradients of inputs", **inputs),
        total_s("gradients of weights", **gradients),
        total_s(
            "recomputed products", **{f"product_{n}": product for n, product in enumerate(again)}
        ),
        len(products),
    )


def layer_streams(
    kind: Layer,
    model: Model,
    weights: tuple[Weight, ...],
    sequence: int,
    layout: Layout,
    work: KernelTimes,
) -> list[PassTimes]:
    """What is neither a product nor attention."""
    recipe, how, size = work.recipe, layout.implementation, work.recipe.activation_bytes
    tokens = layout.tokens(sequence)
    whole = tokens * model.width
    split = whole // layout.stream_split
    stream = stream_bytes(recipe, how)
    normed = passes.norm(model.norm, how, stream, is_wide=model.has_wide_norm)
    norms = kind.norms + 2 * kind.is_predicting  # the last one of a module goes with its head
    streams = [
        work.stream("norms", norms * split, normed),
        work.stream("residuals", kind.blocks * split, passes.residual(how, size, stream)),
    ]
    if kind.is_predicting:
        streams.append(work.stream("join", 2 * split, passes.join(size)))
    if model.dropout:
        streams.append(work.stream("dropouts", kind.blocks * whole, passes.dropout(how, size)))
    attention, block = kind.attention, kind.feed_forward
    rotated = tokens * _rotary_numbers(attention) // layout.inner_split
    if rotated:
        streams.append(work.stream("rotation", rotated, passes.rotation(how, size, stream)))
    if isinstance(attention, SelfAttention) and (
        attention.head_norm_sizes or attention.has_plain_head_norms
    ):
        is_weighed = bool(attention.head_norm_sizes)
        normed = passes.norm(
            model.norm,
            how,
            size,
            is_wide=model.has_wide_norm,
            is_weighed=is_weighed,
            is_of_heads=True,
        )
        for name, count in (("queries", attention.heads), ("keys", attention.kv_heads)):
            elements = tokens * count * attention.head_dim // layout.inner_split
            streams.append(work.stream(f"norms of {name}", elements, normed))
    if attention is not None and is_given_mask(attention, sequence, layout):
        streams += _mask_streams(attention, tokens, sequence, layout, work)
    is_gated = block is not None and block.is_gated
    is_apart = isinstance(attention, SelfAttention) and not attention.is_fused
    forks = 2 * is_apart + is_gated
    if forks:
        streams.append(work.stream("branches", forks * whole, passes.branches(how, stream)))
    if stream != size:
        # Norms' results, for each product that is given one: forks and one more of both blocks.
        casts = (forks + kind.blocks) * whole
        streams.append(work.stream("casts", casts, passes.operand_cast(size, stream)))
    if block is not None:
        streams += _block_streams(block, tokens, whole, layout, work)
    if recipe.is_quantised:
        streams += _quantisations(kind, weights, tokens, layout, work)
    parameters = sum(weight.elements for weight in weights)
    if recipe.is_autocast:
        itemsize = DTYPE_BYTES[recipe.products]
        cast = passes.weight_cast(itemsize, recipe.weight_bytes, len(weights))
        streams.append(work.stream("casts of weights", parameters, cast))
    if layout.micro_batches > 1:
        # Added to the gradient that is there; a fused product reads and writes that one alone.
        reads = 3 if how is Implementation.EAGER else 1
        added = MemoryPasses(0, reads * recipe.gradient_bytes, 0, len(weights))
        streams.append(work.stream("gradients added up", parameters, added))
    return streams


def _quantisations(
    kind: Layer, weights: tuple[Weight, ...], tokens: int, layout: Layout, work: KernelTimes
) -> Iterator[PassTimes]:
    """Operands and gradients quantised by kernels of their own. With delayed scales a norm
    writes its result in them at once, with others it writes 16 bits, and finds their largest. What
    tensor parallelism gathers, each chip casts its part of; what goes to experts is cast behind the
    exchange, which is in 16 bits. Weights are cast once a step. Routers stay in 16 bits.
    """
    scaling = work.recipe.scaling
    operands = gradients = 0
    normed: dict[tuple[Group, int], int] = {}
    for weight in weights:
        if weight.uses and weight.group is not Group.ROUTER:
            *stacked, N, K = weight.shape
            rows = rows_of(weight, kind, tokens, layout) * (stacked[0] if stacked else 1)
            is_added = weight.name in BY_INPUTS
            gradients += rows * N // (layout.stream_split if is_added else 1)
            if weight.name in BEHIND_NO_NORM:
                operands += rows * K
            elif scaling is not Scaling.DELAYED:
                normed[weight.group, K] = rows * K // layout.stream_split
    size, written = work.recipe.activation_bytes, work.quantised_orders * work.recipe.cast_bytes
    reads = 1 + scaling.looks_first
    # A norm finds its result's largest number, but not behind 4 bits' Hadamard transform.
    behind = passes.quantised_operand(size, 1 + (scaling is Scaling.TWO_LEVELS), written)
    yield work.stream("quantised results of norms", sum(normed.values()), behind)
    yield work.stream(
        "quantised operands", operands, passes.quantised_operand(size, reads, written)
    )
    back = passes.quantised_gradient(size, reads, written)
    yield work.stream("quantised gradients", gradients, back)


BEHIND_NO_NORM = frozenset({"attention output", "down", "experts in", "experts out"})
"""Products whose operand no norm wrote."""


def _rotary_numbers(attention: SelfAttention | LatentAttention | None) -> int:
    """Numbers of a token's queries and keys that turn with its position."""
    match attention:
        case LatentAttention():
            return attention.heads * attention.head_dim
        case SelfAttention() if attention.is_rotary:
            return (attention.heads + attention.kv_heads) * attention.head_dim
        case _:
            return 0


def _block_streams(
    block: FeedForward | Experts, tokens: int, whole: int, layout: Layout, work: KernelTimes
) -> Iterator[PassTimes]:
    how, size = layout.implementation, work.recipe.activation_bytes
    width = block.width
    if isinstance(block, Experts):
        chosen = experts_run(block, how)
        width = chosen * block.width + block.shared_width
        routed = passes.routing(size, is_masked=chosen > block.active)
        rows = chosen * whole * layout.expert_split // layout.tensor
        yield work.stream("routing", rows, routed)
    elif block.has_receptance:
        yield work.stream("mixes and receptance", whole, passes.receptance(how, size))
    moved = passes.activation(block.activation, block.is_gated, how, size)
    yield work.stream("activation", tokens * width // layout.inner_split, moved)


def stream_bytes(recipe: Recipe, implementation: Implementation) -> int:
    """Bytes of one number of the residual stream: under `torch.autocast` it is the weights'."""
    is_mixed = recipe.is_autocast and implementation is Implementation.EAGER
    return recipe.weight_bytes if is_mixed else recipe.activation_bytes


def _mask_streams(
    attention: SelfAttention | LatentAttention,
    tokens: int,
    sequence: int,
    layout: Layout,
    work: KernelTimes,
) -> Iterator[PassTimes]:
    """What goes over memory for a mask: itself, and keys and values of each head, which PyTorch's
    kernels do not take grouped with one.
    """
    size = work.recipe.activation_bytes
    if isinstance(attention, SelfAttention) and attention.kv_heads < attention.heads:
        copies = tokens * (attention.heads + attention.kv_heads) // layout.inner_split
        for name in ("keys", "values"):
            elements = copies * attention.head_dim
            yield work.stream(f"repeated {name}", elements, passes.repetition(size))
    yield work.stream("mask", tokens * sequence, passes.mask(size))


def _work(
    products: Products, streams: list[PassTimes], attention: PassTimes = NO_ATTENTION
) -> ChipWork:
    core, core_back = attention.forward, attention.backward
    there = total_s(
        "passes over memory", **{word_of(pair.forward): pair.forward for pair in streams}
    )
    back = total_s(
        "passes over memory, backward",
        **{word_of(pair.backward): pair.backward for pair in streams},
    )
    forward = total_s("forward", products=products.forward, attention=core, passes=there)
    backward = total_s(
        "backward to the input", products=products.inputs, attention=core_back, passes=back
    )
    pairs = (attention, *streams)
    return ChipWork(
        forward,
        backward,
        products.weights,
        core,
        core_back,
        total_s("passes", forward=there, backward=back),
        total_s("recomputation", products=products.again, passes=there),
        products.matrices + sum(pair.forward_launches for pair in pairs),
        2 * products.matrices + sum(pair.backward_launches for pair in pairs),
    )
