"""Run a user's script as Python itself would, and know how it ended.

The script is `__main__` with its own argv and path, may spawn and pickle, and meets its own
exceptions, exits and signals. Tracing executes the script; `isolation` keeps its writes apart.
"""

import atexit
import builtins
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.metadata import entry_points
from types import CodeType, ModuleType
from typing import cast

from torchtally.errors import ScriptError
from torchtally.trace import Ending
from torchtally.tracer import tracebacks
from torchtally.tracer.hints import hints
from torchtally.tracer.notebook import cells, sources
from torchtally.tracer.script_file import Script, check_file, command_folders, read_script
from torchtally.tracer.source import Code, classified_as
from torchtally.tracer.steps import StepsDone
from torchtally.tracer.stopper import (
    DONE,
    INTERRUPTED,
    ScriptOutcome,
    Stopped,
    Stopper,
    flush_outputs,
    is_broken_stdout,
)
from torchtally.tracer.texts import compile_text
from torchtally.virtual.later_modules import first_spec

TEXT_NAMES = {"-": "stdin", "-c": "-c"}
"""What lines of a script that has no file are reported under, by its target."""

BROKEN_PIPE_EXIT = 141
"""As a shell reports a program that SIGPIPE ended."""


# Before the run ----------------------------------------------------------------------------------


def check(script: Script) -> None:
    """Raise ScriptError when there is nothing to run, before anything else is done."""
    target = script.target
    if script.text is not None:
        return
    if script.is_module:
        with path_of(script):
            check_module(target)
    else:
        check_file(target)
        if script.is_notebook:
            sources(target)


def check_module(name: str) -> None:
    spec = find_module(name)
    if spec is None:
        raise ScriptError(
            f"no module named {name!r} on the path.\n"
            "Give -m a dotted name that `python -m` would take."
        )
    if spec.submodule_search_locations is not None and find_module(f"{name}.__main__") is None:
        raise ScriptError(
            f"{name} is a package without a __main__.\nGive -m a module in it: {name}.train."
        )


