"""Compiled libraries that open files by themselves: their path arguments, led to the overlay.

A library that is in no row opens what it is told to: docs/files.md says so.
"""

import os
import re
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from torchtally import torch_private as private
from torchtally.isolation.files import Files
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn

OPENERS = """
safetensors            -                       serialize_file  1  filename       replaces
safetensors            -                       safe_open       0  filename       reads
tokenizers             Tokenizer               save            1  path           replaces
tokenizers             Tokenizer               from_file       0  path           reads
tokenizers.models      Model                   save            1  folder         changes
h5py                   File                    __init__        1  name           by_mode
tables.file            File                    __init__        1  filename       by_mode
cv2                    -                       imwrite         0  filename       replaces
cv2                    -                       imread          0  filename       reads
lmdb                   -                       open            0  path           changes
soundfile              SoundFile               __init__        1  file           by_mode
torchaudio             -                       save            0  uri            replaces
torchaudio             -                       load            0  uri            reads
torchvision.io.image   -                       write_file      0  filename       replaces
torchvision.io.image   -                       read_file       0  path           reads
pyarrow                -               OSFile|memory_map       0  path           by_mode
pyarrow                -               create_memory_map       0  path           replaces
pyarrow                -                   output_stream       0  source         replaces
pyarrow                -                    input_stream       0  source         reads
pyarrow.parquet.core   ParquetWriter           __init__        1  where          replaces
pyarrow.parquet.core   ParquetFile             __init__        1  source         reads
pyarrow.parquet.core   ParquetDataset          __init__        1  path_or_paths  reads
pyarrow.feather        -                   write_feather       1  dest           replaces
pyarrow.feather        -                      read_table       0  source         reads
pyarrow.csv            -                       write_csv       1  output_file    replaces
pyarrow.csv            -                        read_csv       0  input_file     reads
polars.dataframe.frame DataFrame  write_(avro|csv|ipc|json|ndjson|parquet)  1 file   replaces
polars.lazyframe.frame LazyFrame             sink_(csv|ipc|ndjson|parquet)  1 path   replaces
polars                 -    (read|scan)_(avro|csv|ipc|json|ndjson|parquet)  0 source reads
_gdbm                  -                       open            0  filename       changes
_dbm                   -                       open            0  filename       changes
"""
"""By module: a class of it, a pattern of names, which argument is the path (`self` counts), and
what is done with the file there: it is read, written anew or changed, or as `mode` says.
"""


class Opener(NamedTuple):
    """Functions or classes of a compiled library that take a path."""

    module: str
    owner: str
    names: str
    place: str
    keyword: str
    access: str


def writers(files: Files) -> list[tuple[str, Replacements]]:
    """What is replaced in those libraries, by module."""
    openers = [Opener(*row.split()) for row in OPENERS.strip().splitlines()]
    return [
        *((opener.module, partial(led_openers, files, opener)) for opener in openers),
        ("numpy.lib._datasource", partial(numpy_openers, files)),
        ("duckdb", lambda module: [StandIn(module, "connect", sqlite(files, module.connect))]),
    ]


def numpy_openers(files: Files, module: Any) -> list[StandIn]:
    """`np.savetxt` and `np.loadtxt` open by a table that was made when NumPy was imported."""
    openers = module._file_openers
    openers._load()
    return [StandIn(openers, "_file_openers", {**openers._file_openers, None: files.open})]


def led_openers(files: Files, opener: Opener, module: ModuleType) -> list[StandIn]:
    """Nothing where this version of the library has no such function."""
    owner = module if opener.owner == "-" else getattr(module, opener.owner, None)
    names = filter(re.compile(opener.names).fullmatch, dir(owner))
    stand_ins = []
    for name in names if owner is not None else ():
        value: Any = redirect(
            files, getattr(owner, name), int(opener.place), opener.keyword, opener.access
        )
        is_static = isinstance(owner, type) and opener.place == "0"
        stand_ins.append(StandIn(owner, name, staticmethod(value) if is_static else value))
    return stand_ins


