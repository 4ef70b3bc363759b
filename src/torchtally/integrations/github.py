"""A pull request's comment: what a run costs, against its base, as one comment that is kept up to
date.

`python -m torchtally.integrations.github write ...` makes the text, which the action puts into the
job's summary; `... post FILE` writes it to the pull request. Where the job has no right to comment
(a fork's), the summary is all there is.
"""

import argparse
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtally.trace import Trace

MOST_LETTERS = 60_000
"""Of a comment: GitHub takes 65,536."""
MARK = re.compile(r"<!-- torchtally: [0-9a-f]{16} -->")
PAGES = 30
PER_PAGE = 100
TIMEOUT_S = 30
NO_RIGHT = (401, 403, 404)
"""How GitHub says that a token may not do something."""
ACTIONS = "github-actions[bot]"
"""Whose comments are those of a job's own token, which cannot ask who it is."""
FOOTER = "<sub>Predicted by torchtally on a simulated GPU; nothing ran on a real one.</sub>"


# The text ----------------------------------------------------------------------------------------


def comment_text(trace: "Trace", limits: list[dict[str, Any]], difference: str) -> str:
    """The comment about a run, in Markdown: its brief answer, its limits, and what changed since
    the base, where that is known.
    """
    from torchtally.brief.answer import brief_answer
    from torchtally.ledger import account
    from torchtally.progress import printable
    from torchtally.report.brief import brief_text
    from torchtally.report.text import claim
    from torchtally.timing.targets import known_roofline

    answer = brief_answer(account(trace, roofline=known_roofline(trace.chip)))
    script = plain(printable(trace.script))
    parts = [
        mark_of(trace),
        f"### `{script}`: {claim(answer.summary.verdict)}",
        "```text",
        plain(brief_text(answer)).rstrip(),
        "```",
        *limit_lines(limits),
    ]
    if difference:
        room = MOST_LETTERS - sum(len(part) + 1 for part in (*parts, FOOTER))
        parts.append(cut(below(difference), room))
    return "\n".join((*parts, FOOTER)) + "\n"


def cut(text: str, letters: int) -> str:
    """Whole lines of a text, as many as have so many letters, and one that says it is cut."""
    if len(text) <= letters:
        return text
    whole = text[: max(0, letters - 200)].rpartition("\n")[0]
    return f"{whole}\n\nCut here: GitHub takes no longer comment. `tally diff` has all.\n"


def plain(text: str) -> str:
    """A text within code of Markdown, which it does not end, and without a mark of ours."""
    return text.replace("`", "'").replace("<!--", "<! --")


def mark_of(trace: "Trace") -> str:
    """What a comment is found by: it is of one script with its arguments on one kind of GPUs."""
    name = f"{trace.script}\0{trace.world.size}x{trace.chip}".encode("utf-8", "replace")
    return f"<!-- torchtally: {blake2b(name, digest_size=8).hexdigest()} -->"


