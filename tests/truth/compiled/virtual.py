"""A case on the virtual GPU, whose own compiling is watched from outside."""

from typing import Any

import torch

import torchtally
from tests.truth.compiled.cases import Case
from tests.truth.compiled.record import Record, replaced
from torchtally.virtual.compiling import wrapper


def record(case: Case, record: Record, *, is_cold: bool) -> None:
    assert not is_cold, "nothing is timed here"
    native_init, native_launch = wrapper.Program.__init__, wrapper.Program.launch
    watched: list[bool] = []

    def init(program: Any, *arguments: Any) -> None:
        native_init(program, *arguments)
        record.watch_program(program._call)

    def launch(program: Any, kernel_name: str, arguments: Any, values: Any, *rest: Any) -> None:
        record.launched(kernel_name, values)
        native_launch(program, kernel_name, arguments, values, *rest)

    def compiler(model: Any, **options: Any) -> Any:
        compiled = torch.compile(model, **options)
        if not watched:
            # After the first call: what it stands for the GPU with is in place now.
            import torch._inductor.fx_passes.pad_mm as pad_mm

            pad_mm.get_cached_should_pad = lambda key: case.pads
            record.tie_choices()
            record.watch_scheduler()
            record.watch_dynamo()
            watched.append(True)
        return compiled

    with (
        replaced(wrapper.Program, "__init__", init),
        replaced(wrapper.Program, "launch", launch),
        torchtally.virtual_gpu(case.chip, memory_is_limited=False),
    ):
        record.run(case, compiler)
