"""The recorded corpus: a compressed file for each release of PyTorch."""

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

Corpus = dict[str, Any]
"""`about`, `torch`, `date`, and `cases`: the facts of each by its name."""


def path_of(release: str) -> Path:
    """Of "2.13.0": both patch releases of a minor one would compile alike."""
    minor = ".".join(release.split(".")[:2])
    return FOLDER / f"corpus-{minor}.json.gz"


def read(release: str) -> Corpus:
    """Raises FileNotFoundError for a release that was not recorded."""
    corpus: Corpus = json.loads(gzip.decompress(path_of(release).read_bytes()))
    return corpus


def write(corpus: Corpus) -> Path:
    path = path_of(corpus["torch"])
    text = json.dumps(corpus, sort_keys=True, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path
