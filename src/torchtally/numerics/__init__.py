"""Numbers of real tensors, and what formats lose of them: of files, of a model, of a training.

file_numbers("model.safetensors", ["fp16", "nvfp4"])       what `tally dtypes FILE` prints
"""

from torchtally.numerics.file_numbers import file_numbers

__all__ = ["file_numbers"]