def find_module(name: str) -> ModuleSpec | None:
    """Spec from which a module would come. Imports nothing, not even the packages it is in."""
    parent, _, last = name.rpartition(".")
    path: list[str] | None = None
    if parent:
        package = find_module(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        path = list(package.submodule_search_locations)
    try:
        return first_spec(sys.meta_path, name, path)
    except KeyError:  # a package that is only a directory, in one that is not imported yet
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [os.path.join(place, last) for place in path or ()]
        return spec


# The run -----------------------------------------------------------------------------------------


def run(script: Script, stopper: Stopper) -> ScriptOutcome:
    """Run to the end, whichever way it comes; what Python would print of it goes to stderr.

    The last thing a process does: afterwards its exit handlers have run. A process that the script
    forked and that comes to the end here, ends here.
    """
    outcome = DONE
    with as_main(script), stopper.watching(), suppress(Stopped):  # during the report
        outcome = outcome_of(lambda: execute(script))
        is_stopped = stopper.outcome is not None or outcome is INTERRUPTED
        afterwards = outcome_of(lambda: shut_down(waits=not is_stopped))
        if afterwards is INTERRUPTED:
            outcome = afterwards
        if stopper.is_in_child:
            stopper.exit_child(outcome.exit_code)
    return stopper.outcome or outcome


def outcome_of(part: Callable[[], None]) -> ScriptOutcome:
    """How a part of the script ended."""
    try:
        part()
    except SystemExit as exit_:
        return ScriptOutcome(Ending("exit", exit_message(exit_)), exit_code(exit_))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:
        return failure(error)
    return ScriptOutcome(Ending("exit"), 0)


def failure(error: BaseException) -> ScriptOutcome:
    """The outcome of an uncaught error; DONE for a stop and what follows from it."""
    if any(isinstance(each, (StepsDone, Stopped)) for each in tracebacks.error_chain(error)):
        return DONE
    message = tracebacks.message_of(error)
    if is_broken_stdout(error):
        return ScriptOutcome(
            Ending("exception", f"{message}: the reader of stdout is gone"), BROKEN_PIPE_EXIT
        )
    tracebacks.show(error)
    for hint in hints(error):
        print(hint, file=sys.stderr, flush=True)
    return ScriptOutcome(Ending("exception", message), 1)


def exit_code(exit_: SystemExit) -> int:
    """Exit code as Python maps it: None is 0, an int is itself, anything else is printed and is
    1.
    """
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return 1


def exit_message(exit_: SystemExit) -> str:
    return "" if exit_.code in (None, 0) else f"sys.exit({exit_.code!r})"


def shut_down(*, waits: bool) -> None:
    """What Python does after a script's last line, while the script's GPU still exists."""
    if waits:
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


# The script's surroundings -----------------------------------------------------------------------


def execute(script: Script) -> None:
    """The script's code, in `__main__`, where what spawned processes send finds it, too."""
    main = ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    for code in codes(script, main):
        exec(code, vars(main))


def codes(script: Script, main: ModuleType) -> Iterable[CodeType]:
    """What to run, part by part: a notebook has several. `main` learns where it is from."""
    if script.is_notebook:
        main.__file__ = os.path.abspath(script.target)
        return cells(script.target)
    if script.text is not None:
        return [compile_text(script.text, TEXT_NAMES[script.target])]
    return [load(script, main)]


def load(script: Script, main: ModuleType) -> CodeType:
    """The code of a file or a module."""
    if script.is_file and not script.is_application:
        main.__file__ = os.path.abspath(script.target)
        main.__dict__["__cached__"] = None
        if script.target.endswith(".pyc"):
            loader = main.__loader__ = SourcelessFileLoader("__main__", main.__file__)
            return cast(CodeType, loader.get_code("__main__"))
        main.__loader__ = SourceFileLoader("__main__", main.__file__)
        return compile(read_script(script.target), main.__file__, "exec", dont_inherit=True)
    spec = spec_of(script)
    if script.is_module:
        sys.argv[0] = str(spec.origin)
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    main.__file__, main.__dict__["__cached__"] = spec.origin, spec.cached
    code: CodeType | None = getattr(spec.loader, "get_code", lambda name: None)(spec.name)
    if code is None:
        raise ImportError(f"No code object available for {spec.name}")
    return code


def spec_of(script: Script) -> ModuleSpec:
    """Spec of the module to run; the packages it is in are imported for it, as Python does."""
    if script.is_application:
        spec = PathFinder.find_spec("__main__", [script.path_entry])
    else:
        spec = importlib.util.find_spec(script.target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{script.target}.__main__")
    if spec is None:
        raise ImportError(f"No module named {script.target}")
    return spec


@contextmanager
def as_main(script: Script) -> Iterator[None]:
    """argv, path, stack and `__main__` as the script would find them under `python`."""
    argv, walk_stack = sys.argv, traceback.walk_stack
    modules = {name: sys.modules.get(name) for name in ("__main__", "__mp_main__")}
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.argv = [script.target, *script.arguments]
    vars(traceback)["walk_stack"] = tracebacks.walker(below=execute.__code__)
    try:
        with path_of(script), classified_as(places_of(script, modules["__main__"])):
            yield
    finally:
        flush_outputs()  # of streams the script has put in their place
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.argv, traceback.walk_stack = argv, walk_stack
        for name, module in modules.items():
            sys.modules[name] = module  # type: ignore[assignment]


def places_of(script: Script, launcher: ModuleType | None) -> dict[str, Code]:
    """What code is that does not lie where such code lies otherwise.

    The program that began this process is ours. A package that is installed is the user's own
    where it is what was asked for: as a module, or by the command that it installed.
    """
    places = {}
    if file := getattr(launcher, "__file__", None):
        places[file] = Code.INTERNAL
    if script.is_module:
        name = script.target
    elif script.is_file:
        places[script.target] = Code.OWN
        name = installed_by(script.target)
    else:
        return places
    spec = find_module(name.partition(".")[0]) if name else None
    if spec is not None:
        folders = spec.submodule_search_locations
        origins = folders if folders is not None else [spec.origin]
        places |= {origin: Code.OWN for origin in origins if origin is not None}
    return places


def installed_by(path: str) -> str:
    """The module that a command of the environment starts; "" for every other file."""
    folder, name = os.path.split(os.path.abspath(path))
    if folder not in command_folders():
        return ""
    found = entry_points(group="console_scripts", name=name.removesuffix(".exe"))
    return next((entry.module for entry in found), "")


@contextmanager
def path_of(script: Script) -> Iterator[None]:
    """`sys.path` with the script's directory where Python has put that of `tally`."""
    before = list(sys.path)
    if not sys.flags.safe_path:
        sys.path[:1] = [script.path_entry]
    try:
        yield
    finally:
        sys.path[:] = before
