"""What the compiler did that its user would want to know: breaks, recompilations, failures."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchtally.trace.caveats import PARTLY_EAGER
from torchtally.virtual.stand_ins import StandIn, instead_of

Note = Callable[[str], None]

COMPILED = (
    "torch.compile: a graph compiled by the inductor of PyTorch "
    f"{torch.__version__.split('+')[0]} (other releases fuse differently)"
)
COMPILED_BACKWARD = (
    "torch.compile: compiled autograd compiles a whole backward pass; its kernels are charged to "
    "the line that calls backward, and not to forward lines"
)
CAPTURED = (
    'mode="reduce-overhead": launched as CUDA graphs; once captured, their memory is reserved, and '
    "not counted as allocated (by torch.cuda.max_memory_allocated neither)"
)


def stand_ins(note: Note, compiler: Any) -> list[StandIn]:
    return [
        instead_of(compiler.GRAPH_BREAK, graph_break(note, compiler)),
        instead_of(compiler.RECOMPILE, recompilation(note, compiler)),
        instead_of(compiler.COMPILE, compile_or_run(note, compiler)),
        *(instead_of(name, note_capture(note, getattr(*name))) for name in compiler.CAPTURES),
        *(instead_of(name, note_why_not(note, getattr(*name))) for name in compiler.CAPTURE_SKIPS),
    ]


def graph_break(note: Note, compiler: Any) -> Any:
    native = getattr(*compiler.GRAPH_BREAK)

    def log(translator: Any, code_options: Any, reason: str = "", *rest: Any, **named: Any) -> Any:
        error = next(
            (each for each in (*rest, *named.values()) if isinstance(each, Exception)), None
        )
        if not getattr(error, "logged", False):
            place = compiler.place_of_break(error)
            where = "" if place is None else f" at {os.path.basename(place[0])}:{place[1]}"
            note(f"torch.compile: graph break{where}: {cause_of_break(reason)}")
        return native(translator, code_options, reason, *rest, **named)

    return log


ATTEMPTS = ("Encountered graph break", "Failed to handle graph break", "skipping the function")
"""How Dynamo begins with the bytecode that it was at, and what it does now; the cause follows."""
EXPLANATION = "Explanation: "


def cause_of_break(reason: str) -> str:
    """What Dynamo could not trace, and why: of its many lines the two that say so."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    title = next((line for line in lines if not line.startswith(ATTEMPTS)), first_line(reason))
    why = next((line for line in lines if line.startswith(EXPLANATION)), "")
    return f"{title}: {why.removeprefix(EXPLANATION)}" if why else title


def recompilation(note: Note, compiler: Any) -> Any:
    native = getattr(*compiler.RECOMPILE)

    def reasons_of(entries: Any, frame: Any, *rest: Any, **named: Any) -> Any:
        reasons = native(entries, frame, *rest, **named)
        if reasons:
            why = first_line(reasons[0])
            note(f"torch.compile: {place_of_frame((frame,))} recompiled: {why}")
        return reasons

    return reasons_of


def place_of_frame(converter_arguments: Iterable[Any]) -> str:
    """The function that a converter of frames was to compile, and its line."""
    for argument in converter_arguments:
        code = getattr(argument, "f_code", None)
        if code is not None:
            return f"{code.co_name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    return "a function"


def compile_or_run(note: Note, compiler: Any) -> Any:
    """A graph that cannot be compiled runs operator by operator."""
    native = getattr(*compiler.COMPILE)

    def compile_fx(module: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        try:
            return native(module, inputs, *rest, **named)
        except compiler.Restart:
            # Dynamo traces the function again, with a number in place of a tensor that it had
            # made of one (fx/passes/_tensorify_python_scalars.py).
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(str(error))}"
            note(f"{PARTLY_EAGER}inductor failed with a graph{place_of(module)}: {reason}")
            return module.forward

    return compile_fx


def place_of(module: Any) -> str:
    """Site of the first operator of a graph that has a line."""
    from torchtally.virtual.compiling.origins import frames_of

    for node in getattr(getattr(module, "graph", None), "nodes", ()):
        frames = frames_of(node.meta.get("stack_trace") or "")
        if frames:
            file, line, _ = frames[0]
            return f" of {os.path.basename(file)}:{line}"
    return ""


def note_capture(note: Note, native: Any) -> Any:
    def post_compile(inputs: Any, graph: Any, cudagraphs: Any, *rest: Any) -> None:
        native(inputs, graph, cudagraphs, *rest)
        if cudagraphs.value:
            note(CAPTURED)

    return post_compile


def note_why_not(note: Note, native: Any) -> Any:
    """Called with the reason why no CUDA graph is made."""

    def log(reason: str) -> None:
        note(f'mode="reduce-overhead": {first_line(reason)}')
        native(reason)

    return log


def first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"
