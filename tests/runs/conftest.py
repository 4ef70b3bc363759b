"""A server of children that starts in tens of milliseconds, for tests of what its children do."""

import sys
from collections.abc import Iterator

import pytest

from tests.warm import commands


@pytest.fixture(scope="module")
def warm_python() -> Iterator[None]:
    """Servers are forked from a Python that has torch loaded, as `test_children.py`'s are not."""
    python = str(commands() / "python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        yield
