"""Tensors of an earlier session that still live: on the GPU of the next one, in its memory.

A notebook's cells run one after the other, each in a session of its own, and what one cell has put
on the GPU the next one finds there. A script has one session, and needs none of this.
"""

import gc

from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.session import VirtualGPU
from torchtally.virtual.storage import HostMemory, VirtualStorage


def adopt_storages(gpu: VirtualGPU) -> None:
    """Give every living storage of sessions that are over a place in this one.

    What Python no longer reaches is freed first. Raises torch.OutOfMemoryError where they do not
    fit: the chip may be smaller than the one before.
    """
    gc.collect()
    storages = [each for each in gc.get_objects() if type(each) is VirtualStorage]
    for storage in storages:
        home = storage.home
        if isinstance(home, HostMemory) and home is not gpu.mode.host:
            storage.home = gpu.mode.host
        elif isinstance(home, DeviceMemory) and home not in gpu.mode.gpus:
            number = min(home.device.index, len(gpu.mode.gpus) - 1)
            # Its block is of an allocator that nobody asks any more.
            storage.home, storage.block = gpu.mode.gpus[number], None
        else:
            continue
        storage.home.allocate(storage)
