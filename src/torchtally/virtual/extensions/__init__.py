"""Kernels that are not PyTorch's: of the script, by Triton or CUDA C++, and of libraries.

A launch is an operator like any other (`launches.py`). What a Triton kernel reads and writes is
read from its source (`accesses.py`); what it computes is what the script declares (`declared.py`).
"""
