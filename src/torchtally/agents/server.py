"""The server: its tools and resources by the Model Context Protocol, over stdio or HTTP.

The official package `mcp` speaks the protocol; what a tool does is a command of `tally`.
"""

import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import mcp_types
import msgspec
from mcp.server import Server, ServerRequestContext
from msgspec import Meta

from torchtally.agents.arguments import TOOLS, RunArguments, input_schema
from torchtally.agents.calls import CommandQueue, EndedCommand
from torchtally.agents.workspace import BRIEF, TRACE, ServerFolder
from torchtally.errors import TallyError, UsageError

Context = ServerRequestContext[Any, Any]

MOST_ANSWER_BYTES = 24_000
"""Of a document in an answer: a longer one is a resource, and its numbers and texts of the first
level, and names in its lists, are the answer."""
MOST_ARGUMENT_BYTES = 64_000
MOST_MESSAGE = 2000
SCHEME = "tally"
VIEWS = ("line", "module", "op", "phase", "category", "bound")
LOOPBACK = "127.0.0.1"

INSTRUCTIONS = """\
Costs of PyTorch training scripts without a GPU: memory, time, FLOPs and money, by line. `run` a
script after each edit: it answers in seconds whether it fits and what changed since its last run.
Paths are of files in the server's folder; scripts run isolated and without network, change no file,
and end after some steps. Long answers are resources (tally://...).
"""


class ToolAnswer(msgspec.Struct, frozen=True):
    """What every tool returns."""

    tool: str
    exit_code: Annotated[
        int, Meta(description="Of the command; 1: it failed or nothing fits, 3: a limit is broken")
    ]
    answer: Annotated[
        dict[str, Any], Meta(description="The document, which names its schema first")
    ]
    is_whole: Annotated[bool, Meta(description="Whether all of the document is here")] = True
    run: Annotated[str | None, Meta(description="The number of the run")] = None
    resource: Annotated[str | None, Meta(description="Where the whole document is")] = None
    message: Annotated[str, Meta(description="What the command printed where it failed")] = ""


