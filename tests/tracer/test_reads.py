"""What a script does with a value that it reads: a condition, a number, a printed line."""

from pathlib import Path

import pytest

import torchtally
from tests.tracer import reading
from tests.traces import traced
from torchtally.trace import Use

EXPECTED = [
    line.rpartition("#")[2].strip() for line in Path(reading.__file__).read_text().splitlines()
]


def test_each_line_of_the_script_is_told_by_what_follows_from_its_value():
    """`reading.py` says beside each line that reads what the value is for."""
    trace = traced(reading.script)
    uses = {
        placeholder.frame.line: str(placeholder.use)
        for placeholder in trace.placeholders
        if placeholder.frame and placeholder.use is not Use.EXIT
    }
    expected = {
        number: word for number, word in enumerate(EXPECTED, 1) if word in {str(use) for use in Use}
    }
    assert uses == expected


def test_without_source_a_value_is_a_number():
    namespace: dict[str, object] = {}
    code = "import torch\ndef f():\n    if torch.randn(4096, device='cuda').sum() > 0: pass\n"
    exec(compile(code, "/gone/script.py", "exec"), namespace)
    (placeholder,) = traced(namespace["f"]).placeholders  # type: ignore[arg-type]
    assert placeholder.use is Use.NUMBER


def endless() -> None:
    import torch

    error = torch.randn(4096, device="cuda")
    while error.abs().max() > 1e-3 or True:
        error = error / 2


def test_a_loop_that_waits_for_a_placeholder_ends_with_its_line():
    with pytest.raises(torchtally.TallyError) as caught:
        traced(endless, placeholder_limit=100)
    message = str(caught.value)
    assert "test_reads.py:" in message
    assert "`while error.abs().max() > 1e-3 or True:`" in message
    assert "100 times" in message
    assert "given False each time" in message
    assert "--placeholder-limit" in message


def test_a_training_loop_may_read_its_loss_for_ever():
    """Each optimizer step counts anew; a number that is printed or summed is no condition."""

    def train() -> None:
        import torch

        model = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best, total = 10.0, 0.0
        for _ in range(8):
            for _ in range(3):
                loss = model(torch.randn(64, 64, device="cuda")).sum()
                loss.backward()
                if loss.item() < best:
                    best = 0.5
            optimizer.step()
            optimizer.zero_grad()
        for _ in range(8):
            total += model(torch.randn(64, 64, device="cuda")).sum().item()
        print(f"{total:.2f}")

    uses = [placeholder.use for placeholder in traced(train, placeholder_limit=4).placeholders]
    assert uses == [Use.BRANCH, Use.PRINT]


def test_choices_that_are_assumed_do_not_end_a_loop():
    """Tokens are chosen, one by one, and each is looked at."""

    def generate() -> None:
        import torch

        for _ in range(20):
            token = torch.randn(1, 4096, device="cuda").argmax(-1)
            if token == 7:
                break

    (placeholder,) = traced(generate, placeholder_limit=5).placeholders
    assert (placeholder.use, placeholder.given, placeholder.count) == (
        Use.BRANCH, "assumed: balanced routing", 20,
    )  # fmt: skip
