"""`torch.compile` on the virtual GPU: PyTorch's own compiler, whose program runs on it.

Dynamo, AOTAutograd and inductor are torch's, told that the chip is there (`fakes.py`, `target.py`).
What inductor writes is a Python program that allocates, launches and frees; it runs on virtual
tensors (`wrapper.py`), and each launch is recorded with what its kernel reads, writes and computes
(`kernels.py`), for the lines that it was made from (`origins.py`).
"""

from torchtally.virtual.compiling.eager import eagerly, is_compiled
from torchtally.virtual.compiling.request import Compiling
