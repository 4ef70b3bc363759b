"""Commands for a server: one at a time, the newest."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from torchtally.agents.calls import CommandQueue, EndedCommand, Progress
from torchtally.editor.answer import ScriptAnswer, load_answer
from torchtally.editor.settings import EditorSettings
from torchtally.errors import TallyError
from torchtally.files.user_cache import cache_folder, make_room
from torchtally.report.documents.fixes import FixesDocument

FOLDER = "editor"
MOST_KEPT_BYTES = 256 << 20
"""Of the traces that are kept: the last one of each script."""
TRACE = "run.tally"
DEBOUNCE_S = 0.3
WAITING = 8
"""Commands that end while the next one waits."""


class RunError(TallyError):
    """A command that says nothing of lines; the message tells why."""


class LatestTask:
    """A task that the next one cancels."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def replace(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the work, and cancel what is being done."""
        self.cancel()
        self._task = asyncio.get_running_loop().create_task(work)
        return self._task

    def cancel(self) -> None:
        """End what is being done, with all processes that it started."""
        if self._task is not None:
            self._task.cancel()


class ScriptRuns:
    """Runs of scripts below a folder; files of theirs are in a folder that ends with the server."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self._folder = root, folder
        self._environment = os.environ | {
            "TMPDIR": str(folder), "COLUMNS": "120", "NO_COLOR": "1",
        }  # fmt: skip

    def _words(self, command: str, script: str, settings: EditorSettings) -> list[str]:
        gpu = [f"--gpu={settings.gpu}"] if settings.gpu else []
        name = os.path.relpath(script, self.root)
        return [command, *gpu, f"--steps={settings.steps}", name, "--", *settings.arguments]

    async def _ended(
        self, words: list[str], settings: EditorSettings, progress: Progress
    ) -> EndedCommand:
        queue = CommandQueue(
            str(self.root), self._environment, jobs=1, waiting=WAITING, max_s=settings.max_seconds
        )
        return await queue.run(words, progress)

    async def run(
        self, script: str, settings: EditorSettings, progress: Progress
    ) -> tuple[ScriptAnswer, str]:
        """The answer of a new run, and what it printed. Raises RunError for a command that fails,
        and for a script that does before it puts anything on the GPU.
        """
        trace = self._folder / TRACE
        trace.unlink(missing_ok=True)
        command, *rest = self._words("run", script, settings)
        words = [command, "--brief", "--no-advice", f"--output={trace}", *rest]
        ended = await self._ended(words, settings, progress)
        if not trace.is_file():
            raise RunError(ended.stderr.strip() or f"tally run ended with code {ended.code}")
        answer = await asyncio.to_thread(load_answer, trace, script)
        ending = answer.brief.summary.ending
        if ending.kind == "exception" and not answer.lines:  # as of a syntax error
            raise RunError(ending.message)
        if answer.brief.summary.world.size == 1:  # ranks' traces lie beside theirs
            keep(trace, script)
        return answer, ended.stderr

    async def fix(self, script: str, settings: EditorSettings, progress: Progress) -> FixesDocument:
        """What `tally fix` finds. Raises RunError."""
        command, *rest = self._words("fix", script, settings)
        ended = await self._ended([command, "--json=-", "--quiet", *rest], settings, progress)
        try:
            return msgspec.json.decode(ended.stdout, type=FixesDocument)
        except msgspec.MsgspecError as error:
            raise RunError(ended.stderr.strip() or f"tally fix: {error}") from error

    def last_answer(self, script: str) -> ScriptAnswer | None:
        """The newest run of a file that is kept here, or was written by `tally run` to run.tally
        beside it or in the folder; None where there is none.
        """
        for trace in sorted(self._traces(script), key=lambda path: -path.stat().st_mtime):
            with suppress(TallyError, OSError):
                answer = load_answer(trace, script)
                if script in answer.lines:
                    return answer
        return None

    def _traces(self, script: str) -> Iterator[Path]:
        places = {kept_place(script), Path(script).with_name(TRACE), self.root / TRACE}
        return (path for path in places if path.is_file())


def kept_place(script: str) -> Path:
    """Path of the last trace of a script."""
    digest = hashlib.blake2b(script.encode("utf-8", "surrogatepass"), digest_size=16)
    return cache_folder(FOLDER) / f"{digest.hexdigest()}.tally"


def keep(trace: Path, script: str) -> None:
    """Keep a trace for the next server. A folder that cannot be written to is no error."""
    place = kept_place(script)
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = place.with_suffix(f".{os.getpid()}")
        shutil.copyfile(trace, fresh)
        os.replace(fresh, place)
        make_room(place, MOST_KEPT_BYTES)
