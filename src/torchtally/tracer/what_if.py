"""Changes to try on a script without editing it, to see what each is worth.

checkpoint=Block       every module of that class runs in torch.utils.checkpoint
autocast=bfloat16      the model runs in torch.autocast("cuda", dtype=torch.bfloat16)
optimizer=fused        torch.optim's fused, foreach or for-loop implementation
compile                the model runs as torch.compile(model)
compile=Block          every module of that class is compiled by itself
compile=off            what the script compiles runs eagerly
pad, pad=off           products of odd sizes that inductor may pad are all padded, or none

Of DistributedDataParallel and of fully_shard, the arguments that decide how gradients and
parameters cross the network:

bucket_cap_mb=100             gradients in larger or smaller buckets
gradient_as_bucket_view=True  gradients that are views of their buckets
reshard_after_forward=False   parameters stay gathered until the backward pass

Of what only a real run could tell:

imbalance=1.5                 the busiest expert of a mixture gets 1.5 times the mean
"""

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from torchtally import torch_private as private
from torchtally.errors import UsageError
from torchtally.virtual.compiling import eagerly, padding
from torchtally.virtual.facts import routing
from torchtally.virtual.stand_ins import StandIn

HOW = """\
Changes that can be tried:
  checkpoint=CLASS                    torch.utils.checkpoint around every module of that class
  autocast=bfloat16 (or float16)      torch.autocast around the model
  optimizer=fused (foreach, for-loop) another implementation of torch.optim's
  compile                             torch.compile(model)
  compile=CLASS                       every module of that class compiled by itself
  compile=off                         what the script compiles runs eagerly
  pad (or pad=off)                    all products that inductor may pad are padded (or none)
  bucket_cap_mb=MIB                   another size of DistributedDataParallel's buckets
  gradient_as_bucket_view=True        gradients as views of these buckets (or False: copies)
  reshard_after_forward=False         another policy of all fully_shard (True, a number of ranks)
  imbalance=1.5                       experts get up to 1.5 times the mean, the first one most
  sparsity=2:4                        of `tally run` alone: what 2:4 sparse weights would bring"""

