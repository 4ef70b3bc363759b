"""Hostile calls: nothing crashes, nothing outside of the folder is read as a script or changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.servers import contents, mcp, project, with_client

OUTSIDE = (
    "../secret.py", "/etc/passwd", "link.py", "./../secret.py", "sub/../../secret.py", "~/x.py",
    "/proc/self/environ", "file:///etc/passwd", "..", ".", "", "train.py/../../secret.py",
    "train.py\0.txt", "\0", "x" * 2000, "train.py\n", "-o", "--root=/", "-c", "-", "nothing.py",
    "/dev/stdin", "/dev/null", "https://example.com/x.py", "$(touch pwned)",
    "`touch pwned`", "; touch pwned", "| touch pwned", "&& touch pwned", "con", "*",
)  # fmt: skip
WRONG: tuple[Any, ...] = (None, 7, -1, 1.5, True, [], {}, [["a"]], {"a": 1}, ["x"] * 1000, "1e9")
GPUS = ("", "-h", "--help", "$(id)", "H100;id", "x" * 300, "0xH100", "nosuchgpu", "H100\n", "../x")
OPTIONS = (
    {"output": "x.tally"}, {"torchtitan": "x.toml"}, {"page": "x.html"}, {"-o": "x"},
    {"help": True},
    {"model": "x"}, {"": True}, {"draft": "../secret.py"}, {"draft": "-o"}, {"mfu": "x" * 5000},
    {"stack": "/etc/passwd"}, {"json": "x.json"}, {"a": [1]}, {"replace": True}, {"models ": True},
)  # fmt: skip
URIS = (
    "tally://runs/1/report", "tally://runs/../../../secret.py", "file:///etc/passwd",
    "tally://answers/../../secret.py", "tally://answers/1", "tally://runs/1/by/../../x",
    "tally://runs/%2e%2e/report", "tally:", "tally://", "x" * 5000, "tally://runs/-1/text",
)  # fmt: skip


def calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """Hostile calls that none of the tools may do."""
    for path in OUTSIDE:
        yield "run", {"script": path}
        yield "explain", {"file": path}
        yield "diff", {"before": path, "after": path}
    for value in WRONG:
        yield "run", {"script": value}
        yield "run", {"script": "train.py", "arguments": value if value != [] else 1}
        yield "run", {"script": "train.py", "steps": value if value != 7 else 10**9}
        yield "fit", {"script": "train.py", "vary": value, "gpus": value}
        yield "fix", {"script": "train.py", "goal": value if value is not None else 1}
        yield "plan", {"options": value if value != {} else 1}
        yield "summary", {"model": value if value != "1e9" else "../secret.py:Net"}
    for gpu in GPUS:
        yield "run", {"script": "train.py", "gpu": gpu if gpu not in ("0xH100", "nosuchgpu") else 1}
    for options in OPTIONS:
        yield "plan", {"model": "llama-3-8b", "options": options}
    for model in ("../secret.py:Net", "/etc/passwd", "link.py:Net", "-o", "~"):
        yield "summary", {"model": model}
        yield "plan", {"model": model}
    yield "run", {"script": "train.py", "output": "x.tally"}
    yield "run", {"script": "train.py", "arguments": ["x" * 4000] * 64}
    yield "run", {"script": "train.py", "arguments": ["a\0b"]}
    yield "no such tool", {}
    yield "run\0", {}
    yield "", {"script": "train.py"}
    yield "fit", {}


def test_two_hundred_hostile_calls_are_refused(tmp_path: Path) -> None:
    root = project(tmp_path)
    before = contents(tmp_path, root / ".tally")
    hostile = list(calls())
    assert len(hostile) >= 200

    async def use(client: Any) -> None:
        for name, arguments in hostile:
            try:
                result = await client.call_tool(name, arguments)
            except (mcp.MCPError, ValueError):  # the protocol's own layer refused it
                continue
            assert result.is_error, (name, str(arguments)[:200], result.content[0].text[:300])
            assert "Traceback" not in result.content[0].text, (name, arguments)
            assert "outside" not in result.content[0].text.partition("Name a file")[0]
        for uri in URIS:
            with pytest.raises(Exception, match=r".*"):
                await client.read_resource(uri)
        # It is as well as before.
        good = await client.call_tool("gpus", {"gpu": "T4"})
        assert not good.is_error

    with_client(root, use)
    assert contents(tmp_path, root / ".tally") == before


HARMFUL = """\
import os, pathlib, socket, subprocess
outside = pathlib.Path(__file__).resolve().parent.parent
def tried(function, *words):
    try:
        function(*words)
    except Exception as error:
        print(type(error).__name__)
tried((outside / "secret.py").write_text, "gone")
tried(os.unlink, outside / "secret.py")
tried((outside / "new.txt").write_text, "new")
tried(os.unlink, "net.py")
tried(pathlib.Path("train.py").write_text, "gone")
tried(subprocess.run, ["sh", "-c", "echo gone > ../secret.py; rm -f train.py; touch pwned"])
tried(socket.create_connection, ("127.0.0.1", 9), 1)
import torch
torch.ones(8, device="cuda", requires_grad=True).sum().backward()
"""
HARMFUL_MODEL = """\
import os, pathlib
outside = pathlib.Path(__file__).resolve().parent.parent
for path in (outside / "secret.py", outside / "new.txt", pathlib.Path("train.py")):
    try:
        path.write_text("gone")
    except OSError:
        pass
import torch
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
"""


def test_code_that_tools_run_changes_nothing(tmp_path: Path) -> None:
    """A script and a model's module try to write, remove and connect."""
    root = project(tmp_path)
    (root / "harm.py").write_text(HARMFUL)
    (root / "model.py").write_text(HARMFUL_MODEL)
    before = contents(tmp_path, root / ".tally")

    async def use(client: Any) -> None:
        await client.call_tool("run", {"script": "harm.py"})
        await client.call_tool("summary", {"model": "model.py:Net", "inputs": ["2x4"]})
        await client.call_tool("fit", {"script": "harm.py", "vary": "{}", "largest": 2})

    with_client(root, use)
    assert contents(tmp_path, root / ".tally") == before


def test_a_change_would_be_found(tmp_path: Path) -> None:
    root = project(tmp_path)
    before = contents(tmp_path, root / ".tally")
    (tmp_path / "secret.py").write_text("gone")
    assert contents(tmp_path, root / ".tally") != before
