"""The Python lines that an operator runs below: the user's and libraries', not torch's or ours."""

import inspect
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from types import CodeType, FrameType

import torch

import torchtally
from torchtally import torch_private as private
from torchtally.trace import Frame
from torchtally.tracer.dimension_names import dimension_names
from torchtally.tracer.texts import shown_file


class Code(IntEnum):
    """What a piece of code is to the recorder."""

    INTERNAL = 0
    """torch's, Python's or our own: never shown."""
    OWN = 1
    LIBRARY = 2
    ENGINE = 3
    """The autograd engine's entry: what is called below it is backward."""
    RECOMPUTE = 4
    """torch.utils.checkpoint running a forward again."""
    BACKWARD = 5
    """The call of backward, above the engine: it makes the initial gradient."""
    MODULE = 6
    """A module's call, as replaced here: the stack above was read on entry."""
    GRADIENTS = 7
    """Clipping and unscaling of gradients: part of the optimizer's phase."""


def directories(*paths: str | None) -> tuple[str, ...]:
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


INTERNAL_DIRECTORIES = directories(
    os.path.dirname(torch.__file__), os.path.dirname(torchtally.__file__)
)
PYTHON_DIRECTORIES = directories(
    sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sys.base_prefix + "/lib"
)
LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

GRADIENT_FILES = tuple(
    os.path.join(os.path.realpath(os.path.dirname(torch.__file__)), *parts)
    for parts in (("nn", "utils", "clip_grad.py"), ("amp", "grad_scaler.py"))
)
SCALE_FUNCTIONS = ("scale", "apply_scale", "_lazy_init_scale_growth_tracker", "get")
"""Of the gradient scaler: scaling the loss is part of the forward pass."""


_PLACES: dict[str, Code] = {}
"""Real paths of files and packages whose place does not tell what they are."""


@contextmanager
def classified_as(places: Mapping[str, Code]) -> Iterator[None]:
    """Context in which code in these files and packages is what is said here."""
    before = dict(_PLACES)
    _PLACES.update({os.path.realpath(place): kind for place, kind in places.items()})
    classify_path.cache_clear()
    try:
        yield
    finally:
        _PLACES.clear()
        _PLACES.update(before)
        classify_path.cache_clear()


@cache
def classify_path(path: str) -> Code:
    """What code in a file is, by where the file lies."""
    if path.startswith("<"):
        return Code.INTERNAL
    real = os.path.realpath(path)
    if real.startswith(INTERNAL_DIRECTORIES):
        return Code.INTERNAL
    for place, kind in _PLACES.items():
        if real == place or real.startswith(place + os.sep):
            return kind
    if any(part in real for part in LIBRARY_PARTS):
        return Code.LIBRARY
    if real.startswith(PYTHON_DIRECTORIES):
        return Code.INTERNAL
    return Code.OWN


@cache
def is_of_gradients(path: str) -> bool:
    """Whether a file clips or unscales gradients, by whichever link torch was imported."""
    return os.path.realpath(path) in GRADIENT_FILES


