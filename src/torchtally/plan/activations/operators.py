"""What single PyTorch operators of a layer keep: norms, inputs of products, activation functions.

In eager mode each operator keeps what its own backward reads, whether its neighbours keep the same
numbers in another dtype or not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import BOOL_BYTES, FLOAT32_BYTES, Setting
from torchtally.plan.adapters import Adapter

TOKENS = "batch * sequence"
STREAM = f"{TOKENS} * width"

COMPOSED = {"gelu_new": 4, "gelu_accurate": 4, "gelu_python_tanh": 4, "gelu_fast": 7,
            "gelu_python": 3, "quick_gelu": 2}  # fmt: skip
"""Activation functions that transformers writes as several operators: how many tensors they keep,
counted from transformers 5 (`activations.py`). All others are one operator, which keeps one."""
COMPOSED_NORMS = ("rms", "centred")
"""Norms that transformers writes as several operators."""
POWERED = frozenset({"gelu_new", "gelu_accurate", "gelu_python_tanh", "relu2"})
"""Those with a `torch.pow` or a `torch.square`, which autocast computes in float32, and so what
follows it."""
KEEPS_OUTPUT = frozenset({"relu", "tanh", "sigmoid"})
"""Those whose backward reads the result, which the next operator keeps as well."""


def norm_saved(
    at: Setting,
    name: str,
    given_bytes: int,
    *,
    elements: str = STREAM,
    rows: str = TOKENS,
    region: Region = Region.STREAM,
    is_input: bool = False,
    **sizes: int,
) -> Iterator[Saved]:
    """What a norm of so many elements in rows keeps, beside its result.

    Transformers' RMSNorm and OLMo's norm go to float32 and back; torch's layer norm computes so
    inside.
    """
    if at.is_fused:
        kept = at.keep(f"input of {name}", elements, given_bytes, region, "norm", **sizes)
        yield replace(kept, is_input=is_input)
        return
    kind = at.model.norm
    is_rms, is_cast = kind in COMPOSED_NORMS, kind in (*COMPOSED_NORMS, "plain")
    wide = FLOAT32_BYTES if is_cast or at.recipe.is_autocast else given_bytes
    is_centred = kind == "centred"  # the square and the product are each given another difference
    times = "2 * " if is_centred else ""
    kept = at.keep(f"input of {name}", times + elements, wide, region, "norm", **sizes)
    yield replace(kept, is_input=is_input and wide == given_bytes and not is_centred)
    if not is_rms:
        yield at.keep(f"mean of {name}", rows, FLOAT32_BYTES, region, "norm", **sizes)
    yield at.keep(f"scale of {name}", rows, FLOAT32_BYTES, region, "norm", **sizes)
    if is_rms and at.adapter is None:  # for the gradient of its weight
        is_wide = at.model.has_wide_norm
        itemsize = FLOAT32_BYTES if is_wide else given_bytes
        yield at.keep(f"normed {name}", elements, itemsize, region, "times its weight", **sizes)
    if at.model.has_wide_norm:
        yield at.keep(f"1 + weight of {name}", "width", FLOAT32_BYTES, Region.WHOLE, "its product")


def norm_result_bytes(at: Setting, given_bytes: int) -> int:
    """Bytes of one number of a norm's result: multiplied by its weight it takes the wider dtype."""
    if at.is_mixed_eagerly and not at.model.has_wide_norm:
        return max(given_bytes, at.recipe.weight_bytes)
    return given_bytes


def products_saved(
    at: Setting,
    name: str,
    elements: str,
    given_bytes: int,
    weights: Sequence[str],
    region: Region = Region.STREAM,
    *,
    is_kept_already: bool = False,
    **sizes: int,
) -> Iterator[Saved]:
    """What the products of one input with these weights keep of it, for the weights' gradients.

    One copy for all of them, unless it must be cast: PyTorch casts it for each of them anew (only
    parameters' casts are remembered), and each keeps its own.
    """
    if at.adapter is not None:
        yield from _adapters_saved(
            at, at.adapter, name, elements, given_bytes, weights, region, is_kept_already, **sizes
        )
        return
    products = len(weights)
    if given_bytes == at.operand_bytes:
        if not is_kept_already:
            yield at.keep(name, elements, given_bytes, region, "its weights' gradient", **sizes)
        return
    times = "" if at.is_fused or products == 1 else f"{products} * "
    yield at.keep(
        f"{name}, cast",
        times + elements,
        at.operand_bytes,
        region,
        "its weights' gradients",
        **sizes,
    )


def shifted_saved(
    at: Setting, name: str, given_bytes: int, weights: Sequence[str]
) -> Iterator[Saved]:
    """What products keep that are each given a mix of a token with the one before: both for the
    gradients of the mixes, and what is left for the earlier one for its own.
    """
    if not at.is_frozen:
        yield at.keep(
            f"{name} and of the token before",
            f"2 * {STREAM}",
            given_bytes,
            why="gradients of its mixes",
        )
    if at.first is None or at.first.has_input(weights[0]):
        yield at.keep(f"1 - mixes of {name}", "mixes * width", at.recipe.weight_bytes, Region.WHOLE,
                       "gradient of the token before", mixes=len(weights))  # fmt: skip
    for weight in weights:
        yield from products_saved(at, f"{name}, mixed for {weight}", STREAM, given_bytes, (weight,))


