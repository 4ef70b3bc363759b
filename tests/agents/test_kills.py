"""Servers that are killed leave no process behind and nothing outside of their folder."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agents.servers import answer_of, command, contents, environment, project, with_client

KILLS = 3
REQUESTS = (
    {"method": "initialize", "id": 1, "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}},
    {"method": "notifications/initialized"},
    {"method": "tools/call", "id": 2, "params": {
        "name": "run", "arguments": {"script": "slow.py"}}},
)  # fmt: skip


def kill_one(root: Path, after_s: float) -> None:
    """Kill a server so many seconds after it was asked for a run."""
    server = subprocess.Popen(
        [sys.executable, *command(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    assert server.stdin is not None
    for request in REQUESTS:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")
    server.stdin.flush()
    time.sleep(after_s)
    server.kill()
    server.wait()
    server.stdin.close()


def processes_of(root: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                where, line = os.readlink(entry / "cwd"), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if where.startswith(str(root)) and line:
                found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def none_left(root: Path, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while processes_of(root) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return not processes_of(root)


def check_kills(folder: Path, kills: int) -> None:
    root = project(folder)
    before = contents(folder, root / ".tally")
    chance = random.Random(7)
    for _ in range(kills):
        kill_one(root, chance.uniform(0.0, 4.0))
        assert none_left(root, 20), processes_of(root)
        assert contents(folder, root / ".tally") == before

    async def use(client: Any) -> None:
        answer = answer_of(await client.call_tool("run", {"script": "train.py"}))
        assert answer["answer"]["claim"] == "fits"
        servers = root / ".tally" / "mcp"
        assert len(list(servers.iterdir())) == 1  # those of killed servers are gone

    with_client(root, use)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends what a killed server started")
def test_some_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, KILLS)


@pytest.mark.thorough("test_some_kills")
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends what a killed server started")
def test_fifty_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, int(os.environ.get("TALLY_KILLS", "50")))


def test_a_process_that_stayed_would_be_found(tmp_path: Path) -> None:
    stayed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=tmp_path)
    try:
        assert not none_left(tmp_path, 0.5)
    finally:
        stayed.send_signal(signal.SIGKILL)
        stayed.wait()
    assert none_left(tmp_path, 5)
