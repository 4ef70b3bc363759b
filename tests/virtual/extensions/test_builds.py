"""Progress says that a C++ extension is being compiled, and which."""

import pytest
from torch.utils import cpp_extension

import torchtally
from torchtally.report.run_progress import RunProgress


@pytest.mark.parametrize("function", ["load", "load_inline"])
def test_the_line_of_progress_names_what_is_compiled(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = RunProgress(is_quiet=True)
    lines: list[str] = []

    def compiler(name: str, sources: str, fails: bool = False) -> str:
        lines.append(progress.line())
        if fails:
            raise RuntimeError("Error building extension")
        return name + sources

    monkeypatch.setattr(cpp_extension, function, compiler)
    with torchtally.virtual_gpu("H100-SXM") as gpu:
        progress.building = lambda: gpu.builds.current
        build = getattr(cpp_extension, function)
        assert build(name="tiny", sources="!") == "tiny!"
        with pytest.raises(RuntimeError, match="Error building"):
            build("other", "", fails=True)
        assert progress.line().startswith("before step 1, ")
    assert getattr(cpp_extension, function) is compiler
    tiny, other = lines
    assert tiny.startswith("compiling the script's C++ extension tiny, ")
    assert other.startswith("compiling the script's C++ extension other, ")
