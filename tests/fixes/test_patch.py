"""Changed sources: a diff that git applies, a folder that runs, files that are kept."""

import builtins
import errno
import subprocess
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from torchtally.errors import ScriptError
from torchtally.fixes.fix import FileEvidence, Fix, NotApplicableError, ValueChange, fixes
from torchtally.fixes.patch import Patch, ScriptSources, apply, mirror, patch, source_of, unified

NONE = FileEvidence(frozenset())
SCRIPT = "import torch\noptimizer = torch.optim.SGD(p, lr=1)\n"


@pytest.fixture
def sources(tmp_path: Path) -> ScriptSources:
    (tmp_path / "package").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("words")
    texts = {"train.py": "import package.inner\n", "package/inner.py": SCRIPT}
    for name, text in {**texts, "package/__init__.py": ""}.items():
        (tmp_path / name).write_text(text)
    paths = {str(tmp_path / name): text for name, text in texts.items()}
    return ScriptSources(str(tmp_path / "train.py"), paths, dict.fromkeys(paths, NONE))


FUSED = tuple(fix for fix in fixes() if fix.name == "fused optimizer")


def test_a_folder_has_links_but_for_what_is_changed(sources: ScriptSources, tmp_path: Path) -> None:
    changed = patch(sources, FUSED)
    with mirror(sources, changed.changed) as script:
        there = Path(script).parent
        assert Path(script).is_symlink()
        assert (there / "data").is_symlink()
        inner = there / "package" / "inner.py"
        assert not inner.is_symlink()
        assert "fused=True" in inner.read_text()
        assert (there / "package" / "__init__.py").is_symlink()
    assert not there.exists()
    assert (tmp_path / "package" / "inner.py").read_text() == SCRIPT


def test_the_diff_is_one_that_git_applies(sources: ScriptSources, tmp_path: Path) -> None:
    changed = patch(sources, FUSED)
    text = unified(sources, changed, str(tmp_path))
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=tmp_path, check=True)
    path = tmp_path / "package" / "inner.py"
    assert path.read_text() == changed.changed[str(path)]
    assert "torch.optim.SGD(p, lr=1, fused=True)" in path.read_text()


def test_what_a_file_was_is_kept(sources: ScriptSources, tmp_path: Path) -> None:
    changed = patch(sources, FUSED)
    (kept,) = apply(sources, changed)
    assert Path(kept).read_text() == SCRIPT
    assert "fused=True" in (tmp_path / "package" / "inner.py").read_text()


def test_an_earlier_copy_is_not_written_over(sources: ScriptSources, tmp_path: Path) -> None:
    changed = patch(sources, FUSED)
    (tmp_path / "package" / "inner.py.orig").write_text("mine")
    (kept,) = apply(sources, changed)
    assert Path(kept).name == "inner.py.1.orig"
    assert (tmp_path / "package" / "inner.py.orig").read_text() == "mine"


def test_a_file_that_is_read_only_stays(sources: ScriptSources, tmp_path: Path) -> None:
    changed = patch(sources, FUSED)
    path = tmp_path / "package" / "inner.py"
    path.chmod(0o444)
    with pytest.raises(ScriptError, match=r"inner\.py is read-only"):
        apply(sources, changed)
    assert path.read_text() == SCRIPT


def test_a_copy_has_the_mode_of_its_file(sources: ScriptSources, tmp_path: Path) -> None:
    changed = patch(sources, FUSED)
    (tmp_path / "package" / "inner.py").chmod(0o600)
    (kept,) = apply(sources, changed)
    assert Path(kept).stat().st_mode & 0o777 == 0o600


def test_a_file_that_changed_meanwhile_is_not_written_over(
    sources: ScriptSources, tmp_path: Path
) -> None:
    changed = patch(sources, FUSED)
    path = tmp_path / "package" / "inner.py"
    path.write_text("mine\n")
    with pytest.raises(ScriptError, match=r"inner\.py has changed since it was run"):
        apply(sources, changed)
    assert path.read_text() == "mine\n"
    assert not path.with_name("inner.py.orig").exists()


def test_sources_without_the_matter_have_no_patch(sources: ScriptSources) -> None:
    with pytest.raises(NotApplicableError, match=r"needs a zero_grad\(set_to_none=False\)"):
        patch(sources, tuple(fix for fix in fixes() if fix.name == "freed gradients"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"def\n", "does not parse line 1"), ("x = '\u00e9'\n".encode("latin-1"), "not UTF-8")],
)
def test_a_file_that_cannot_be_changed_says_why(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(content)
    with pytest.raises(ScriptError, match=reason):
        source_of(str(path))


def test_a_rewrite_that_raises_is_a_change_that_does_not_apply(sources: ScriptSources) -> None:
    def rewrite(module: cst.Module, evidence: FileEvidence) -> cst.Module:
        raise ValueError("no name")

    broken = Fix("broken", "", ValueChange.SAME, "", rewrite)
    with pytest.raises(NotApplicableError, match="form it cannot change"):
        patch(sources, (broken,))


def test_several_files_are_written_or_none(
    sources: ScriptSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = dict.fromkeys(sources.texts, "new")
    changed = Patch(FUSED, both)
    opened = builtins.open

    def full(path: str, mode: str = "r", **options: Any) -> Any:
        if mode == "xb" and "inner" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return opened(path, mode, **options)

    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(OSError, match="No space"):
        apply(sources, changed)
    monkeypatch.undo()
    assert {path: Path(path).read_text() for path in both} == sources.texts
    assert not list(tmp_path.rglob("*.tmp"))


def test_windows_line_ends_stay(sources: ScriptSources) -> None:
    text = SCRIPT.replace("\n", "\r\n")
    ends = ScriptSources(sources.script, {sources.script: text}, {sources.script: NONE})
    changed = patch(ends, FUSED)
    after = changed.changed[sources.script]
    assert after.count("\r\n") == after.count("\n") == 2
