"""The server: an editor's documents, and what a run says of their lines.

pygls speaks the protocol; a run is a command of `tally`.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from torchtally.editor.answer import LineAnswer, ScriptAnswer
from torchtally.editor.marks import headline, mark, remarks, stale_mark
from torchtally.editor.moved_lines import MovedLine, moved_lines
from torchtally.editor.patches import TextChange, changes_of
from torchtally.editor.runs import LatestTask, RunError, ScriptRuns
from torchtally.editor.settings import EditorSettings, settings_of
from torchtally.errors import TallyError, UsageError
from torchtally.report.documents.fixes import FixesDocument

SOURCE = "tally"
FIX = "tally.fix"
IMPORTS_TORCH = re.compile(r"^\s*(?:from|import)\s+torch\b", re.MULTILINE)
MOST_MESSAGE = 2000
WHOLE = 1 << 30
"""Beyond a line's end: clients take it for the end."""


@dataclass(frozen=True, slots=True)
class FoundFixes:
    """What `tally fix` found for a script."""

    document: FixesDocument
    changes: Mapping[str, tuple[TextChange, ...]]


class CostServer(LanguageServer):
    """Documents, the newest run of each script, and what is being run."""

    settings = EditorSettings()
    runs: ScriptRuns

    def __init__(self, folder: Path) -> None:
        super().__init__("tally", version("torchtally"))
        self._folder = folder
        self._answers: dict[str, ScriptAnswer] = {}
        self._failures: dict[str, str] = {}
        self._fixes: dict[str, FoundFixes] = {}
        self._task = LatestTask()
        self._tokens = 0

    def begin(self, params: types.InitializeParams) -> None:
        """Take the folder and the settings of the client."""
        folders = list(self.workspace.folders.values())
        path = uris.to_fs_path(folders[0].uri) if folders else self.workspace.root_path
        self.runs = ScriptRuns(Path(os.path.realpath(path or ".")), self._folder)
        self.configure(params.initialization_options)

    def configure(self, given: Any) -> None:
        """Take settings; those that are wrong are told, and the former ones stay."""
        try:
            self.settings = settings_of(given)
        except UsageError as error:
            self.show(str(error), types.MessageType.Error)

    def show(self, text: str, kind: types.MessageType = types.MessageType.Info) -> None:
        """Show a message."""
        self.window_show_message(types.ShowMessageParams(kind, text[:MOST_MESSAGE]))

    # What is known of a document -----------------------------------------------------------------

    def document_at(self, path: str) -> TextDocument:
        """The document of a file as the editor has it, by whichever name; else as it is on disk."""
        opened = self.workspace.text_documents.values()
        known = (document for document in opened if path_of(document) == path)
        return next(known, None) or self.workspace.get_text_document(uris.from_fs_path(path) or "")

    def answer_about(self, path: str) -> ScriptAnswer | None:
        """The newest run with lines of this file, or else of it as a script."""
        newest_first = sorted(self._answers.values(), key=lambda answer: -answer.ran_s)
        known = (answer for answer in newest_first if path in answer.lines)
        return next(known, self._answers.get(path))

    def places(self, document: TextDocument, answer: ScriptAnswer) -> dict[int, MovedLine]:
        """Places of lines that ran, as they are now."""
        return moved_lines(answer.texts.get(path_of(document), ()), document.lines)

    def marked(
        self, document: TextDocument
    ) -> Iterator[tuple[LineAnswer, ScriptAnswer, MovedLine]]:
        """Every line of a document that a run says something of."""
        answer = self.answer_about(path_of(document))
        if answer is None:
            return
        places = self.places(document, answer)
        for line in answer.lines.get(path_of(document), ()):
            if (place := places.get(line.line.line)) is not None:
                yield line, answer, place

    def marks(self, document: TextDocument) -> Iterator[tuple[int, str]]:
        """Marks by line, from 0."""
        for line, answer, place in self.marked(document):
            if text := mark(line, answer):
                yield place.line - 1, stale_mark(text) if place.is_stale else text

    def publish(self, document: TextDocument) -> None:
        """Publish the diagnostics of a document."""
        path = path_of(document)
        found: list[types.Diagnostic] = []
        answer = self.answer_about(path)
        if text := self._failures.get(path):
            found.append(diagnostic(0, text, types.DiagnosticSeverity.Warning))
        elif answer is not None:
            places = self.places(document, answer)
            for remark in remarks(answer):
                place = places.get(remark.line, MovedLine(1, is_stale=False))
                if os.path.realpath(remark.file) != path or (remark.line and place.is_stale):
                    continue
                severity = types.DiagnosticSeverity
                kind = severity.Warning if remark.is_warning else severity.Information
                found.append(diagnostic(place.line - 1, remark.text, kind))
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(document.uri, found, document.version)
        )

    def refresh(self) -> None:
        """Have the client ask again for all that it shows."""
        for document in self.workspace.text_documents.values():
            self.publish(document)
        workspace = self.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            self.workspace_inlay_hint_refresh(None)
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    @property
    def has_hints(self) -> bool:
        """Whether the client shows inlay hints; else it gets code lenses."""
        documents = self.client_capabilities.text_document
        return documents is not None and documents.inlay_hint is not None

    # Runs ----------------------------------------------------------------------------------------

    def script_for(self, path: str) -> str | None:
        """The script to run for a file; None for one that is none, and of none."""
        if self.settings.script:
            return os.path.realpath(self.runs.root / self.settings.script)
        if (answer := self.answer_about(path)) is not None:
            return answer.script
        try:
            source = self.document_at(path).source
        except (OSError, UnicodeDecodeError):
            return None
        return path if IMPORTS_TORCH.search(source) else None

    async def recall(self, path: str) -> None:
        """Show the last run of a file, where there is one."""
        if self.answer_about(path) is None:
            answer = await asyncio.to_thread(self.runs.last_answer, path)
            if answer is not None:
                self._answers.setdefault(answer.script, answer)
                self.refresh()

    def start_run(self, path: str, *, after_s: float) -> None:
        """Run the script of a file, instead of what is being run."""
        if (script := self.script_for(path)) is not None:
            self._task.replace(self._run(script, after_s))

    async def _run(self, script: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        async with self.progress_of(f"tally run {os.path.basename(script)}") as work:
            try:
                answer, text = await self.runs.run(script, self.settings, work.report)
            except TallyError as error:
                self._failures[script] = f"tally run: {str(error)[-MOST_MESSAGE:]}"
                work.message = "failed"
                if self.document_at(script).version is None:  # not open: no place for a diagnostic
                    self.show(self._failures[script], types.MessageType.Error)
            else:
                self._failures.pop(script, None)
                self._fixes.pop(script, None)
                self._answers[script] = answer
                work.message = headline(answer)
                self.window_log_message(types.LogMessageParams(types.MessageType.Info, text))
        self.refresh()

    def start_fix(self, path: str) -> None:
        """Look for changes of the script of a file, instead of what is being run."""
        if (script := self.script_for(path)) is not None:
            self._task.replace(self._fix(script))

    async def _fix(self, script: str) -> None:
        async with self.progress_of(f"tally fix {os.path.basename(script)}") as work:
            try:
                document = await self.runs.fix(script, self.settings, work.report)
            except RunError as error:
                self.show(f"tally fix: {error}", types.MessageType.Error)
                return
            changes = changes_of(document.patch, str(self.runs.root))
            self._fixes[script] = FoundFixes(document, changes)
            work.message = found_text(document)
        self.show(work.message)

    def progress_of(self, title: str) -> "ShownWork":
        """Progress that the client shows and may cancel, where it can."""
        self._tokens += 1
        window = self.client_capabilities.window
        is_shown = bool(window and window.work_done_progress)
        return ShownWork(self, f"tally-{self._tokens}" if is_shown else "", title, self._task)

    # Changes -------------------------------------------------------------------------------------

    def actions(self, document: TextDocument) -> Iterator[types.CodeAction]:
        """Changes that were found, as edits; else the command that looks for them."""
        path = path_of(document)
        script = self.script_for(path)
        if script is None:
            return
        found = self._fixes.get(script)
        if found is not None and (edit := self.edit_of(found.changes)) is not None:
            title = found_text(found.document)
            kind = types.CodeActionKind.QuickFix
            yield types.CodeAction(f"{title} (tally fix)", kind=kind, edit=edit)
        answer = self._answers.get(script)
        fits = answer is None or answer.brief.summary.verdict.claim != "does not fit"
        title = "Find changes that shorten the step" if fits else "Find changes that make it fit"
        command = types.Command(title, command=FIX, arguments=[document.uri])
        kind = types.CodeActionKind.Refactor if fits else types.CodeActionKind.QuickFix
        yield types.CodeAction(f"{title} (tally fix)", kind=kind, command=command)

    def edit_of(self, changes: Mapping[str, tuple[TextChange, ...]]) -> types.WorkspaceEdit | None:
        """The edit; None where there is none, and where a text is no longer what was run."""
        documents: list[Any] = []
        for path, each in changes.items():
            document = self.document_at(path)
            try:
                lines = [line.rstrip("\r\n") for line in document.lines]
            except (OSError, UnicodeDecodeError):
                return None
            if not all(change.is_of(lines) for change in each):
                return None
            name = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
            documents.append(types.TextDocumentEdit(name, [text_edit(change) for change in each]))
        return types.WorkspaceEdit(document_changes=documents) if documents else None


class ShownWork:
    """Work that a client shows the progress of; cancelling it there cancels the task."""

    def __init__(self, server: CostServer, token: str, title: str, task: LatestTask) -> None:
        """`token` is "" for a client that does not show progress."""
        self._server, self._token, self._title, self._task = server, token, title, task
        self.message = "cancelled"

    async def __aenter__(self) -> "ShownWork":
        if self._token:
            progress = self._server.work_done_progress
            await progress.create_async(self._token)
            future = progress.tokens[self._token]
            future.add_done_callback(lambda done: self._task.cancel() if done.cancelled() else None)
            begin = types.WorkDoneProgressBegin(self._title, cancellable=True)
            progress.begin(self._token, begin)
        return self

    async def report(self, elapsed_s: float, message: str) -> None:
        """Say what is done."""
        if self._token:
            report = types.WorkDoneProgressReport(message=message)
            self._server.work_done_progress.report(self._token, report)

    async def __aexit__(self, *_: object) -> None:
        if self._token:
            end = types.WorkDoneProgressEnd(message=self.message)
            self._server.work_done_progress.end(self._token, end)


def path_of(document: TextDocument) -> str:
    """A document's file, links followed."""
    return os.path.realpath(document.path)


def found_text(document: FixesDocument) -> str:
    """What was found, in a sentence."""
    if not document.kept:
        return f"tally fix: no change helps on {document.chip}"
    return f"Change for {document.chip}: {', '.join(document.kept)}"


def diagnostic(line: int, text: str, severity: types.DiagnosticSeverity) -> types.Diagnostic:
    """A remark on a line, from 0."""
    place = types.Range(types.Position(line, 0), types.Position(line, WHOLE))
    return types.Diagnostic(place, text, severity=severity, source=SOURCE)


def text_edit(change: TextChange) -> types.TextEdit:
    """The edit that makes a change."""
    end = change.first + len(change.before)
    place = types.Range(types.Position(change.first, 0), types.Position(end, 0))
    return types.TextEdit(place, "".join(f"{line}\n" for line in change.after))
