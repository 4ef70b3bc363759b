"""Every answer of PyTorch's own allocator, given again by the model.

`tests/truth/allocator.json.gz` holds what c10's allocator did with 49 sequences of requests, under
18 settings, on a stand-in for the CUDA driver (see `tests/truth/driver`): the place of every block,
its statistics, its error messages and its snapshots.
"""

import gzip
import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest

from torchtally.memory.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemoryError

RECORDED = json.loads(
    gzip.decompress((Path(__file__).parents[2] / "truth" / "allocator.json.gz").read_bytes())
)
CASES = {case["name"]: case for case in RECORDED["cases"]}
STATS = RECORDED["stats"]


class Player:
    """Plays a recorded case against the model."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.allocator = CachingAllocator(
            AllocatorSettings.parse(case["settings"]), capacity_bytes=case["capacity_bytes"]
        )
        self.allocator.happened = self.happened
        self.held: dict[int, Block] = {}
        self.bases: list[int] = []

    def happened(self, action: str, address: int, size: int, stream: int, block: Any) -> None:
        """Keep the bases of all ranges of addresses, in the order of their making."""
        if action == "segment_alloc":
            self.bases.append(address)
        elif action == "segment_map" and block.segment.address not in self.bases:
            self.bases.append(block.segment.address)

    def place(self, address: int) -> list[int]:
        which = bisect_right(self.bases, address) - 1
        return [which, address - self.bases[which]]

    def play(self, event: list[Any]) -> Any:
        allocator = self.allocator
        match event:
            case ["alloc", number, size, stream]:
                allocator.synchronize()  # the recorded device's events were always complete
                try:
                    self.held[number] = allocator.allocate(size, stream)
                except OutOfMemoryError as error:
                    return {"oom": str(error)}
                return self.place(self.held[number].address)
            case ["free", number]:
                if number not in self.held:
                    return "not held"
                allocator.free(self.held.pop(number))
                return "freed"
            case ["record_stream", number, stream]:
                if number in self.held:
                    allocator.record_stream(self.held[number], stream)
            case ["empty_cache"]:
                allocator.empty_cache()
            case ["reset_peak"]:
                allocator.statistics.reset_peaks()
            case ["fraction", fraction]:
                allocator.fraction = fraction
            case _:
                raise AssertionError(event)
        return None

    def stats(self) -> list[int]:
        nested = self.allocator.statistics.as_nested_dict(self.allocator.settings.max_split_bytes)
        stats = []
        for name in STATS[1:]:
            value: Any = nested
            for part in name.split("."):
                value = value[part]
            stats.append(value)
        return stats

    def snapshot(self) -> list[Any]:
        segments_seen = []
        for blocks in self.allocator.segments():
            head = blocks[0]
            segments_seen.append(
                {
                    "place": self.place(head.address),
                    "size": sum(block.size for block in blocks),
                    "stream": head.stream,
                    "pool": "small" if head.pool.is_small else "large",
                    "expandable": head.segment is not None,
                    "blocks": [
                        [block.size, 0 if block.is_available else block.requested_bytes,
                         state(block)]
                        for block in blocks
                    ],
                }
            )  # fmt: skip
        return segments_seen


def state(block: Block) -> str:
    if block.is_allocated:
        return "active_allocated"
    return "active_pending_free" if block.is_pending else "inactive"


def message(answer: Any) -> Any:
    """Without what this process takes besides, which the recorded driver could not say."""
    if not isinstance(answer, dict):
        return answer
    return re.sub(r"Including non-PyTorch memory[^.]*\.\d+ \w+ memory in use\. ", "", answer["oom"])


@pytest.mark.parametrize("name", CASES)
def test_every_answer_is_torchs(name: str):
    case = CASES[name]
    player = Player(case)
    stats = {row[0]: row[1:] for row in case["stats"]}
    for index, (event, answer) in enumerate(zip(case["events"], case["answers"], strict=True)):
        assert message(player.play(event)) == message(answer), f"event {index}: {event}"
        if index in stats:
            named = dict(zip(STATS[1:], player.stats(), strict=True))
            assert named == dict(zip(STATS[1:], stats[index], strict=True)), f"after {index}"
    assert player.snapshot() == case["snapshot"]


def test_it_would_be_noticed():
    """One byte more asked for, and the recorded answers are not met."""
    case = json.loads(json.dumps(CASES["edges default"]))
    case["events"][2][2] += 1  # 512 becomes 513, and takes 1024
    player = Player(case)
    answers = [message(player.play(event)) for event in case["events"]]
    assert answers != [message(answer) for answer in case["answers"]]
