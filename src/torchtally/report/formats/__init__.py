"""The formats of reports. Each is one file of this folder with a function `render`:

    def render(report: Report, look: Look) -> str: ...

The file's name is the format's. A new file is a new format in every command's `--format`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtally.report.report import Look, Report


def format_names() -> tuple[str, ...]:
    """The formats there are, the plain text first."""
    files = os.listdir(os.path.dirname(__file__))
    names = {name.removesuffix(".py") for name in files if name.endswith(".py")} - {"__init__"}
    return tuple(sorted(names, key=lambda name: (name != "text", name)))


def render(report: "Report", format: str, look: "Look") -> str:
    """The report in the format of this name."""
    assert format in format_names(), format
    text: str = import_module(f"{__name__}.{format}").render(report, look)
    return text
