"""Python's own functions on files and time, as they were before anything is replaced.

Everything in this package calls these: a stand-in must not meet another one.
"""

import builtins
import io
import os
import time
from types import SimpleNamespace
from typing import Any

OS: Any = SimpleNamespace(**vars(os))
TIME: Any = SimpleNamespace(**vars(time))
OPEN: Any = builtins.open
OPEN_CODE: Any = io.open_code
FILE_IO = io.FileIO
