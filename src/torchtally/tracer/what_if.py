"""Changes to try on a script without editing it, to see what each is worth.

checkpoint=Block       every module of that class runs in torch.utils.checkpoint
autocast=bfloat16      the model runs in torch.autocast("cuda", dtype=torch.bfloat16)
optimizer=fused        torch.optim's fused, foreach or for-loop implementation
compile                the model runs as torch.compile(model)
compile=Block          every module of that class is compiled by itself
compile=off            what the script compiles runs eagerly
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from torchtally import torch_private as private
from torchtally.errors import UsageError
from torchtally.virtual.compiling import eagerly
from torchtally.virtual.stand_ins import StandIn

HOW = """\
Changes that can be tried:
  checkpoint=CLASS                    torch.utils.checkpoint around every module of that class
  autocast=bfloat16 (or float16)      torch.autocast around the model
  optimizer=fused (foreach, for-loop) another implementation of torch.optim's
  compile                             torch.compile(model)
  compile=CLASS                       every module of that class compiled by itself
  compile=off                         what the script compiles runs eagerly"""

IMPLEMENTATIONS = {
    "fused": {"fused": True, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "for-loop": {"fused": False, "foreach": False},
}
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MODEL, OFF = "model", "off"


class CallDepth(threading.local):
    """How many modules' calls this thread is in."""

    depth = 0


USED: set[str] = set()
"""Changes of the session that applied to something."""


def unused_changes(what_ifs: tuple[str, ...]) -> list[str]:
    """Those that have changed nothing so far: no such module or optimizer was there."""
    return [text for text in what_ifs if text not in USED]


def stand_ins(what_ifs: tuple[str, ...]) -> list[StandIn]:
    """What is replaced in torch for these changes. Raises UsageError for an unknown one."""
    USED.clear()
    changes = []
    for text in what_ifs:
        change, _, value = text.partition("=")
        make = CHANGES.get(change)
        value = value or DEFAULTS.get(change, "")
        if make is None or not value:
            raise UsageError(f"--what-if {text}: not a change that can be tried.\n{HOW}")
        changes.append((make, value))
    table: list[StandIn] = []
    if (compile_modules, OFF) in changes:
        changes.remove((compile_modules, OFF))
        table.append(StandIn(torch, "compile", run_eagerly))
    call: Callable[..., Any] = nn.Module.__call__
    init: Callable[..., Any] = Optimizer.__init__
    for make, value in changes:
        if make is choose_implementation:
            init = make(init, value)
        else:
            call = make(call, value)
            call.__name__ = nn.Module.__call__.__name__  # as `Modules.stand_ins` does
    if call is not nn.Module.__call__:
        table.append(StandIn(nn.Module, "__call__", call))
    if init is not Optimizer.__init__:
        table.append(StandIn(Optimizer, "__init__", init))
    return table


def checkpoint_modules(native: Callable[..., Any], class_name: str) -> Callable[..., Any]:
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if private.class_name(module) != class_name or not torch.is_grad_enabled():
            return native(module, *args, **kwargs)
        USED.add(f"checkpoint={class_name}")
        return checkpoint(native, module, *args, use_reentrant=False, **kwargs)

    return call


def autocast_model(native: Callable[..., Any], name: str) -> Callable[..., Any]:
    dtype = AUTOCAST.get(name)
    if dtype is None:
        raise UsageError(f"--what-if autocast={name}: the dtypes are {', '.join(AUTOCAST)}.")
    inside = CallDepth()

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if inside.depth or torch.is_autocast_enabled("cuda"):
            return native(module, *args, **kwargs)
        inside.depth += 1
        USED.add(f"autocast={name}")
        try:
            with torch.autocast("cuda", dtype=dtype):
                return native(module, *args, **kwargs)
        finally:
            inside.depth -= 1

    return call


def compile_modules(native: Callable[..., Any], class_name: str) -> Callable[..., Any]:
    """The outermost module, or every one of a class, compiled in place when it is first called."""
    inside = CallDepth()
    compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        is_chosen = not inside.depth if class_name == MODEL else (
            private.class_name(module) == class_name)  # fmt: skip
        if is_chosen and module not in compiled:
            compiled.add(module)
            module.compile()
            USED.add("compile" if class_name == MODEL else f"compile={class_name}")
        inside.depth += 1
        try:
            return native(module, *args, **kwargs)
        finally:
            inside.depth -= 1

    return call


def run_eagerly(model: Any = None, **options: Any) -> Any:
    """Stands for `torch.compile`."""
    USED.add(f"compile={OFF}")
    if model is None:
        return lambda function: run_eagerly(function, **options)
    return eagerly(model)


def choose_implementation(native: Callable[..., Any], name: str) -> Callable[..., Any]:
    implementation = IMPLEMENTATIONS.get(name)
    if implementation is None:
        raise UsageError(
            f"--what-if optimizer={name}: the implementations are {', '.join(IMPLEMENTATIONS)}."
        )

    def init(optimizer: Optimizer, params: Any, defaults: dict[str, Any]) -> None:
        chosen = {key: value for key, value in implementation.items() if key in defaults}
        native(optimizer, params, {**defaults, **chosen})
        if chosen:
            USED.add(f"optimizer={name}")
        if chosen.get("fused"):
            private.scale_in_step(optimizer)

    return init


CHANGES: dict[str, Callable[[Callable[..., Any], str], Callable[..., Any]]] = {
    "checkpoint": checkpoint_modules,
    "autocast": autocast_model,
    "optimizer": choose_implementation,
    "compile": compile_modules,
}
DEFAULTS = {"compile": MODEL}
