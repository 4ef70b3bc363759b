"""xformers: memory-efficient attention and SwiGLU."""

from . import ops

__version__ = "0.0.35"
__all__ = ["ops"]