IMPLEMENTATIONS = {
    "fused": {"fused": True, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "for-loop": {"fused": False, "foreach": False},
}
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MODEL, ON, OFF = "model", "on", "off"
PADDING = {ON: True, OFF: False}


class CallDepth(threading.local):
    """How many modules' calls this thread is in."""

    depth = 0


USED: set[str] = set()
"""Changes of the session that applied to something."""


WITHIN: set[str] = set()
"""Changes of the session whose modules lie within one that the script compiles."""

NONE_THERE = "the script has nothing of that kind"
COMPILED_AROUND = (
    "modules of that class are there, within one that the script compiles as a whole (take its "
    "torch.compile out to try this)"
)


def unused_changes(what_ifs: tuple[str, ...]) -> dict[str, str]:
    """Those that have changed nothing so far, each with the reason."""
    return {
        text: COMPILED_AROUND if text in WITHIN else NONE_THERE
        for text in what_ifs
        if text not in USED
    }


def stand_ins(what_ifs: tuple[str, ...]) -> list[StandIn]:
    """What is replaced in torch for these changes. Raises UsageError for an unknown one."""
    USED.clear()
    WITHIN.clear()
    replaced: dict[tuple[Any, str], Callable[..., Any]] = {}
    for text in what_ifs:
        name, _, value = text.partition("=")
        change = CHANGES.get(name)
        value = value or DEFAULTS.get(name, "")
        if change is None or not value:
            raise UsageError(f"--what-if {text}: not a change that can be tried.\n{HOW}")
        if (name, value) == ("compile", OFF):
            replaced[torch, "compile"] = run_eagerly
            continue
        place = change.place()
        native = replaced.get(place) or getattr(*place)
        replaced[place] = change.make(native, value)
        replaced[place].__name__ = native.__name__  # as `Modules.stand_ins` does
    return [StandIn(owner, name, value) for (owner, name), value in replaced.items()]


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
    seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not inside.depth and module not in seen:
            seen.add(module)
            if private.is_compiled_module(module) and any(
                private.class_name(each) == class_name for each in module.modules()
            ):
                WITHIN.add(f"compile={class_name}")
        is_chosen = (
            not inside.depth if class_name == MODEL else (private.class_name(module) == class_name)
        )
        if is_chosen and module not in compiled:
            compiled.add(module)
            private.compile_in_place(module)
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


def choose_padding(native: Callable[..., Any], value: str) -> Callable[..., Any]:
    if value not in PADDING:
        raise UsageError(f"--what-if pad={value}: expected pad or pad=off.")

    def decide(as_it_is_s: float, padded_s: float) -> bool:
        USED.add("pad" if PADDING[value] else f"pad={OFF}")
        return PADDING[value]

    return decide


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


def choose_bucket_size(native: Callable[..., Any], value: str) -> Callable[..., Any]:
    try:
        size = float(value)
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise UsageError(f"--what-if bucket_cap_mb={value}: expected MiB above 0, as in 25 or 100.")
    return with_argument(native, "bucket_cap_mb", size, value)


def choose_bucket_views(native: Callable[..., Any], value: str) -> Callable[..., Any]:
    if value not in BOOLEANS:
        raise UsageError(f"--what-if gradient_as_bucket_view={value}: expected True or False.")
    return with_argument(native, "gradient_as_bucket_view", BOOLEANS[value], value)


def choose_resharding(native: Callable[..., Any], value: str) -> Callable[..., Any]:
    is_number = value.isdecimal() and int(value) > 1
    if value not in BOOLEANS and not is_number:
        raise UsageError(
            f"--what-if reshard_after_forward={value}: expected True, False or a number of ranks."
        )
    policy = int(value) if is_number else BOOLEANS[value]
    return with_argument(native, "reshard_after_forward", policy, value)


def declare_imbalance(native: Callable[..., Any], value: str) -> Callable[..., Any]:
    try:
        busiest = float(value)
    except ValueError:
        busiest = 0.0
    if not 1 < busiest < float("inf"):
        raise UsageError(
            f"--what-if imbalance={value}: expected how many times the mean the busiest expert "
            "gets, above 1, as in 1.5."
        )

    def imbalance() -> float:
        USED.add(f"imbalance={value}")
        return busiest

    return imbalance


BOOLEANS = {"True": True, "False": False}


def with_argument(
    native: Callable[..., Any], name: str, value: float | bool, text: str
) -> Callable[..., Any]:
    """The function with this argument in every call, whatever the script gives for it."""
    parameters = signature(native)

    @wraps(native)
    def call(*args: Any, **kwargs: Any) -> Any:
        USED.add(f"{name}={text}")
        given = parameters.bind(*args, **kwargs)
        given.arguments[name] = value
        return native(*given.args, **given.kwargs)

    return call


def _fully_shard() -> tuple[Any, str]:
    # Not imported by `import torch`, and slow: only where it is asked for.
    from torch.distributed import fsdp

    return fsdp, "fully_shard"


class TriedChange(NamedTuple):
    """How a change is made: what it replaces, and by what."""

    make: Callable[[Callable[..., Any], str], Callable[..., Any]]
    """From what is there, and the change's value. Raises UsageError for a value it does not know.
    """
    place: Callable[[], tuple[Any, str]]
    """An owner, and a name in it."""


def _call() -> tuple[Any, str]:
    return nn.Module, "__call__"


def _padding() -> tuple[Any, str]:
    return padding, "is_faster"


def _optimizer() -> tuple[Any, str]:
    return Optimizer, "__init__"


def _routing() -> tuple[Any, str]:
    return routing, "imbalance"


def _replicate() -> tuple[Any, str]:
    return nn.parallel.DistributedDataParallel, "__init__"


CHANGES: dict[str, TriedChange] = {
    "checkpoint": TriedChange(checkpoint_modules, _call),
    "autocast": TriedChange(autocast_model, _call),
    "optimizer": TriedChange(choose_implementation, _optimizer),
    "compile": TriedChange(compile_modules, _call),
    "pad": TriedChange(choose_padding, _padding),
    "bucket_cap_mb": TriedChange(choose_bucket_size, _replicate),
    "gradient_as_bucket_view": TriedChange(choose_bucket_views, _replicate),
    "reshard_after_forward": TriedChange(choose_resharding, _fully_shard),
    "imbalance": TriedChange(declare_imbalance, _routing),
}
DEFAULTS = {"compile": MODEL, "pad": ON}
