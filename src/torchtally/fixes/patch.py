"""Changed sources: their diff, and a folder in which they run in place of the user's."""

import difflib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count

import libcst as cst

from torchtally.errors import ScriptError
from torchtally.fixes.fix import FileEvidence, Fix, NotApplicableError


@dataclass(frozen=True, slots=True)
class ScriptSources:
    """A script and the user's modules beside it, as they are."""

    script: str
    """Its path, absolute."""
    texts: Mapping[str, str]
    """By absolute path: the script and what it ran of its own folder."""
    evidence: Mapping[str, FileEvidence]
    """The same files."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Reasons why other files are left alone, by absolute path."""

    @property
    def folder(self) -> str:
        return os.path.dirname(self.script)


@dataclass(frozen=True, slots=True)
class Patch:
    """ScriptSources with some fixes in them."""

    fixes: tuple[Fix, ...]
    changed: Mapping[str, str]
    """Files that differ, by absolute path."""


def patch(sources: ScriptSources, fixes: tuple[Fix, ...]) -> Patch:
    """The sources with these fixes, one after the other.

    Raises NotApplicableError, with the reason, where one of them changes nothing.
    """
    texts = dict(sources.texts)
    for fix in fixes:
        before, reasons = dict(texts), []
        for path, text in before.items():
            try:
                texts[path] = rewritten(fix, path, text, sources.evidence[path])
            except NotApplicableError as error:
                reasons.append(str(error))
        if texts == before:
            raise NotApplicableError(next(iter(reasons), f"needs {fix.needs}"))
    changed = {path: text for path, text in texts.items() if text != sources.texts[path]}
    return Patch(fixes, changed)


def rewritten(fix: Fix, path: str, text: str, evidence: FileEvidence) -> str:
    """A file's text with a fix. Raises NotApplicableError where that is no other text."""
    try:
        changed = fix.rewrite(cst.parse_module(text), evidence).code
    except NotApplicableError:
        raise
    except Exception as error:  # of the many forms of source, one that a rewrite does not know
        name = os.path.basename(path)
        reason = f"{name} has a form it cannot change ({type(error).__name__}: {error})"
        raise NotApplicableError(reason) from error
    try:
        compile(changed, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise NotApplicableError(f"{os.path.basename(path)} would be no Python") from error
    return changed


def source_of(path: str) -> str:
    """Text of a file that can be changed. Raises ScriptError with why one cannot."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise ScriptError("not UTF-8") from error
    except OSError as error:
        raise ScriptError(f"cannot be read ({error.strerror})") from error
    try:
        cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise ScriptError(f"libcst does not parse line {error.raw_line}") from error
    return text


def unified(sources: ScriptSources, patch: Patch, start: str) -> str:
    """The change as `git apply` takes it, with paths from the folder `start`."""
    parts = []
    for path, text in sorted(patch.changed.items()):
        name = os.path.relpath(path, start)
        lines = difflib.unified_diff(
            sources.texts[path].splitlines(keepends=True), text.splitlines(keepends=True),
            f"a/{name}", f"b/{name}",
        )  # fmt: skip
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
                  for line in lines]  # fmt: skip
    return "".join(parts)


@contextmanager
def mirror(sources: ScriptSources, changed: Mapping[str, str]) -> Iterator[str]:
    """The script's folder as links, but for changed files, in a folder that is removed: the path of
    the script in it.
    """
    with tempfile.TemporaryDirectory(prefix="tally-fix-") as place:
        place = os.path.join(os.path.realpath(place), os.path.basename(sources.folder) or "script")
        link(sources.folder, place, changed)
        yield os.path.join(place, os.path.basename(sources.script))


def link(folder: str, place: str, changed: Mapping[str, str]) -> None:
    """Links to a folder's entries; folders with changed files in them are made anew."""
    os.mkdir(place)
    for name in os.listdir(folder):
        path, there = os.path.join(folder, name), os.path.join(place, name)
        if path in changed:
            with open(there, "w", encoding="utf-8", newline="") as file:
                file.write(changed[path])
        elif any(each.startswith(path + os.sep) for each in changed):
            link(path, there, changed)
        else:
            os.symlink(path, there)


def apply(sources: ScriptSources, patch: Patch) -> tuple[str, ...]:
    """Write the changed files, each with what it was beside it (`train.py.orig`): those paths.

    Raises ScriptError, and writes nothing, where one is no longer what was run, or not to be
    written; OSError where writing fails.
    """
    from torchtally.files.atomic import write_all

    for path in patch.changed:
        if not os.access(path, os.W_OK) or not os.stat(path).st_mode & stat.S_IWUSR:
            raise ScriptError(
                f"{path} is read-only: nothing is written. chmod u+w {path} allows it."
            )
        with open(path, encoding="utf-8", newline="") as file:
            if file.read() != sources.texts[path]:
                raise ScriptError(
                    f"{path} has changed since it was run: nothing is written. Run tally fix again."
                )
    kept = []
    for path in patch.changed:
        kept.append(free_name(path))
        shutil.copy2(path, kept[-1])
    write_all({path: text.encode() for path, text in patch.changed.items()})
    return tuple(kept)


def free_name(path: str) -> str:
    """Name of a file's copy: beside it, and of no other file."""
    names = (f"{path}{number}.orig" for number in chain([""], (f".{n}" for n in count(1))))
    return next(name for name in names if not os.path.lexists(name))
