"""A probe of a script that updates its weights by hand ends after the steps asked for."""

import time
from pathlib import Path

from tests.cli.run_tally import TIMEOUT_S, environment
from tests.warm import warm_python
from torchtally.runs.children import Children
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import ProbeRequest, ProbeResult

MIB = 1 << 20
SCRIPT = """\
import torch
w = torch.randn(512, 512, device="cuda", requires_grad=True)
for step in range(100):
    (torch.ones(512, 512, device="cuda") * w).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad = None
    if step > 1:
        torch.empty(1 << 30, device="cuda")
"""


def test_it_ends_after_two_updates(tmp_path: Path) -> None:
    """The weight is of a MiB, and what a step takes beside it is a few; a GiB would come third."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    request = ProbeRequest(
        script=str(script), arguments=(), is_module=False, gpu="H100-SXM", steps=2
    )
    with warm_python(), Children("test", preload=PRELOAD) as children:
        children.start("", request, environment=environment())
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (ended := children.collect_ended(1.0)):
            assert time.monotonic() < deadline_s
        answer = ended[0].answer(ProbeResult)
        assert answer is not None, ended[0].output
    assert (answer.ending, answer.steps) == ("steps", 2)
    assert answer.peak_allocated_bytes < 8 * MIB
