"""Ways to change or lose a file that Python does not announce, each in a directory of its own.

Run as a script, each is tried, and says what came of it: an error, or what the script then sees.
Those at the end leave behind what changes a file when the interpreter ends.
"""

import asyncio
import ctypes
import os
import pty
import py_compile
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

WAYS: dict[str, Callable[[], Any]] = {}
LIBC = ctypes.CDLL(None, use_errno=True)


def way(function: Callable[[], Any]) -> Callable[[], Any]:
    WAYS[function.__name__] = function
    return function


def shell(command: str) -> str:
    return subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True).stderr.strip()


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# By the C library --------------------------------------------------------------------------------


@way
def c_unlink() -> None:
    checked(LIBC.unlink(b"text"))


@way
def c_rename_over() -> None:
    Path("new").write_text("new")
    checked(LIBC.rename(b"ckpt.pt", b"text"))


@way
def c_exchange() -> None:
    checked(LIBC.renameat2(-100, b"ckpt.pt", -100, b"text", 2))


@way
def c_truncate() -> None:
    checked(LIBC.truncate(b"text", 0))


@way
def c_open() -> None:
    os.write(checked(LIBC.open(b"text", os.O_WRONLY | os.O_TRUNC)), b"x")


@way
def c_append() -> None:
    os.write(checked(LIBC.open(b"text", os.O_WRONLY | os.O_APPEND)), b"x")


@way
def c_open_by_its_descriptor() -> None:
    with open("text") as file:
        place = f"/proc/self/fd/{file.fileno()}"
        os.write(checked(LIBC.open(place.encode(), os.O_WRONLY | os.O_TRUNC)), b"x")


@way
def c_second_name() -> None:
    checked(LIBC.link(b"text", b"second"))


@way
def c_remove_directory() -> None:
    checked(LIBC.rmdir(b"empty"))


@way
def c_mode() -> None:
    LIBC.chmod(b"text", 0)
    LIBC.fchmodat(-100, b"text", 0, 0)


@way
def c_mode_of_an_open_file() -> None:
    with open("text") as file:
        LIBC.fchmod(file.fileno(), 0)


@way
def c_times() -> None:
    LIBC.utimes(b"text", None)
    LIBC.utimensat(-100, b"text", None, 0)


@way
def c_attributes() -> None:
    checked(LIBC.setxattr(b"text", b"user.x", b"y", 1, 0))


@way
def c_flags() -> None:
    """`chattr +d`, of a file that is open to be read."""
    with open("text") as file:
        checked(LIBC.ioctl(file.fileno(), 0x40086602, ctypes.byref(ctypes.c_int(0x40))))


@way
def c_ring() -> None:
    """Its requests pass no filter of system calls."""
    ring = checked(LIBC.syscall(425, 4, bytes(120)))
    os.close(ring)


@way
def c_create() -> None:
    checked(LIBC.creat(b"text", 0o600))


@way
def c_open_to_read_and_truncate() -> None:
    checked(LIBC.open(b"text", os.O_RDONLY | os.O_TRUNC))


@way
def c_open_by_the_newest_call() -> None:
    how = (ctypes.c_uint64 * 3)(os.O_WRONLY | os.O_TRUNC, 0, 0)
    checked(LIBC.syscall(437, -100, b"text", ctypes.byref(how), ctypes.c_size_t(24)))


@way
def c_stream() -> None:
    LIBC.fopen.restype = ctypes.c_void_p
    if LIBC.fopen(b"text", b"w") is None:
        checked(-1)


# By compiled libraries ---------------------------------------------------------------------------


@way
def sqlite_attach() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("attach database 'data.db' as other")
    database.execute("delete from other.t")
    database.commit()


@way
def sqlite_vacuum_into() -> None:
    Path("target").touch()
    sqlite3.connect("data.db").execute("vacuum into 'array.npy'")


@way
def history_of_readline() -> None:
    import readline

    readline.add_history("x")
    readline.write_history_file("text")


@way
def compiled_code_anew() -> None:
    """By functions that the import system has for itself."""
    py_compile.compile("helper.py", cfile="text")


@way
def arrow_dataset() -> None:
    import pyarrow as pa
    from pyarrow import dataset

    dataset.write_dataset(
        pa.table({"x": [1]}),
        "checkpoint-0",
        format="parquet",
        existing_data_behavior="delete_matching",
    )


@way
def arrow_deletes() -> None:
    from pyarrow import fs

    fs.LocalFileSystem().delete_file("text")


@way
def arrow_deletes_a_directory() -> None:
    from pyarrow import fs

    fs.LocalFileSystem().delete_dir("checkpoint-0")


@way
def arrow_moves() -> None:
    from pyarrow import fs

    fs.LocalFileSystem().move("ckpt.pt", "text")


@way
def arrow_stream() -> None:
    from pyarrow import fs

    with fs.LocalFileSystem().open_output_stream("text") as file:
        file.write(b"x")


@way
def arrow_ipc() -> None:
    import pyarrow as pa

    table = pa.table({"x": [1]})
    with pa.ipc.new_file("text", table.schema) as writer:
        writer.write_table(table)


@way
def arrow_orc() -> None:
    import pyarrow as pa
    from pyarrow import orc

    orc.write_table(pa.table({"x": [1]}), "text")


# By programs -------------------------------------------------------------------------------------


@way
def shell_removes() -> str:
    return shell("rm -rf text ckpt.pt checkpoint-0; echo x > text")


@way
def shell_copies_and_moves() -> str:
    return shell("cp ckpt.pt text; mv ckpt.pt real.pt; ln -f ckpt.pt a.zip")


