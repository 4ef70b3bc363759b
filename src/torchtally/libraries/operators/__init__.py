"""Operators of libraries of CUDA kernels: schemas and shapes. `work/` has their FLOPs."""
