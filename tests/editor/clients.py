"""A headless editor: the protocol's own client library, over stdio."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls", reason="pygls speaks the protocol")

from lsprotocol import types
from pygls.lsp.client import LanguageClient

SCRIPT = """\
import sys
import torch

model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(1024, 4096, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FORWARD = 7
"""The line, from 0, of the forward pass."""
TIMEOUT_S = 120


class Editor:
    """One document in a client of `tally lsp`."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client, self.path = client, path
        self.uri = path.as_uri()
        self.document = types.TextDocumentIdentifier(self.uri)
        self.version = 0
        self.diagnostics: list[types.Diagnostic] = []
        self.messages: list[str] = []
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.progress: list[tuple[str, Any]] = []

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def diagnostics(params: types.PublishDiagnosticsParams) -> None:
            if params.uri == self.uri:
                self.diagnostics = list(params.diagnostics)

        @client.feature(types.WINDOW_SHOW_MESSAGE)
        def show(params: types.ShowMessageParams) -> None:
            self.messages.append(params.message)

        @client.feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def create(params: types.WorkDoneProgressCreateParams) -> None:
            return None

        @client.feature(types.WORKSPACE_INLAY_HINT_REFRESH)
        def refresh(params: Any) -> None:
            return None

        @client.feature(types.PROGRESS)
        def progress(params: types.ProgressParams) -> None:
            kind = params.value["kind"] if isinstance(params.value, dict) else params.value.kind
            message = getattr(params.value, "message", None) or ""
            if isinstance(params.value, dict):
                message = params.value.get("message") or ""
            self.progress.append((str(params.token), kind))
            if kind == "end":
                self.ended.put_nowait(message)

    async def start(self, options: Any, *, has_hints: bool = True) -> None:
        """Begin, and open the document."""
        documents = types.TextDocumentClientCapabilities(
            inlay_hint=types.InlayHintClientCapabilities() if has_hints else None
        )
        await self.client.initialize_async(
            types.InitializeParams(
                types.ClientCapabilities(
                    text_document=documents,
                    window=types.WindowClientCapabilities(work_done_progress=True),
                ),
                root_uri=self.path.parent.as_uri(),
                initialization_options=options,
            )
        )
        self.client.initialized(types.InitializedParams())
        text = self.path.read_text()
        item = types.TextDocumentItem(self.uri, types.LanguageKind.Python, 0, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def type(self, text: str) -> None:
        """Replace the text, without saving it."""
        self.version += 1
        identifier = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(identifier, [change])
        )

    def save(self, text: str | None = None) -> None:
        """Save the document, with another text where one is given."""
        if text is not None:
            self.type(text)
            self.path.write_text(text)
        self.client.text_document_did_save(types.DidSaveTextDocumentParams(self.document))

    async def run_ended(self) -> str:
        """The message at the end of the next run."""
        return await asyncio.wait_for(self.ended.get(), TIMEOUT_S)

    async def hints(self) -> dict[int, str]:
        """Inlay hints by line, from 0."""
        whole = types.Range(types.Position(0, 0), types.Position(10_000, 0))
        params = types.InlayHintParams(self.document, whole)
        hints = await self.client.text_document_inlay_hint_async(params)
        return {hint.position.line: str(hint.label) for hint in hints or ()}

    async def lenses(self) -> dict[int, str]:
        """Code lenses by line, from 0."""
        lenses = await self.client.text_document_code_lens_async(
            types.CodeLensParams(self.document)
        )
        return {lens.range.start.line: lens.command.title for lens in lenses or () if lens.command}

    async def hover(self, line: int) -> str:
        """Text over a line; "" where there is none."""
        params = types.HoverParams(self.document, types.Position(line, 0))
        hover = await self.client.text_document_hover_async(params)
        if hover is None:
            return ""
        assert isinstance(hover.contents, types.MarkupContent)
        return hover.contents.value

    async def actions(self) -> list[types.Command | types.CodeAction]:
        """Code actions on the first line; lsprotocol takes one with a command for the command."""
        place = types.Range(types.Position(0, 0), types.Position(0, 0))
        params = types.CodeActionParams(self.document, place, types.CodeActionContext([]))
        found = await self.client.text_document_code_action_async(params)
        return list(found or ())

    async def command(self, name: str) -> None:
        """Execute a command of the server on the document."""
        await self.client.workspace_execute_command_async(
            types.ExecuteCommandParams(name, [self.uri])
        )


def with_editor(
    path: Path,
    use: Callable[[Editor], Awaitable[None]],
    options: Any = None,
    *,
    has_hints: bool = True,
) -> None:
    """Use an editor of a file, with a server of its own, whose caches are beside the file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(path.parent / "c")}

    async def session() -> None:
        client = LanguageClient("headless", "1")
        editor = Editor(client, path)
        words = ("-m", "torchtally", "lsp")
        async with asyncio.timeout(TIMEOUT_S):
            await client.start_io(sys.executable, *words, env=environment)
            try:
                await editor.start(options, has_hints=has_hints)
                await use(editor)
                await client.shutdown_async(None)
            finally:
                client.exit(None)
                await client.stop()

    asyncio.run(session())
