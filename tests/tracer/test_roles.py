"""What a storage is held for: the script's own word, and what follows from the data's flow."""

import pytest
import torch
from torch import nn

import torchtally
from tests.traces import accounted, traced
from torchtally.memory import Category
from torchtally.trace import Role, Storage, Trace
from torchtally.views.parameters import parameters_of

pytestmark = pytest.mark.one_case_in(2)

B, D = 64, 128
WEIGHT = 4 * D * D


def of_role(trace: Trace, role: Role) -> list[Storage]:
    return [storage for storage in trace.storages if storage.role is role]


def named(trace: Trace, role: Role) -> dict[str, int]:
    """Requested bytes by name."""
    return {s.name: s.requested_bytes for s in of_role(trace, role) if s.name}


def train(make, model=None, steps: int = 2):
    def script() -> None:
        net = (model or (lambda: nn.Linear(D, D, bias=False)))().cuda()
        optimizer = make(net.parameters())
        for _ in range(steps):
            net(torch.rand(B, D, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return script


def test_parameters_carry_their_names():
    def script() -> None:
        model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, 1, bias=False)).cuda()
        model(torch.rand(B, D, device="cuda"))

    assert named(traced(script), Role.PARAMETER) == {
        "0.weight": WEIGHT, "0.bias": 4 * D, "1.weight": 4 * D,
    }  # fmt: skip


def test_buffers_carry_theirs():
    def script() -> None:
        model = nn.BatchNorm1d(D).cuda()
        model(torch.rand(B, D, device="cuda"))

    assert named(traced(script), Role.BUFFER) == {
        "running_mean": 4 * D, "running_var": 4 * D, "num_batches_tracked": 8,
    }  # fmt: skip


def test_parameters_outside_of_modules_are_known_by_their_updates():
    def script() -> None:
        w = torch.ones(D, device="cuda", requires_grad=True)
        (w * 2).sum().backward()
        with torch.no_grad():
            w -= w.grad

    trace = traced(script)
    assert [s.requested_bytes for s in of_role(trace, Role.PARAMETER)] == [4 * D]
    assert [s.requested_bytes for s in of_role(trace, Role.GRADIENT)] == [4 * D]


def test_a_parameter_that_no_module_has_is_one():
    def script() -> None:
        w = nn.Parameter(torch.ones(D, device="cuda"))
        (w * 2).sum().backward()

    assert [s.requested_bytes for s in of_role(traced(script), Role.PARAMETER)] == [4 * D]


