"""Numbers of real tensors, and what formats lose of them: of files, of a model, of a training.

    file_numbers("model.safetensors", ["fp16", "nvfp4"])       what `tally dtypes FILE` prints
    numbers(model)                                             the same of weights and gradients
    NumbersWatch(model, optimizer, every=100)                  gradients and updates of a training

Import the last two from their files: they need torch.
"""

from torchtally.numerics.file_numbers import file_numbers

__all__ = ["file_numbers"]
