"""Plays one sequence of allocations against PyTorch's allocator: JSON in, JSON out."""

import ctypes
import json
import sys
from typing import Any

import torch

STATS = [
    *(
        f"{name}.{pool}.{when}"
        for name in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
        for pool in ("all",)
        for when in ("current", "peak")
    ),
    *(
        f"{name}.{pool}.{when}"
        for name in ("inactive_split_bytes", "segment")
        for pool in ("small_pool", "large_pool")
        for when in ("current", "peak")
    ),
    *("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
    *("oversize_allocations.current", "oversize_segments.current"),
]
STATS_EVERY = 10
FREE = "inactive"  # the requested size of such a block is whatever was there before


def place(address: int) -> list[int]:
    """Which of the driver's ranges an address lies in, by the order of their making, and where."""
    which, offset = ctypes.c_uint64(), ctypes.c_uint64()
    status = ctypes.CDLL(None).standin_locate(
        ctypes.c_uint64(address), ctypes.byref(which), ctypes.byref(offset)
    )
    assert status, hex(address)
    return [which.value, offset.value]


def stats() -> list[int]:
    """The allocator's own figures, in the order of STATS."""
    said = torch.cuda.memory_stats()
    return [said[name] for name in STATS]


def snapshot(streams: dict[int, int]) -> list[Any]:
    """The segments and their blocks, without addresses."""
    return [
        {
            "place": place(segment["address"]),
            "size": segment["total_size"],
            "stream": streams[segment["stream"]],
            "pool": segment["segment_type"],
            "expandable": segment["is_expandable"],
            "blocks": [
                [block["size"], block["requested_size"] * (block["state"] != FREE), block["state"]]
                for block in segment["blocks"]
            ],
        }
        for segment in sorted(torch.cuda.memory_snapshot(), key=lambda one: one["address"])
    ]


def play(events: list[list[Any]]) -> dict[str, Any]:
    """What the allocator answered to each."""
    torch.cuda.init()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    held: dict[int, torch.Tensor] = {}
    answers: list[Any] = []
    said: list[Any] = []
    for index, event in enumerate(events):
        answer: Any = None
        match event:
            case ["alloc", number, size, stream]:
                try:
                    with torch.cuda.stream(streams[stream]):
                        held[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
                    answer = place(held[number].data_ptr())
                except torch.OutOfMemoryError as error:
                    answer = {"oom": str(error)}
            case ["free", number]:
                answer = "freed" if held.pop(number, None) is not None else "not held"
            case ["record_stream", number, stream]:
                if number in held:
                    held[number].record_stream(streams[stream])
            case ["empty_cache"]:
                torch.cuda.empty_cache()
            case ["reset_peak"]:
                torch.cuda.reset_peak_memory_stats()
            case ["fraction", fraction]:
                torch.cuda.set_per_process_memory_fraction(fraction)
            case _:
                raise AssertionError(event)
        answers.append(answer)
        if index % STATS_EVERY == STATS_EVERY - 1 or index == len(events) - 1:
            said.append([index, *stats()])
    numbers = {stream.cuda_stream: number for number, stream in enumerate(streams)}
    return {
        "torch": torch.__version__,
        "names": STATS,
        "answers": answers,
        "stats": said,
        "snapshot": snapshot(numbers),
    }


if __name__ == "__main__":
    json.dump(play(json.load(sys.stdin)), sys.stdout)
