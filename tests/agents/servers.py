"""A server as agents start it, and the official client beside it."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

mcp: Any = pytest.importorskip("mcp", reason="mcp speaks the protocol")

SCRIPT = """\
import sys
import torch
batch = int(sys.argv[2]) if sys.argv[2:] else 64
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(batch, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SLOW = """\
import time
open("begun.txt", "w").close()
end = time.monotonic() + 600
while time.monotonic() < end:
    pass
"""
NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        open("written.txt", "w").close()
        self.first = torch.nn.Linear(4, 8)

    def forward(self, x):
        return self.first(x).relu()
"""
TIMEOUT_S = 240


def project(folder: Path) -> Path:
    """A folder with scripts, within one whose files must not change."""
    root = folder / "project"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    (root / "slow.py").write_text(SLOW)
    (root / "net.py").write_text(NET)
    (folder / "secret.py").write_text("print('outside')")
    (root / "link.py").symlink_to(folder / "secret.py")
    return root


def command(root: Path, *words: str) -> list[str]:
    return ["-m", "torchtally", "mcp", "--root", str(root), *words]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def with_client(root: Path, use: Callable[[Any], Awaitable[None]], *words: str) -> None:
    """Use a client of a server of this folder, over stdio."""
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=command(root, *words), env=environment()
    )

    async def session() -> None:
        async with asyncio.timeout(TIMEOUT_S), mcp.Client(parameters) as client:
            await use(client)

    asyncio.run(session())


def answer_of(result: Any) -> dict[str, Any]:
    """The answer of a call, which its text and its structured content agree on."""
    assert not result.is_error, result.content[0].text
    answer: dict[str, Any] = json.loads(result.content[0].text)
    assert answer == result.structured_content
    return answer


def contents(folder: Path, without: Path) -> dict[str, bytes | str]:
    """Every file below a folder but those below another, with what is in it."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.is_relative_to(without) and (path.is_symlink() or path.is_file())
    }
