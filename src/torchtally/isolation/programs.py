"""Which programs that a script starts publish something, by their arguments."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from torchtally.isolation.publishing import HttpRequest, publisher

COMMANDS = re.compile(
    r"wandb (sync|sweep|agent|launch|artifact put|job create|beta sync)\b|"
    r"(hf|huggingface-cli) (upload|repos? (create|delete|move|tag)|lfs-\S+|jobs run)|"
    r"git( -\S+( \S+)?)* (push|lfs push|send-email)\b|dvc (push|exp push|studio)\b|"
    r"(kaggle|modelscope|swanlab|neptune|comet|trackio|mlflow|twine)( \S+)* "
    r"(create|version|push|upload\S*|sync|submit|deploy)\b|"
    r"gh (release|gist|issue|pr|repo) (create|upload|edit|delete|comment)\b|"
    r"aws (sns publish|s3api (put|create|delete|upload)\S*)|tensorboard dev upload|"
    r"clearml-(data|task|agent) |ntfy (publish|pub|send)\b"
)
COPYING = {
    "aws": ("cp", "mv", "sync"),
    "gsutil": ("cp", "mv", "rsync"),
    "gcloud": ("cp", "mv", "rsync"),
    "azcopy": ("copy", "cp", "sync"),
    "rclone": ("copy", "copyto", "move", "moveto", "sync"),
    "s5cmd": ("cp", "mv", "sync"),
    "mc": ("cp", "mv", "mirror"),
    "scp": ("",),
    "rsync": ("",),
}
"""Programs that copy, by the word after which what is copied and its new place stand."""
ELSEWHERE = re.compile(r"(s3|gs|az|https?|hf|wasb|abfs)://|[\w.@-]+:(?!\\)")
WRAPPERS = frozenset({"sudo", "nohup", "time", "nice", "env", "exec", "command", "xargs", "uvx"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
SENDS_BY_CURL = re.compile(
    r"^(-d|--data\S*|-F|--form\S*|-T|--upload-file|--json|-X|--request|--post-\S+|--method\S*)"
)


def publishing_command(command: object) -> str:
    """The first of its programs that would publish something, with its first words; "" for none."""
    for words in commands(command):
        if publishes(words):
            return " ".join(words)[:60]
    return ""


def commands(command: object) -> Iterator[list[str]]:
    """The programs of a command: those of a shell's line one by one."""
    if isinstance(command, (str, bytes, os.PathLike)):
        for part in re.split(r"[;&|\n()]+", os.fsdecode(command)):
            try:
                yield from simple(shlex.split(part))
            except ValueError:  # an open quote
                yield from simple(part.split())
    elif isinstance(command, Sequence):
        given = (each for each in command if isinstance(each, (str, bytes, os.PathLike)))
        words = [os.fsdecode(each) for each in given]
        is_shell = words and os.path.basename(words[0]) in SHELLS and "-c" in words[:-1]
        if is_shell:
            yield from commands(words[words.index("-c") + 1])
        else:
            yield from simple(words)


def simple(words: list[str]) -> Iterator[list[str]]:
    """One program with its arguments: what starts it is left out."""
    while words and (os.path.basename(words[0]) in WRAPPERS or re.match(r"\w+=", words[0])):
        words = words[1:]
    if len(words) > 2 and "python" in os.path.basename(words[0]) and words[1] == "-m":
        words = words[2:]
    if words:
        yield [os.path.basename(words[0]), *words[1:]]


def publishes(words: list[str]) -> bool:
    if COMMANDS.match(" ".join(words)):
        return True
    program = words[0]
    if program in ("curl", "wget", "http", "https", "xh"):
        return requests_by(words)
    verbs = COPYING.get(program)
    if verbs is None:
        return False
    start = next((n for n, word in enumerate(words) if word in verbs), None)
    if start is None:
        if "" not in verbs:
            return False
        start = 0
    places = [word for word in words[start + 1 :] if not word.startswith("-")]
    if program in ("scp", "rsync"):  # options with a value stand before
        return bool(len(places) > 1 and ELSEWHERE.match(places[-1]))
    return bool(len(places) > 1 and ELSEWHERE.match(places[1]))


def requests_by(words: list[str]) -> bool:
    method = "POST" if any(SENDS_BY_CURL.match(word) for word in words) else "GET"
    urls = [word for word in words if re.match(r"https?://", word)]
    return any(publisher(HttpRequest.to(method, url), None) for url in urls)
