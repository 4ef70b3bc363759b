"""Lines that moved, and patches as edits: texts alone."""

import difflib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.editor.moved_lines import MovedLine, moved_lines, texts_of
from torchtally.editor.patches import TextChange, changes_of
from torchtally.editor.settings import EditorSettings, settings_of
from torchtally.errors import UsageError

LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "-d", "+e", "@@ -1 +1 @@"]), max_size=12)


def test_a_line_moves_with_its_text() -> None:
    before = ["import torch", "x = a @ b", "y = x.relu()"]
    now = ["import torch", "", "  x = a @ b", "y = x.gelu()"]
    assert moved_lines(before, now) == {
        1: MovedLine(1, is_stale=False),
        2: MovedLine(3, is_stale=False),
        3: MovedLine(4, is_stale=True),
    }
    assert moved_lines(before, ["x = a @ b"]) == {2: MovedLine(1, is_stale=False)}


def test_lines_that_are_not_known_match_none() -> None:
    before = texts_of({2: "x = 1", 4: "y = 2"})
    assert before == [None, "x = 1", None, "y = 2"]
    places = moved_lines(before, ["# new", "import torch", "x = 1", "", "y = 2"])
    assert (places[2].line, places[4].line) == (3, 5)
    assert not places[2].is_stale


@given(LINES, LINES)
def test_changes_of_a_patch_make_the_new_text(before: list[str], after: list[str]) -> None:
    ends = [[f"{line}\n" for line in lines] for lines in (before, after)]
    patch = "".join(difflib.unified_diff(*ends, "a/x.py", "b/x.py"))
    changes = changes_of(patch, "/project").get("/project/x.py", ())
    lines = list(before)
    for change in reversed(changes):
        assert change.is_of(lines)
        lines[change.first : change.first + len(change.before)] = change.after
    assert lines == after


def test_a_change_is_of_its_text_alone(tmp_path: Path) -> None:
    change = TextChange(1, ("b",), ("c",))
    assert change.is_of(["a", "b"])
    assert not change.is_of(["b", "a"])


def test_settings_name_what_is_wrong() -> None:
    assert settings_of(None) == EditorSettings()
    assert settings_of({"tally": {"gpu": "A100", "runOnSave": False}}).gpu == "A100"
    with pytest.raises(UsageError, match=r"unknown field `chip`\. There are: gpu, script, "):
        settings_of({"chip": "A100"})
    with pytest.raises(UsageError, match=r"Expected `int` >= 1 - at `\$\.steps`"):
        settings_of({"steps": 0})
