"""`tally lsp`: costs beside lines, for editors that speak the Language Server Protocol."""

from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.options import OptionRecord

SUMMARY = "show costs behind lines in an editor, by the Language Server Protocol"

EPILOG = """\
examples:
  tally lsp                           what an editor starts: over stdin and stdout
  hx train.py                         after the settings of docs/editor.md

The server runs the script that is saved, on a simulated GPU, and marks each
line with its time and the memory it saves for the backward pass. Settings are
the editor's: gpu, script, arguments, steps, runOnSave, maxSeconds.
docs/editor.md has them for Neovim, VS Code, Helix and Zed. Needs
`pip install 'torchtally[editor]'`.
"""


@dataclass(frozen=True, kw_only=True)
class LspOptions(OptionRecord):
    """Serve what lines cost to an editor, over stdin and stdout."""


def command(options: LspOptions) -> int:
    """Serve until the editor has gone."""
    try:
        import pygls  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"tally lsp needs the package pygls ({error}).\n"
            "Install it: pip install 'torchtally[editor]'"
        ) from error
    from torchtally.editor.features import serve

    serve()
    return 0
