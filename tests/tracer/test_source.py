"""Which code is whose, by the file that it is in."""

import os
from pathlib import Path

import torch

from torchtally.tracer.source import Code, classify_path, is_of_gradients


def test_code_of_torch_is_told_by_whichever_link_it_was_imported(tmp_path: Path) -> None:
    """As in an environment that is a link to another one."""
    (tmp_path / "torch").symlink_to(os.path.dirname(torch.__file__))
    clipping = tmp_path / "torch" / "nn" / "utils" / "clip_grad.py"
    assert clipping.is_file()
    assert classify_path(str(clipping)) is Code.INTERNAL
    assert is_of_gradients(str(clipping))
    assert not is_of_gradients(str(clipping.with_name("rnn.py")))
