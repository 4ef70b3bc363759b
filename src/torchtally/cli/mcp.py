"""`tally mcp`: tools for agents, by the Model Context Protocol."""

from dataclasses import dataclass

from torchtally.cli.arguments import SECONDS
from torchtally.cli.streams import say
from torchtally.errors import UsageError
from torchtally.options import COUNT, Form, OptionRecord, own

SUMMARY = "serve tools to agents by the Model Context Protocol"

EPILOG = """\
examples:
  tally mcp                           over stdio, for the folder it is started in
  tally mcp --root project --jobs 2
  tally mcp --http 8765               on 127.0.0.1; the address is on stderr
  claude mcp add tally -- tally mcp   in an agent's settings: the command `tally mcp`

Tools: run, diff, fit, plan, summary, explain, gpus. Paths are of files in the
folder; what is written goes to its .tally folder, no connection is made, and
the kernel enforces both where it can (Linux 6.7). docs/agents.md has the
contract. Needs `pip install 'torchtally[mcp]'`.
"""
PORTS = 65536


def port(text: str) -> int:
    """The number of a port; 0 for a free one. Raises UsageError."""
    if not (text.isascii() and text.isdigit() and int(text) < PORTS):
        raise UsageError(f"expected the number of a port, 0 for a free one, got {text!r}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class McpOptions(OptionRecord):
    """Serve tools that account for training scripts to an agent, within one folder."""

    root: str = own("--root", "the folder (default: this one)", Form("DIR"), default=".")
    http: int | None = own(
        "--http", "on this port of 127.0.0.1 (0: a free one) instead of stdio", Form("PORT", port)
    )
    jobs: int = own("--jobs", "calls at a time (default 1); others wait", COUNT, default=1)
    waiting: int = own("--waiting", "calls that may wait (default 16)", COUNT, default=16)
    max_seconds: float = own(
        "--max-seconds", "end a call that runs longer (default 600)", SECONDS, default=600.0
    )


def command(options: McpOptions) -> int:
    """Serve until the client has gone. Raises UsageError for a folder that cannot be used."""
    import asyncio

    try:
        import mcp  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"tally mcp needs the package mcp ({error}).\nInstall it: pip install 'torchtally[mcp]'"
        ) from error
    return asyncio.run(serve(options))


async def serve(options: McpOptions) -> int:
    """Serve over stdio or HTTP."""
    import os
    from pathlib import Path

    from torchtally.agents.server import serve_http, serve_stdio, tool_server

    if not os.path.isdir(options.root):
        raise UsageError(f"{options.root}: is not a folder. Name one with --root DIR.")
    tools = tool_server(
        Path(options.root), jobs=options.jobs, waiting=options.waiting, max_s=options.max_seconds
    )
    try:
        confine(str(tools.workspace.shared))
        if options.http is None:
            await serve_stdio(tools)
        else:
            await serve_http(tools, options.http)
    finally:
        tools.workspace.close()
    return 0


def confine(folder: str) -> None:
    """Keep this process, and all it starts, from changing files elsewhere and from connecting;
    says so where the kernel cannot do it.
    """
    from torchtally.isolation.kernel import deny_connections, restrict

    try:
        restrict([folder])
    except OSError as error:
        say(f"tally: files are kept by Python alone, not by the kernel: {error.strerror}")
    if not deny_connections():
        say("tally: connections are refused by Python alone, not by the kernel")