def limit_lines(limits: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each limit, of --assert and of the budget, and whether it holds."""
    from torchtally.units import Unit, format_number

    for limit in limits:
        text, value = plain(str(limit["limit"])), limit["value"]
        is_known = isinstance(value, int | float)
        shown = format_number(value, Unit(limit["unit"])) if is_known else "unknown"
        yield f"- `{text}` {'holds' if limit['holds'] else '**does not hold**'}: {shown}"


def below(difference: str) -> str:
    """The page of `tally diff` below the comment's heading; a decorator names no person."""
    quiet = difference.replace("@", "@\u200b")
    return "\n" + re.sub(r"^(#+) ", r"###\1 ", quiet, flags=re.M).rstrip() + "\n"


# GitHub ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Place of a comment."""

    api: str
    repository: str
    number: int
    is_of_fork: bool
    """Its jobs have a token that may only read."""

    @property
    def comments(self) -> str:
        return f"{self.api}/repos/{self.repository}/issues/{self.number}/comments"

    def comment(self, number: int) -> str:
        """The address of one comment."""
        return f"{self.api}/repos/{self.repository}/issues/comments/{number}"


def pull_request_of(event: dict[str, Any]) -> PullRequest | None:
    """The pull request of a job's event; None of a job for something else."""
    pull = event.get("pull_request")
    if not pull:
        return None
    head = (pull.get("head") or {}).get("repo") or {}
    base = pull["base"]["repo"]["full_name"]
    return PullRequest(
        os.environ.get("GITHUB_API_URL", "https://api.github.com"),
        base,
        int(pull["number"]),
        head.get("full_name") != base,
    )


def ask(method: str, address: str, token: str, body: dict[str, Any] | None = None) -> Any:
    """What the API answers. Raises urllib.error.URLError."""
    request = urllib.request.Request(
        address,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def own_login(pull: PullRequest, token: str) -> str:
    """Name of the user whose comments the token writes."""
    try:
        return str(ask("GET", f"{pull.api}/user", token)["login"])
    except urllib.error.HTTPError as error:
        if error.code in NO_RIGHT:
            return ACTIONS
        raise


def own_comment(pull: PullRequest, token: str, mark: str) -> int | None:
    """The number of the comment that we wrote before: another's with our mark is not ours."""
    login = own_login(pull, token)
    for page in range(1, PAGES + 1):
        comments = ask("GET", f"{pull.comments}?per_page={PER_PAGE}&page={page}", token)
        for comment in comments:
            if comment["user"]["login"] == login and mark in (comment.get("body") or ""):
                return int(comment["id"])
        if len(comments) < PER_PAGE:
            break
    return None


def post(text: str, pull: PullRequest, token: str) -> str:
    """Write the comment, or bring the one before up to date. What was done, in a sentence."""
    mark = MARK.search(text)
    assert mark is not None
    if pull.is_of_fork:
        return "The pull request is from a fork, whose job may not comment: see the job's summary."
    try:
        number = own_comment(pull, token, mark[0])
        if number is None:
            ask("POST", pull.comments, token, {"body": text})
            return "The comment is written."
        ask("PATCH", pull.comment(number), token, {"body": text})
        return "The comment is up to date."
    except urllib.error.HTTPError as error:
        if error.code not in NO_RIGHT:
            raise
        return (
            f"The job may not comment (HTTP {error.code}): see its summary, or give it "
            "`permissions: {pull-requests: write}`."
        )


# The command -------------------------------------------------------------------------------------


def write_main(trace: str, document: str, difference: str) -> int:
    """Print the text. Of files that are not there, what they would say is left out."""
    from torchtally.trace import Trace

    limits: list[dict[str, Any]] = []
    if Path(document).is_file():
        limits = json.loads(Path(document).read_text(encoding="utf-8")).get("limits", [])
    page = Path(difference)
    text = page.read_text(encoding="utf-8") if difference and page.is_file() else ""
    sys.stdout.write(comment_text(Trace.load(trace), limits, text))
    return 0


def post_main(file: str) -> int:
    """Post the text of a file. A failure is a warning in the job's log: limits decide the job."""
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    pull = pull_request_of(event)
    if pull is None:
        print("The job is not of a pull request: see its summary.")
        return 0
    try:
        text = Path(file).read_text(encoding="utf-8")
        print(post(text, pull, os.environ["GITHUB_TOKEN"]))
    except (OSError, ValueError) as error:  # URLError among them
        print(f"::warning::The comment could not be written ({error}): see the job's summary.")
    return 0


def main(argv: list[str]) -> int:
    """Write or post a comment."""
    parser = argparse.ArgumentParser(prog="python -m torchtally.integrations.github")
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("trace")
    write.add_argument("--document", default="")
    write.add_argument("--difference", default="")
    commands.add_parser("post").add_argument("file")
    options = parser.parse_args(argv)
    if options.command == "write":
        return write_main(options.trace, options.document, options.difference)
    return post_main(options.file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
