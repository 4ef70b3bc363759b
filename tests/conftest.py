"""What all tests share: checked annotations, hypothesis profiles, signals as a terminal gives them.

Every annotation of `torchtally.checkpoints` and `torchtally.train` is checked, shapes by jaxtyping
and types by beartype, from whichever test imports it first. Outside of tests annotations are
documentation and cost nothing.
"""

import gc
import os
import signal
import tempfile

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests import warm
from tests.machines import sitecustomize as machine
from tests.thorough import without_thorough

install_import_hook(["torchtally.checkpoints", "torchtally.train"], "beartype.beartype")

# A busy machine is no failure: what a test may take is measured in benchmarks.
settings.register_profile(
    "torchtally", deadline=None, max_examples=int(os.environ.get("TALLY_EXAMPLES", "10"))
)
settings.load_profile("torchtally")

# What `tally bench` kept on this machine must not change what a test computes.
os.environ["XDG_DATA_HOME"] = os.environ.get("TALLY_TESTS_DATA_HOME") or tempfile.mkdtemp()
os.environ["TALLY_TESTS_DATA_HOME"] = os.environ["XDG_DATA_HOME"]

# Nor must programs that it recorded, of which tests record their own.
os.environ["XDG_CACHE_HOME"] = os.environ.get("TALLY_TESTS_CACHE_HOME") or tempfile.mkdtemp()
os.environ["TALLY_TESTS_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"]

# Nor is a test answered by a server of the developer's: `tests/runs/test_warm.py` has its own.
os.environ["TALLY_SERVE"] = "0"

# With TALLY_TESTS_MACHINE all tests run on an invented machine, and so do Pythons they start.
if machine.VARIABLE in os.environ:
    folders = (os.path.dirname(machine.__file__), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))


def stop_passing_on_ignored_signals() -> None:
    """Start every child process with default signal dispositions, as from a terminal.

    `nohup` ignores SIGHUP, a shell's background job SIGINT, and an ignored signal stays ignored
    across exec, while one with a handler is reset to its default. So a handler stands in here that
    does what ignoring does. xdist's workers are children themselves, hence the variable.
    """
    for name in ("SIGHUP", "SIGINT"):
        variable = f"TALLY_TESTS_IGNORE_{name}"
        number = signal.Signals[name]
        if signal.getsignal(number) is signal.SIG_IGN or variable in os.environ:
            os.environ[variable] = "1"
            signal.signal(number, lambda *_: None)


stop_passing_on_ignored_signals()


def pytest_configure(config: pytest.Config) -> None:
    """While workers collect tests, load what the commands that they will start have in common."""
    if hasattr(config, "workerinput"):
        return  # a worker is given the options and the variables of the process that started it
    config.option.thorough |= config.args_source is config.ArgsSource.ARGS
    if getattr(config.option, "numprocesses", None):
        warm.start()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="run the tests that are marked thorough, too"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` runs, unless tests are named on the command line."""
    if not config.option.thorough:
        items[:], left = without_thorough(items)
        config.hook.pytest_deselected(items=left)


def pytest_collection() -> None:
    """Look for no garbage while tests are collected: what is imported then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what collecting made, some million objects, out of every later garbage collection.

    Garbage among them stays: to look for it takes two seconds, and frees next to nothing.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out what a file imported, too: many tests collect garbage, each time among all of it.

    Simulations of one file took 88 s after others, and 35 s alone.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
