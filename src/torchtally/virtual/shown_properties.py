"""What `torch.cuda.get_device_properties` gives."""

from types import SimpleNamespace

MIB = 1024**2


class ShownProperties(SimpleNamespace):
    """What is published of a chip; printed as torch prints its own, less uuid and PCI address.

    https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/cuda/Module.cpp
    """

    def __repr__(self) -> str:
        facts = vars(self)
        words = [f"{name}={facts[name]!r}" for name in ("name", "major", "minor")]
        words.append(f"total_memory={facts['total_memory'] // MIB}MB")
        if "multi_processor_count" in facts:
            words.append(f"multi_processor_count={facts['multi_processor_count']}")
        if "L2_cache_size" in facts:
            words.append(f"L2_cache_size={facts['L2_cache_size'] // MIB}MB")
        return f"_CudaDeviceProperties({', '.join(words)})"
