"""PyTorch's own decisions about device memory, recorded without a GPU.

A stand-in for the CUDA driver (`driver.c`) is preloaded into a CUDA build of PyTorch. The caching
allocator and the operators are PyTorch's own; only the device below them is not there.
"""
