"""("allow_tf32", True): what PyTorch's settings say when a float32 product runs."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.traces import ops, traced

matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn


@pytest.fixture(autouse=True)
def settings_put_back() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    matmul.fp32_precision = "none"
    cudnn.allow_tf32 = True


def allowed(script: Callable[[], object]) -> dict[str, list[bool]]:
    """By operator, for each time it ran."""
    flags: dict[str, list[bool]] = {}
    for op in ops(traced(script)):
        flags.setdefault(op.call.name, []).append(op.call.literal("allow_tf32", False) is True)
    return flags


def product() -> None:
    x = torch.zeros(8, 8, device="cuda")
    x @ x


def set_to(owner: object, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


ON: dict[str, Callable[[], object]] = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": set_to(matmul, "allow_tf32", True),
    "fp32_precision": set_to(matmul, "fp32_precision", "tf32"),
}
OFF: dict[str, Callable[[], object]] = {
    "as it comes": lambda: None,
    "highest": lambda: torch.set_float32_matmul_precision("highest"),
    "allow_tf32": set_to(matmul, "allow_tf32", False),
    "fp32_precision": set_to(matmul, "fp32_precision", "ieee"),
}


@pytest.mark.parametrize("setting", ON)
def test_allowed(setting: str):
    ON[setting]()
    assert allowed(product)["aten.mm"] == [True]


@pytest.mark.parametrize("setting", OFF)
def test_not_allowed(setting: str):
    OFF[setting]()
    assert allowed(product)["aten.mm"] == [False]


def test_switched_midway_by_old_and_new_settings():
    def script() -> None:
        x = torch.zeros(8, 8, device="cuda")
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            x @ x
        matmul.fp32_precision = "tf32"
        x @ x

    assert allowed(script)["aten.mm"] == [False, True, False, True]


def test_every_product_of_matrices_and_no_other_operator():
    def script() -> None:
        x = torch.zeros(4, 4, device="cuda")
        b = x[None]
        torch.mm(x, x), torch.addmm(x[0], x, x), torch.bmm(b, b), torch.baddbmm(b, b, b)
        torch.addbmm(x, b, b), x.mv(x[0]), x * x, x.sum()

    torch.set_float32_matmul_precision("high")
    flags = allowed(script)
    assert {name for name, times in flags.items() if all(times)} == {
        "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addbmm"
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_only_float32_is_ever_computed_in_tf32(dtype: torch.dtype):
    def script() -> None:
        x = torch.zeros(4, 4, device="cuda", dtype=dtype)
        x @ x

    torch.set_float32_matmul_precision("high")
    assert allowed(script)["aten.mm"] == [False]


def test_under_autocast_the_product_is_in_half_precision():
    def script() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            product()

    torch.set_float32_matmul_precision("high")
    assert allowed(script)["aten.mm"] == [False]


def convolves() -> None:
    conv = nn.Conv2d(3, 4, 3).cuda()
    conv(torch.zeros(1, 3, 8, 8, device="cuda")).sum().backward()


def recurs() -> None:
    nn.LSTM(4, 4).cuda()(torch.zeros(2, 1, 4, device="cuda"))[0].sum().backward()


@pytest.mark.thorough
def test_cudnn_may_unless_told_otherwise():
    assert allowed(convolves)["aten.convolution"] == [True]
    assert allowed(convolves)["aten.convolution_backward"] == [True]
    assert allowed(recurs)["aten._cudnn_rnn"] == [True]
    assert allowed(recurs)["aten._cudnn_rnn_backward"] == [True]


def test_cudnn_may_not():
    with cudnn.flags(allow_tf32=False):
        assert allowed(convolves)["aten.convolution"] == [False]
        assert allowed(recurs)["aten._cudnn_rnn"] == [False]


def test_one_of_cudnns_may_not():
    cudnn.conv.fp32_precision = "ieee"
    assert allowed(convolves)["aten.convolution"] == [False]
    assert allowed(recurs)["aten._cudnn_rnn"] == [True]
    cudnn.conv.fp32_precision = "tf32"