@dataclass(frozen=True, slots=True)
class ToolServer:
    """The tools and resources of a workspace."""

    workspace: ServerFolder
    calls: CommandQueue

    def server(self) -> "Server[Any]":
        """The protocol's side of it."""
        return Server(
            "tally",
            version=version("torchtally"),
            title="torchtally",
            instructions=INSTRUCTIONS,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
        )

    # Tools ---------------------------------------------------------------------------------------

    async def list_tools(
        self, context: Context, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        """Every tool with the schema of its arguments and of its answer."""
        return mcp_types.ListToolsResult(
            tools=[
                mcp_types.Tool(
                    name=name,
                    description=" ".join((getdoc(kind) or "").split()),
                    input_schema=input_schema(kind),
                    output_schema=input_schema(ToolAnswer),
                    annotations=mcp_types.ToolAnnotations(
                        read_only_hint=True, destructive_hint=False, open_world_hint=False
                    ),
                )
                for name, kind in TOOLS.items()
            ]
        )

    async def call_tool(
        self, context: Context, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        """Call a tool. What cannot be done is an answer with a message, not an error of the
        protocol, so that a model reads it.
        """
        try:
            answer = await self.answer(context, params.name, params.arguments or {})
        except msgspec.ValidationError as error:
            return failed(f"{params.name[:64]}: {error}")
        except TallyError as error:
            return failed(str(error))
        return mcp_types.CallToolResult(
            content=[mcp_types.TextContent(text=msgspec.json.encode(answer).decode())],
            structured_content=msgspec.to_builtins(answer),
            is_error=not answer.answer,
        )

    async def answer(self, context: Context, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """The answer of a tool. Raises UsageError, BusyError and msgspec.ValidationError."""
        kind = TOOLS.get(name)
        if kind is None:
            raise UsageError(f"there is no tool {name[:64]!r}. There are: {', '.join(TOOLS)}.")
        if len(json.dumps(arguments)) > MOST_ARGUMENT_BYTES:
            raise UsageError(f"{name}: arguments of more than {MOST_ARGUMENT_BYTES} bytes.")
        asked = msgspec.convert(arguments, kind)
        words = asked.words(self.workspace)
        if any("\0" in word for word in words):
            raise UsageError(f"{name}: arguments have no NUL characters.")
        if isinstance(asked, RunArguments):
            return await self.run(context, words)
        ended = await self.command(context, words)
        return self.told(name, ended, ended.stdout)

    async def run(self, context: Context, words: Sequence[str]) -> ToolAnswer:
        """The answer of a run, whose files are in a folder of its own."""
        number, folder = self.workspace.new_run()
        files = ("-o", str(folder / TRACE), "--json", str(folder / BRIEF))
        ended = await self.command(context, [words[0], *files, *words[1:]])
        brief = folder / BRIEF
        document = brief.read_text(encoding="utf-8") if brief.is_file() else ""
        return self.told("run", ended, document, run=number if document else None)

    async def command(self, context: Context, words: Sequence[str]) -> EndedCommand:
        """Run a command, telling its progress to who asked for it."""

        async def progress(elapsed_s: float, message: str) -> None:
            await context.session.report_progress(elapsed_s, None, message)

        return await self.calls.run(words, progress)

    def told(self, tool: str, ended: EndedCommand, text: str, run: str | None = None) -> ToolAnswer:
        """The answer that a command's document makes, and what it printed where there is none."""
        document = document_of(text)
        if document is None:
            message = ended.stderr.strip()[-MOST_MESSAGE:] or "the command answered nothing"
            return ToolAnswer(tool, ended.code, {}, message=message)
        message = "" if ended.code == 0 else ended.stderr.strip()[-MOST_MESSAGE:]
        if len(text) <= MOST_ANSWER_BYTES:
            return ToolAnswer(tool, ended.code, document, run=run, message=message)
        resource = f"{SCHEME}://answers/{self.workspace.keep_answer(text)}"
        return ToolAnswer(tool, ended.code, reduced(document), False, run, resource, message)

    # Resources -----------------------------------------------------------------------------------

    async def list_resources(
        self, context: Context, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListResourcesResult:
        """Reports of the runs that are kept, and long answers."""
        runs = [
            (f"{SCHEME}://runs/{run}/{what}", f"Run {run}: {title}", kind)
            for run in self.workspace.runs()
            for what, title, kind in (
                ("report", "the whole document run/1", "application/json"),
                ("text", "the page about it", "text/plain"),
            )
        ]
        answers = [
            (f"{SCHEME}://answers/{number}", f"Answer {number} in full", "application/json")
            for number in self.workspace.answers()
        ]
        return mcp_types.ListResourcesResult(
            resources=[
                mcp_types.Resource(uri=uri, name=name, mime_type=kind)
                for uri, name, kind in (*runs, *answers)
            ]
        )

    async def list_templates(
        self, context: Context, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListResourceTemplatesResult:
        """Views of a run."""
        template = mcp_types.ResourceTemplate(
            uri_template=f"{SCHEME}://runs/{{run}}/by/{{view}}",
            name="A view of a run in full",
            description=f"view: {', '.join(VIEWS)}",
            mime_type="application/json",
        )
        return mcp_types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: Context, params: mcp_types.ReadResourceRequestParams
    ) -> mcp_types.ReadResourceResult:
        """The text of a resource. Raises MCPError for what is not kept."""
        from mcp import MCPError

        uri = str(params.uri)
        try:
            text, kind = await self.resource(context, uri)
        except TallyError as error:
            raise MCPError(mcp_types.INVALID_PARAMS, str(error)) from error
        contents = mcp_types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)
        return mcp_types.ReadResourceResult(contents=[contents])

    async def resource(self, context: Context, uri: str) -> tuple[str, str]:
        """Text and kind of a resource. Raises UsageError and BusyError."""
        parts = urlsplit(uri[:1024])
        path = [unquote(part) for part in (parts.netloc + parts.path).split("/")]
        unknown = UsageError(f"{uri[:200]}: is not a resource that is kept.")
        if parts.scheme != SCHEME:
            raise unknown
        if path[0] == "answers" and len(path) == 2:
            return self.workspace.answer(path[1]), "application/json"
        if path[0] != "runs" or len(path) < 3 or path[1] not in self.workspace.runs():
            raise unknown
        words = ["show", self.workspace.trace(path[1])]
        if path[2:] == ["text"]:
            return (await self.command(context, words)).stdout, "text/plain"
        if path[2] == "by" and len(path) == 4 and path[3] in VIEWS:
            words += [f"--by={path[3]}"]
        elif path[2:] != ["report"]:
            raise unknown
        ended = await self.command(context, [*words, "--json=-"])
        if document_of(ended.stdout) is None:
            raise UsageError(ended.stderr.strip()[-MOST_MESSAGE:])
        return ended.stdout, "application/json"


def failed(message: str) -> mcp_types.CallToolResult:
    """A result that says why there is none."""
    text = mcp_types.TextContent(text=message[:MOST_MESSAGE])
    return mcp_types.CallToolResult(content=[text], is_error=True)


def document_of(text: str) -> dict[str, Any] | None:
    """The document that a command printed; None where it printed none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """A document's numbers and texts, and of its lists of parts that have names these."""
    kept = {key: value for key, value in document.items() if is_plain(value)}
    lists = {key: value for key, value in document.items() if isinstance(value, list) and value}
    return kept | {
        key: [part["name"] for part in parts]
        for key, parts in lists.items()
        if all(isinstance(part, dict) and "name" in part for part in parts)
    }


def is_plain(value: object) -> bool:
    """Whether a value is no list and has no parts."""
    return value is None or isinstance(value, bool | int | float | str)


async def serve_stdio(tools: ToolServer) -> None:
    """Serve the one who started this process, until its end of stdin."""
    from mcp import stdio_server

    server = tools.server()
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


async def serve_http(tools: ToolServer, port: int) -> None:
    """Serve on a port of this machine's loopback interface alone, at a path that only who reads
    this process's stderr knows: any user of the machine can connect.
    """
    import uvicorn

    path = f"/{secrets.token_urlsafe(24)}/mcp"
    app = tools.server().streamable_http_app(streamable_http_path=path, host=LOOPBACK)
    config = uvicorn.Config(app, host=LOOPBACK, port=port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    listening.listen()  # before the address is told: uvicorn does so only when it has started
    address = f"http://{LOOPBACK}:{listening.getsockname()[1]}{path}"
    print(f"tally: MCP at {address}", file=sys.stderr, flush=True)
    await server.serve(sockets=[listening])


def tool_server(root: Path, *, jobs: int, waiting: int, max_s: float) -> ToolServer:
    """A server of this folder, within a running event loop. Raises UsageError."""
    workspace = ServerFolder(str(root))
    environment = workspace.environment()
    calls = CommandQueue(str(workspace.root), environment, jobs=jobs, waiting=waiting, max_s=max_s)
    return ToolServer(workspace, calls)