def test_an_input_that_requires_grad_is_no_parameter():
    """Checkpointing wants one: `enable_input_require_grads` of transformers, for LoRA."""

    def script() -> None:
        model = nn.Linear(D, D, bias=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.rand(B, D, device="cuda", requires_grad=True)
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = traced(script)
    assert [s.requested_bytes for s in of_role(trace, Role.PARAMETER)] == [WEIGHT]
    parameters = parameters_of(torchtally.account(trace))
    assert parameters is not None
    assert parameters.elements == D * D


def adapted() -> None:
    """Two frozen layers, and one that is trained between them, as an adapter would be."""
    first, adapter, last = (nn.Linear(D, D, bias=False).cuda() for _ in range(3))
    for layer in (first, last):
        layer.requires_grad_(False)
    model = nn.Sequential(first, adapter, last)
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.rand(B, D, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["plain", "autocast"])
def test_frozen_parameters_are_told_from_trained_ones(dtype: torch.dtype | None):
    """Six FLOPs of a token for the adapter, four above it, two below. As many are done, but for
    the gradient of the adapter's input: nothing below it is trained.
    """

    def script() -> None:
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            adapted()

    ledger = accounted(script)
    parameters = parameters_of(ledger)
    assert parameters is not None
    assert (parameters.trained, parameters.frozen) == (D * D, 2 * D * D)
    assert parameters.flops_per_token == (6 + 4 + 2) * D * D
    assert ledger.total.flops_matmul == B * (parameters.flops_per_token - 2 * D * D)


def test_a_reference_model_that_requires_grad_is_not_trained():
    """As TRL's DPO has one: it runs under no_grad, and no optimizer has its parameters."""

    def script() -> None:
        model, reference = (nn.Linear(D, D, bias=False).cuda() for _ in "12")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.ones(B, D, device="cuda")
            with torch.no_grad():
                target = reference(x)
            (model(x) - target).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    parameters = parameters_of(accounted(script))
    assert parameters is not None
    assert (parameters.trained, parameters.frozen) == (D * D, D * D)


def test_of_a_run_without_gradients_all_that_require_them_may_be_trained():
    def script() -> None:
        with torch.no_grad():
            nn.Linear(D, D, bias=False).cuda()(torch.ones(B, D, device="cuda"))

    parameters = parameters_of(accounted(script))
    assert parameters is not None
    assert (parameters.trained, parameters.frozen) == (D * D, 0)


def test_a_gradient_that_is_only_read_makes_no_parameter():
    """A saliency map."""

    def script() -> None:
        model = nn.Linear(D, D, bias=False).cuda()
        x = torch.rand(B, D, device="cuda", requires_grad=True)
        model(x).sum().backward()
        x.grad.abs().sum()

    assert [s.requested_bytes for s in of_role(traced(script), Role.PARAMETER)] == [WEIGHT]


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.RMSprop(p), 1),
        (lambda p: torch.optim.Adagrad(p), 1),
        (lambda p: torch.optim.Adam(p), 2),
        (lambda p: torch.optim.AdamW(p), 2),
        (lambda p: torch.optim.AdamW(p, fused=True), 2),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
        (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9), 3),
    ],
)
def test_optimizer_state_in_copies_of_the_parameters(make, states: int):
    """The bill of training: parameter, gradient and so many copies of state."""
    trace = traced(train(make))
    big = [s for s in of_role(trace, Role.OPTIMIZER_STATE) if s.requested_bytes == WEIGHT]
    small = [s for s in of_role(trace, Role.OPTIMIZER_STATE) if s.requested_bytes != WEIGHT]
    assert len(big) == states
    assert all(s.requested_bytes <= 4 for s in small)  # step counters
    held = dict(torchtally.account(trace).memory.at_peak)
    assert held[Category.PARAMETERS] == WEIGHT
    assert held[Category.OPTIMIZER_STATE] == states * WEIGHT + 512 * len(small)


def test_adafactors_state_is_a_row_and_a_column():
    """Its second moments are factored: D + D numbers in place of D x D."""
    trace = traced(train(lambda p: torch.optim.Adafactor(p)))
    sizes = sorted(s.requested_bytes for s in of_role(trace, Role.OPTIMIZER_STATE))
    assert sizes[-2:] == [4 * D, 4 * D]


def test_state_lives_from_the_first_step_on():
    trace = traced(train(lambda p: torch.optim.AdamW(p), steps=3))
    state = of_role(trace, Role.OPTIMIZER_STATE)
    assert {s.died for s in state if s.requested_bytes == WEIGHT} == {None} or all(
        s.died is not None and s.died >= trace.step_ends[-1] for s in state
    )
    assert all(s.born < trace.step_ends[0] for s in state if s.requested_bytes == WEIGHT)


def test_gradients_of_every_micro_batch_are_gradients():
    def script() -> None:
        model = nn.Linear(D, D, bias=False).cuda()
        for _ in range(3):
            model(torch.rand(B, D, device="cuda")).sum().backward()

    gradients = of_role(traced(script), Role.GRADIENT)
    assert gradients
    assert {s.requested_bytes for s in gradients} == {WEIGHT}
    held = dict(accounted(script).memory.at_peak)
    assert held[Category.GRADIENTS] in (WEIGHT, 2 * WEIGHT)


