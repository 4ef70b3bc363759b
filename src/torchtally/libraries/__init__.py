"""Stand-ins of libraries of CUDA kernels, for scripts that import one where it is not installed.

Each folder is a library, loaded under its own name (`virtual/extensions/absent.py`), and has of it
what scripts use: functions and modules that call `operators/`, which have shapes and no values.
What they keep for the backward pass is what the library keeps.
"""
