"""Tracebacks as the user's own `python script.py` would print them: without us in the middle."""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

import torchtally
from torchtally.tracer.source import Code, classify_path

OURS = os.path.dirname(os.path.realpath(torchtally.__file__)) + os.sep

OUR_MISTAKES = (AssertionError, AttributeError, KeyError, NameError)
"""What our own code never raises on purpose: then its frames are what a bug report needs."""


def show(error: BaseException) -> None:
    """Print an uncaught error as Python would, by the script's own excepthook if it has one."""
    strip(error)
    details = type(error), error, error.__traceback__
    try:
        sys.excepthook(*details)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        sys.__excepthook__(*details)


def show_in_thread(args: Any) -> None:
    """`threading.excepthook` without our frames."""
    if args.exc_value is not None:
        strip(args.exc_value)
        value = args.exc_value
        args = threading.ExceptHookArgs((type(value), value, value.__traceback__, args.thread))
    threading.__excepthook__(args)


def show_lost(args: Any) -> None:
    """`sys.unraisablehook` without our frames."""
    if args.exc_value is not None:
        strip(args.exc_value)
        details = args.exc_type, args.exc_value, args.exc_value.__traceback__
        args = type(args)((*details, args.err_msg, args.object))
    sys.__unraisablehook__(args)


def message_of(error: BaseException) -> str:
    """What Python prints of an error: the last line, without notes."""
    printed = traceback.TracebackException(type(error), error, None)
    printed.__notes__ = None
    return list(printed.format_exception_only())[-1].strip()


def begins_with_us(error: BaseException) -> bool:
    """Whether the outermost frame that the error left is ours."""
    return error.__traceback__ is not None and is_ours(error.__traceback__.tb_frame)


def strip(error: BaseException) -> None:
    """Take our frames out of an error's traceback, and out of those it is chained to."""
    for each in error_chain(error):
        if not is_our_mistake(each):
            each.__traceback__ = without_us(each.__traceback__)


def error_chain(error: BaseException) -> list[BaseException]:
    """The error, its causes and contexts, and the members of groups among them."""
    errors: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in errors:
            errors[id(each)] = each
            waiting += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                waiting += each.exceptions
    return list(errors.values())


def is_our_mistake(error: BaseException) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and is_ours(frames[-1]) and isinstance(error, OUR_MISTAKES)


def without_us(tb: TracebackType | None) -> TracebackType | None:
    """The traceback less our frames and what torch and Python do below them.

    None where nothing is left: a syntax error's message names file and line itself.
    """
    kept: list[TracebackType] = []
    is_below_us = False
    while tb is not None:
        is_below_us = is_ours(tb.tb_frame) or (is_below_us and is_machinery(tb.tb_frame))
        if not is_below_us:
            kept.append(tb)
        tb = tb.tb_next
    rest: TracebackType | None = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def walker(below: CodeType) -> Callable[[FrameType | None], Iterator[tuple[FrameType, int]]]:
    """`traceback.walk_stack` that ends where code of ours called the script.

    `traceback.extract_stack()[0]` is then the script's `<module>`, as under `python script.py`.
    """

    def walk_stack(f: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        return script_frames(sys._getframe(1) if f is None else f)

    def script_frames(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        while frame is not None and frame.f_code is not below:
            yield frame, frame.f_lineno
            frame = frame.f_back

    return walk_stack


def is_ours(frame: FrameType) -> bool:
    return os.path.realpath(frame.f_code.co_filename).startswith(OURS)


def is_machinery(frame: FrameType) -> bool:
    return classify_path(frame.f_code.co_filename) is Code.INTERNAL
