"""Checkpoints: the complete state of a training on disk, either whole or absent, for any loop.

    durable      a loop of one's own: steps, values, kills and signals
    durable_callback, lightning_callback   the same for Trainer and Lightning
    disk         an open directory, and files flushed to disk
    manifest     the contents of a checkpoint with checksums; written last
    shard        a file of safetensors, written and checked
    folder       the checkpoints of a run: begin, commit, prune, set aside
    storage      which rank writes and reads what
    snapshot     copies on the host, unaffected by the next step
    randomness   states of random generators as tensors
    packing      state dicts as tensors and plain data, and back
    objects      the state of a loop's own objects, likewise
    saver        saving in the background
    newest       the newest whole checkpoint
    ranks        the processes of a training         shards    weights of which each has a part
    signals      those that save and end a run       plain     values as JSON data

No pickle is written or read, and reading
executes no code.
"""

from importlib.util import find_spec

from torchtally.errors import UsageError

NEEDED = ("jaxtyping", "safetensors")
"""Packages of the extra `train`; imported by `checkpoints`, `train` and `sweep` alone."""


class MissingExtraError(UsageError, ImportError):
    """The extra `train` is not installed."""


def check_extra() -> None:
    """Raise MissingExtraError where a package of the extra is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"training needs {', '.join(missing)}, which the extra `train` installs: "
            'pip install "torchtally[train]".'
        )


check_extra()