def redirect(
    files: Files, native: Callable[..., Any], place: int, keyword: str, access: str
) -> Callable[..., Any]:
    """The function, given the path where the overlay has the file."""

    @wraps(native, updated=())
    def stand_in(*args: Any, **options: Any) -> Any:
        path = args[place] if len(args) > place else options.get(keyword)
        if files.is_off or not isinstance(path, (str, bytes, os.PathLike)):
            return native(*args, **options)
        kind = access
        if access == "by_mode":
            mode = options.get("mode", args[place + 1] if len(args) > place + 1 else "r")
            kind = BY_MODE.get(mode if isinstance(mode, str) else "r", "changes")
        real = files.real_path(path, writes=kind != "reads", has_content=kind == "changes")
        if len(args) > place:
            args = (*args[:place], real, *args[place + 1 :])
        else:
            options[keyword] = real
        return native(*args, **options)

    return stand_in


BY_MODE = {"r": "reads", "rb": "reads", "w": "replaces", "wb": "replaces"}


# torch -------------------------------------------------------------------------------------------


def torch_writers(files: Files) -> list[StandIn]:
    """torch's own, which are loaded in any case."""
    stand_ins = []
    for path in private.NATIVE_FILES:
        native = getattr(path.owner, path.name)
        access = "replaces" if path.is_written else "reads"
        stand_in: Any
        if isinstance(native, type):
            init = redirect(files, native.__init__, 1, path.keyword, access)  # type: ignore[misc]
            stand_in = type(native.__name__, (native,), {"__init__": init})
        else:
            stand_in = redirect(files, native, path.place, path.keyword, access)
        stand_ins.append(StandIn(path.owner, path.name, stand_in))
    for owner in private.MAPPED_FILES:
        stand_in = map_file(files, owner.from_file)
        if isinstance(owner, type):
            stand_in = staticmethod(stand_in)
        stand_ins.append(StandIn(owner, "from_file", stand_in))
    return stand_ins


def map_file(files: Files, native: Callable[..., Any]) -> Any:
    """Stand-in for `from_file`, whose shared mapping writes to the file."""

    def from_file(filename: Any, shared: Any = False, *args: Any, **options: Any) -> Any:
        if not files.is_off:
            filename = files.real_path(filename, writes=bool(shared))
        return native(filename, shared, *args, **options)

    return from_file


# sqlite3 -----------------------------------------------------------------------------------------


IN_MEMORY = ":memory:"


def sqlite(files: Files, native: Callable[..., Any]) -> Callable[..., Any]:
    """`sqlite3.connect` and its like: a database opened to read alone is not copied."""

    @wraps(native)
    def connect(database: Any = IN_MEMORY, *args: Any, **options: Any) -> Any:
        if files.is_off or not isinstance(database, (str, bytes, os.PathLike)):
            return native(database, *args, **options)
        name = database if isinstance(database, str) else os.fsdecode(database)
        is_uri = name.startswith("file:") and (options.get("uri") or (len(args) > 6 and args[6]))
        if name == "" or name.startswith((IN_MEMORY, "file::memory:")) or "mode=memory" in name:
            return native(database, *args, **options)
        real = uri_path(files, name) if is_uri else database_path(files, name)
        return native(real, *args, **options)

    return connect


def database_path(files: Files, name: str) -> str:
    """The database's copy, with what sqlite keeps beside it: that is sqlite's own afterwards, which
    removes it unseen.
    """
    copy = partial(files.real_path, writes=True)
    if not files.is_written(name):
        for suffix in ("-journal", "-wal"):
            if files.exists(name + suffix):
                copy(name + suffix)
    return copy(name)


def uri_path(files: Files, uri: str) -> str:
    path, mark, query = uri.partition("?")
    name = unquote(path.removeprefix("file:").removeprefix("//localhost").removeprefix("//"))
    reads = "mode=ro" in query or "immutable=1" in query
    real = files.real_path(name) if reads else database_path(files, name)
    return f"file:{quote(real)}{mark}{query}"
