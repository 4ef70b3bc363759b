"""Fast Fourier transforms.

N: points of one transform, over all its dimensions.  B: transforms.

5 * N * log2(N) FLOPs for complex input, the convention FFTs are compared by (Frigo & Johnson,
benchFFT; it is exact for radix 2), half of it when one side is real, rounded to a whole number. The
scaling by 1/N or its root is not counted.
"""

from math import log2, prod

from torchtally.trace import Call, TensorSpec
from torchtally.work.arithmetic import is_complex
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, integer, integers, one_pass, result, rule

FLOPS_PER_POINT = 5
DEFAULT_DIMS = {"fft2": (-2, -1), "fftn": ()}
"""By the end of the name, () meaning all; otherwise the last alone. A record has no defaults."""


def transform_flops(call: Call, domain: TensorSpec) -> int:
    """5 * B*N * log2(N); `domain` is the side that has all N points."""
    default = next((d for end, d in DEFAULT_DIMS.items() if call.name.endswith(end)), (-1,))
    dims = integers(call, "dim") or default or tuple(range(len(domain.shape)))
    N = prod(domain.shape[dim] for dim in dims)
    return round(FLOPS_PER_POINT * domain.elements * log2(N)) if N > 1 else 0


# The `fft_` names are composites, seen under inference mode.


@rule("_fft_c2c fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn", kind=Kind.FFT)
def complex_to_complex(call: Call) -> Cost:
    return one_pass(call, flops=transform_flops(call, result(call)))


@rule("_fft_r2c fft_rfft fft_rfft2 fft_rfftn fft_ihfft fft_ihfft2 fft_ihfftn", kind=Kind.FFT)
def real_to_complex(call: Call) -> Cost:
    return one_pass(call, flops=transform_flops(call, call.tensor("self")) // 2)


@rule("_fft_c2r fft_irfft fft_irfft2 fft_irfftn fft_hfft fft_hfft2 fft_hfftn", kind=Kind.FFT)
def complex_to_real(call: Call) -> Cost:
    return one_pass(call, flops=transform_flops(call, result(call)) // 2)


@rule("stft", kind=Kind.FFT)
def short_time(call: Call) -> Cost:
    """Frames of n_fft points: 2.5 * N * log2(N) each, and a window's N."""
    N, spectrum = integer(call, "n_fft", 1), result(call)
    n_bins = N // 2 + 1 if call.literal("onesided", True) is not False else N
    is_pair = not is_complex(spectrum)
    frames = spectrum.elements // (n_bins * (2 if is_pair else 1))
    one = round(FLOPS_PER_POINT * N * log2(N)) // 2 + N if N > 1 else 0
    return one_pass(call, flops=frames * one)
