"""What an installation lacks that a command needs, in a sentence with the command that helps."""

import sys
from importlib.util import find_spec

from torchtally.errors import TallyError

UNIX = frozenset(["fcntl", "termios", "resource", "pwd", "pty", "tty"])
"""Python's modules that Windows does not have."""
OLDEST = (2, 11)
"""Of PyTorch, as pyproject.toml asks for; the table of releases cannot be read without it."""
WITHOUT = "`tally plan`, `gpus`, `show` and `dtypes` work without it."


def lack(error: Exception) -> str | None:
    """What is missing where a command ended in this error; None where it has another cause."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name == "torch":
        return f"PyTorch is not installed, which this needs: pip install torch\n{WITHOUT}"
    if name in UNIX:
        return (
            f"this needs Linux or macOS, for Python's {name}.\n"
            f"On Windows use WSL, which has it: wsl --install\n{WITHOUT}"
        )
    if isinstance(error, (ImportError, AttributeError)) and (version := old_version()) is not None:
        return (
            f"PyTorch {version} is too old for this ({error}).\n"
            f"Update it: pip install --upgrade 'torch>={OLDEST[0]}.{OLDEST[1]}'\n{WITHOUT}"
        )
    return None


def check_simulates() -> None:
    """Raises TallyError where no simulation can run: before a child finds out."""
    for name in ("torch", "fcntl"):
        if sys.modules.get(name, sys) is None or find_spec(name) is None:
            raise TallyError(lack(ModuleNotFoundError(name=name)))


def old_version() -> str | None:
    """PyTorch's, where it is older than any that tally knows."""
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    numbers = version.split("+")[0].split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return None
    return version if tuple(map(int, numbers)) < OLDEST else None
