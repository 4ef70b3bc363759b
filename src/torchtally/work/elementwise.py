"""Operators that make each result element from the same element of their inputs.

n: elements of the result, after broadcasting.

Convention: an arithmetic operation, a compare or select, and a value of a named function (exp, erf,
gelu, a Bessel function) is one FLOP, whatever the instructions a chip spends on it; XLA's
HloCostAnalysis counts one per result element too. An operator that combines several tensors
counts the operations of its formula. The scalar `alpha` of add and `value` of addcmul, 1 by
default, is not counted.
"""

from functools import partial

from torchtally.trace import Call
from torchtally.work.arithmetic import COMPLEX_ADD, COMPLEX_DIVIDE, COMPLEX_MULTIPLY, is_complex
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, one_pass, result, rule, rules

ONE_TENSOR = """
abs absolute acos arccos acosh arccosh angle asin arcsin asinh arcsinh atan arctan atanh arctanh
bitwise_not ceil clamp clamp_max clamp_min clip conj_physical _conj_physical cos cosh deg2rad
digamma erf erfc erfinv exp exp2 expm1 fix floor frac frexp i0 isfinite isinf isnan isneginf
isposinf isreal lgamma log log10 log1p log2 logical_not logit mvlgamma nan_to_num neg negative
polygamma rad2deg reciprocal round rsqrt sgn sign signbit sin sinc sinh special_airy_ai
special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_digamma
special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit
special_expm1 special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p
special_log_ndtr special_logit special_modified_bessel_i0 special_modified_bessel_i1
special_modified_bessel_k0 special_modified_bessel_k1 special_multigammaln special_ndtr
special_ndtri special_polygamma special_psi special_round special_scaled_modified_bessel_k0
special_scaled_modified_bessel_k1 special_sinc special_spherical_bessel_j0 sqrt square tan tanh
trunc _saturate_weight_to_fp16
"""
ACTIVATIONS = """
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_sigmoid_forward
mish relu relu6 rrelu rrelu_with_noise rrelu_with_noise_functional selu sigmoid silu softplus
softshrink threshold prelu _prelu_kernel
"""
TWO_TENSORS = """
add arctan2 atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign
div divide true_divide eq float_power floor_divide fmax fmin fmod gcd ge greater greater_equal gt
heaviside hypot igamma igammac lcm ldexp le less less_equal logaddexp logaddexp2 logical_and
logical_or logical_xor lt maximum minimum mul multiply ne nextafter not_equal pow remainder rsub
special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
special_chebyshev_polynomial_w special_gammainc special_gammaincc special_hermite_polynomial_h
special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_xlog1py
special_xlogy special_zeta sub subtract xlogy
__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__
where masked_fill
"""
SELECTS = "threshold_backward hardtanh_backward hardshrink_backward softshrink_backward"
"""Backward of a function with slope 0 or 1: pass the gradient or not."""
SLOPES = """
gelu_backward silu_backward mish_backward elu_backward leaky_relu_backward softplus_backward
hardsigmoid_backward hardswish_backward log_sigmoid_backward logit_backward
rrelu_with_noise_backward infinitely_differentiable_gelu_backward
"""
"""Backward of a function of one number: its derivative, a named function, times the gradient."""

FLOPS_PER_ELEMENT = {
    **dict.fromkeys(f"{ONE_TENSOR} {ACTIVATIONS} {TWO_TENSORS} {SELECTS}".split(), 1),
    **dict.fromkeys(SLOPES.split(), 2),
    "isclose": 5,  # |a - b| <= atol + rtol * |b|
    "_add_relu": 2,
    "addcmul": 2,  # self + t1 * t2
    "addcdiv": 2,  # self + t1 / t2
    "lerp": 3,  # self + w * (end - self)
    "glu": 2,  # a * sigmoid(b)
    "glu_jvp": 6,  # glu * (db - sigmoid(b) * db) + sigmoid(b) * da
    "glu_backward": 3,  # on each half: grad * sigmoid(b), and that * (1 - sigmoid(b)) * a
    "sigmoid_backward": 3,  # grad * (1 - y) * y
    "tanh_backward": 3,  # grad * (1 - y * y)
    "_prelu_kernel_backward": 3,  # where(x > 0, grad, w * grad), and x * grad
    "native_dropout_backward": 2,  # grad * mask * scale
    "_masked_scale": 2,
    "diff": 1,
    "kron": 1,
    "cumulative_trapezoid": 3,
    "cross": 3,  # a1 * b2 - a2 * b1
    "linalg_cross": 3,
    "polar": 4,  # abs * cos(angle), abs * sin(angle)
}
"""Operator to FLOPs for each element of its first result."""

