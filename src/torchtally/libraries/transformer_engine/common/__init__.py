"""transformer_engine.common."""
