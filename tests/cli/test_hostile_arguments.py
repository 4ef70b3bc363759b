"""Command lines that no person types: a message and an exit code, nothing else."""

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtally.cli import main

RELAXED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
VALUES = st.sampled_from(
    ["0", "-1", "1", "7B", 5000 * "9", "1" + 400 * "0", "1e400", "nan", "inf", "", "a=1", "a..b",
     "optimizer.lr=1", "optimizer.lr=log:0..1", "optimizer.betas=" + 3000 * "[", "H100", "8xH100",
     "0xH100", "99999999999999999999xH100", "no.toml", "{}", "--batch={}", "--",
     "seed=" + 5000 * "9", "batch=1e400", "é\udcff"]
)  # fmt: skip
OPTIONS = {
    "fit": ["--vary", "--gpu", "--from", "--to", "--multiple-of", "--margin", "--steps", "--jobs",
            "--max-seconds", "--nonzero-fraction", "--json", "-m"],
    "fix": ["--gpu", "--fit", "--faster", "--steps", "--jobs", "--json", "-m"],
    "tune": ["--vary", "--gpu", "--with-fixes", "--tokens", "--deadline", "--runs", "--price",
             "--jobs", "-m"],
    "sweep": ["--grid", "--random", "--set", "--runs", "--seed", "--workers", "--threads", "--out"],
    "plan": ["--gpus", "--mfu", "--tokens", "--memory", "--peak", "--price", "--compare",
             "--deadline", "--budget", "--flops", "--tokens-per-s", "--layers", "--width",
             "--heads", "--vocabulary", "--sequence"],
    "show": ["--by", "--gpu", "--until", "--price", "--top", "--sort", "--columns", "--allocator"],
    "run": ["--gpu", "--steps", "--max-seconds", "--nonzero-fraction", "-o", "--json", "-m"],
    "report": ["--gpu", "--step", "-o", "--convention", "--no-source"],
    "gpus": ["--format"],
    "dtypes": ["--of", "--format"],
    "tensor": ["--let", "--format"],
    "audit": ["--tolerance", "--steps", "--gpu", "--top"],
}  # fmt: skip
"""Without a script, config or trace that is there: nothing is run."""


@pytest.mark.parametrize("command", OPTIONS)
@given(data=st.data())
@RELAXED
def test_any_arguments_end_with_a_message(
    command: str, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = st.sampled_from(OPTIONS[command])
    pairs = data.draw(st.lists(st.tuples(options, VALUES), max_size=4))
    place = data.draw(VALUES)
    arguments = [command, place, *(word for pair in pairs for word in pair)]
    if command == "sweep":
        arguments.append("--dry-run")
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = exit_.code
    assert code in (0, 1, 2), arguments
    assert not code or "tally: error: " in said.getvalue()
    assert "Traceback" not in said.getvalue()


def test_an_error_is_wrapped_in_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between words, at its width; in a pipe it is the one line that grep finds."""
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["plan", "lama-3-8b"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["plan", "lama-3-8b"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == line
