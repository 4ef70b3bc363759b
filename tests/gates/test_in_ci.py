"""The action for GitHub and the hooks of pre-commit, run as those run them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.warm import commands

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import sys
import torch

assert sys.argv[1:] == ["--name", "two words; exit 9"], sys.argv
weight = torch.randn(512, 512, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
for step in range(2):
    (weight @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RUN = "train.py --name 'two words; exit 9'"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{commands()}:{os.environ['PATH']}", **more}


def run_step(project: Path, **inputs: str) -> "subprocess.CompletedProcess[str]":
    """The action's step that runs the script, with its inputs as GitHub gives them."""
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "run")
    values = {name: each.get("default", "") for name, each in action["inputs"].items()} | inputs
    variables = {}
    for variable, text in step["env"].items():
        for name, value in values.items():
            text = text.replace("${{ inputs.%s }}" % name, value)  # noqa: UP031 (braces)
        variables[variable] = text.replace("${{ runner.temp }}", str(project))
    variables |= {"GITHUB_OUTPUT": str(project / "out"),
                  "GITHUB_STEP_SUMMARY": str(project / "summary.md")}  # fmt: skip
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=project, env=environment(**variables), capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def test_the_action_holds_a_run_to_its_limits(project: Path) -> None:
    done = run_step(project, run=RUN, **{"assert": "peak < 1GiB\nflops < 1T"})
    assert done.returncode == 0, done.stderr
    assert "flops < 1T: holds" in done.stderr
    assert "# train.py" in (project / "summary.md").read_text()
    trace = (project / "out").read_text().strip().removeprefix("trace=")
    assert Path(trace).stat().st_size > 0


def test_the_action_fails_where_a_limit_does_not_hold(project: Path) -> None:
    done = run_step(project, run=RUN, gpu="A100-SXM", **{"assert": "peak < 1KiB"})
    assert done.returncode == 3
    assert (project / "summary.md").read_text().startswith("**A limit does not hold**")


def test_the_comment_has_verdict_limits_and_what_changed(project: Path) -> None:
    """The script multiplied twice before."""
    before = SCRIPT.replace("(weight @ weight)", "(weight @ weight @ weight)")
    (project / "train.py").write_text(before)
    git(project, "init", "-q", ".")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "before")
    (project / "train.py").write_text(SCRIPT)
    done = run_step(project, run=RUN, against="HEAD", **{"assert": "peak < 1GiB"})
    assert done.returncode == 0, done.stderr
    comment = (project / "comment.md").read_text()
    assert comment.startswith("<!-- torchtally: ")
    assert ": fits H100-SXM\n" in comment
    assert "- `peak < 1GiB` holds: " in comment
    assert "##### By line, aligned by its text" in comment
    assert "train.py:8" in comment
    assert comment in (project / "summary.md").read_text()


def test_a_base_that_cannot_be_run_is_said(project: Path) -> None:
    done = run_step(project, run=RUN, against="no-such-commit")
    assert done.returncode == 0
    assert "There is no comparison with no-such-commit" in (project / "comment.md").read_text()


def test_an_input_is_never_a_command(project: Path) -> None:
    marker = project / "marker"
    for run in (f"$(touch {marker})", f"train.py; touch {marker}", f"`touch {marker}`"):
        assert run_step(project, run=run).returncode != 0
    assert not marker.exists()


def test_the_hooks_are_those_of_pre_commit(project: Path) -> None:
    """In a repository that names this one, pre-commit itself runs the hook before a push."""
    hooks = project / "hooks"
    hooks.mkdir()
    (hooks / ".pre-commit-hooks.yaml").write_text((ROOT / ".pre-commit-hooks.yaml").read_text())
    git(project, "init", "-q", str(hooks))
    git(hooks, "add", ".")
    git(hooks, "commit", "-qm", "hooks")
    revision = git(hooks, "rev-parse", "HEAD").strip()
    config = {"repos": [{"repo": str(hooks), "rev": revision, "hooks": [
        {"id": "tally-budget", "args": ["--gpu=H100-SXM", "--assert=peak < 1KiB", "train.py",
                                        "--name", "two words; exit 9"]}]}]}  # fmt: skip
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    git(project, "init", "-q", ".")
    git(project, "add", "train.py", ".pre-commit-config.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--hook-stage", "pre-push", "--all-files"],
        cwd=project, env=environment(PRE_COMMIT_HOME=str(project / "cache")),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "peak < 1KiB: DOES NOT HOLD" in done.stdout


def git(folder: Path, *words: str) -> str:
    told = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    return subprocess.run(told, cwd=folder, capture_output=True, text=True, check=True).stdout
