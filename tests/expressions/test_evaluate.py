"""Expressions of tensors, step by step: layouts as torch has them, no memory, no mischief."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.expressions import evaluate
from torchtally.trace.strided import StepOrigin

LETS = {"x": "4x6", "y": "3x4:int64"}


def origins(expression: str) -> list[str]:
    """Of the steps behind those of the inputs."""
    return [step.origin.value for step in evaluate(expression, LETS).steps[len(LETS) :]]


def test_each_call_method_and_index_is_a_step() -> None:
    evaluation = evaluate("torch.arange(12).view(3, 4).transpose(0, 1)[1:]")
    assert [step.code for step in evaluation.steps] == [
        "torch.arange(12)", ".view(3, 4)", ".transpose(0, 1)", "[1:]",
    ]  # fmt: skip
    assert [step.tensor.strides for step in evaluation.steps] == [(1,), (4, 1), (1, 4), (1, 4)]
    assert evaluation.tensor.shape == (3, 3)
    assert evaluation.tensor.offset == 1
    assert evaluation.tensor.storage_bytes == 96
    assert evaluation.values == tuple(range(12))
    assert len(evaluation.sharing()) == 3


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.T", ["view"]),
        ("x.contiguous()", ["itself"]),
        ("x.T.contiguous()", ["view", "copy"]),
        ("x.reshape(-1)", ["view"]),
        ("x.T.reshape(-1)", ["view", "copy"]),
        ("x[1:, None].expand(3, 5, 6)", ["view", "view"]),
        ("x[[0, 2]]", ["copy"]),
        ("x[x > 3]", ["new", "copy"]),
        ("x + 1", ["new"]),
        ("x.add_(1)", ["in place"]),
        ("x[0].zero_()", ["view", "in place"]),
        ("x.to(torch.float32)", ["itself"]),
        ("x.to(torch.float16)", ["copy"]),
        ("x.chunk(2)[1]", ["view"]),
        ("x.max(0).values", ["new"]),
        ("torch.cat([x, x])", ["copy"]),
        ("torch.stack([*x])", ["copy"]),
        ("x.view(torch.int32)", ["view"]),
        ("-x @ y.float().T[:, :3].new_zeros(6, 2)", ["new", "copy", "view", "view", "new", "new"]),
        ("x", ["itself"]),
    ],
)
def test_views_and_copies(expression: str, expected: list[str]) -> None:
    assert origins(expression) == expected


STEPS = ["t()", "contiguous()", "flatten()", "[1:]", "[..., ::2]", "unsqueeze(0)", "squeeze()",
         "clone()", "flip(0)", "mT", "reshape(-1)", "movedim(0, -1)", "expand(2, -1, -1)",
         "diagonal()", "unfold(0, 2, 1)", "half()", "repeat(2, 1)", "narrow(0, 0, 1)"]  # fmt: skip


@given(st.lists(st.sampled_from(STEPS), max_size=5))
def test_any_chain_of_views_and_copies_is_as_torch_has_it(chain: list[str]) -> None:
    """Shapes, strides, offsets, values and sharing, or an error where torch has one."""
    source = "x" + "".join(step if step[0] == "[" else f".{step}" for step in chain)
    x = torch.arange(24).view(4, 6)
    try:
        expected = eval(source, {"x": x})
    except (RuntimeError, IndexError):
        with pytest.raises(UsageError):
            evaluate(source, {"x": "4x6:int64"})
        return
    evaluation = evaluate(source, {"x": "4x6:int64"})
    tensor, values = evaluation.tensor, evaluation.values
    assert tensor.shape == tuple(expected.shape)
    assert tensor.strides == expected.stride()
    assert tensor.offset == expected.storage_offset()
    assert tensor.is_contiguous == expected.is_contiguous()
    shares = expected.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (tensor.storage == 0) == shares
    assert values is not None
    held = [values[tensor.place(index)] for index in tensor.indices()]
    assert held == expected.flatten().tolist()


def test_names_are_set_within_and_by_expressions() -> None:
    evaluation = evaluate("z = x.T; z[w]", {"x": "2x3", "w": "torch.tensor([2, 0])"})
    assert evaluation.values == (2, 5, 0, 3)
    assert evaluate("q", {"q": "2x3:bool"}).values == (False, True) * 3


def test_the_result_is_the_last_step() -> None:
    evaluation = evaluate("z = x.T; w = x * 2; z", LETS)
    assert evaluation.tensor.shape == (6, 4)
    assert evaluation.steps[-1].origin is StepOrigin.ITSELF


def test_writing_to_a_view_writes_to_all() -> None:
    assert evaluate("y = x.T; y[0].add_(10); x", {"x": "2x2"}).values == (10, 1, 12, 3)


def test_random_numbers_are_the_same_each_time_and_leave_torch_s_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    assert evaluate("torch.rand(4)").values == evaluate("torch.rand(4)").values
    assert torch.rand(3).tolist() == expected


def test_hostile_sizes_take_no_memory() -> None:
    """Petabytes, and a sum over 10**12 elements that are one."""
    started_s = time.process_time()
    evaluation = evaluate("(x.T @ x).reshape(-1)[5:]", {"x": "1000000x30000000"})
    assert evaluation.tensor.elements == 9 * 10**14 - 5
    assert evaluation.values is None
    assert evaluate("torch.ones(1).expand(10**12).sum()").values is None
    assert time.process_time() - started_s < 5


def test_einops_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "einops", None)
    with pytest.raises(UsageError, match="pip install einops"):
        evaluate("rearrange(x, 'a b -> b a')", LETS)
    transpose = SimpleNamespace(rearrange=lambda x, pattern: x.permute(1, 0))
    monkeypatch.setitem(sys.modules, "einops", transpose)
    evaluation = evaluate("rearrange(x, 'a b -> b a')", LETS)
    assert (evaluation.tensor.strides, evaluation.steps[-1].origin) == ((1, 6), StepOrigin.VIEW)


WRONG = {
    "x.view(5)": "invalid for input of size 24",
    "x.T.view(-1)": "Use .reshape",
    "x[7]": "out of bounds",
    "x[x.tolist()]": "x.x.tolist",
    "z": "'z' is not defined",
    "3 + 4": "not a tensor",
    "x.chunk(2)": "Take one of them",
    "torch.arnge(3)": "Did you mean arange",
    "torch.nothing_like_it(3)": "does not exist",
    "x.to_sparse()": "x.to_sparse",
    "": "Empty expression",
    "x x": "not an expression",
    "x if x else y": "cannot be used here",
    "[a for a in x]": "cannot be used here",
    "x[0] = 3": "cannot be used here",
    "torch = x; x": "cannot be the name",
    "x.T" * 1000: "characters",
    "-" * 1500 + "x": "too deeply",
    "x.gather(0, torch.tensor([[9]]))": "out of bounds",
}


@pytest.mark.parametrize("expression", WRONG)
def test_what_is_wrong_is_said(expression: str) -> None:
    with pytest.raises(UsageError, match=WRONG[expression]):
        evaluate(expression, LETS)


HOSTILE = [
    "__import__('os').system('true')", "x.__class__", "x._base", "().__class__.__bases__",
    "torch.save(x, 'it')", "torch.load('it')", "torch.from_file('it', size=9)", "torch.hub",
    "torch.utils", "torch.nn.Linear(2, 2)", "torch.compile(x)", "F.torch", "torch.linalg.torch",
    "x.untyped_storage()", "x.numpy()", "x.share_memory_()", "x.apply_(abs)", "x.cuda()",
    "x.to('cuda')", "x.to(0)", "torch.zeros(2, device='cuda')", "x.pin_memory()",
    "torch.set_default_dtype(torch.half)", "open('it', 'w')", "eval('1')", "print(x)",
    "'{0.__class__}'.format(x)", "(lambda: x)()", "[x] * 10**9", "'a' * 10**9", "2 ** 10 ** 10",
    "9 ** 9 ** 9", "1 << 10**9", "list(range(10**12))", "torch.ones(10**9).unbind()",
    "torch.ones(10**9).split(1)", "torch.ones(10**9).chunk(10**9)", "torch.stack([*big])",
    "list(big)", "torch.combinations(x[0], 10**9)", "math.factorial(10**6)", "torch.ones(2)[1j]",
]  # fmt: skip


@pytest.mark.parametrize("expression", HOSTILE)
def test_what_would_do_harm_is_refused(
    expression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        evaluate(expression, {"x": "4x6", "big": "100000"})
    assert list(tmp_path.iterdir()) == []
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    "lets",
    [{"1": "2"}, {"torch": "2"}, {"_": "2"}, {"x": "2:float7"}, {"x": "9" * 30}, {"x": "2x"}],
)
def test_inputs_that_are_wrong(lets: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        evaluate("torch.ones(1)", lets)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "uint8", "bfloat16"])
def test_inputs_of_any_dtype(dtype: str) -> None:
    evaluation = evaluate("x.T", {"x": f"2x3:{dtype}"})
    assert evaluation.tensor.dtype == dtype
    assert evaluation.values is not None
    assert complex(evaluation.values[5]) == 5
