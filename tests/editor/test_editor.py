"""A headless editor: marks, hovers, diagnostics, changes, moved lines."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lsprotocol import types

from tests.editor.clients import FORWARD, SCRIPT, Editor, with_editor


def script(folder: Path, text: str = SCRIPT) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def test_marks_hovers_and_moved_lines(tmp_path: Path) -> None:
    async def use(editor: Editor) -> None:
        assert await editor.hints() == {}
        editor.save()
        assert (await editor.run_ended()).startswith("fits H100-SXM: peak")
        hints = await editor.hints()
        assert hints[FORWARD].endswith("MiB saved")
        assert " ms · " in hints[FORWARD] or " us · " in hints[FORWARD]
        assert await editor.lenses() == {}  # a client with hints needs no second marks
        text = await editor.hover(FORWARD)
        assert "| forward |" in text
        assert "| backward |" in text
        assert "bound: " in text
        assert "`[1024x4096] float32`" in text
        assert "aten.addmm" in text

        editor.type("# new\n" + SCRIPT)  # moved, not stale
        assert (await editor.hints())[FORWARD + 1] == hints[FORWARD]
        editor.type(SCRIPT.replace("square()", "abs()"))
        assert (await editor.hints())[FORWARD] == f"{hints[FORWARD]} (before this edit)"
        assert "*before this edit: the line was*" in await editor.hover(FORWARD)
        editor.type(SCRIPT.replace("    loss = model(x).square().mean()\n", ""))
        assert hints[FORWARD] not in (await editor.hints()).values()

    with_editor(script(tmp_path), use)

    with_editor(script(tmp_path), lenses, has_hints=False)  # from the last trace


async def lenses(editor: Editor) -> None:
    """The last trace of the script is shown at once, as lenses where hints are not known."""
    while not (found := await editor.lenses()):
        await asyncio.sleep(0.05)
    assert found[FORWARD].endswith("MiB saved")


LARGE = SCRIPT.replace("1024, 4096", "33554432, 4096")
SLOW = SCRIPT.replace("import sys\n", "import time\ntime.sleep(600)\n")


def test_diagnostics_of_runs_that_fail_and_newer_saves_that_cancel(tmp_path: Path) -> None:
    async def use(editor: Editor) -> None:
        assert "settings of tally: Object contains unknown field `chip`" in editor.messages[0]
        editor.save(SLOW)
        while not editor.progress:  # it has begun
            await asyncio.sleep(0.05)
        editor.save(LARGE)
        assert await editor.run_ended() == "cancelled"
        assert (await editor.run_ended()).startswith("does not fit H100-SXM")
        while not editor.diagnostics:
            await asyncio.sleep(0.05)
        (diagnostic,) = editor.diagnostics
        assert diagnostic.message.startswith("does not fit H100-SXM: ")
        assert diagnostic.range.start.line == FORWARD - 1  # the request for 512 GiB
        assert [action.title for action in await editor.actions()] == [
            "Find changes that make it fit (tally fix)"
        ]
        editor.save("import torch\n)\n")
        assert await editor.run_ended() == "failed"
        while "SyntaxError: unmatched ')'" not in editor.diagnostics[0].message:
            await asyncio.sleep(0.05)

    with_editor(script(tmp_path), use, {"chip": "H100-SXM"})


@pytest.mark.thorough
def test_fixes_are_edits(tmp_path: Path) -> None:
    async def use(editor: Editor) -> None:
        await editor.command("tally.fix")
        assert await editor.run_ended() == "Change for RTX-4090: optimizer in a loop"
        edits, _ = await editor.actions()
        assert isinstance(edits, types.CodeAction)
        assert edits.edit is not None
        assert edits.edit.document_changes is not None
        (change,) = edits.edit.document_changes
        assert isinstance(change, types.TextDocumentEdit)
        assert "foreach=False" in change.edits[0].new_text
        editor.type(SCRIPT.replace("SGD", "Adam"))
        assert len(await editor.actions()) == 1  # of a text that has changed there is no edit

    settings = {"tally": {"gpu": "RTX-4090", "arguments": ["--unused"], "runOnSave": False}}
    with_editor(script(tmp_path), use, settings)


def test_a_link_is_the_file_as_it_is_typed_and_a_missing_script_is_told(tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(script(tmp_path))

    async def use(editor: Editor) -> None:
        assert len(await editor.actions()) == 1
        editor.type("imports = None\n")
        assert await editor.actions() == []
        link.unlink()
        editor.uri = editor.document.uri = (tmp_path / "gone.py").as_uri()
        assert await editor.actions() == []  # of a document that is nowhere

    with_editor(link, use)

    async def gone(editor: Editor) -> None:
        editor.save()
        assert await editor.run_ended() == "failed"
        assert "gone.py: no such file" in editor.messages[0]  # not open: no line to put it at

    with_editor(tmp_path / "train.py", gone, {"script": "gone.py"})


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "torchtally", "lsp"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
    ) as server:
        deadline_s = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(0.5)  # it reads
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 130
    assert list(tmp_path.iterdir()) == []
