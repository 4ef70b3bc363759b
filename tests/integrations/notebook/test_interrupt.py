"""A kernel is interrupted while a cell runs: the cell ends, what ran is shown, the kernel lives."""

import asyncio
from pathlib import Path

import pytest

from tests.integrations.notebook.kernel import Cell, Notebook

CELLS = (
    "%load_ext torchtally\nimport torch",
    """\
%%tally --gpu H100-SXM --steps all
weight = torch.nn.Parameter(torch.ones(8, 8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
print("running", flush=True)
while True:
    (weight @ weight).sum().backward()
    optimizer.step()""",
    """\
%tally run -c 'import time; print("running", flush=True); time.sleep(60)' --gpu H100-SXM --quiet""",
    "print(torch.cuda.is_available())",
)


async def ended(cell: Cell, work: asyncio.Task[object], *, within_s: float = 5) -> None:
    """Wait for it. An interrupt that came within a finalizer is lost: one presses again, then."""
    for _ in range(int(within_s / 0.1)):
        if cell.error or work.done():
            return
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """Executed; a cell is interrupted when it has said that it runs."""
    notebook = Notebook(CELLS, tmp_path_factory.mktemp("notebook"))

    async def execute() -> None:
        work = asyncio.create_task(notebook.client.async_execute())
        for number in (1, 2):
            while "running" not in notebook.cells[number].printed and not work.done():
                await asyncio.sleep(0.05)
            while not notebook.cells[number].error and not work.done():
                await notebook.client.km.interrupt_kernel()
                await ended(notebook.cells[number], work)
        await work

    asyncio.run(execute())
    return notebook.cells


def test_what_ran_before_is_shown(cells: list[Cell]) -> None:
    assert "Interrupted; the report covers what ran before." in cells[1].shown()[-1]


@pytest.mark.parametrize("number", [1, 2])
def test_the_cell_ends_as_interrupted(cells: list[Cell], number: int) -> None:
    assert "KeyboardInterrupt" in cells[number].error
    assert "torchtally" not in cells[number].error


def test_the_kernel_goes_on(cells: list[Cell], tmp_path: Path) -> None:
    assert cells[3].printed == "False\n"
