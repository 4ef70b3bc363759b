"""transformer_engine: linear layers and norms in float8."""

from . import common, pytorch

__all__ = ["common", "pytorch"]
__version__ = "2.8.0"
