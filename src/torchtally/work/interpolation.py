"""Images resized or sampled at given points.

r: elements of the result.  t: input elements each of them is a weighted sum of (taps).

2 * r * t FLOPs, a multiply and an add for each tap; the weights, shared by all channels, are not
counted. Nearest neighbour has one tap and no weight: a copy (`copies.py`).
"""

from functools import partial

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, integer, mask, one_pass, result, rule, rules

TAPS = {
    "upsample_linear1d": 2,
    "upsample_bilinear2d": 4,
    "upsample_trilinear3d": 8,
    "upsample_bicubic2d": 16,
}
ANTIALIASED_SUPPORT = {
    "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 4,
    "_upsample_lanczos2d_aa": 6,
}
"""Taps in one dimension; shrinking widens the filter by the factor shrunk by."""


rules(
    Kind.COPY,
    # Every gradient is added to the element its value came from.
    PerElement(
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
        " _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward"
        " _upsample_nearest_exact3d_backward",
        flops=1,
        of="grad_output",
    ),
)
for name, taps in TAPS.items():
    forward = PerElement(name, 2 * taps)
    backward = PerElement(f"{name}_backward", 2 * taps, "grad_output")  # added to instead of read
    rules(Kind.ELEMENTWISE, forward, backward)


def antialias(support: int, is_backward: bool, call: Call) -> Cost:
    """One dimension after the other, each with a filter of `support` * shrink taps."""
    source, target = call.inputs[0], result(call)
    if is_backward:  # the gradient is of the resized image
        source, target = target, source
    sides = zip(source.shape[2:], target.shape[2:], strict=True)
    taps = [support * max(1, -(-s // t)) for s, t in sides if t]
    return one_pass(call, flops=2 * target.elements * sum(taps))


for name, support in ANTIALIASED_SUPPORT.items():
    for suffix, is_backward in (("", False), ("_backward", True)):
        formula = partial(antialias, support, is_backward)
        rule(f"{name}{suffix}", kind=Kind.ELEMENTWISE)(formula)


INTERPOLATION_TAPS = {0: 2, 1: 1, 2: 4}
"""Taps in one dimension by `interpolation_mode`: bilinear, nearest, bicubic (GridSampler.h)."""


def sampled_taps(call: Call) -> int:
    """Taps of a sampled point, in as many dimensions as a grid point has coordinates."""
    mode = integer(call, "interpolation_mode", 0)
    return int(INTERPOLATION_TAPS[mode] ** call.tensor("grid").shape[-1])


@rule(
    "grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback cudnn_grid_sampler",
    kind=Kind.INDEXING,
)
def grid_sample(call: Call) -> Cost:
    return one_pass(call, flops=2 * sampled_taps(call) * result(call).elements)


@rule(
    "grid_sampler_2d_backward grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback_backward"
    " cudnn_grid_sampler_backward",
    kind=Kind.INDEXING,
)
def grid_sample_backward(call: Call) -> Cost:
    """The taps once for the image's gradient, once more for the grid's, as wanted."""
    gradients = sum(mask(call, "output_mask", 2))
    n = call.tensor("grad_output").elements
    return one_pass(call, flops=2 * gradients * sampled_taps(call) * n)


@rule("affine_grid_generator cudnn_affine_grid_generator", kind=Kind.ELEMENTWISE)
def affine_grid(call: Call) -> Cost:
    """Each of d coordinates is a row of d + 1 numbers times (x, 1): 2 * (d + 1)."""
    terms = call.tensor("theta").shape[-1]
    return one_pass(call, flops=2 * terms * result(call).elements)


@rule("affine_grid_generator_backward cudnn_affine_grid_generator_backward", kind=Kind.ELEMENTWISE)
def affine_grid_backward(call: Call) -> Cost:
    terms = call.tensor("grad").shape[-1] + 1
    return one_pass(call, flops=2 * terms * call.tensor("grad").elements)