NEAR, FAR = 12, 12
"""Frames that are read each time, and those above them from one that bears what is known to the
next."""
RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code whose frame may go on below another caller."""

Key = tuple[int, ...]
"""A stack: (id of code, instruction) pairs, and perhaps the number of the stack above them."""


class Stacks:
    """Reads the Python stack at an operator; caches what it has read.

    `read` returns a key (hashable, cheap) and what the walk met on its way; `frames` turns a key
    into `Frame`s, once.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, Code] = {}
        self._codes: dict[int, CodeType] = {}
        """Kept alive, so that an id is never reused."""
        self._frames: dict[tuple[int, int], Frame] = {}
        self._outer_keys: list[Key] = []
        self._outer_frames: dict[int, tuple[Frame, ...]] = {}
        self._outer_numbers: dict[Key, int] = {}
        self._token = object()
        self._adding = threading.RLock()
        for code in private.recompute_codes():
            self._learn(code, Code.RECOMPUTE)
        self._learn(private.engine_code(), Code.ENGINE)
        for function in (torch.autograd.backward, torch.autograd.grad):
            self._learn(function.__code__, Code.BACKWARD)

    def _learn(self, code: CodeType, kind: Code | None = None) -> Code:
        if kind is None:
            kind = classify_path(shown_file(code.co_filename))
            if is_of_gradients(code.co_filename) and code.co_name not in SCALE_FUNCTIONS:
                kind = Code.GRADIENTS
        self._codes[id(code)] = code
        self._kinds[id(code)] = kind
        return kind

    def read(self, frame: FrameType | None, outer: "Outer | None" = None) -> "tuple[Key, Walk]":
        """Walk up from a frame. The key holds (code, instruction) pairs, innermost first.

        The walk ends at the autograd engine unless there was Python code below it: then the frames
        above, which called backward, are part of the key. It ends at a module's call, too, if
        `outer` has what was read above that; the key then ends with the number of that.
        """
        kinds = self._kinds
        key: list[int] = []
        walk = Walk()
        near = NEAR
        while frame is not None:
            if not near:
                above = self._above(frame, outer)
                if above is not None:
                    return (*key, *above[0]), above[1].within(walk)
            near -= 1
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self._learn(code)
            if kind:
                if kind == Code.OWN or kind == Code.LIBRARY:
                    key.append(id(code))
                    key.append(frame.f_lasti)
                elif kind == Code.MODULE:
                    if outer is not None:
                        key.append(outer.number)
                        return tuple(key), outer.walk.within(walk)
                elif kind == Code.ENGINE:
                    # On the CPU, and for meta tensors, the engine runs in the thread that called it
                    # (`Engine::execute_with_graph_task`): its frames lie above those of its hooks.
                    if walk.engine is None:
                        walk.engine = frame
                        walk.is_called_by_engine = bool(key) or walk.is_recompute
                    if not walk.is_called_by_engine:
                        break
                elif walk.engine is not None:
                    pass  # the rest is about who called backward
                elif kind == Code.RECOMPUTE:
                    walk.is_recompute = True
                elif kind == Code.BACKWARD:
                    walk.is_backward = True
                else:
                    walk.is_gradients = True
            frame = frame.f_back
        return tuple(key), walk

    def _above(self, frame: FrameType, outer: "Outer | None") -> "tuple[Key, Walk] | None":
        """A frame and all above it, as `read` does. None where the autograd engine or the like is
        among them.

        What is above a frame stays as it is until that returns: a number for it hangs on some.
        """
        key: list[int] = []
        bearers: list[tuple[FrameType, int]] = []
        walk, place = PLAIN, 0
        above: FrameType | None = frame
        while above is not None:
            code = above.f_code
            kind = self._kinds.get(id(code))
            if kind is None:
                kind = self._learn(code)
            if kind == Code.OWN or kind == Code.LIBRARY:
                key += (id(code), above.f_lasti)
            elif kind == Code.MODULE:
                if outer is not None:
                    key.append(outer.number)
                    walk = outer.walk
                    break
            elif kind != Code.INTERNAL:
                return None
            known = above.f_trace
            if isinstance(known, Above) and known.owner is self._token:
                key.append(known.number)
                walk = known.walk
                break
            is_free = known is None or isinstance(known, Above)
            if place % FAR == 0 and is_free and not code.co_flags & RESUMED:
                bearers.append((above, len(key)))
            place += 1
            above = above.f_back
        if sys.gettrace() is None:
            for bearer, start in reversed(bearers):
                number = self._number(tuple(key[start:]))
                bearer.f_trace = Above(number, walk, self._token)
                key[start:] = [number]
        return tuple(key), walk

    def reader(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of a user's or a library's code; None where there is none."""
        while frame is not None:
            code = frame.f_code
            kind = self._kinds.get(id(code))
            if kind is None:
                kind = self._learn(code)
            if kind in (Code.OWN, Code.LIBRARY):
                return frame
            frame = frame.f_back
        return None

    def enter(self, frame: FrameType | None, outer: "Outer | None") -> "Outer":
        """The stack above a module that is about to run."""
        key, walk = self.read(frame, outer)
        return Outer(self._number(key), walk)

    def _number(self, key: Key) -> int:
        number = self._outer_numbers.get(key)
        if number is None:
            with self._adding:
                number = self._outer_numbers.get(key)
                if number is None:
                    number = len(self._outer_keys)
                    self._outer_keys.append(key)
                    self._outer_numbers[key] = number
        return number

    def mark_module_call(self, code: CodeType) -> None:
        self._learn(code, Code.MODULE)

    def frames(self, key: "Key") -> tuple[Frame, ...]:
        own = tuple(
            self._frame(code, instruction)
            for code, instruction in zip(key[::2], key[1::2], strict=False)
        )
        if len(key) % 2 == 0:
            return own
        outer = self._outer_frames.get(number := key[-1])
        if outer is None:
            outer = self._outer_frames[number] = self.frames(self._outer_keys[number])
        return own + outer

    def _frame(self, code_id: int, instruction: int) -> Frame:
        frame = self._frames.get((code_id, instruction))
        if frame is None:
            code = self._codes[code_id]
            line = line_of(code, instruction)
            is_own = self._kinds[code_id] == Code.OWN
            frame = Frame(
                file=os.path.abspath(shown_file(code.co_filename)),
                line=line,
                function=code.co_qualname,
                text=linecache.getline(code.co_filename, line).strip(),
                is_own=is_own,
                dimensions=dimension_names(code.co_filename, line) if is_own else "",
            )
            self._frames[code_id, instruction] = frame
        return frame


OURS = os.path.dirname(torchtally.__file__) + os.sep


def asking_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of any code but ours, torch's own too."""
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


class Walk:
    """What a walk up the stack met besides lines."""

    __slots__ = ("engine", "is_backward", "is_called_by_engine", "is_gradients", "is_recompute")

    def __init__(self) -> None:
        self.engine: FrameType | None = None
        """The autograd engine's frame, when the operator runs below it."""
        self.is_called_by_engine = False
        """Python code below the engine: a hook, a custom backward, a recomputation."""
        self.is_backward = False
        """Called by `backward` itself, outside the engine."""
        self.is_recompute = False
        self.is_gradients = False

    def within(self, inner: "Walk") -> "Walk":
        """What this walk met, with what a walk further in met before it."""
        if inner.engine is not None:
            return inner  # the rest is about who called backward
        if not (inner.is_backward or inner.is_gradients or inner.is_recompute):
            return self
        both = Walk()
        both.engine = self.engine
        both.is_called_by_engine = self.is_called_by_engine
        both.is_backward = self.is_backward or inner.is_backward
        both.is_gradients = self.is_gradients or inner.is_gradients
        both.is_recompute = self.is_recompute or inner.is_recompute
        return both


class Outer:
    """The stack above a module's call: the number of its key, and what the walk up it met."""

    __slots__ = ("number", "walk")

    def __init__(self, number: int, walk: Walk) -> None:
        self.number = number
        self.walk = walk


PLAIN = Walk()


class Above(Outer):
    """What is above a frame, as it hangs on it in the place of a tracing function."""

    __slots__ = ("owner",)

    def __init__(self, number: int, walk: Walk, owner: object) -> None:
        super().__init__(number, walk)
        self.owner = owner
        """Whose number it is."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Nothing for a debugger that begins while the frame runs."""


def line_of(code: CodeType, instruction: int) -> int:
    """The source line of a bytecode offset."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def own_frame(stacks: Stacks, frame: FrameType | None) -> Frame | None:
    """The innermost line of the user's own at a frame, else a library's."""
    frames = stacks.frames(stacks.read(frame)[0])
    for candidate in frames:
        if candidate.is_own:
            return candidate
    return frames[0] if frames else None
