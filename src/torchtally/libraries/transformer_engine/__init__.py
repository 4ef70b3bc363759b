"""transformer_engine: linear layers and norms in float8."""

__version__ = "2.8.0"
