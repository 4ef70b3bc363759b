"""Every way to change or lose a file that existed before, each in a directory of its own.

`prepare` makes the files, in a process of its own. Run as a script, each way is tried, and asserts
that the script sees what it has done.
"""

import cProfile
import fileinput
import gzip
import io
import json
import logging
import logging.handlers
import mmap
import os
import pickle
import pstats
import py_compile
import shelve
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from os import remove as remove_by_name
from pathlib import Path

WAYS: dict[str, Callable[[], None]] = {}


def way(function: Callable[[], None]) -> Callable[[], None]:
    WAYS[function.__name__] = function
    return function


def prepare(root: Path, names: Iterable[str] = WAYS) -> None:
    """One directory for each way, all alike."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    model = root / "model"
    (model / "checkpoint-0").mkdir(parents=True)
    (model / "empty").mkdir()
    (model / "ckpt.pt").write_bytes(os.urandom(50_000))
    (model / "text").write_text("before\n")
    (model / "checkpoint-0" / "weights").write_bytes(b"w" * 1000)
    (model / "checkpoint-0" / "state.json").write_text("{}")
    (model / "link").symlink_to("text")
    (model / "latest").symlink_to("checkpoint-0")
    np.save(model / "array.npy", np.arange(1000))
    torch.save({"x": torch.ones(10)}, model / "real.pt")
    save_file({"x": torch.ones(10)}, model / "model.safetensors")
    database = sqlite3.connect(model / "data.db")
    database.execute("create table t (x)")
    database.execute("insert into t values (1)")
    database.commit()
    database.close()
    leave_log_of_writes(model)
    with zipfile.ZipFile(model / "a.zip", "w") as archive:
        archive.writestr("x", "before")
    (model / "helper.py").write_text("x = 1\n")
    py_compile.compile(str(model / "helper.py"))
    (model / "helper.py").write_text("x = 1 + 1\n")
    for name in names:
        shutil.copytree(model, root / name, symlinks=True)
    shutil.rmtree(model)


def leave_log_of_writes(folder: Path) -> None:
    """A database of a program that was killed: its second row is in the log alone."""
    living = sqlite3.connect(folder / "living.db")
    living.execute("pragma journal_mode = wal")
    living.execute("create table t (x)")
    living.execute("insert into t values (1)")
    living.commit()
    living.execute("pragma wal_checkpoint(truncate)")
    living.execute("insert into t values (2)")
    living.commit()
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"living.db{suffix}", folder / f"wal.db{suffix}")
    living.close()
    (folder / "living.db").unlink()


# By Python's files -------------------------------------------------------------------------------


@way
def open_for_writing() -> None:
    with open("ckpt.pt", "wb") as file:
        file.write(b"stub")
    assert Path("ckpt.pt").read_bytes() == b"stub"


@way
def open_for_appending() -> None:
    with open("text", "a") as file:
        file.write("after\n")
    assert Path("text").read_text() == "before\nafter\n"


@way
def open_for_update() -> None:
    with open("ckpt.pt", "r+b") as file:
        file.seek(10)
        file.write(b"x" * 10)
    assert os.path.getsize("ckpt.pt") == 50_000


@way
def open_exclusively_after_removal() -> None:
    os.remove("text")
    with open("text", "x") as file:
        file.write("new")
    assert Path("text").read_text() == "new"


@way
def io_open() -> None:
    with io.open("text", "w") as file:  # noqa: UP020
        file.write("x")
    assert os.stat("text").st_size == 1


@way
def file_io() -> None:
    with io.FileIO("text", "w") as file:
        file.write(b"yy")
    assert os.stat("text").st_size == 2


@way
def open_through_a_link() -> None:
    with open("link", "w") as file:
        file.write("through")
    assert Path("text").read_text() == "through"


@way
def open_through_a_linked_directory() -> None:
    Path("latest", "weights").write_bytes(b"")
    assert os.path.getsize("checkpoint-0/weights") == 0


@way
def os_open() -> None:
    descriptor = os.open("text", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"abc")
    os.close(descriptor)
    assert Path("text").read_text() == "abc"


@way
def os_open_in_an_open_directory() -> None:
    directory = os.open(".", os.O_RDONLY)
    descriptor = os.open("text", os.O_RDWR, dir_fd=directory)
    os.ftruncate(descriptor, 3)
    os.unlink("ckpt.pt", dir_fd=directory)
    os.close(descriptor)
    assert os.listdir(directory).count("ckpt.pt") == 0
    os.close(directory)
    assert Path("text").read_text() == "bef"


# By os -------------------------------------------------------------------------------------------


@way
def os_remove() -> None:
    os.remove("ckpt.pt")
    assert not os.path.exists("ckpt.pt")
    assert "ckpt.pt" not in os.listdir()


@way
def remove_imported_by_name() -> None:
    remove_by_name("ckpt.pt")
    assert not os.path.lexists("ckpt.pt")


@way
def os_rename() -> None:
    os.rename("ckpt.pt", "ckpt.old")
    assert os.path.getsize("ckpt.old") == 50_000
    assert not os.path.exists("ckpt.pt")
    with open("ckpt.old", "ab") as file:
        file.write(b"more")


@way
def os_replace_onto() -> None:
    Path("ckpt.tmp").write_text("new")
    os.replace("ckpt.tmp", "ckpt.pt")
    assert Path("ckpt.pt").read_text() == "new"
    assert not os.path.exists("ckpt.tmp")


@way
def rename_a_directory() -> None:
    os.rename("checkpoint-0", "checkpoint-1")
    assert sorted(os.listdir("checkpoint-1")) == ["state.json", "weights"]
    os.remove("checkpoint-1/weights")
    os.rename("checkpoint-1", "checkpoint-2")
    assert os.listdir("checkpoint-2") == ["state.json"]
    Path("checkpoint-2/state.json").write_text("[]")


@way
def swap_two_files() -> None:
    os.rename("text", "tmp")
    os.rename("ckpt.pt", "text")
    os.rename("tmp", "ckpt.pt")
    assert Path("ckpt.pt").read_text() == "before\n"
    assert os.path.getsize("text") == 50_000


@way
def os_truncate() -> None:
    os.truncate("ckpt.pt", 10)
    assert os.path.getsize("ckpt.pt") == 10


@way
def os_chmod() -> None:
    os.chmod("text", 0o600)
    assert os.stat("text").st_mode & 0o777 == 0o600


@way
def chmod_of_an_open_file() -> None:
    with open("text") as file:
        os.fchmod(file.fileno(), 0o600)
    assert os.stat("text").st_mode & 0o777 == 0o600


@way
def os_utime() -> None:
    os.utime("text", (0, 0))
    assert os.path.getmtime("text") == 0


@way
def write_through_a_hard_link() -> None:
    os.link("text", "second")
    with open("second", "w") as file:
        file.write("second")
    assert Path("second").read_text() == "second"


@way
def replace_a_file_by_a_link() -> None:
    os.remove("latest")
    os.symlink("empty", "latest")
    Path("latest/new").write_text("x")
    assert os.listdir("empty") == ["new"]
    assert os.readlink("latest") == "empty"


@way
def remove_directories() -> None:
    os.remove("checkpoint-0/weights")
    os.remove("checkpoint-0/state.json")
    os.rmdir("checkpoint-0")
    os.rmdir("empty")
    assert not os.path.isdir("checkpoint-0")
    assert not os.path.exists("latest")
    assert os.path.islink("latest")


@way
def after_a_fork() -> None:
    pid = os.fork()
    if not pid:
        os.remove("ckpt.pt")
        Path("text").write_text("child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert not os.path.exists("ckpt.pt")
    assert Path("text").read_text() == "child"


# By pathlib, shutil, tempfile --------------------------------------------------------------------


@way
def path_write_text() -> None:
    Path("text").write_text("path")
    assert Path("text").read_text() == "path"


@way
def path_unlink() -> None:
    Path("ckpt.pt").unlink()
    assert not Path("ckpt.pt").exists()
    assert not list(Path().glob("*.pt*pt"))


@way
def path_rename() -> None:
    Path("text").rename("ckpt.pt")
    assert Path("ckpt.pt").read_text() == "before\n"


@way
def path_touch() -> None:
    Path("text").touch()
    assert Path("text").stat().st_size == 7


@way
def shutil_rmtree() -> None:
    shutil.rmtree("checkpoint-0")
    assert "checkpoint-0" not in os.listdir()
    os.makedirs("checkpoint-0")
    assert os.listdir("checkpoint-0") == []


@way
def shutil_move() -> None:
    shutil.move("checkpoint-0", "empty")
    assert sorted(os.listdir("empty/checkpoint-0")) == ["state.json", "weights"]


@way
def shutil_copy() -> None:
    shutil.copy2("text", "ckpt.pt")
    assert Path("ckpt.pt").read_text() == "before\n"


@way
def shutil_copytree() -> None:
    shutil.copytree("empty", "checkpoint-0", dirs_exist_ok=True)
    shutil.copytree("checkpoint-0", "empty", dirs_exist_ok=True)
    assert sorted(os.listdir("empty")) == ["state.json", "weights"]


@way
def temporary_file_that_replaces() -> None:
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("whole")
    os.replace(file.name, "ckpt.pt")
    assert Path("ckpt.pt").read_text() == "whole"


@way
def temporary_file_of_the_system_that_is_moved() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("moved")
        shutil.move(Path(folder, "x"), "text")
    assert Path("text").read_text() == "moved"


# By Python's formats -----------------------------------------------------------------------------


@way
def sqlite() -> None:
    database = sqlite3.connect("data.db")
    database.execute("delete from t")
    database.commit()
    database.close()
    again = sqlite3.connect("data.db")
    assert again.execute("select count(*) from t").fetchone() == (0,)
    again.close()


@way
def sqlite_by_uri() -> None:
    database = sqlite3.connect(f"file:{os.getcwd()}/data.db?mode=rw", uri=True)
    database.execute("drop table t")
    database.commit()
    database.close()


@way
def sqlite_with_a_log_of_writes_left_over() -> None:
    for rows in (3, 4, 5):
        database = sqlite3.connect("wal.db")
        database.execute("insert into t values (2)")
        database.commit()
        assert database.execute("select count(*) from t").fetchone() == (rows,)
        database.close()


@way
def zip_append() -> None:
    with zipfile.ZipFile("a.zip", "a") as archive:
        archive.writestr("y", "after")
    assert zipfile.ZipFile("a.zip").namelist() == ["x", "y"]


@way
def tar_over() -> None:
    with tarfile.open("ckpt.pt", "w:gz") as archive:
        archive.add("text")
    with tarfile.open("ckpt.pt") as archive:
        assert archive.getnames() == ["text"]


@way
def gzip_and_pickle_and_json() -> None:
    with gzip.open("ckpt.pt", "wb") as packed:
        packed.write(b"x")
    with open("text", "wb") as plain:
        pickle.dump([1], plain)
    Path("checkpoint-0/state.json").write_text(json.dumps([1]))
    with gzip.open("ckpt.pt") as packed:
        assert packed.read() == b"x"


@way
def shelf() -> None:
    with shelve.open("text", "n") as shelf:
        shelf["x"] = 1
    with shelve.open("text") as shelf:
        assert shelf["x"] == 1


@way
def rotated_log() -> None:
    handler = logging.handlers.RotatingFileHandler("text", maxBytes=1, backupCount=1)
    handler.emit(logging.LogRecord("x", 20, "", 0, "one", (), None))
    handler.emit(logging.LogRecord("x", 20, "", 0, "two", (), None))
    handler.close()
    assert Path("text.1").exists()


@way
def files_edited_in_place() -> None:
    with fileinput.input("text", inplace=True) as lines:
        for line in lines:
            print(line.upper(), end="")
    assert Path("text").read_text() == "BEFORE\n"


@way
def mapped_file() -> None:
    with open("ckpt.pt", "r+b") as file, mmap.mmap(file.fileno(), 100) as mapped:
        mapped[:3] = b"map"
    assert Path("ckpt.pt").read_bytes()[:3] == b"map"


@way
def archives_unpacked_over() -> None:
    with zipfile.ZipFile("new.zip", "w") as archive:
        archive.writestr("text", "of the zip")
    shutil.make_archive("packed", "tar", "checkpoint-0")
    shutil.unpack_archive("new.zip", ".")
    assert Path("text").read_text() == "of the zip"
    with tarfile.open("packed.tar") as archive:
        archive.extractall("empty")
    assert sorted(os.listdir("empty")) == ["state.json", "weights"]


@way
def profile_dumped() -> None:
    profile = cProfile.Profile()
    profile.runcall(sorted, [2, 1])
    profile.dump_stats("text")
    assert pstats.Stats("text").total_calls >= 1


@way
def bytes_copied_between_open_files() -> None:
    source, target = os.open("ckpt.pt", os.O_RDONLY), os.open("text", os.O_WRONLY)
    os.copy_file_range(source, target, 100)
    os.sendfile(target, source, 100, 100)
    os.posix_fallocate(target, 0, 500)
    os.close(source)
    os.close(target)
    assert os.path.getsize("text") == 500


@way
def directories_removed_with_their_parents() -> None:
    os.renames("checkpoint-0/weights", "new/weights")
    os.remove("checkpoint-0/state.json")
    os.removedirs("checkpoint-0")
    assert os.listdir("new") == ["weights"]


@way
def redirected_output() -> None:
    from contextlib import redirect_stdout

    with open("text", "w") as file, redirect_stdout(file):
        print("printed")
    assert Path("text").read_text() == "printed\n"


# By libraries ------------------------------------------------------------------------------------


@way
def torch_save() -> None:
    import torch

    torch.save({"x": torch.zeros(5, device="cuda")}, "ckpt.pt")
    assert torch.load("ckpt.pt")["x"].shape == (5,)


@way
def torch_save_of_the_host() -> None:
    import torch

    torch.save({"x": torch.arange(5)}, Path("real.pt"))
    assert torch.load("real.pt", mmap=True)["x"].tolist() == [0, 1, 2, 3, 4]


@way
def torch_save_to_a_name_that_is_not_ascii() -> None:
    import torch

    os.rename("real.pt", "größe.pt")
    torch.save({"x": torch.arange(5)}, "größe.pt")
    assert torch.load("größe.pt")["x"].tolist() == [0, 1, 2, 3, 4]


@way
def torch_script() -> None:
    import torch

    torch.jit.save(torch.jit.script(torch.nn.ReLU()), "ckpt.pt")
    assert torch.jit.load("ckpt.pt")(torch.ones(1)).item() == 1


@way
def torch_shared_mapping() -> None:
    import torch

    torch.from_file("ckpt.pt", shared=True, size=100, dtype=torch.uint8).zero_()
    assert Path("ckpt.pt").read_bytes()[:100] == bytes(100)


@way
def safetensors() -> None:
    import torch
    from safetensors.torch import load_file, save_file

    save_file({"y": torch.arange(3)}, "model.safetensors")
    assert load_file("model.safetensors")["y"].tolist() == [0, 1, 2]


@way
def distributed_checkpoint() -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"x": torch.arange(4)}
    dcp.save(state, checkpoint_id="checkpoint-0")
    back = {"x": torch.zeros(4, dtype=torch.int64)}
    dcp.load(back, checkpoint_id="checkpoint-0")
    assert back["x"].tolist() == [0, 1, 2, 3]


@way
def numpy_save() -> None:
    import numpy as np

    np.save("array.npy", np.zeros(3))
    np.savez("real.pt", np.zeros(3))
    np.savetxt("text", np.zeros(3))
    assert np.load("array.npy").shape == (3,)


@way
def numpy_memmap() -> None:
    import numpy as np

    for mode in ("r+", "w+"):
        mapped = np.memmap("ckpt.pt", dtype=np.uint8, mode=mode, shape=(100,))
        mapped[:] = 7
        mapped.flush()
        assert np.fromfile("ckpt.pt", dtype=np.uint8, count=100).tolist() == [7] * 100
    np.lib.format.open_memmap("array.npy", mode="r+")[:] = 0
    assert not np.load("array.npy").any()


@way
def numpy_tofile() -> None:
    import numpy as np

    np.zeros(10).tofile("ckpt.pt")
    assert os.path.getsize("ckpt.pt") == 80


@way
def parquet() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1, 2]}), "ckpt.pt")
    assert pq.read_table("ckpt.pt").num_rows == 2
    with pa.OSFile("text", "wb") as file:
        file.write(b"arrow")
    assert pa.memory_map("text").read() == b"arrow"


@way
def tokenizer() -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).save("text")
    assert Tokenizer.from_file("text").get_vocab_size() == 0


@way
def chrome_trace() -> None:
    import torch

    with torch.profiler.profile() as profile:
        torch.ones(2) + 1
    profile.export_chrome_trace("text")
    assert "traceEvents" in json.loads(Path("text").read_text())


@way
def import_with_a_stale_cache_of_compiled_code() -> None:
    sys.dont_write_bytecode = False
    sys.path.insert(0, os.getcwd())
    import helper

    assert helper.x == 2
    sys.path.pop(0)


@way
def import_what_was_written() -> None:
    Path("written_by_the_script.py").write_text("x = 3\n")
    sys.path.insert(0, os.getcwd())
    import written_by_the_script

    assert written_by_the_script.x == 3
    sys.path.pop(0)


@way
def bypassed_by_c() -> None:
    """What the overlay does not know is refused."""
    import posix

    import pytest

    for change in (
        lambda: posix.remove("ckpt.pt"),
        lambda: posix.rename("ckpt.pt", "x"),
        lambda: posix.truncate("ckpt.pt", 0),
        lambda: posix.chmod("ckpt.pt", 0),
        lambda: posix.open("ckpt.pt", os.O_WRONLY),
        lambda: sqlite3.Connection("data.db"),
    ):
        with pytest.raises(OSError, match="tally refused to change"):
            change()


def main() -> None:
    home = os.getcwd()
    for name, try_way in WAYS.items():
        os.chdir(os.path.join(home, name))
        try_way()
        os.chdir(home)
        print(name, flush=True)
    assert subprocess.run(["true"]).returncode == 0


if __name__ == "__main__":
    main()
