"""Memory snapshots of the virtual GPU, in the form of `torch.cuda.memory._snapshot()`.

The web viewer reads only plain dictionaries, lists, strings and numbers. Frames are shared objects:
a pickle stores each one once.
"""

import sys
import time
from collections import deque
from pathlib import Path
from types import CodeType
from typing import Any

from torchtally.memory.allocator import Block, segment_record, settings_record
from torchtally.virtual.device_memory import DeviceMemory

OURS = str(Path(__file__).parent.parent)

Frames = tuple[dict[str, Any], ...]


class MemoryHistory:
    """Events of one GPU's allocator while recording is on."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.metadata = ""
        self._entries: deque[dict[str, Any]] = deque()
        self._frames: dict[tuple[CodeType, int], dict[str, Any]] = {}
        self._context: str | None = None
        self._keeps_events = False
        self._skipped: frozenset[str] = frozenset()

    def record(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Any = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Start or stop, with the arguments of torch's own function.

        Pinned memory of the host is not recorded.
        """
        enabled = enabled if record_cuda else None
        self._keeps_events = enabled == "all"
        self._context = context if enabled else None
        self._skipped = frozenset(skip_actions)
        kept = () if clear_history or not enabled else self._entries
        self._entries = deque(kept, maxlen=min(max_entries, sys.maxsize))
        self.memory.allocator.happened = self._happened if enabled else None

    def _happened(
        self, action: str, address: int, size: int, stream: int, block: Block | None
    ) -> None:
        frames: Frames = ()
        if (
            self._context in ("all", "alloc", "state") and action == "alloc"
        ) or self._context == "all":
            frames = self._stack()
        if action == "alloc" and block is not None:
            block.frames = frames
        if self._keeps_events and action not in self._skipped:
            self._entries.append(
                {
                    "action": action,
                    "device_free" if action == "oom" else "addr": address,
                    "size": size,
                    "stream": stream,
                    "time_us": time.time_ns() // 1000,
                    "frames": list(frames),
                    **({"user_metadata": self.metadata} if self.metadata else {}),
                }
            )

    def _stack(self) -> Frames:
        """The Python frames of this thread, innermost first, without our own."""
        frames = []
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(OURS):
                key = (code, frame.f_lineno)
                if key not in self._frames:
                    self._frames[key] = {
                        "filename": code.co_filename,
                        "line": frame.f_lineno,
                        "name": code.co_name,
                    }
                frames.append(self._frames[key])
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(frames)

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        """Traceback of the allocation of the block at an address, if that was recorded."""
        block = self.memory.allocator.block_at(address)
        return list(block.frames) if block is not None and block.frames else None

    def segments(self) -> list[dict[str, Any]]:
        """Every segment with its blocks, by address."""
        device = self.memory.device.index or 0
        return [segment_record(blocks, device) for blocks in self.memory.allocator.segments()]

    def entries(self) -> list[dict[str, Any]]:
        return list(self._entries)


def snapshot(histories: list[MemoryHistory]) -> dict[str, Any]:
    """All GPUs' segments and histories."""
    return {
        "segments": [segment for history in histories for segment in history.segments()],
        "device_traces": [history.entries() for history in histories],
        "allocator_settings": settings_record(histories[0].memory.allocator.settings),
        "external_annotations": [],
    }
