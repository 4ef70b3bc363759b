"""The audit hook stays quiet where it has nothing to say."""

import subprocess
import sys

AT_EXIT = """\
import os
from torchtally.isolation import audit, guard

guard.watch(None)
for module in (audit, guard):
    for name in [name for name in vars(module) if not name.startswith("__")]:
        vars(module)[name] = None  # as Python does to a module's names at exit
open(os.devnull).close()
"""


def test_files_are_opened_after_the_hooks_module_is_gone() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
