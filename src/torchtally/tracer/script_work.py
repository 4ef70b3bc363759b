"""What the script's own code did between operators, with the line that it led to."""

from types import FrameType

from torchtally import torch_private as private
from torchtally.trace import Frame, ScriptWork, Site
from torchtally.tracer.source import Stacks, own_frame
from torchtally.virtual.script_time import SCRIPT_TIME


class ScriptWorks:
    """Work in one run, as measured in the thread that runs operators.

    Not below the autograd engine or in an optimizer's step: what runs there is torch's.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._works: list[ScriptWork] = []
        self._is_compiled = False

    def facts(self) -> tuple[ScriptWork, ...]:
        return tuple(self._works)

    def before_operator(self, tick: int, site: Site, *, is_optimizing: bool) -> None:
        seconds = SCRIPT_TIME.take()
        if seconds and not is_optimizing and private.current_autograd_node() is None:
            self._add(tick, site.line, seconds)

    def before_optimizer(self, tick: int, caller: FrameType) -> None:
        if seconds := SCRIPT_TIME.take():
            self._add(tick, own_frame(self._stacks, caller), seconds)

    def compiled(self, *, runs: bool) -> None:
        """What a compiler has written begins or ends: guards and launches are its own."""
        if runs and not self._is_compiled:
            SCRIPT_TIME.stop()
        elif not runs and self._is_compiled:
            SCRIPT_TIME.go()
        self._is_compiled = runs

    def _add(self, tick: int, frame: Frame | None, seconds: float) -> None:
        self._works.append(ScriptWork(tick, frame, seconds))