@way
def shell_changes_modes_and_times() -> str:
    return shell("chmod 0 text; touch text; chmod -R 0 checkpoint-0")


@way
def shell_in_the_background() -> str:
    subprocess.Popen("sleep 0.05; echo x > text", shell=True, stderr=subprocess.DEVNULL)
    return ""


@way
def os_system() -> int:
    return os.system("truncate -s 0 ckpt.pt 2> /dev/null")


@way
def shell_edits_in_place() -> str:
    return shell("sed -i s/before/after/ text; dd if=a.zip of=ckpt.pt; tee -a text < link > link")


@way
def shell_unpacks_over() -> str:
    pack = "folder=$(mktemp -d); echo x > $folder/text; tar cf $folder/a.tar -C $folder text"
    return shell(f"{pack}; tar xf $folder/a.tar; rm -r $folder")


@way
def asynchronous_program() -> int | None:
    async def remove() -> int | None:
        process = await asyncio.create_subprocess_shell("rm -f text ckpt.pt 2> /dev/null")
        return await process.wait()

    return asyncio.run(remove())


@way
def program_in_a_terminal() -> int:
    child, terminal = pty.fork()
    if not child:
        os.execvp("sh", ["sh", "-c", "rm -f text ckpt.pt 2> /dev/null"])
    status = os.waitpid(child, 0)[1]
    os.close(terminal)
    return status


@way
def fork_that_becomes_a_program() -> int:
    child = os.fork()
    if not child:
        os.execvp("sh", ["sh", "-c", "rm -f text ckpt.pt 2> /dev/null"])
    return os.waitpid(child, 0)[1]


@way
def another_python() -> str:
    code = "import os; os.remove('text'); open('ckpt.pt', 'w').write('x')"
    return subprocess.run(["/proc/self/exe", "-c", code], stderr=subprocess.PIPE, text=True).stderr


@way
def posix_spawn() -> int:
    process = os.posix_spawnp("sh", ["sh", "-c", "echo x > text"], os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)])  # fmt: skip
    return os.waitpid(process, 0)[1]


@way
def program_with_an_open_file() -> str:
    """Its output is opened here, hence led to the run's folder."""
    with open("text", "w") as file:
        subprocess.run(["echo", "of the program"], stdout=file)
    return Path("text").read_text()


@way
def spawned_process() -> str:
    """It takes part in the run: it sees what the script has written, and the script what it has."""
    Path("text").write_text("of the script")
    process = get_context("spawn").Process(target=in_spawned_process, args=(os.getcwd(),))
    process.start()
    process.join()
    assert process.exitcode == 0
    return Path("text").read_text()


@way
def process_of_a_server() -> str:
    process = get_context("forkserver").Process(target=in_spawned_process, args=(os.getcwd(),))
    process.start()
    process.join()
    return Path("text").read_text()


def in_spawned_process(folder: str) -> None:
    os.chdir(folder)
    before = Path("text").read_text()
    Path("text").write_text(f"{before} and of the process")
    os.remove("ckpt.pt")


# By objects of the script's ----------------------------------------------------------------------


@way
def path_that_writes() -> str:
    class Writes:
        def __fspath__(self) -> str:
            Path("ckpt.pt").write_text("x")
            return "text"

    with open(Writes(), "w") as file:
        file.write("y")
    return Path("text").read_text()


@way
def handler_that_writes() -> str:
    """A signal arrives within functions of ours, too."""

    def handle(*_: object) -> None:
        Path("text").write_text("of the handler")

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for _ in range(300):
        Path("real.pt").read_bytes()
        Path("ckpt.pt").write_text("x")
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return Path("text").read_text()


@way
def shared_memory_of_another_process() -> str:
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(os.environ["TALLY_TESTS_SHARED"])
    memory.buf[:4] = b"mine"
    seen = bytes(memory.buf[:4]).decode()
    memory.unlink()
    return seen


@way
def many_descriptors_closed() -> str:
    os.closerange(3, 256)
    Path("text").write_text("after")
    return Path("text").read_text()


@way
def written_code() -> int:
    import runpy

    Path("text").write_text("x = 5")
    return int(runpy.run_path("text")["x"])


@way
def function_by_name() -> str:
    import pickle

    assert pickle.loads(pickle.dumps([os.remove, open, os.stat])) == [os.remove, open, os.stat]
    return "the same"


class Last:
    """Changes a file when the interpreter ends."""

    def __init__(self, path: str, change: Callable[[str], Any]) -> None:
        self.path, self.change = os.path.abspath(path), change

    def __del__(self) -> None:
        self.change(self.path)


def write_over(path: str) -> None:
    with open(path, "w") as file:
        file.write("placeholder")


@way
def finalizer_at_the_end() -> None:
    globals()["last_file"] = Last("text", write_over)
    vars(signal)["last_removal"] = Last("ckpt.pt", os.remove)


@way
def c_at_the_end() -> None:
    unlink = LIBC.unlink
    globals()["last_call"] = Last("text", lambda path: unlink(path.encode()))


def train() -> None:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch.nn.Linear(8, 8, device=device)
    optimizer = torch.optim.SGD(net.parameters())
    net(torch.ones(2, 8, device=device)).sum().backward()
    optimizer.step()


def main() -> None:
    train()
    home = os.getcwd()
    for name, try_way in WAYS.items():
        os.chdir(os.path.join(home, name))
        try:
            print(f"{name}: {try_way()!r}", flush=True)
        except (OSError, sqlite3.Error) as error:
            print(f"{name}: refused {error}", flush=True)
        os.chdir(home)


if __name__ == "__main__":
    main()
