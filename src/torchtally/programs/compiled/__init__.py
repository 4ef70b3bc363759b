"""Compiled regions, derived from the eager operators of a trace: no compiler is asked."""

from torchtally.programs.compiled.regions import COMPILED_LAYERS, FUSED_BLOCKS, Regions
from torchtally.programs.compiled.rewritten import compiled
