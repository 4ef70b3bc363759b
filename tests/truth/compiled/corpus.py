"""The recorded corpus: a compressed file for each release of PyTorch."""

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FORMAT = 1
ASSUMPTIONS = (
    "The device is tests/truth/driver: it hands out addresses and runs no kernel. Memory reads as "
    "zeros, so constants are folded on the host. Every event lasts 1 ms, so whatever a benchmark "
    "decides is a tie: products are padded where the case says so and nowhere else. Every kernel "
    "takes 32 registers. cuDNN asks for no workspace.",
)

Corpus = dict[str, Any]
"""`format`, `torch`, `about` (versions), `assumptions`, `date`, and `cases`: the facts of each by
its name.

A case: `device`; `graphs` in the order of their compilation, each with its scheduler's rows
(kind, kernel, nodes, bytes read, bytes written, FLOPs, operators); `launches` of all steps
(kernel, operands as shape, strides and dtype, bytes allocated and reserved when it returned):
Triton's kernels, and what the program calls of libraries and operators. No kernel's name is on a
row that ends a sum which another kernel has begun: the program does it by `Tensor.sum`, which is
no launch here. `marks` at the end of each part of a step (step, part, bytes allocated, peak,
reserved, peak reserved, launches so far); `pools` after each step (segments, bytes reserved,
bytes allocated of each CUDA graph's); `breaks` (reason, function, line); `recompiles` (function,
guards that failed); `cold`: marks and pools of a run that timed its kernels; `note`: what was
otherwise when a case was recorded, where anything was."""


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
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return path
