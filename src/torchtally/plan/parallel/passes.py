"""How often memory is read and written by what is no matrix product: for every element, in bytes.

What goes over memory is as much as the kernels make it: PyTorch's own operators, one after the
other as model code of Hugging Face calls them (EAGER), or kernels written for the purpose, which
read their input once and write their result once (FUSED: Transformer Engine, Liger, a compiler).
Each pass is of one tensor; an itemsize is the activations', and 4 bytes of what is computed in
float32.
"""

from dataclasses import dataclass

from torchtally.plan.activations.setting import LOSS_CHUNKS, Implementation, Loss
from torchtally.timing.constants import PLACES_PER_S, TRANSPOSED_PLACES_PER_S


@dataclass(frozen=True, slots=True)
class MemoryPasses:
    """Bytes moved for each element, and kernels launched, forward and backward."""

    forward: float
    backward: float
    forward_kernels: int = 1
    backward_kernels: int = 1
    is_normalization: bool = False
    """Rows are summed up: slower than plain copies (`roofline/rates.py`)."""
    forward_places: float = 0.0
    backward_places: float = 0.0
    """How often an element's place is computed, since tensors do not lie alike
    (`roofline/strided.py`): those of a `cat` count as often as they take longer."""
    forward_casts: int = 0
    backward_casts: int = 0
    """Tensors that kernels read or write which convert between dtypes one by one: all but copies
    from float32 to half precision (`roofline/strided.py`)."""


def norm(
    kind: str,
    implementation: Implementation,
    itemsize: int,
    *,
    is_wide: bool = False,
    is_weighed: bool = True,
    is_of_heads: bool = False,
) -> MemoryPasses:
    """Passes over a norm's input. "rms", "layer" or "plain".

    Layer norms have a kernel of their own in PyTorch. An RMS norm of Hugging Face's is a cast to
    float32, a square, a mean, a product and casts back (LlamaRMSNorm); forward in bfloat16
    6 + 8 + 4 + 8 + 6 + 4 bytes, backward 92. A wide one multiplies by its weight in float32; one
    that is not weighed, not at all. Products with the root and with the weight broadcast, forward
    and backward, as the mean's gradient does; gradients of heads are permuted, in three products.
    """
    if implementation is Implementation.FUSED or kind not in ("rms", "centred"):
        return MemoryPasses(2 * itemsize, 5 * itemsize, 1, 2, is_normalization=True)
    is_half = itemsize != 4
    casts = 2 * (itemsize + 4) * is_half
    weighed = (4 if is_wide else itemsize) if is_weighed else 0
    return MemoryPasses(
        20 + 2 * weighed + casts,
        68 + 6 * weighed + casts,
        8,
        16,
        forward_places=1 + is_weighed,
        backward_places=2 + is_weighed + 3 * is_of_heads,
        forward_casts=2 * is_half,
        backward_casts=2 * is_half,
    )


def residual(implementation: Implementation, itemsize: int, stream: int) -> MemoryPasses:
    """Passes of one residual addition. Fused, the norm behind it reads what is in registers still.
    Where the residual stream is wider than what is added to it (autocast), gradients are cast back.
    """
    if implementation is Implementation.FUSED:
        return MemoryPasses(2 * itemsize, itemsize, 0, 0)
    is_cast = stream != itemsize
    back = 3 * stream + (itemsize + stream) * is_cast
    return MemoryPasses(itemsize + 2 * stream, back, 1, 1 + is_cast, forward_casts=3 * is_cast)


