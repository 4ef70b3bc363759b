"""kernels, which loads kernels from the Hugging Face Hub: those that are known, by their names.

`get_kernel` of the package that is installed is replaced by this one, too: what it loads is
compiled for GPUs.
"""

import re
from importlib import import_module
from types import SimpleNamespace
from typing import Any

__version__ = "0.12.0"

KNOWN = (
    (re.compile(r"flash-?att(n|ention)-?3"), "flash_attn_interface"),
    (re.compile(r"flash-?att(n|ention)(-?2)?$"), "flash_attn"),
)
"""The end of a repository's name, and the module that answers for it."""
UNKNOWN = (
    "tally does not know the kernel {name!r} of the Hugging Face Hub, which is compiled for "
    "GPUs. It knows flash-attn2 and flash-attn3. Use the plain PyTorch path, or wrap the kernel "
    "in a torch.library.custom_op with a fake implementation and declare its cost with "
    "torchtally.declare_cost."
)


def answering(name: str) -> str | None:
    own = name.rpartition("/")[2].lower().replace("_", "-")
    return next((module for pattern, module in KNOWN if pattern.search(own)), None)


def has_kernel(repo_id: str, *args: Any, **kwargs: Any) -> bool:
    return answering(repo_id) is not None


def get_kernel(repo_id: str, *args: Any, **kwargs: Any) -> Any:
    """The functions of the kernel's module, and that module as `flash_attn_interface`.

    Raises ImportError for a kernel that is not known.
    """
    module = answering(repo_id)
    if module is None:
        raise ImportError(UNKNOWN.format(name=repo_id))
    functions = import_module(module)
    public = {name: value for name, value in vars(functions).items() if name.startswith("flash_")}
    return SimpleNamespace(**{**public, "__name__": repo_id, "flash_attn_interface": functions})


get_local_kernel = load_kernel = get_locked_kernel = get_kernel