def _adapters_saved(
    at: Setting,
    adapter: Adapter,
    name: str,
    elements: str,
    given_bytes: int,
    weights: Sequence[str],
    region: Region,
    is_kept_already: bool,
    **sizes: int,
) -> Iterator[Saved]:
    """What adapters beside frozen weights keep, as PEFT computes them: what A is given, each its
    own copy where that is cast or dropped out, and what B is given.
    """
    size, targets = adapter.product_bytes, adapter.targets_among(weights)
    is_copied = adapter.copies(given_bytes)
    if targets and not is_copied and not is_kept_already:
        yield at.keep(name, elements, size, region, "adapters' gradients", **sizes)
    for target in targets:
        if is_copied:
            yield at.keep(f"{name}: A of {target}", elements, size, region, "A's gradient", **sizes)
        has_gradient = at.first is None or at.first.has_input(target)
        if adapter.dropout > 0 and has_gradient:
            yield at.keep(f"dropout mask of {target}'s adapter", elements, BOOL_BYTES, region,
                           "dropout", **sizes)  # fmt: skip
        yield at.keep(f"{target} within its adapter", f"{TOKENS} * rank", size, region,
                       "B's gradient", rank=adapter.rank)  # fmt: skip
        if adapter.is_autocast:
            yield from _cast_adapter_saved(at, adapter, target, has_gradient=has_gradient)
        if adapter.has_magnitude:
            yield from _magnitude_saved(at, adapter, target, region, has_gradient=has_gradient)


def _cast_adapter_saved(
    at: Setting, adapter: Adapter, target: str, *, has_gradient: bool
) -> Iterator[Saved]:
    """A and B in the dtype of products, for the gradients of what they are given."""
    out, given = at.shapes[target]
    size, why = adapter.product_bytes, "its input's gradient"
    if has_gradient:
        yield at.keep(f"A of {target}, cast", "rank * given", size, Region.WHOLE, why,
                       rank=adapter.rank, given=given)  # fmt: skip
    yield at.keep(
        f"B of {target}, cast", "rank * out", size, Region.WHOLE, why, rank=adapter.rank, out=out
    )


def _magnitude_saved(
    at: Setting, adapter: Adapter, target: str, region: Region, *, has_gradient: bool
) -> Iterator[Saved]:
    """What DoRA keeps besides (PEFT's `DoraLinearLayer`): both results that are scaled, and scales.

    With dropout the frozen matrix is multiplied once more, in the dtype of adapters.
    """
    out, given = at.shapes[target]
    size, result = adapter.product_bytes, f"{TOKENS} * out"
    is_again = adapter.dropout > 0
    yield at.keep(f"{target}'s result", result, size if is_again else at.inner_bytes, region,
                   "the magnitude's gradient", out=out)  # fmt: skip
    yield at.keep(
        f"{target} of its adapter", result, size, region, "the magnitude's gradient", out=out
    )
    yield at.keep(f"scales of {target}", "scales * out", FLOAT32_BYTES, Region.WHOLE,
                   "magnitudes over norms", scales=2 + has_gradient, out=out)  # fmt: skip
    if is_again and has_gradient and adapter.copies_of(at.recipe.weight_bytes):
        yield at.keep(f"{target}, cast", "given * out", size, Region.WHOLE, "its input's gradient",
                       given=given, out=out)  # fmt: skip


def activated_saved(
    at: Setting, name: str, elements: str, itemsize_bytes: int, region: Region, given: str,
    **sizes: int,
) -> Iterator[Saved]:  # fmt: skip
    """What an activation function of the result of matrix `given` keeps, but for a result that the
    next operator keeps.
    """
    if name in KEEPS_OUTPUT and not at.is_fused:
        return
    count = 1 if at.is_fused else COMPOSED.get(name, 1)
    wide = FLOAT32_BYTES if at.is_mixed_eagerly and name in POWERED else itemsize_bytes
    why = f"{name}'s backward"
    if wide != itemsize_bytes:
        yield at.keep(
            "what is activated, before its power", elements, itemsize_bytes, region, why, **sizes
        )
        count = max(count - 1, 1)
    times = "" if count == 1 else f"{count} * "
    kept = at.keep("input of the activation", times + elements, wide, region, why, **sizes)
    yield kept.made_by(given) if count == 1 else kept


def activated_bytes(at: Setting, name: str, itemsize_bytes: int) -> int:
    """Bytes of one number of an activation function's result."""
    return FLOAT32_BYTES if at.is_mixed_eagerly and name in POWERED else itemsize_bytes


def dropout_saved(at: Setting, name: str) -> Iterator[Saved]:
    """The mask of a dropout on the residual stream: a byte for each element."""
    yield at.keep(f"dropout mask of {name}", STREAM, BOOL_BYTES, Region.STREAM, "dropout")
