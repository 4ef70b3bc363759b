"""The comment on a pull request, written to a server that answers as GitHub's does."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.report.test_text import HOSTILE, realistic
from torchtally.integrations.github import (
    ACTIONS,
    MARK,
    MOST_LETTERS,
    PER_PAGE,
    comment_text,
    mark_of,
    post_main,
)

REPOSITORY = "owner/name"


@dataclass
class GitHub:
    """Comments of one pull request, and what a token may do."""

    comments: list[dict[str, Any]] = field(default_factory=list)
    may_write: bool = True
    login: str = ""
    """Who the token belongs to; "": a job's own token, which cannot ask."""
    requests: list[str] = field(default_factory=list)
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    github: ClassVar[GitHub]

    def answer(self, code: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        github = self.github
        github.requests.append(f"GET {self.path}")
        if self.path == "/user":
            code = 200 if github.login else 403
            self.answer(code, {"login": github.login})
        else:
            page = int(self.path.rpartition("page=")[2])
            self.answer(200, github.comments[(page - 1) * PER_PAGE : page * PER_PAGE])

    def do_POST(self) -> None:
        self.write()

    def do_PATCH(self) -> None:
        self.write()

    def write(self) -> None:
        github = self.github
        github.requests.append(f"{self.command} {self.path}")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
        if not github.may_write or self.headers["Authorization"] != "Bearer secret":
            self.answer(403, {"message": "Resource not accessible by integration"})
            return
        if self.command == "POST":
            user = {"login": github.login or ACTIONS}
            github.comments.append({"id": len(github.comments) + 1, "user": user, "body": body})
        else:
            number = int(self.path.rpartition("/")[2])
            next(each for each in github.comments if each["id"] == number)["body"] = body
        self.answer(200, {})

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    Handler.github = GitHub()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        Handler.github.address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("GITHUB_API_URL", Handler.github.address)
        monkeypatch.setenv("GITHUB_TOKEN", "secret")
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
        event(tmp_path, REPOSITORY)
        yield Handler.github
        server.shutdown()
        thread.join()


def event(folder: Path, head: str) -> None:
    pull = {
        "number": 7,
        "head": {"repo": {"full_name": head}},
        "base": {"repo": {"full_name": REPOSITORY}},
    }
    (folder / "event.json").write_text(json.dumps({"pull_request": pull}))


def posted(folder: Path, text: str) -> None:
    (folder / "comment.md").write_text(text)
    assert post_main(str(folder / "comment.md")) == 0


def texts() -> tuple[str, str]:
    trace = realistic()
    limits = [{"limit": "peak < 1GiB", "value": 2**20, "unit": "bytes", "holds": True}]
    return comment_text(trace, limits, ""), comment_text(trace, limits, "# Before and after\n")


def test_a_comment_is_written_once_and_then_kept_up_to_date(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = texts()
    posted(tmp_path, first)
    posted(tmp_path, second)
    assert [comment["body"] for comment in github.comments] == [second]
    assert capsys.readouterr().out == "The comment is written.\nThe comment is up to date.\n"


def test_another_script_has_a_comment_of_its_own(github: GitHub, tmp_path: Path) -> None:
    posted(tmp_path, texts()[0])
    posted(tmp_path, comment_text(realistic(file="other.py"), [], ""))
    assert len({MARK.search(comment["body"])[0] for comment in github.comments}) == 2  # type: ignore[index]


def test_a_strangers_comment_with_our_mark_is_left_alone(github: GitHub, tmp_path: Path) -> None:
    stranger = {"id": 1, "user": {"login": "stranger"}, "body": mark_of(realistic())}
    github.comments.append(stranger)
    posted(tmp_path, texts()[0])
    assert github.comments[0]["body"] == mark_of(realistic())
    assert len(github.comments) == 2


def test_the_comment_is_found_behind_a_hundred_others(github: GitHub, tmp_path: Path) -> None:
    """Of a person's token, whose comments are that person's."""
    github.login = "person"
    github.comments += [
        {"id": number + 1, "user": {"login": "x"}, "body": None} for number in range(PER_PAGE + 5)
    ]
    for text in texts():
        posted(tmp_path, text)
    assert len(github.comments) == PER_PAGE + 6
    assert "Before and after" in github.comments[-1]["body"]


def test_a_fork_gets_the_summary_alone(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event(tmp_path, "fork/name")
    posted(tmp_path, texts()[0])
    assert github.requests == []
    assert "from a fork" in capsys.readouterr().out


def test_a_job_without_the_right_fails_nothing(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    github.may_write = False
    posted(tmp_path, texts()[0])
    assert github.comments == []
    assert "pull-requests: write" in capsys.readouterr().out


def test_a_push_has_no_comment(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "event.json").write_text("{}")
    posted(tmp_path, texts()[0])
    assert github.requests == []
    assert "not of a pull request" in capsys.readouterr().out


def test_a_server_that_is_away_is_a_warning(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    posted(tmp_path, texts()[0])
    assert capsys.readouterr().out.startswith("::warning::")


def test_what_a_comment_says() -> None:
    limits = [
        {"limit": "peak < 1GiB", "value": 2**20, "unit": "bytes", "holds": True},
        {"limit": "mfu > 90%", "value": None, "unit": "fraction", "holds": None},
    ]
    text = comment_text(realistic(), limits, "# Before and after\n\n## By line\n| @torch.compile |")
    assert MARK.match(text)
    assert "### `train.py`: fits H100-SXM\n" in text
    assert "\nfits H100-SXM: peak " in text
    assert "- `peak < 1GiB` holds: 1.00 MiB\n- `mfu > 90%` **does not hold**: unknown" in text
    assert "\n#### Before and after\n\n##### By line\n" in text
    assert "@torch" not in text  # nobody of that name is told


@pytest.mark.parametrize("hostile", [*HOSTILE, "```\n<!-- torchtally: 0000000000000000 -->"])
def test_no_name_leaves_its_place(hostile: str) -> None:
    text = comment_text(realistic(f"/a/{hostile}.py", hostile, hostile), [], "")
    assert len(MARK.findall(text)) == 1
    assert text.count("```") == 2
    assert len(text) <= MOST_LETTERS + 1
