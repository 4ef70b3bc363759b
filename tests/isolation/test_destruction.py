"""Nothing that existed before a run is changed by it, whatever the script tries."""

from pathlib import Path

import pytest

from tests.cli.run_tally import SCRIPTS, Run, tally_run
from tests.isolation.snapshot import Snapshot, snapshot
from tests.scripts.destroy import WAYS, prepare

OURS = ("run.tally",)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path, Snapshot, Snapshot]:
    """All ways in one run."""
    root = tmp_path_factory.mktemp("destruction")
    prepare(root)
    before = snapshot(root)
    run = tally_run(str(SCRIPTS / "destroy.py"), cwd=root)
    return run, root, before, snapshot(root, without=OURS)


def test_at_least_thirty_ways_are_tried():
    assert len(WAYS) >= 30


def test_the_script_sees_what_it_does(tried: tuple[Run, Path, Snapshot, Snapshot]):
    run = tried[0]
    assert run.stdout.split() == list(WAYS), run.stderr
    assert run.code == 0


@pytest.mark.parametrize("name", WAYS)
def test_nothing_is_changed(name: str, tried: tuple[Run, Path, Snapshot, Snapshot]):
    _, _, before, after = tried
    assert {path: facts for path, facts in after.items() if path.startswith(f"{name}/")} == {
        path: facts for path, facts in before.items() if path.startswith(f"{name}/")
    }


def test_the_snapshot_sees_a_change(tmp_path: Path):
    """The checker is checked: without isolation the same script changes every directory."""
    prepare(tmp_path)
    before = snapshot(tmp_path)
    tally_run("--writes", "real", str(SCRIPTS / "destroy.py"), cwd=tmp_path)
    after = snapshot(tmp_path, without=OURS)
    changed = {
        path.partition("/")[0] for path in {*before, *after} if before.get(path) != after.get(path)
    }
    assert changed == {*WAYS}
