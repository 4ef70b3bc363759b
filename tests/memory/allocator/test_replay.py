"""A trace run through the allocator again says what the run said, and what other settings would."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.builders import TraceBuilder, factory_call
from tests.traces import traced
from torchtally import memory
from torchtally.memory.allocator import AllocatorSettings, replay
from torchtally.trace import CacheEmptied, Trace

pytestmark = pytest.mark.one_case_in(3)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
EXPANDABLE = AllocatorSettings.parse("expandable_segments:True")
PEAKS: list[tuple[int, int]] = []
"""(allocated, reserved) at most, as `torch.cuda` said in the run."""


class Block(nn.Module):
    """A transformer's layer of 32 channels and two heads."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + heads.transpose(1, 2).flatten(2)
        out: torch.Tensor = self.down(F.gelu(self.up(x)))
        return x + out


def remember() -> None:
    PEAKS.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))


def gpt(
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    recomputes: bool = False,
    autocast: bool = False,
    batch: int = 8,
    **options: object,
) -> None:
    """Two steps of two layers."""
    embedding, head = nn.Embedding(100, 32).cuda(), nn.Linear(32, 100).cuda()
    blocks = nn.ModuleList([Block(), Block()]).cuda()
    layers = (embedding, blocks, head)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    chosen_optimizer = optimizer(parameters, lr=0.1, **options)
    for _ in range(2):
        x = embedding(torch.randint(100, (batch, 64)).cuda())
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False) if recomputes else block(x)
            loss = head(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        chosen_optimizer.step()
        chosen_optimizer.zero_grad()
    remember()


def images() -> None:
    """Convolutions, batch norm, pools; SGD with momentum."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.GroupNorm(4, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        images = torch.randn(32, 3, 40, 40).cuda()
        loss = F.cross_entropy(model(images), torch.zeros(32, dtype=torch.int64).cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    remember()


def sequences() -> None:
    """An LSTM, dropout, and a cache that is emptied in between."""
    model = nn.LSTM(16, 64, 2, dropout=0.1, batch_first=True).cuda()
    for size in (100, 200, 50):
        out, _ = model(torch.randn(4, size, 16, device="cuda"))
        out.sum().backward()
        del out
        torch.cuda.empty_cache()
    remember()


def resized() -> None:
    """Storages that grow in place, and temporaries of odd sizes."""
    kept = torch.zeros(1000, device="cuda")
    for size in (3_000_000, 10, 6_000_000):
        kept.untyped_storage().resize_(4 * size)
        (torch.zeros(size + 1, device="cuda") + 1).sort()
    remember()


def streams() -> None:
    """Two streams, each with memory of its own."""
    side = torch.cuda.Stream()
    for size in (300, 30_000, 3_000_000):
        first = torch.ones(size, device="cuda")
        with torch.cuda.stream(side):
            second = torch.ones(size, device="cuda") * 2
        del first, second
    remember()


SCRIPTS: dict[str, Callable[[], None]] = {
    "gpt": gpt,
    "foreach": lambda: gpt(foreach=True),
    "fused": lambda: gpt(fused=True),
    "single": lambda: gpt(foreach=False),
    "checkpointing": lambda: gpt(recomputes=True),
    "autocast": lambda: gpt(autocast=True),
    "images": images,
    "sequences": sequences,
    "resized": resized,
    "streams": streams,
}


def run(script: Callable[[], None], gpu: str = "H100-SXM") -> tuple[Trace, int, int]:
    """The trace, and the peaks that the script was told: allocated and reserved."""
    PEAKS.clear()
    trace = traced(script, gpu)
    return trace, *PEAKS[-1]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_trace_says_what_torch_cuda_said(name: str) -> None:
    """To the byte: bytes held by storages, bytes in segments, and both again by replay."""
    trace, allocated_bytes, reserved_bytes = run(SCRIPTS[name])
    assert memory.replay(trace).peak_bytes == allocated_bytes
    assert max(reserved.bytes for reserved in trace.reserved) == reserved_bytes
    again = replay(trace)
    assert (again.peak_allocated_bytes, again.peak_reserved_bytes) == (
        allocated_bytes,
        reserved_bytes,
    )
    assert again.fits
    assert again.refused_tick is None


@pytest.mark.parametrize("text", ["expandable_segments:True", "roundup_power2_divisions:2"])
def test_a_run_under_settings_is_replayed_under_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, *_ = run(SCRIPTS["gpt"])
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", text)
    trace, allocated_bytes, reserved_bytes = run(SCRIPTS["gpt"])
    assert trace.allocator_settings == text
    again = replay(trace)
    assert (again.peak_allocated_bytes, again.peak_reserved_bytes) == (
        allocated_bytes,
        reserved_bytes,
    )
    # What the plain run would have been under these settings.
    asked = replay(plain, settings=AllocatorSettings.parse(text))
    assert (asked.peak_allocated_bytes, asked.peak_reserved_bytes) == (
        allocated_bytes,
        reserved_bytes,
    )
    assert replay(trace, settings=AllocatorSettings()) == replay(plain)


def test_under_a_capacity_it_fits_from_the_peak_on_and_not_below_what_is_held() -> None:
    trace, allocated_bytes, reserved_bytes = run(SCRIPTS["gpt"])
    assert replay(trace, capacity_bytes=reserved_bytes) == replay(trace)
    short = replay(trace, capacity_bytes=allocated_bytes - MIB)
    assert not short.fits
    assert short.refused is not None
    assert short.peak_reserved_bytes <= allocated_bytes - MIB
    assert short.refused_tick is not None
    assert 0 < short.refused_tick <= memory.replay(trace).peak_tick


# By hand ---------------------------------------------------------------------------------------


def growing() -> TraceBuilder:
    """Tensors of 20, 22 and 24 MiB, each gone before the next."""
    builder = TraceBuilder()
    number = -1
    for size in (20, 22, 24):
        if number >= 0:
            builder.free(number)
        number = builder.run(factory_call(1), size=size * MIB)
    return builder


def test_segments_pile_up_where_sizes_grow_and_do_not_where_they_expand() -> None:
    trace = growing().build()
    assert replay(trace).peak_reserved_bytes == (20 + 22 + 24) * MIB
    assert replay(trace, settings=EXPANDABLE).peak_reserved_bytes == 40 * MIB
    assert replay(trace).peak_allocated_bytes == 24 * MIB
    tight = replay(trace, capacity_bytes=60 * MIB)
    assert (tight.fits, tight.alloc_retries, tight.peak_reserved_bytes) == (True, 1, 42 * MIB)
    none = replay(trace, capacity_bytes=23 * MIB, total_bytes=GIB)
    assert none.refused is not None
    assert (none.refused_tick, none.refused.requested_bytes) == (2, 24 * MIB)
    assert "total capacity of 1024.00 MiB" in str(none.refused)


def test_a_cache_emptied_in_the_run_is_emptied_in_the_replay() -> None:
    replayed = growing()
    trace = replayed.build()
    emptied = (CacheEmptied("cuda:0", 1), CacheEmptied("cuda:0", 2))
    trace = replace(trace, emptied=emptied)
    assert replay(trace).peak_reserved_bytes == 24 * MIB


def test_streams_do_not_share_in_the_replay() -> None:
    builder = TraceBuilder()
    builder.free(builder.run(factory_call(1), size=512))
    builder.stream = 7
    builder.run(factory_call(1), size=512)
    assert replay(builder.build()).peak_reserved_bytes == 4 * MIB


def test_a_replay_that_differs_is_noticed() -> None:
    """A tensor of 2 MiB more at the peak, and no figure is what the run said."""
    trace, allocated_bytes, reserved_bytes = run(SCRIPTS["gpt"])
    one = trace.storages[0]
    more = type(one)(one.number, one.device, one.requested_bytes + 40 * MIB, one.born, None)
    spoiled = replace(trace, storages=(more, *trace.storages[1:]))
    again = replay(spoiled)
    assert again.peak_allocated_bytes > allocated_bytes
    assert again.peak_reserved_bytes > reserved_bytes
    assert memory.replay(spoiled).peak_bytes > allocated_bytes
