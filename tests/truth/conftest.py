"""Garbage collections leave alone what was there before the tests."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def frozen_imports() -> Iterator[None]:
    """Measured runs collect garbage at every step: skip a million objects of torch's modules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
