"""TorchScript on the virtual GPU: functions and modules run as the Python that they are.

TorchScript's interpreter asks tensors for their device in C++, where a virtual one is on "meta". A
compiled module holds its parameters there, too, where moving a module cannot exchange them.
"""

import functools
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchtally.errors import UnsupportedError
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.shown_devices import as_device
from torchtally.virtual.stand_ins import StandIn

NOTE = (
    "TorchScript ran as Python: its fused kernels would move fewer bytes and launch fewer kernels"
)


class Scripting:
    """`torch.jit` of a session."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode

    def stand_ins(self) -> list[StandIn]:
        native_load: Any = torch.jit.load

        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not holds_script(f):
                return torch.load(f, map_location, weights_only=False)
            device = as_device(map_location)
            if device is not None and device.type == "cuda":
                raise UnsupportedError(
                    "tally does not simulate a TorchScript file on a GPU: torch.jit.load runs it "
                    "in C++, which needs a real one.\n"
                    "Build the model from its Python code, or load it with map_location='cpu'."
                )
            return native_load(f, map_location, *args, **kwargs)

        return [
            *(
                StandIn(torch.jit, name, self.as_python(getattr(torch.jit, name)))
                for name in ("script", "trace", "trace_module")
            ),
            StandIn(torch.jit, "freeze", unless_native(torch.jit.freeze)),
            StandIn(
                torch.jit, "optimize_for_inference", unless_native(torch.jit.optimize_for_inference)
            ),
            StandIn(torch.jit, "save", save),
            StandIn(torch.jit, "load", load),
        ]

    def as_python(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """A compiler that gives back the function, class or module itself, as PYTORCH_JIT=0.

        torch compiles decompositions of its own (torch/_decomp/decompositions_for_jvp.py).
        """

        def compiled(obj: Any = None, *args: Any, **kwargs: Any) -> Any:
            itself = kwargs.get("func", kwargs.get("mod")) if obj is None else obj
            if sys._getframe(1).f_globals["__name__"].startswith("torch."):
                if native is NATIVE_SCRIPT:
                    # It looks names up in the frame that called it, which is one further up.
                    kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
                return native(itself, *args, **kwargs)
            self.mode.observer.note(NOTE)
            if isinstance(itself, nn.Module) and not isinstance(itself, torch.jit.ScriptModule):
                vars(itself).setdefault("save", functools.partial(save, itself))
            return itself

        return compiled


NATIVE_SAVE, NATIVE_SCRIPT = torch.jit.save, torch.jit.script


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """A compiled module's own file; of a module that runs as Python its shapes."""
    if isinstance(m, torch.jit.ScriptModule):
        NATIVE_SAVE(m, f, _extra_files)
    else:
        torch.save(m, f)


def unless_native(native: Any) -> Any:
    """A pass over compiled modules, which leaves a module that runs as Python as it is."""

    def optimize(mod: Any, *args: Any, **kwargs: Any) -> Any:
        return native(mod, *args, **kwargs) if isinstance(mod, torch.jit.ScriptModule) else mod

    return optimize


def holds_script(file: Any) -> bool:
    """A file is TorchScript's archive; anything else that torch wrote has no constants.pkl."""
    if not zipfile.is_zipfile(file):
        return True  # torch names what is wrong with it
    place = file.tell() if hasattr(file, "tell") else 0
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("constants.pkl") for name in archive.namelist())
    finally:
        if hasattr(file, "seek"):
            file.seek(place)
