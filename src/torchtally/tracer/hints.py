"""What an error of a script means where it comes from the GPU being simulated, and what now."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchtally.isolation.denials import NOTE, is_denied
from torchtally.isolation.guard import is_kept_by_kernel
from torchtally.tracer import tracebacks


class Hint(NamedTuple):
    """A cause that errors of a kind have under `tally run`."""

    pattern: re.Pattern[str]
    """In the error's message; a group `what` names the thing."""
    text: str


HINTS = (
    Hint(
        re.compile(
            r"(?P<what>lib(?:cuda|cudart|cublas|cudnn|nccl|nvrtc|nvToolsExt)[\w.-]*\.so[\w.]*)"
        ),
        "{what} belongs to CUDA, which a simulated run does not need and this machine does not "
        "have: a compiled extension asks for it. tally simulates torch's operators, and extensions "
        "registered with a fake implementation; others need a real GPU.",
    ),
    Hint(
        re.compile(r"(?P<what>CUDA_HOME|nvcc)\b"),
        "{what} is needed to compile a CUDA extension. tally cannot simulate compiled kernels: "
        "leave the extension out of the simulated run, or use the package's plain torch path.",
    ),
    Hint(
        re.compile(r"No module named '(?P<what>triton)\b"),
        '{what} is not installed: pip install "torchtally[compile]" (Linux). Its kernels then run '
        "on the simulated GPU, which compiles none of them.",
    ),
    Hint(
        re.compile(
            r"cannot import name '(?P<what>[^']+)' from '[^']+' \(.*torchtally.libraries.*\)"
            r"|No module named '(?P<module>(?:flash_attn|apex|xformers|deep_gemm|deep_ep|kernels|"
            r"transformer_engine|fbgemm_gpu|vllm|aiter|flashinfer)\b[^']*)'"
            r"|module '(?:flash_attn|apex|xformers|deep_gemm|deep_ep|kernels|transformer_engine)\b"
            r"[^']*' has no attribute '(?P<attribute>[^']+)'"
            # An operator whose library, if it is installed, was built without this one.
            r"|'_OpNamespace' '\w+' object has no attribute '(?P<operator>[^']+)'"
        ),
        "{what} is not one of the kernels that tally knows (all: docs/kernels.md). Use the "
        "plain PyTorch path for the simulated run, or wrap the call in a "
        "torch.library.custom_op with a fake implementation and declare its cost with "
        "torchtally.declare_cost.",
    ),
    Hint(
        re.compile(r"(?P<what>0 active drivers|[Tt]riton)"),
        "tally launches Triton kernels without compiling them: what needs a compiled one, or "
        "Triton's own driver, needs a real GPU.",
    ),
    Hint(
        re.compile(
            r"(?P<what>Torch not compiled with CUDA enabled|not linked with support for cuda"
            r"|from the 'CUDA' backend|without ATen_cuda library|Found no NVIDIA driver"
            r"|No CUDA GPUs are available)"
        ),
        "the call above went past the simulated GPU to torch's own CUDA, which is not there. tally "
        "does not simulate that call: replace it, or run that part on the CPU.",
    ),
)


def hints(error: BaseException) -> Iterator[str]:
    """Hints for an uncaught error: at most one of each kind, of the error and what it follows
    from.
    """
    if any(map(tracebacks.is_our_mistake, tracebacks.error_chain(error))):
        yield OWN
    messages = [f"{type(each).__name__}: {each}" for each in tracebacks.error_chain(error)]
    for hint in HINTS:
        match = next(filter(None, map(hint.pattern.search, messages)), None)
        if match is not None:
            what = next(filter(None, match.groupdict().values()), "")
            yield f"tally: note: {hint.text.format(what=what)}"
    errors = tracebacks.error_chain(error)
    is_noted = any(NOTE in getattr(each, "__notes__", ()) for each in errors)  # in the traceback
    if is_kept_by_kernel() and not is_noted and any(map(is_denied, errors)):
        yield NOTE


OWN = (
    "tally: note: this is an error of tally's own, not of the script. Please report it to "
    "torchtally's maintainers, with the lines above."
)
