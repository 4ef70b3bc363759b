"""What the server answers an editor: every request and notification that it handles."""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from lsprotocol import types

from torchtally.editor.marks import hover
from torchtally.editor.runs import DEBOUNCE_S
from torchtally.editor.server import FIX, CostServer, path_of

RUN = "tally.run"


def initialize(server: CostServer, params: types.InitializeParams) -> None:
    """Take the folder and the settings."""
    server.begin(params)


def did_change_configuration(
    server: CostServer, params: types.DidChangeConfigurationParams
) -> None:
    """Take new settings."""
    server.configure(params.settings)


async def did_open(server: CostServer, params: types.DidOpenTextDocumentParams) -> None:
    """Show the last run of what was opened."""
    document = server.workspace.get_text_document(params.text_document.uri)
    server.publish(document)
    await server.recall(path_of(document))


def did_change(server: CostServer, params: types.DidChangeTextDocumentParams) -> None:
    """Move diagnostics with their lines."""
    server.publish(server.workspace.get_text_document(params.text_document.uri))


def did_save(server: CostServer, params: types.DidSaveTextDocumentParams) -> None:
    """Run the script of what was saved."""
    document = server.workspace.get_text_document(params.text_document.uri)
    if server.settings.run_on_save and document.path.endswith(".py"):
        server.start_run(path_of(document), after_s=DEBOUNCE_S)


def inlay_hints(server: CostServer, params: types.InlayHintParams) -> list[types.InlayHint]:
    """Marks behind lines."""
    document = server.workspace.get_text_document(params.text_document.uri)
    lines, codec = document.lines, document.position_codec
    return [
        types.InlayHint(
            types.Position(line, codec.client_num_units(lines[line].rstrip("\r\n"))),
            text,
            padding_left=True,
        )
        for line, text in server.marks(document)
        if params.range.start.line <= line <= params.range.end.line
    ]


def code_lenses(server: CostServer, params: types.CodeLensParams) -> list[types.CodeLens]:
    """The same marks, for clients without inlay hints; choosing one runs the script again."""
    if server.has_hints:
        return []
    uri = params.text_document.uri
    return [
        types.CodeLens(
            types.Range(types.Position(line, 0), types.Position(line, 0)),
            types.Command(text, command=RUN, arguments=[uri]),
        )
        for line, text in server.marks(server.workspace.get_text_document(uri))
    ]


def hovers(server: CostServer, params: types.HoverParams) -> types.Hover | None:
    """The costs of a line in detail."""
    document = server.workspace.get_text_document(params.text_document.uri)
    for line, answer, place in server.marked(document):
        if place.line - 1 == params.position.line:
            text = hover(line, answer, is_stale=place.is_stale)
            return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))
    return None


def code_actions(server: CostServer, params: types.CodeActionParams) -> list[types.CodeAction]:
    """Changes of the script, of the kinds that are asked for."""
    document = server.workspace.get_text_document(params.text_document.uri)
    only = params.context.only
    return [
        action
        for action in server.actions(document)
        if only is None or any((action.kind or "").startswith(kind) for kind in only)
    ]


def run(server: CostServer, uri: str) -> None:
    """Run the script of a document now."""
    server.start_run(path_of(server.workspace.get_text_document(uri)), after_s=0.0)


def fix(server: CostServer, uri: str) -> None:
    """Look for changes of the script of a document."""
    server.start_fix(path_of(server.workspace.get_text_document(uri)))


FEATURES: dict[str, tuple[Any, Any]] = {
    types.INITIALIZE: (initialize, None),
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: (did_change_configuration, None),
    types.TEXT_DOCUMENT_DID_OPEN: (did_open, None),
    types.TEXT_DOCUMENT_DID_CHANGE: (did_change, None),
    types.TEXT_DOCUMENT_DID_SAVE: (did_save, None),
    types.TEXT_DOCUMENT_INLAY_HINT: (inlay_hints, None),
    types.TEXT_DOCUMENT_CODE_LENS: (code_lenses, None),
    types.TEXT_DOCUMENT_HOVER: (hovers, None),
    types.TEXT_DOCUMENT_CODE_ACTION: (
        code_actions,
        types.CodeActionOptions([types.CodeActionKind.QuickFix, types.CodeActionKind.Refactor]),
    ),
}
COMMANDS = {RUN: run, FIX: fix}


def serve() -> None:
    """Serve the one who started this process, until its end of stdin, Ctrl-C or SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="tally-lsp-") as folder:

        def end(number: int, frame: object) -> None:
            # At once: an interpreter that ends would wait for the thread that reads stdin. What
            # runs ends with its supervisor.
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(128 + number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        server = CostServer(Path(folder))
        for method, (handler, options) in FEATURES.items():
            server.feature(method, options)(handler)
        for name, handler in COMMANDS.items():
            server.command(name)(handler)
        server.start_io()
