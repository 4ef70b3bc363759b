"""What the time of a call depends on: the family it is compared within, and its size there.

M, K, N: (M, K) @ (K, N).  B: batch, heads included.  S, T: query and key sequence.  D: head dim.
O, I: output and input channels.  Y: output positions.  k: filter positions.  G: groups.

Calls of one family and variant differ by size alone, so the time of one between two that were
measured can be interpolated.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost, Kind
from torchtally.work.rule import integer


class Features(NamedTuple):
    family: str
    """The operator's name, or "product" for all matrix products."""
    variant: str
    """dtype, and how operands lie in memory."""
    size: tuple[float, ...]
    """Positive numbers; the time is smooth in their logarithms."""


def features(call: Call, kind: Kind, cost: Cost) -> Features:
    """Position of a call among calls like it."""
    if kind is Kind.PRODUCT and (position := product(call, cost)) is not None:
        return position
    if kind is Kind.ATTENTION:
        return attention(call)
    if kind is Kind.RECURRENT and (position := recurrent(call)) is not None:
        return position
    if kind is Kind.CONVOLUTION and (position := convolution(call, cost)) is not None:
        return position
    return streaming(call, cost)


PRODUCT = "product"


def product(call: Call, cost: Cost) -> Features | None:
    """None for a product that is not of two matrices (a grouped one, an einsum)."""
    operands = matrices(call)
    if operands is None:
        return None
    left, right = operands
    M, K, N = left.shape[-2], left.shape[-1], right.shape[-1]
    B = prod(left.shape[:-2])
    variant = f"{left.dtype} {orientation(left)}{orientation(right)}"
    if is_tf32(call):
        variant = f"tf32 {variant}"
    return Features(PRODUCT, variant, sizes(B, M, N, K))


def matrices(call: Call) -> tuple[TensorSpec, TensorSpec] | None:
    """The two operands of a product of matrices."""
    name = call.name.removeprefix("aten.")
    if name in ("mm", "bmm", "_int_mm", "_scaled_mm"):
        specs = call.inputs[:2]
    elif name in ("addmm", "baddbmm", "_addmm_activation"):
        specs = call.inputs[1:3]
    else:
        return None
    if len(specs) != 2 or min(len(spec.shape) for spec in specs) < 2:
        return None
    return specs[0], specs[1]


def orientation(spec: TensorSpec) -> str:
    """One letter: "N" for rows in memory one after the other, "T" for columns."""
    return "T" if spec.stride[-1] != 1 and spec.stride[-2] == 1 else "N"


def is_tf32(call: Call) -> bool:
    return call.literal("allow_tf32") is True


def attention(call: Call) -> Features:
    query, key = call.tensor("query"), call.tensor("key")
    B = prod(query.shape[:-2])
    causal = " causal" if call.literal("is_causal") is True else ""
    size = sizes(B, query.shape[-2], key.shape[-2], query.shape[-1])
    return Features(call.name, f"{query.dtype}{causal}", size)


def convolution(call: Call, cost: Cost) -> Features | None:
    """Sizes of the matrix product it amounts to, for each group: (B*Y, I/G*k) @ (I/G*k, O/G)."""
    weights = call.tensors("weight")
    if not weights or len(weights[0].shape) < 3 or call.literal("transposed") is True:
        return None
    weight = weights[0]
    result = call.tensors("grad_output") or call.outputs[:1]
    G = max(1, integer(call, "groups", 1))
    O, k = weight.shape[0], prod(weight.shape[2:])  # noqa: E741
    M = result[0].elements // O if O else 0
    filters = "pointwise" if k == 1 else "depthwise" if G == O and G > 1 else "spatial"
    layout = " channels_last" if is_channels_last(call.inputs[0]) else ""
    tf32 = "tf32 " if is_tf32(call) else ""
    size = sizes(G, M, O // G, weight.shape[1] * k)
    return Features(call.name, f"{tf32}{weight.dtype} {filters}{layout}", size)


def is_channels_last(spec: TensorSpec) -> bool:
    return len(spec.shape) > 2 and spec.shape[1] > 1 and spec.stride[1] == 1


def recurrent(call: Call) -> Features | None:
    """oneDNN's layer by its steps times its batch, its input's and its hidden size; else None."""
    if not call.name.startswith("aten.mkldnn_rnn_layer"):
        return None
    inputs, hidden = call.inputs[0], call.tensors("hx_") or call.tensors("hx")
    if not hidden or len(inputs.shape) < 2:
        return None
    workspace = [
        spec for spec in (*call.inputs, *call.outputs) if spec.dtype == "uint8" and spec.elements
    ]
    training = " training" if workspace else ""
    size = sizes(prod(inputs.shape[:-1]), inputs.shape[-1], hidden[0].shape[-1])
    return Features(call.name, f"{inputs.dtype}{training}", size)


LISTS = "aten._foreach_"


def streaming(call: Call, cost: Cost) -> Features:
    """Everything that is bound by reading and writing: by bytes.

    On lists an operator is the same one, in kernels of their own.
    """
    name = call.name.removesuffix("_")
    is_of_lists = name.startswith(LISTS)
    if is_of_lists:
        name = f"aten.{name.removeprefix(LISTS)}"
    tensors = [*call.inputs, *call.outputs]
    widest = max(tensors, key=lambda tensor: tensor.bytes, default=None)
    dtype = widest.dtype if widest is not None else ""
    layout = " in lists" if is_of_lists else layout_of(tensors)
    operands = len({spec.argument for spec in call.inputs})
    return Features(name, f"{dtype} of {operands}{layout}", sizes(cost.bytes))


def layout_of(tensors: Sequence[TensorSpec]) -> str:
    """How tensors lie: nothing where alike, so that each is read and written from end to end."""
    wide = [spec for spec in tensors if spec.elements > 1]
    strides = {
        tuple((n, step) for n, step in zip(spec.shape, spec.stride, strict=True) if n > 1)
        for spec in wide
    }
    if any(min(step for _, step in steps) > 1 for steps in strides):
        return " strided"
    if len(strides) <= 1:
        return ""
    is_innermost_shared = len({steps[-1][1] == 1 for steps in strides}) == 1
    return " apart" if is_innermost_shared else " transposed"


def sizes(*numbers: int) -> tuple[float, ...]:
    """Sizes, each at least one: an empty tensor has a logarithm, too."""
    return tuple(float(max(1, number)) for number in numbers)
