"""Triton kernels that the script launches: `kernel[grid](...)`, autotuned, with heuristics."""

import ast
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.extensions.accesses import Accesses, accesses_of, in_namespace
from torchtally.virtual.extensions.launches import launch
from torchtally.virtual.extensions.triton_driver import TritonDriver
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn

NAMESPACE = "triton"
"""Of the names of kernels that the script brings."""
FIRST_CONFIG = "autotuned Triton kernels run in the first of their configurations: nothing is timed"
NOT_COMPILED = (
    "the Triton kernel {name} is not compiled in a simulated run: it has no {attribute!r}.\n"
    "Run this part on a real GPU, or give the number itself."
)


class NotCompiled:
    """What a launch gives back: a compiled kernel, in a real run."""

    def __init__(self, name: str) -> None:
        self._kernel_name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise UnsupportedError(NOT_COMPILED.format(name=self._kernel_name, attribute=attribute))


class TritonKernels:
    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self._accesses: dict[int, tuple[Any, Accesses]] = {}
        """By the id of a kernel's function, which is kept."""

    def patches(self) -> list[tuple[str, Replacements]]:
        return [
            ("triton.runtime.jit", self.of_jit),
            ("triton.runtime.autotuner", self.of_autotuner),
            ("triton.runtime.driver", self.of_driver),
        ]

    def of_driver(self, module: ModuleType) -> list[StandIn]:
        """Triton's own driver looks for a GPU."""
        return [StandIn(module.driver, private.TRITON_DRIVER, TritonDriver(), is_new=True)]

    def of_jit(self, module: ModuleType) -> list[StandIn]:
        mode, source_of = self.mode, self.source_of

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            for hook in kernel.pre_run_hooks:
                hook(*args, **kwargs)
            arguments = bind(kernel, args, kwargs)
            if callable(grid):
                grid = grid(arguments)
            if not warmup and all(grid):
                accesses = self.accesses(kernel, source_of)
                launch(
                    mode,
                    f"{NAMESPACE}.{kernel.__name__}",
                    {name: described_tensor(value) for name, value in arguments.items()},
                    read=accesses.read,
                    written=accesses.written,
                    constants=[each.name for each in kernel.params if each.is_constexpr],
                )
            return NotCompiled(kernel.__name__)

        return [StandIn(module.JITFunction, "run", run)]

    def of_autotuner(self, module: ModuleType) -> list[StandIn]:
        def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
            self.mode.observer.note(FIRST_CONFIG)
            return [1.0, 1.0, 1.0]

        def check_disk_cache(tuner: Any, key: Any, configs: Any, benchmark: Any) -> bool:
            benchmark()
            return False

        return [
            StandIn(module.Autotuner, private.TRITON_BENCHMARK, bench),
            StandIn(module.Autotuner, "check_disk_cache", check_disk_cache),
        ]

    def accesses(self, kernel: Any, source_of: Any) -> Accesses:
        known = self._accesses.get(id(kernel))
        if known is None:
            resolve = in_namespace(namespace_of(kernel.fn), source_of)
            known = kernel, accesses_of(source_of(kernel), resolve)
            self._accesses[id(kernel)] = known
        return known[1]

    @staticmethod
    def source_of(value: Any) -> ast.FunctionDef | None:
        if not hasattr(value, "parse") or not hasattr(value, "fn"):
            return None
        (function,) = value.parse().body
        return function if isinstance(function, ast.FunctionDef) else None


def namespace_of(function: Any) -> dict[str, Any]:
    """Its module's names, and those of the function that it is defined in."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    inner = {name: cell.cell_contents for name, cell in cells if has_contents(cell)}
    return {**function.__globals__, **inner}


def has_contents(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def bind(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter with its value. Raises TypeError as Triton does; options of the compiler
    (`num_warps`) are no parameters.
    """
    own = {name: value for name, value in kwargs.items() if name in kernel.arg_names}
    arguments = kernel.signature.bind(*args, **own)
    arguments.apply_defaults()
    return dict(arguments.arguments)


def described_tensor(value: Any) -> Any:
    """The tensor that a descriptor, or a pointer of another type, is of."""
    if isinstance(value, (tuple, list)):
        return tuple(map(described_tensor, value))
    base = getattr(value, "base", None)
    is_wrapper = type(value).__module__.startswith("triton.") and base is not None
    return base if is_wrapper else value
