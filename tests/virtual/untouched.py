"""Everything of torch's that a session may change, as a snapshot to compare."""

import _thread
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.cuda.nvtx
import torch.distributed
import torch.jit._builtins
import torch.multiprocessing
import torch.nested._internal.sdpa
import torch.utils._device
import torch.utils._foreach_utils
import torch.utils.checkpoint
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torchtally.virtual.autocast import CASTS, REFUSED
from torchtally.virtual.kernels import KERNELS

OPTIMIZERS = sys.modules[Optimizer.__module__]
"""`torch.optim.optimizer`: the package deletes the name."""

OWNERS: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.UntypedStorage": torch.UntypedStorage,
    "torch.cuda": torch.cuda,
    "torch.cuda.memory": torch.cuda.memory,
    "torch.cuda.random": torch.cuda.random,
    "torch.cuda.streams": torch.cuda.streams,
    "torch.cuda.nvtx": torch.cuda.nvtx,
    "torch.cuda.amp": torch.cuda.amp,
    "torch.accelerator": torch.accelerator,
    "torch.amp": torch.amp,
    "torch.random": torch.random,
    "torch.version": torch.version,
    "torch.distributed": torch.distributed,
    "torch.distributed.distributed_c10d": torch.distributed.distributed_c10d,
    "torch.autograd": torch.autograd,
    "torch.autograd.graph": torch.autograd.graph,
    "torch.backends.cudnn": torch.backends.cudnn,
    "torch.backends.cuda": torch.backends.cuda,
    "torch.backends.mha": torch.backends.mha,
    "torch.compiler": torch.compiler,
    "torch.jit._builtins": torch.jit._builtins,
    "torch.nn.Module": torch.nn.Module,
    "torch.nn.Parameter": torch.nn.Parameter,
    "torch.nn.functional": torch.nn.functional,
    "torch.nn.parallel.scatter_gather": torch.nn.parallel.scatter_gather,
    "UninitializedTensorMixin": torch.nn.parameter.UninitializedTensorMixin,
    "profile": torch.autograd.profiler.profile,
    "torch.cuda.profiler": torch.cuda.profiler,
    "torch.optim.Optimizer": torch.optim.Optimizer,
    "torch.optim.AdamW": torch.optim.AdamW,
    "torch.serialization": torch.serialization,
    "torch.utils._device": torch.utils._device,
    "torch.utils._foreach_utils": torch.utils._foreach_utils,
    "torch.utils.checkpoint": torch.utils.checkpoint,
    "torch._utils": torch._utils,
    "torch._C": torch._C,
    "torch._C._nn": torch._C._nn,
    "torch._C._autograd": torch._C._autograd,
    "Thread": threading.Thread,
    "ThreadPool": ThreadPool,
    "ThreadPoolExecutor": ThreadPoolExecutor,
    "_thread": _thread,
    "os": os,
    "shutil": shutil,
    "subprocess.Popen": subprocess.Popen,
    "BaseProcess": BaseProcess,
    "torch.multiprocessing": torch.multiprocessing,
    "torch.jit": torch.jit,
    "torch.nested": torch.nested,
    "torch.nested._internal.sdpa": torch.nested._internal.sdpa,
    "torch.cuda.graphs": torch.cuda.graphs,
    "torch.cuda.graph": torch.cuda.graph,
    "ForkingPickler": ForkingPickler,
    "ForkingPickler._extra_reducers": ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
    "optimizer pre-hooks": OPTIMIZERS._global_optimizer_pre_hooks,
    "optimizer post-hooks": OPTIMIZERS._global_optimizer_post_hooks,
    "module forward hooks": torch.nn.modules.module._global_forward_hooks,
    "module forward pre-hooks": torch.nn.modules.module._global_forward_pre_hooks,
    "module backward hooks": torch.nn.modules.module._global_backward_hooks,
}
GUARDED = {
    f"{owner}.{name}": function
    for owner, place in (
        ("Optimizer", vars(torch.optim.Optimizer)),
        ("checkpoint", vars(torch.utils.checkpoint)),
    )
    for name, function in place.items()
    if hasattr(function, "__wrapped__")
}
"""Functions whose own attributes tell torch's compiler to leave them alone."""
OPERATORS = sorted(
    {
        *(f"aten::{name.partition('.')[0]}" for name in (*CASTS, *REFUSED)),
        *(overload.name() for overload in KERNELS),
        "aten::add.Tensor", "aten::_to_copy", "aten::empty.memory_format",
    }
)  # fmt: skip
KEYS = ("AutocastPrivateUse1", "AutogradMeta", "AutogradCUDA", "Meta", "CPU", "AutocastCUDA")


def attributes(owner: Any) -> dict[str, Any]:
    """Attributes of an object, or the entries of a dict; what Python itself notes left out."""
    attributes_now = dict(owner) if isinstance(owner, dict) else dict(vars(owner))
    return {
        name: value
        for name, value in attributes_now.items()
        if name not in ("__warningregistry__", "__annotations__", "__annotations_cache__")
    }


def snapshot() -> dict[str, Any]:
    """By a name for the report: values that are compared by identity, or by equality of text."""
    state: dict[str, Any] = {}
    for owner, place in (OWNERS | GUARDED).items():
        for name, value in attributes(place).items():
            state[f"{owner}: {name}"] = value
    for name in OPERATORS:
        state[f"dispatch of {name}"] = torch._C._dispatch_dump(name)
    for key in KEYS:
        names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
        state[f"kernels on {key}"] = "\n".join(sorted(names))
    for device in ("cpu", "cuda", "privateuseone"):
        state[f"autocast on {device}"] = torch.is_autocast_enabled(device)
    state |= {
        "autocast fallback": torch._C._dispatch_has_backend_fallback(
            torch._C.DispatchKey.AutocastPrivateUse1
        ),
        "autocast dtype": torch.get_autocast_dtype("cuda"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "keys included": str(torch._C._dispatch_tls_local_include_set()),
        "keys excluded": str(torch._C._dispatch_tls_local_exclude_set()),
        "dispatch modes": str(_get_current_dispatch_mode_stack()),
        "function modes": str(_get_current_function_mode_stack()),
        "lifting": torch._C._only_lift_cpu_tensors(),
        "default device": str(torch.get_default_device()),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "safe globals": str(sorted(map(str, torch.serialization.get_safe_globals()))),
        "device factories": str(sorted(map(str, torch.utils._device._device_constructors()))),
        "default stream": torch.cuda.current_device if torch.cuda.is_available() else None,
        "emit_nvtx": torch.autograd.profiler.emit_nvtx,
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "SIGINT": signal.getsignal(signal.SIGINT),
    }
    return state


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is not the same object, or the same text or number, any more."""
    missing = object()
    return sorted(
        name
        for name in before.keys() | after.keys()
        if not same(before.get(name, missing), after.get(name, missing))
    )


def same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return isinstance(first, (str, int, float)) and type(first) is type(second) and first == second
