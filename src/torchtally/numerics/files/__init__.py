"""Files of tensors, whose numbers are read in parts: .safetensors, .npy, GGUF, torch's own.

    for tensor in stored_tensors("model.safetensors"):
        for part in tensor.parts():         # arrays of rows, at most a few MB each

PyTorch is imported for files that torch.save has written, and for no others.
"""

from torchtally.numerics.files.folder import SUFFIXES, has_numbers, stored_tensors
from torchtally.numerics.files.stored import StoredTensor

__all__ = ["SUFFIXES", "StoredTensor", "has_numbers", "stored_tensors"]
