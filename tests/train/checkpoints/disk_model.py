"""A disk that loses its power, and with it whatever was not flushed.

The calls of a save are recorded. The model then plays each beginning of them to a disk that keeps
what was there before, what fsync was asked for, and of the rest as much as a draw says: of a file
that was not flushed none of its bytes, a part, or zeros; of a directory that was not flushed any of
its changes. Renaming within a directory is one change.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    """What one call did, by the nodes it was done to."""

    name: str
    node: int
    args: tuple[Any, ...] = ()


@dataclass
class Node:
    """A file's bytes, or a directory's names with their nodes: now, and on the disk."""

    is_directory: bool
    now: Any
    kept: Any
    changes: list[dict[str, int | None]] = field(default_factory=list)
    """Of a directory, since it was flushed: names with their nodes, None for no more."""


class Recorder:
    """Wraps os's calls that change what is below a folder, and writes down what they did."""

    def __init__(self, root: Path) -> None:
        self.calls: list[Call] = []
        self._root = root
        self._nodes: dict[int, int] = {}
        """By inode: inodes are given again, nodes are not."""
        self._of_handle: dict[int, int] = {}
        self._next = 0
        self.before = self._existing(root)

    def _new_node(self, inode: int) -> int:
        self._nodes[inode] = self._next
        self._next += 1
        return self._nodes[inode]

    def _existing(self, path: Path) -> dict[int, Node]:
        """All that is on the disk by now, by node."""
        number = self._new_node(path.stat().st_ino)
        if not path.is_dir():
            content = path.read_bytes()
            return {number: Node(False, content, content)}
        nodes: dict[int, Node] = {}
        entries: dict[str, int] = {}
        for file in sorted(path.iterdir()):
            nodes |= self._existing(file)
            entries[file.name] = self._nodes[file.stat().st_ino]
        return {**nodes, number: Node(True, dict(entries), dict(entries))}

    @contextmanager
    def recording(self) -> Iterator[None]:
        own = {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if "_do_" in name
        }
        native = {name: getattr(os, name) for name in own}
        for name, member in own.items():
            setattr(os, name, _bound(member, native[name]))
        try:
            yield
        finally:
            for name, call in native.items():
                setattr(os, name, call)

    def _note(self, name: str, node: int, *args: Any) -> None:
        self.calls.append(Call(name, node, args))

    def _parent(self, path: Any, dir_fd: int | None) -> tuple[int | None, str]:
        """The node of the directory that a name is in, where it is below the root."""
        if dir_fd is not None:
            return self._of_handle.get(dir_fd), str(path)
        parent = Path(path).parent
        return self._nodes.get(parent.stat().st_ino) if parent.exists() else None, Path(path).name

    def _do_open(self, native: Any, path: Any, flags: int, *args: Any, dir_fd: Any = None) -> int:
        is_new = bool(flags & os.O_CREAT)
        handle: int = native(path, flags, *args, dir_fd=dir_fd)
        inode = os.fstat(handle).st_ino
        if is_new:
            parent, name = self._parent(path, dir_fd)
            assert parent is not None
            self._note("create", self._new_node(inode), parent, name)
        if inode in self._nodes:
            self._of_handle[handle] = self._nodes[inode]
        else:
            self._of_handle.pop(handle, None)
        return handle

    def _do_write(self, native: Any, handle: int, content: Any) -> int:
        count: int = native(handle, content)
        if handle in self._of_handle:
            self._note("write", self._of_handle[handle], bytes(content[:count]))
        return count

    def _do_fsync(self, native: Any, handle: int) -> None:
        native(handle)
        if handle in self._of_handle:
            self._note("fsync", self._of_handle[handle])

    def _do_mkdir(self, native: Any, path: Any, *args: Any, dir_fd: Any = None) -> None:
        native(path, *args, dir_fd=dir_fd)
        parent, name = self._parent(path, dir_fd)
        assert parent is not None
        inode = os.stat(path, dir_fd=dir_fd).st_ino
        self._note("mkdir", self._new_node(inode), parent, name)

    def _do_rename(self, native: Any, old: Any, new: Any, **at: int) -> None:
        inode = os.stat(old, dir_fd=at["src_dir_fd"]).st_ino
        native(old, new, **at)
        self._note("rename", self._nodes[inode], self._of_handle[at["src_dir_fd"]], old, new)

    def _do_unlink(self, native: Any, path: Any, *, dir_fd: int) -> None:
        native(path, dir_fd=dir_fd)
        self._note("remove", -1, self._of_handle[dir_fd], path)

    def _do_rmdir(self, native: Any, path: Any, *, dir_fd: int) -> None:
        native(path, dir_fd=dir_fd)
        self._note("remove", -1, self._of_handle[dir_fd], path)


def _bound(own: Callable[..., Any], native: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return own(native, *args, **options)

    return call


class Disk:
    """Nodes by number; the root is the last of those that were there before."""

    def __init__(self, before: dict[int, Node]) -> None:
        self.nodes = {
            number: Node(node.is_directory, _copied(node.now), _copied(node.kept))
            for number, node in before.items()
        }
        self.root = 0

    def play(self, call: Call) -> None:
        match call.name, call.args:
            case "create", (parent, name):
                self.nodes[call.node] = Node(False, b"", b"")
                self._change(parent, {name: call.node})
            case "mkdir", (parent, name):
                self.nodes[call.node] = Node(True, {}, {})
                self._change(parent, {name: call.node})
            case "write", (content,):
                self.nodes[call.node].now += content
            case "rename", (parent, old, new):
                self._change(parent, {old: None, new: call.node})
            case "remove", (parent, name):
                self._change(parent, {name: None})
            case "fsync", ():
                node = self.nodes[call.node]
                node.kept = _copied(node.now)
                node.changes.clear()
            case _:
                raise AssertionError(call)

    def is_flushed(self, number: int) -> bool:
        """Nothing of it would be lost."""
        node = self.nodes[number]
        return bool(node.now == node.kept and not node.changes)

    def lose_power(self, into: Path, draw: random.Random, keeps: float) -> None:
        """Makes files of what is left; `keeps` is the part of unflushed changes that is kept."""
        self._leave(self.root, into, draw, keeps)

    def _change(self, parent: int, change: dict[str, int | None]) -> None:
        node = self.nodes[parent]
        _apply(node.now, change)
        node.changes.append(change)

    def _leave(self, number: int, path: Path, draw: random.Random, keeps: float) -> None:
        node = self.nodes[number]
        if not node.is_directory:
            path.write_bytes(node.kept if self.is_flushed(number) else _torn(node, draw))
            return
        path.mkdir(exist_ok=True)
        entries = dict(node.kept)
        for change in node.changes:
            if draw.random() < keeps:
                _apply(entries, change)
        for name, inner in entries.items():
            self._leave(inner, path / name, draw, keeps)


def _apply(entries: dict[str, int], change: dict[str, int | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _torn(node: Node, draw: random.Random) -> bytes:
    now: bytes = node.now
    kept: bytes = node.kept
    part = now[: draw.randrange(len(now) + 1)]
    return draw.choice([kept, part, bytes(len(now)), part.ljust(len(now), b"\0")])


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value
