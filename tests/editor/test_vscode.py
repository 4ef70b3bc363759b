"""The extension for VS Code: its settings are the server's, and its code is JavaScript."""

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from torchtally.editor.settings import SECTION, EditorSettings

EXTENSION = Path(__file__).parents[2] / "editors" / "vscode"


def test_the_settings_are_those_of_the_server() -> None:
    package = json.loads((EXTENSION / "package.json").read_text())
    properties = package["contributes"]["configuration"]["properties"]
    defaults = {
        name.removeprefix(f"{SECTION}."): each["default"]
        for name, each in properties.items()
        if name.startswith(f"{SECTION}.")
    }
    assert defaults == json.loads(msgspec.json.encode(EditorSettings()))
    code = (EXTENSION / "extension.js").read_text()
    assert all(f'"{name}"' in code for name in defaults)
    assert all(f'"{each["command"]}"' in code for each in package["contributes"]["commands"])


@pytest.mark.skipif(not shutil.which("node"), reason="node checks it")
def test_the_code_is_javascript() -> None:
    command = ("node", "--check", EXTENSION / "extension.js")
    assert subprocess.run(command, capture_output=True).returncode == 0