def test_a_tied_weight_is_one_storage():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(D, D)
            self.head = nn.Linear(D, D, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.head(self.embed(ids))
            return output

    def script() -> None:
        model = Tied().cuda()
        model(torch.zeros(4, dtype=torch.int64, device="cuda")).sum().backward()

    assert named(traced(script), Role.PARAMETER) == {"embed.weight": WEIGHT}


def test_parameters_moved_to_another_dtype_are_parameters():
    def script() -> None:
        model = nn.Linear(D, D, bias=False).cuda().bfloat16()
        model(torch.rand(B, D, device="cuda", dtype=torch.bfloat16)).sum().backward()

    trace = traced(script)
    assert named(trace, Role.PARAMETER) == {"weight": WEIGHT // 2}


# Categories.


def test_activations_of_a_small_network_by_hand():
    """Linear, relu, linear: backward wants the input, the relu's result (twice) and the weights."""

    def script() -> None:
        first, second = (nn.Linear(D, D, bias=False).cuda() for _ in range(2))
        x = torch.rand(B, D, device="cuda")
        hidden = first(x)
        kept = hidden.relu()
        del hidden
        second(kept).sum().backward()

    ledger = accounted(script)
    activation = 4 * B * D
    by_line = {
        key.text: total.bytes_saved for key, total in ledger.by_line().items() if key is not None
    }
    assert by_line["kept = hidden.relu()"] == activation
    assert by_line["hidden = first(x)"] == 0
    assert by_line["second(kept).sum().backward()"] == 512  # the loss itself, where backward starts
    assert by_line['x = torch.rand(B, D, device="cuda")'] == 0  # a batch is an input


def test_the_missions_training_total():
    """AdaGrad on a deep linear model: parameters, gradients and state are the same bytes.

    Beside them stands one activation of B x D for every layer.
    """
    layers = 4

    def script() -> None:
        model = nn.Sequential(*[nn.Linear(D, D, bias=False) for _ in range(layers)]).cuda()
        optimizer = torch.optim.Adagrad(model.parameters())
        for _ in range(2):
            model(torch.rand(B, D, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    ledger = accounted(script)
    course = {
        category: timeline.peak_bytes for category, timeline in ledger.memory.by_category().items()
    }
    assert course[Category.PARAMETERS] == layers * WEIGHT
    assert course[Category.GRADIENTS] == layers * WEIGHT
    assert course[Category.OPTIMIZER_STATE] - layers * WEIGHT in (0, 512 * layers)
    activations = course[Category.ACTIVATIONS] + course[Category.INPUTS]
    assert activations == pytest.approx(layers * 4 * B * D, rel=0.3)


def test_a_batch_is_an_input():
    def script() -> None:
        model = nn.Linear(D, D, bias=False).cuda()
        batch = torch.rand(B, D).cuda()
        model(batch).sum().backward()

    ledger = accounted(script)
    held = {s.requested_bytes for s, c in zip(ledger.memory.storages, ledger.memory.categories,
                                              strict=True) if c is Category.INPUTS}  # fmt: skip
    assert held == {4 * B * D}


def test_peak_of_the_ledger_is_the_peak_of_torch_cuda():
    """Two roads to one number: the record's timeline and the running count."""
    counted: list[int] = []

    def script() -> None:
        model = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.rand(B, D, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        counted.append(torch.cuda.max_memory_allocated())

    ledger = accounted(script)
    assert counted == [ledger.memory.peak_bytes]


def test_nothing_is_freed_twice_and_everything_in_order():
    trace = traced(train(lambda p: torch.optim.AdamW(p), steps=3))
    assert [s.number for s in trace.storages] == list(range(len(trace.storages)))
    for storage in trace.storages:
        assert storage.died is None or storage.died > storage.born
    ledger = torchtally.account(trace)
    ledger.check()
    assert min(ledger.memory.timeline.live_bytes) >= 0
