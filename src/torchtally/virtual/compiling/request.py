"""What a script asks for when it compiles, and what it is given."""

import builtins
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.errors import UnsupportedError
from torchtally.trace.caveats import NOT_COMPILED, PARTLY_EAGER
from torchtally.virtual import own_code
from torchtally.virtual.autocast import Autocast
from torchtally.virtual.compiling import deferred, events, optimizers
from torchtally.virtual.compiling.eager import EagerModule, eagerly
from torchtally.virtual.compiling.padding import PaddingChoice
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.extensions.triton_driver import TritonDriver
from torchtally.virtual.script_time import SCRIPT_TIME
from torchtally.virtual.shown_properties import ShownProperties
from torchtally.virtual.stand_ins import StandIn, active, apply, instead_of, native_methods, suspend

EAGER = "eager"
"""The backend that fuses nothing; torch's own operators on functions compile with it."""
INDUCTOR = "inductor"

NOTHING_COMPILED = (
    "torch.compile: {}.compile() compiles nothing, not even on a GPU: Dynamo converts no frame "
    "of torch.nn's own modules (torch.compile(module) does)"
)


class Compiling:
    """`torch.compile` of one session."""

    def __init__(
        self, mode: VirtualDispatch, chip: Chip, stack: ExitStack, autocast: Autocast
    ) -> None:
        self.mode, self.chip, self.stack, self.autocast = mode, chip, stack, autocast
        self._native = torch.compile
        self._native_export = torch.export.export
        self._compiler: Any = None
        """Imported by the first script that compiles."""
        self.quiet: list[StandIn] = []
        """The natives of `QUIET`, in place again while the compiler works."""

    def stand_ins(self) -> list[StandIn]:
        return [
            StandIn(torch, "compile", self.compile),
            StandIn(torch.export, "export", self.export),
            StandIn(torch.compiler, "cudagraph_mark_step_begin", self.begin_step),
            *deferred.dynamo_stand_ins(),
            *(instead_of(name, self.convert_early(name)) for name in private.frame_converters()),
        ]

    def convert_early(self, name: private.PrivateName) -> Any:
        """Prepares the compiler now for functions that were decorated before the session."""
        native = getattr(*name)

        def convert(converter: Any, *args: Any, **options: Any) -> Any:
            if not self.mode.is_here:
                return native(converter, *args, **options)
            is_prepared = self._compiler is not None
            reason = self.reason_for_eager(converter, INDUCTOR)
            if reason:
                self.mode.observer.note(f"{NOT_COMPILED}{reason}")
                return private.frame_left_alone()
            convert_now = native if is_prepared else getattr(*name)
            return convert_now(converter, *args, **options)

        return convert

    def compile(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: self.compile(function, **options)
        backend = options.get("backend", INDUCTOR)
        if is_eager(backend):
            return EagerModule(model) if isinstance(model, nn.Module) else model
        reason = self.reason_for_eager(model, backend)
        if reason:
            is_asked = backend == INDUCTOR
            self.mode.observer.note(f"{NOT_COMPILED if is_asked else 'torch.compile: '}{reason}")
            return eagerly(model)
        module = private.module_compiled_in_place(model)
        if module is not None and private.is_torchs_own(module):
            self.mode.observer.note(NOTHING_COMPILED.format(private.class_name(module)))
        compiled = self._native(model, **options)
        if isinstance(model, nn.Module):
            return compiled
        return optimizers.telling(compiled, self._compiler)

    def begin_step(self) -> None:
        """Torch's own would import the compiler, which a script that does not compile needs not."""
        if self._compiler is not None:
            self._compiler.begin_step()

    def export(self, module: Any, *args: Any, **options: Any) -> Any:
        """`torch.export.export`, which traces a module by fake tensors, as compiling does."""
        reason = self.reason_for_eager(module, INDUCTOR, needs_triton=False)
        if reason:
            raise UnsupportedError(f"torch.export traces as torch.compile does, and {reason}")
        with self.outside():
            return self._native_export(module, *args, **options)

    def reason_for_eager(self, model: Any, backend: Any, *, needs_triton: bool = True) -> str:
        """Why it cannot compile here; "" where it can. Tracing alone needs no triton."""
        if self.chip.gcn_architecture:
            return "compiling for ROCm is not simulated"
        if not self.chip.is_cuda:
            return f"{self.chip.name} is not a GPU"
        if backend != INDUCTOR:
            return f"its backend {backend!r} is not inductor, and ran eagerly"
        if needs_triton and find_spec("triton") is None:
            return (
                'inductor needs triton, which is not installed: pip install "torchtally[compile]"'
            )
        if self._compiler is None:
            try:
                self._compiler = self.prepare()
            except (ImportError, AttributeError) as error:
                return f"PyTorch {torch.__version__} with this triton has another compiler: {error}"
        return ""

    def prepare(self) -> Any:
        """Import the compiler (seconds), and put in place what it needs."""
        with SCRIPT_TIME.stopped(), suspend(), without_collections():
            templates: Any = import_module("torchtally.torch_private.templates")
            with templates.parsed_late():
                compiler: Any = import_module("torchtally.torch_private.compiler")
        from torchtally.torch_private.shortcuts import shortcuts
        from torchtally.virtual.compiling import fakes, target
        from torchtally.virtual.compiling.choices import KernelChoices
        from torchtally.virtual.compiling.graphs import Lowering
        from torchtally.virtual.compiling.trees import Trees

        compiler.forget_answers()
        self.autocast.register()
        self.stack.enter_context(private.let_higher_order_operators_reach_modes())
        self.stack.enter_context(compiler.settings())
        self.stack.enter_context(compiler.decomposing_as_on_gpu())
        # Before any function is taken for another, which adds to them.
        folded = folded_functions(compiler)
        self.stack.enter_context(
            apply([instead_of(compiler.RULES, rules(getattr(*compiler.RULES), folded))])
        )
        self.stack.enter_context(compiler.folding_too(folded))
        compiler.take_for_constants(ShownProperties)
        compiler.skip_modules(own_code.ROOMS)
        for function in own_code.uncompiled:
            compiler.skip_whole(function)
        for native, stand_in in replaced_functions():
            compiler.take_for(stand_in, native)
        optimizers.leave_out(compiler)
        for library in fakes.register():
            self.stack.callback(private.destroy, library)
        choices = KernelChoices(self.mode, self.chip, compiler)
        lowering = Lowering(self.mode, compiler, choices)
        self.quiet = [
            *(instead_of(name, native_of(*name)) for name in QUIET),
            StandIn(torch.accelerator, "is_available", lambda: False),
        ]
        self.stack.enter_context(
            apply(
                [
                    *fakes.stand_ins(compiler),
                    *target.stand_ins(compiler, self.chip),
                    *lowering.stand_ins(),
                    *choices.stand_ins(),
                    *PaddingChoice(self.mode, compiler).stand_ins(),
                    *events.stand_ins(self.mode.observer.note, compiler),
                    *optimizers.stand_ins(compiler),
                    *Trees(self.mode, compiler).stand_ins(),
                    *(instead_of(name, each) for name, each in compiler.kernel_analysis()),
                    *(instead_of(name, each) for name, each in shortcuts()),
                    *self.converters(compiler),
                ]
            )
        )
        if find_spec("triton") is not None:
            self.stack.enter_context(compiler.triton_driver(TritonDriver()))
        self.stack.callback(forget, compiler)
        return compiler

    def converters(self, compiler: Any) -> Sequence[StandIn]:
        """Code is converted, and graphs are compiled, outside of the session."""

        def without_session(native: Callable[..., Any]) -> Callable[..., Any]:
            def convert(*args: Any, **options: Any) -> Any:
                if not self.must_leave():
                    return native(*args, **options)
                try:
                    with self.outside():
                        return native(*args, **options)
                except compiler.InternalError as error:
                    why = events.first_line(str(error))
                    where = events.place_of_frame(args)
                    self.mode.observer.note(f"{PARTLY_EAGER}Dynamo failed with {where}: {why}")
                    return private.frame_left_alone()

            return convert

        return [
            instead_of(name, without_session(getattr(*name)))
            for name in (*compiler.CONVERTERS, compiler.COMPILE_GRAPH)
        ]

    def must_leave(self) -> bool:
        """Whether this thread is in the session. Inductor takes the modes off by itself before it
        compiles a backward graph (`compile_fx_inner`), and leaves the rest of the session.
        """
        if private.has_dispatch_modes():
            return True
        return self.mode.is_here and not self._compiler.is_without_modes()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """A context in which the compiler works: modules, methods of tensors and flex_attention are
        called as torch calls them, no operator is recorded, and no accelerator is looked for.
        """
        compiler = self._compiler
        with (
            SCRIPT_TIME.stopped(),
            without_collections(),
            compiler.without_modes(),
            native_methods(torch.Tensor),
            apply(self.quiet),
        ):
            yield


@contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage: the compiler makes millions of objects that stay, and Python would go
    through all of them again and again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


QUIET = (
    private.PrivateName(nn.Module, "__call__"),
    private.PrivateName(private.FlexAttention, "__call__"),
    private.RUNS_UNCOMPILED,
    # It imports within functions, a million times.
    private.PrivateName(builtins, "__import__"),
)
"""Stand-ins that the compiler does not meet."""


def is_eager(backend: Any) -> bool:
    """Whether a backend runs eagerly, by its name, or the function that the name stands for."""
    return EAGER in (backend, getattr(backend, "__name__", None))


def rules(native: Any, folded: Sequence[tuple[Any, Any]]) -> Callable[[], Any]:
    """Dynamo's, of torch's own functions: of what stands in their places, where it calls them
    while it traces, too. `torch.cuda.is_available()` is a constant of a graph.
    """
    known: dict[Any, Any] = {}

    @functools.cache
    def read() -> dict[Any, Any]:
        with suspend():
            native.cache_clear()
            known.update(native())
        known.update((stand_in, known[each]) for each, stand_in in folded if each in known)
        return known

    return read


def folded_functions(compiler: Any) -> list[tuple[Any, Any]]:
    """(native, stand-in) of functions whose answers are constants of a graph."""
    return [
        (native, stand_in)
        for _, _, native, stand_in in active()
        if isinstance(native, (BuiltinFunctionType, FunctionType)) and compiler.is_folded(native)
    ]


def replaced_functions() -> list[tuple[Any, Any]]:
    """(native, stand-in) of functions of `torch` that a script calls."""
    return [
        (native, stand_in)
        for owner, name, native, stand_in in active()
        if owner is torch
        and name != "compile"
        and callable(native)
        and not isinstance(native, type)
    ]


def native_of(owner: Any, name: str) -> Any:
    for each, other, native, _ in active():
        if each is owner and other == name:
            return native
    return getattr(owner, name)


def forget(compiler: Any) -> None:
    """All that was compiled, and its CUDA graphs."""
    compiler.reset_graphs()
    with suspend():
        compiler.reset()