COMPLEX_FLOPS = {
    **dict.fromkeys(("mul", "multiply", "square"), COMPLEX_MULTIPLY),
    **dict.fromkeys(("div", "divide", "true_divide", "reciprocal"), COMPLEX_DIVIDE),
    "abs": 4,  # sqrt(re * re + im * im)
    "conj_physical": 1,
    "_conj_physical": 1,
    "addcmul": COMPLEX_MULTIPLY + COMPLEX_ADD,
    "addcdiv": COMPLEX_DIVIDE + COMPLEX_ADD,
    "lerp": COMPLEX_MULTIPLY + 2 * COMPLEX_ADD,
    "polar": 4,
}
"""The same for complex elements, where it is not simply twice as much."""


def flops_per_element(name: str, call: Call) -> int:
    real = FLOPS_PER_ELEMENT[name]
    if any(is_complex(spec) for spec in (*call.inputs, *call.outputs)):
        return COMPLEX_FLOPS.get(name, COMPLEX_ADD * real)
    return real


def per_element(name: str, call: Call) -> Cost:
    return one_pass(call, flops=result(call).elements * flops_per_element(name, call))


def per_listed_element(name: str, call: Call) -> Cost:
    """A foreach operator: each tensor of the first list on its own."""
    n = sum(spec.elements for spec in call.tensors(call.inputs[0].argument)) if call.inputs else 0
    return one_pass(call, flops=n * flops_per_element(name, call))


FOREACH = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1
floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt
sigmoid sign sin sinh sqrt sub tan tanh trunc
"""


for operator in FLOPS_PER_ELEMENT:
    rule(operator, kind=Kind.ELEMENTWISE)(partial(per_element, operator))
for operator in FOREACH.split():
    rule(f"_foreach_{operator}", kind=Kind.ELEMENTWISE)(partial(per_listed_element, operator))


@rule("isin", kind=Kind.ELEMENTWISE)
def isin(call: Call) -> Cost:
    """A binary search of each element in the tested ones: log2 compares."""
    tested = call.tensors("test_elements")
    compares = max(1, (tested[0].elements - 1).bit_length()) if tested else 1
    return one_pass(call, flops=result(call).elements * compares)


rules(
    Kind.ELEMENTWISE,
    # (clamp(round(x / scale + zero_point)) - zero_point) * scale
    PerElement(
        "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine"
        " fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
        " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
        " _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine",
        flops=6,
    ),
    PerElement(
        "fake_quantize_per_tensor_affine_cachemask_backward"
        " fake_quantize_per_channel_affine_cachemask_backward",
        flops=1,
    ),
    # The observer's minimum and maximum before it.
    PerElement("_fused_moving_avg_obs_fq_helper", flops=8),
)


@rule(
    "_fake_quantize_learnable_per_tensor_affine_backward"
    " _fake_quantize_learnable_per_channel_affine_backward",
    kind=Kind.ELEMENTWISE,
)
def learnable_fake_quantize_backward(call: Call) -> Cost:
    """Quantised once more (6); a product for dX, a product and a sum each for scale and zero."""
    return one_pass(call, flops=11 * call.tensor("self").elements)


rules(
    Kind.ELEMENTWISE,
    # A comparison with zero.
    PerElement("_to_sparse", flops=1),
)