def join(itemsize: int) -> MemoryPasses:
    """Passes over a token's state and an embedding, one behind the other (multi-token prediction):
    half of it looked up, all of it copied; backward its halves copied, and one added to the table.
    """
    return MemoryPasses(3 * itemsize, 7 * itemsize // 2, 2, 3)


def operand_cast(itemsize: int, stream: int) -> MemoryPasses:
    """Passes over a product's input, which autocast casts for each product anew, and its gradient
    back.
    """
    return MemoryPasses(itemsize + stream, itemsize + stream, backward_casts=2)


def weight_cast(itemsize: int, kept_itemsize: int, weights: int) -> MemoryPasses:
    """Passes over so many weights, which autocast casts once, and their gradients back."""
    moved = itemsize + kept_itemsize
    return MemoryPasses(moved, moved, weights, weights, backward_casts=2)


def quantised_operand(itemsize: int, reads: int, written: float) -> MemoryPasses:
    """Passes over a product's operand in 8 or 4 bits, by a kernel of its own: read, twice where its
    largest number is looked for first, and written, twice where the product of the weight's
    gradient takes it in another order (Transformer Engine's cast kernels; torchao's float8 linear
    layers). Their launch is the product's.
    """
    return MemoryPasses(reads * itemsize + written, 0, 0, 0)


def quantised_gradient(itemsize: int, reads: int, written: float) -> MemoryPasses:
    """The same of the gradient of a product's result."""
    return MemoryPasses(0, reads * itemsize + written, 0, 0)


def repetition(itemsize: int) -> MemoryPasses:
    """Passes over keys and values, those of each group and those of each head together: a copy for
    each head, and the sum of their gradients.
    """
    return MemoryPasses(itemsize, itemsize)


def routing(itemsize: int, *, is_masked: bool = False) -> MemoryPasses:
    """Passes over the tokens of all experts that run: sorted by expert and back, a copy each way.

    Where every expert runs (Llama 4's, `Llama4TextMoe`), tokens are repeated, multiplied by their
    scores and added up again: 1 + 2 + 1 of their size forward; backward the product is 2 for the
    tokens, and 4 for the scores, which are sums, and the repetition another.
    """
    if is_masked:
        return MemoryPasses(4 * itemsize, 7 * itemsize, 3, 4)
    return MemoryPasses(4 * itemsize, 4 * itemsize, 2, 2)


def mask(itemsize: int) -> MemoryPasses:
    """Passes over a mask that is added to the scores, made of a mask of booleans."""
    return MemoryPasses(itemsize + 1, 0, 1, 0)


def rotation(implementation: Implementation, itemsize: int, stream: int) -> MemoryPasses:
    """Passes over queries or keys: `q * cos + rotate_half(q) * sin` is five operators, their
    backward nine, and a copy for the heads' order.

    Where the residual stream is wider (autocast), so are cosines and sines, hence the two products
    and their sum, which attention casts back; backward the products' gradients are.

    Cosines broadcast and halves are slices: two products, a sum and the negation of a half find
    their elements one by one, and so does the `cat` of the halves; backward two slices' gradients
    and the copy besides.
    """
    if implementation is Implementation.FUSED:
        return MemoryPasses(2 * itemsize, 2 * itemsize)
    places = (3.5 + PLACES_PER_S / TRANSPOSED_PLACES_PER_S, 6.5)
    if stream == itemsize:
        return MemoryPasses(10 * itemsize, 16 * itemsize, 5, 9, False, *places)
    cast = itemsize + stream
    forward = 3 * itemsize + 2 * cast + 3 * stream + cast
    backward = 12 * itemsize + 2 * (2 * stream + cast) + cast
    return MemoryPasses(forward, backward, 6, 12, False, *places, 4, 2)


def dropout(implementation: Implementation, itemsize: int) -> MemoryPasses:
    """Passes over what is dropped from: a mask of one byte for each element, written and read
    again. On the residual stream fused with the addition; on scores always a kernel of its own.
    """
    if implementation is Implementation.FUSED:
        return MemoryPasses(1, 1, 0, 0)
    return MemoryPasses(2 * itemsize + 1, 2 * itemsize + 1)


def branches(implementation: Implementation, stream: int) -> MemoryPasses:
    """Passes over the input of several projections: their gradients are added up, one addition
    each.
    """
    if implementation is Implementation.FUSED:
        return MemoryPasses(0, 0, 0, 0)
    return MemoryPasses(0, 3 * stream, 0, 1)


def activation(
    name: str, is_gated: bool, implementation: Implementation, itemsize: int
) -> MemoryPasses:
    """Passes over the inner layer of a feed-forward, by the name that transformers gives the
    function.

    Fused it is one kernel, with the gate. GPT-2's `gelu_new` is eight operators in Python.
    """
    gate = (3, 6) if is_gated else (0, 0)
    if implementation is Implementation.FUSED:
        return MemoryPasses((2 + is_gated) * itemsize, (3 + 2 * is_gated) * itemsize)
    forward, backward, kernels = _COMPOSED.get(name, (2, 3, 1))
    return MemoryPasses(
        (forward + gate[0]) * itemsize,
        (backward + gate[1]) * itemsize,
        kernels + is_gated,
        kernels + 2 * is_gated,
    )


_COMPOSED = {
    "quick_gelu": (7, 12, 3),
    "relu2": (4, 6, 2),
    "gelu_new": (18, 28, 8),
    "gelu_fast": (18, 28, 8),
    "gelu_accurate": (18, 28, 8),
    "gelu_python_tanh": (18, 28, 8),
}
"""Functions that transformers writes as several operators: tensors read and written, forward and
backward, and kernels forward. All others are one."""


def receptance(implementation: Implementation, itemsize: int) -> MemoryPasses:
    """Passes over the input of RWKV's feed-forward: two mixes of a token with the one before, a
    sigmoid and its product with the result.

    Mixing is a padding, and for each two products, which broadcast, and their sum.
    """
    if implementation is Implementation.FUSED:
        return MemoryPasses(6 * itemsize, 9 * itemsize, 2, 2)
    return MemoryPasses(21 * itemsize, 44 * itemsize, 9, 19, forward_places=4, backward_places=4)


def loss(how: Loss, itemsize: int) -> MemoryPasses:
    """Passes over logits. In PyTorch they are cast to float32, whose log-softmax reads a long row
    three times and writes it once, as fast as a copy does (`roofline/rows.py`); backward it reads
    three tensors and writes one, from zeros, and casts back (SoftMax.cu). Fused, the gradient takes
    the logits' memory; so it does chunk by chunk.
    """
    casts = itemsize + 4 if itemsize != 4 else 0
    match how:
        case Loss.COMPOSER:
            metrics = 2 * (16 + casts)
            return MemoryPasses(2 * itemsize, itemsize + metrics, 1, 5)
        case Loss.PARALLEL | Loss.FUSED:
            return MemoryPasses(2 * itemsize, itemsize, 1, 1, is_normalization=True)
        case Loss.CHUNKED:
            return MemoryPasses(
                2 * itemsize, itemsize, LOSS_CHUNKS, LOSS_CHUNKS, is_normalization=True
            )
        case Loss.PLAIN:
            return MemoryPasses(4 * itemsize, 5 * itemsize, 2, 2)
    return MemoryPasses(16 + casts, 20 + casts, 3, 3, forward_casts=2 * bool(casts))


def scores(implementation: Implementation, itemsize: int) -> MemoryPasses:
    """Passes over attention's scores where a kernel of its own does not keep them on chip: written,
    masked, normalised, read again; backward twice the reads. Fused: scale, mask and softmax in one.
    """
    if implementation is Implementation.FUSED:
        return MemoryPasses(4 * itemsize, 6 * itemsize, 1, 1)
    return MemoryPasses(8 * itemsize, 12 * itemsize, 4, 4)


def optimizer_accesses(implementation: Implementation, name: str) -> int | None:
    """How often all numbers of a parameter's size are read or written, where an optimizer is a
    sequence of operators over lists of tensors (torch.optim, foreach); None: in one kernel, or not
    known, and then the least is taken.

    AdamW: mul 2, lerp 3, mul 2, addcmul 4, sqrt 2, div 2, add 2, addcdiv 4. SGD: add 3. With
    momentum mul 2, add 3, add 3.
    """
    if implementation is Implementation.FUSED:
        return None
    return {"adamw": 21, "adam": 19, "sgd": 3, "momentum": 8}.get(name)
