"""Compiled libraries that open files by themselves: their path arguments, led to the overlay.

A row is one function: its module, its name there, which argument is the path, and what it does
with the file. A library that is in no row opens what it is told to: docs/files.md says so.
"""

import os
from collections.abc import Callable
from enum import Enum
from functools import partial, wraps
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from torchtally import torch_private as private
from torchtally.isolation.files import Files
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn


class Access(Enum):
    """What a function does with the file at a path."""

    READS = "reads it"
    REPLACES = "writes it anew"
    CHANGES = "writes to what is there"
    BY_MODE = "as its argument `mode` says"


class NativeOpener(NamedTuple):
    """A function or class of a compiled library that takes a path."""

    module: str
    name: str
    place: int
    """Of the path among its arguments; `self` counts."""
    keyword: str
    access: Access


READS, REPLACES, CHANGES, BY_MODE = Access
OPENERS = (
    NativeOpener("safetensors", "serialize_file", 1, "filename", REPLACES),
    NativeOpener("safetensors", "safe_open", 0, "filename", READS),
    NativeOpener("tokenizers", "Tokenizer.save", 1, "path", REPLACES),
    NativeOpener("tokenizers", "Tokenizer.from_file", 0, "path", READS),
    NativeOpener("tokenizers.models", "Model.save", 1, "folder", CHANGES),
    NativeOpener("h5py", "File.__init__", 1, "name", BY_MODE),
    NativeOpener("cv2", "imwrite", 0, "filename", REPLACES),
    NativeOpener("cv2", "imread", 0, "filename", READS),
    NativeOpener("lmdb", "open", 0, "path", CHANGES),
    NativeOpener("soundfile", "SoundFile.__init__", 1, "file", BY_MODE),
    NativeOpener("torchaudio", "save", 0, "uri", REPLACES),
    NativeOpener("torchaudio", "load", 0, "uri", READS),
    NativeOpener("torchvision.io.image", "write_file", 0, "filename", REPLACES),
    NativeOpener("torchvision.io.image", "read_file", 0, "path", READS),
    NativeOpener("pyarrow", "OSFile", 0, "path", BY_MODE),
    NativeOpener("pyarrow", "memory_map", 0, "path", BY_MODE),
    NativeOpener("pyarrow", "create_memory_map", 0, "path", REPLACES),
    NativeOpener("pyarrow", "output_stream", 0, "source", REPLACES),
    NativeOpener("pyarrow", "input_stream", 0, "source", READS),
    NativeOpener("pyarrow.parquet.core", "ParquetWriter.__init__", 1, "where", REPLACES),
    NativeOpener("pyarrow.parquet.core", "ParquetFile.__init__", 1, "source", READS),
    NativeOpener("pyarrow.parquet.core", "ParquetDataset.__init__", 1, "path_or_paths", READS),
    NativeOpener("pyarrow.feather", "write_feather", 1, "dest", REPLACES),
    NativeOpener("pyarrow.feather", "read_table", 0, "source", READS),
    NativeOpener("pyarrow.csv", "write_csv", 1, "output_file", REPLACES),
    NativeOpener("pyarrow.csv", "read_csv", 0, "input_file", READS),
    NativeOpener("tables.file", "File.__init__", 1, "filename", BY_MODE),
    *(
        NativeOpener("polars.dataframe.frame", f"DataFrame.write_{kind}", 1, "file", REPLACES)
        for kind in ("avro", "csv", "ipc", "json", "ndjson", "parquet")
    ),
    *(
        NativeOpener("polars.lazyframe.frame", f"LazyFrame.sink_{kind}", 1, "path", REPLACES)
        for kind in ("csv", "ipc", "ndjson", "parquet")
    ),
    *(
        NativeOpener("polars", f"{way}_{kind}", 0, "source", READS)
        for way in ("read", "scan")
        for kind in ("avro", "csv", "ipc", "json", "ndjson", "parquet")
    ),
    NativeOpener("_gdbm", "open", 0, "filename", CHANGES),
    NativeOpener("_dbm", "open", 0, "filename", CHANGES),
)


def writers(files: Files) -> list[tuple[str, Replacements]]:
    """What is replaced in those libraries, by module."""

    def replacements(writer: NativeOpener) -> Replacements:
        return lambda module: replacement(files, writer, module)

    return [
        *((writer.module, replacements(writer)) for writer in OPENERS),
        ("numpy.lib._datasource", partial(numpy_openers, files)),
        ("duckdb", lambda module: [StandIn(module, "connect", sqlite(files, module.connect))]),
    ]


def numpy_openers(files: Files, module: Any) -> list[StandIn]:
    """`np.savetxt` and `np.loadtxt` open by a table that was made when NumPy was imported."""
    openers = module._file_openers
    openers._load()
    return [StandIn(openers, "_file_openers", {**openers._file_openers, None: files.open})]


def replacement(files: Files, writer: NativeOpener, module: ModuleType) -> list[StandIn]:
    """Nothing where this version of the library has no such function."""
    *owners, name = writer.name.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part, None)
    native = getattr(owner, name, None)
    if native is None:
        return []
    is_static = isinstance(vars(owner).get(name), staticmethod) or (
        isinstance(owner, type) and writer.place == 0
    )
    stand_in = redirect(files, native, writer.place, writer.keyword, writer.access)
    return [StandIn(owner, name, staticmethod(stand_in) if is_static else stand_in)]


def redirect(
    files: Files, native: Callable[..., Any], place: int, keyword: str, access: Access
) -> Callable[..., Any]:
    """The function, given the path where the overlay has the file."""

    @wraps(native, updated=())
    def stand_in(*args: Any, **options: Any) -> Any:
        path = args[place] if len(args) > place else options.get(keyword)
        if files.is_off or not isinstance(path, (str, bytes, os.PathLike)):
            return native(*args, **options)
        mode = options.get("mode", args[place + 1] if len(args) > place + 1 else "r")
        real = real_path(files, path, access, mode if isinstance(mode, str) else "r")
        if len(args) > place:
            args = (*args[:place], real, *args[place + 1 :])
        else:
            options[keyword] = real
        return native(*args, **options)

    return stand_in


def real_path(files: Files, path: Any, access: Access, mode: str) -> str:
    if access is BY_MODE:
        access = READS if mode in ("r", "rb") else REPLACES if mode in ("w", "wb") else CHANGES
    return files.real_path(path, writes=access is not READS, has_content=access is CHANGES)


# torch -------------------------------------------------------------------------------------------


def torch_writers(files: Files) -> list[StandIn]:
    """torch's own, which are loaded in any case."""
    stand_ins = []
    for path in private.NATIVE_FILES:
        native = getattr(path.owner, path.name)
        access = REPLACES if path.is_written else READS
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
    """`from_file`: a shared mapping writes to the file."""

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
