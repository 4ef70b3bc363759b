"""Measures this machine: what its products, kernels, copies and host really reach."""
