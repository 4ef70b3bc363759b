"""What the compiler computes again and again though its answer is known, and what it writes though
nobody reads it: the same kernels, sooner.

Imported with the compiler. Each was a tenth of a second to a second of the fifty that a GPT-2 took.
"""

import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch._inductor.codegen.triton as triton_code
import torch._inductor.dtype_propagation as dtype_propagation
import torch._inductor.ir as ir
import torch._inductor.pattern_matcher as pattern_matcher
import torch._inductor.scheduler as scheduling
from sympy.core.parameters import global_parameters  # type: ignore[import-untyped]
from sympy.core.relational import Equality, _Inequality  # type: ignore[import-untyped]
from torch._guards import CompileContext
from torch._inductor.virtualized import V
from torch._logging import _internal as logging
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _config_module as configuration
from torch.utils._ordered_set import OrderedSet

from torchtally.torch_private.places import PrivateName

NUMBERS = (int, sympy.Integer)
SCALARS = (bool, int, float, str, type(None))


def shortcuts() -> Iterator[tuple[PrivateName, Any]]:
    """(name, what to put there), of those that this release has."""
    yield from those_of(
        (Equality, "__new__", equality),
        (_Inequality, "__new__", remember),
        (dtype_propagation.DtypePropagationOpsHandler, "__init__", initialise_once),
        (scheduling, "get_scheduler_node_symbol_uses", symbol_uses),
        (configuration.ConfigModule, "__getattr__", setting),
    )
    if not is_logged():
        yield from those_of(
            (GraphModule, "print_readable", unread_graph),
            (ir, "get_kernel_metadata", no_comments),
            (triton_code, "get_kernel_metadata", no_comments),
            (pattern_matcher, "_should_debug_node", no_node),
            (ShapeEnv, "_suppress_guards_enter", without_recording),
            (ShapeEnv, "_suppress_guards_exit", without_recording),
        )


def those_of(*rows: tuple[Any, str, Callable[[Any], Any]]) -> Iterator[tuple[PrivateName, Any]]:
    for owner, name, make in rows:
        native = getattr(owner, name, None)
        if native is not None:
            yield PrivateName(owner, name), make(native)


def equality(native: Callable[..., Any]) -> Callable[..., Any]:
    """Two whole numbers, as sizes are, are equal or not: no rule of sympy's is needed for that."""

    def new(cls: Any, left: Any, right: Any, **options: Any) -> Any:
        if not options and isinstance(left, NUMBERS) and isinstance(right, NUMBERS):
            return sympy.true if int(left) == int(right) else sympy.false
        return native(cls, left, right, **options)

    return new


def remember(native: Callable[..., Any]) -> Callable[..., Any]:
    """`index < 768`: layers that are alike ask alike. Expressions never change."""
    answers: dict[tuple[Any, ...], Any] = {}

    def new(cls: Any, left: Any, right: Any, **options: Any) -> Any:
        if options or not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
            return native(cls, left, right, **options)
        key = cls, left, right, global_parameters.evaluate
        answer = answers.get(key)
        if answer is None:
            answer = answers[key] = native(cls, left, right)
        return answer

    return new


def initialise_once(native: Callable[[Any], None]) -> Callable[[Any], None]:
    """Its class returns one handler to all callers, and Python calls `__init__` each time."""
    initialised: list[Any] = []

    def init(handler: Any) -> None:
        if not any(each is handler for each in initialised):
            native(handler)
            initialised.append(handler)

    return init


def symbol_uses(native: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Empty in a graph whose sizes are all known: it has no symbols."""

    def uses(node: Any) -> Any:
        sizes = V.graph.sizevars.shape_env
        return native(node) if sizes is None or sizes.var_to_range else OrderedSet[Any]()

    return uses


def setting(native: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """A setting that was set, or that has a plain default and no other source."""
    unset = configuration._UNSET_SENTINEL

    def get(module: Any, name: str) -> Any:
        entry = module._config.get(name)
        if (
            entry is None
            or entry.hide
            or entry.alias is not None
            or getattr(entry, "deprecated", False)
            or entry.env_value_force is not unset
        ):
            return native(module, name)
        override = entry.user_override
        if isinstance(override, ContextVar):  # earlier releases have the value itself
            override = override.get()
        if override is not unset:
            return override
        if (
            entry.env_value_default is unset
            and entry.justknob is None
            and isinstance(entry.default, SCALARS)
        ):
            return entry.default
        return native(module, name)

    return get


def is_logged() -> bool:
    """The script, or its environment, asks for the compiler's logs (TORCH_LOGS, TORCH_TRACE)."""
    state = logging.log_state
    return bool(state.artifact_names or state.log_qname_to_level or os.environ.get("TORCH_TRACE"))


def unread_graph(native: Callable[..., str]) -> Callable[..., str]:
    """The text of each graph is made for logs. The script's own calls come when no graph is being
    compiled.
    """

    def print_readable(module: Any, *args: Any, **options: Any) -> str:
        if options.get("print_output", True) or not is_compiling():
            return native(module, *args, **options)
        return ""

    return print_readable


def is_compiling() -> bool:
    return CompileContext.try_get() is not None


def no_comments(native: Callable[..., Any]) -> Callable[..., tuple[str, str]]:
    """Comments of kernels, none in a program that is not shown."""
    return lambda node_schedule, wrapper: ("", "")


def no_node(native: Callable[[str], bool]) -> Callable[[str], bool]:
    """The environment names no node to debug; it is asked for every one."""
    return native if native("") else lambda name: False


def without_recording(native: Any) -> Any:
    """Decorator without the log of its calls (torch/fx/experimental/recording.py)."""
    return getattr(native, "__wrapped__", native)
