"""Runs as programs: recorded once at a few small sizes, written out as traces at any."""

from torchtally.programs.fitted import LabelledRun, program_of
from torchtally.programs.parts import LAYERS
from torchtally.programs.program import RunProgram
from torchtally.programs.written import write
