from collections.abc import Iterator

import pytest

import torchtally
from torchtally.virtual.session import VirtualGPU


@pytest.fixture
def gpu() -> Iterator[VirtualGPU]:
    """A simulated H100 for the length of a test."""
    with torchtally.virtual_gpu("H100-SXM") as device:
        yield device
