"""Tokens and samples a second: what a step's batch is, and who tells."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import torchtally
from tests.builders import TraceBuilder, factory_call, frame, mm_call, site
from tests.traces import ops, traced
from tests.views.stopwatch import DATASHEET, MS, stopwatch
from torchtally.ledger import account
from torchtally.trace import Call, Phase, TensorSpec, Trace
from torchtally.trace.op import FusedKernel, Part
from torchtally.views.throughput import Throughput, samples_of, throughput, tokens_of

Step = Callable[[nn.Module], Tensor]


def training(model: Callable[[], nn.Module], step: Step, *, micro_batches: int = 1) -> Trace:
    """Two steps of so many micro-batches each."""

    def train() -> None:
        net = model().cuda()
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(2):
            for _ in range(micro_batches):
                step(net).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return traced(train)


def of(trace: Trace) -> Throughput:
    rates = throughput(account(trace, roofline=DATASHEET))
    assert rates is not None
    return rates


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(32, 8)
        self.words = nn.Embedding(100, 8)
        self.head = nn.Linear(8, 100)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.positions(torch.arange(ids.shape[-1], device=ids.device))
        return self.head(places + self.words(ids))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_token_ids_tell_tokens_and_samples(micro_batches: int) -> None:
    """Positions are looked up first, but only once for all samples."""
    rates = of(
        training(
            Words,
            lambda net: net(torch.zeros(4, 32, dtype=torch.long, device="cuda")),
            micro_batches=micro_batches,
        )
    )
    assert rates.tokens is not None
    assert rates.samples is not None
    assert (rates.tokens.size, rates.samples.size) == (4 * 32 * micro_batches, 4 * micro_batches)
    assert rates.tokens.op == "aten.embedding"
    assert rates.tokens.line is not None
    assert "self.words(ids)" in rates.tokens.line.text
    assert rates.tokens_per_s == pytest.approx(128 * micro_batches / rates.seconds)


@pytest.mark.thorough
def test_micro_batches_of_a_gathered_table_add_up() -> None:
    """FSDP gathers it anew for each: another storage."""

    def script() -> None:
        dist.init_process_group("nccl")
        net = Words().cuda()
        for layer in (net.positions, net.words, net.head):
            fully_shard(layer, reshard_after_forward=True)
        fully_shard(net, reshard_after_forward=True)
        optimizer = torch.optim.SGD(net.parameters(), foreach=False)
        for _ in range(2):
            for _ in range(3):
                net(torch.zeros(4, 32, dtype=torch.long, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    rates = of(torchtally.run(script, gpu="2xH100-SXM"))
    assert rates.tokens is not None
    assert rates.samples is not None
    assert (rates.tokens.size, rates.samples.size) == (3 * 4 * 32, 3 * 4)


def test_what_is_looked_up_again_is_no_new_token() -> None:
    ids = torch.zeros(4, 32, dtype=torch.long)

    def step(net: nn.Module) -> Tensor:
        run = torch.utils.checkpoint.checkpoint
        return run(net, ids.cuda(), use_reentrant=False)  # type: ignore[no-any-return]

    trace = training(Words, step)
    lookups = ops(trace, "aten.embedding")
    assert {Phase.FORWARD, Phase.RECOMPUTE} <= {op.phase for op in lookups}
    rates = of(trace)
    assert rates.tokens is not None
    assert rates.tokens.size == 128


class ValueEmbeddings(nn.Module):
    """Three values for each id in one table, as modded-nanogpt's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 8)
        self.values = nn.Parameter(torch.zeros(3 * 100, 8))
        self.head = nn.Linear(8, 100)

    def forward(self, ids: Tensor) -> Tensor:
        values = [nn.functional.embedding(ids, table) for table in self.values.view(3, 100, 8)]
        return self.head(self.words(ids) + torch.stack(values).sum(0))


@pytest.mark.parametrize("parts", [1, 2])
def test_several_values_for_an_id_are_one_token(parts: int) -> None:
    """A batch of 33 ids a sample without the last one, whole or in parts, in one backward pass."""

    def step(net: nn.Module) -> Tensor:
        ids = torch.randint(100, (4, 33), device="cuda")
        return torch.cat([net(part) for part in ids[:, :-1].chunk(parts)])

    rates = of(training(ValueEmbeddings, step, micro_batches=3))
    assert rates.tokens is not None
    assert rates.samples is not None
    assert (rates.tokens.size, rates.samples.size) == (3 * 4 * 32, 3 * 4)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_images_tell_samples_and_no_tokens(micro_batches: int) -> None:
    """Two convolutions see each micro-batch; only the first counts."""
    rates = of(
        training(
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)),
            lambda net: net(torch.zeros(8, 3, 16, 16, device="cuda")),
            micro_batches=micro_batches,
        )
    )
    assert rates.tokens is None
    assert rates.tokens_per_s is None
    assert rates.samples is not None
    assert rates.samples.size == 8 * micro_batches
    assert rates.samples.op == "aten.convolution"
    assert rates.samples_per_s == pytest.approx(8 * micro_batches / rates.seconds)


@pytest.mark.parametrize(
    ("shape", "samples"), [((16, 8), 16), ((4, 5, 8), 4)], ids=["rows", "sequences"]
)
def test_else_the_first_product_tells(shape: tuple[int, ...], samples: int) -> None:
    """A layer flattens sequences to rows; a sample is what the batch was made of."""
    rates = of(
        training(
            lambda: nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8)),
            lambda net: net(torch.zeros(shape, device="cuda")),
            micro_batches=2,
        )
    )
    assert rates.tokens is None
    assert rates.samples is not None
    assert rates.samples.size == 2 * samples


def test_a_vector_is_one_sample() -> None:
    """As an agent chooses its next action."""
    rates = of(
        training(
            lambda: nn.Linear(8, 2), lambda net: net(torch.zeros(8, device="cuda")), micro_batches=5
        )
    )
    assert rates.samples is not None
    assert rates.samples.size == 5


def trained(step: Callable[[nn.Module, nn.Module], None]) -> int | None:
    """Samples of a step of two layers, each with an optimizer of its own."""

    def train() -> None:
        one, two = nn.Linear(8, 16).cuda(), nn.Linear(16, 1).cuda()
        optimizers = [torch.optim.SGD(net.parameters()) for net in (one, two)]
        for _ in range(2):
            step(one, two)
            for optimizer in optimizers:
                optimizer.step()

    samples = of(traced(train)).samples
    return None if samples is None else samples.size


def noise(columns: int) -> Tensor:
    return torch.randn(4, columns, device="cuda")


def two_places(one: nn.Module, two: nn.Module) -> None:
    """Micro-batches of 4, whose losses differ."""
    two(one(noise(8))).sum().backward()
    two(one(noise(8))).square().sum().backward()


def two_places_under_autocast(one: nn.Module, two: nn.Module) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        two_places(one, two)


def one_forward_one_backward(one: nn.Module, two: nn.Module) -> None:
    """A pipeline's schedule: 4 micro-batches, the second before the first backward pass."""
    pending = two(one(noise(8)))
    for _ in range(3):
        following = two(one(noise(8)))
        pending.sum().backward()
        pending = following
    pending.sum().backward()


def two_losses_of_a_batch(one: nn.Module, two: nn.Module) -> None:
    """Of the same 4 samples."""
    batch = noise(8)
    two(one(batch)).sum().backward()
    two(one(batch)).square().sum().backward()


def two_views_of_a_sample(one: nn.Module, two: nn.Module) -> None:
    """Contrastive: one backward pass, of pairs."""
    left = one(noise(8))
    right = one(noise(8))
    (two(left) - two(right)).sum().backward()


def real_and_fake(one: nn.Module, two: nn.Module) -> None:
    """A GAN: `two` tells 4 samples from what `one` makes."""
    two(noise(16)).sum().backward()
    fake = one(noise(8))
    two(fake.detach()).sum().backward()
    two(fake).sum().backward()


@pytest.mark.parametrize(
    ("step", "samples"),
    [
        (two_places, 8),
        (two_places_under_autocast, 8),
        (one_forward_one_backward, 16),
        (two_losses_of_a_batch, 4),
        (two_views_of_a_sample, 4),
        (real_and_fake, 4),
    ],
)
def test_two_places_that_call_backward_are_micro_batches(
    step: Callable[[nn.Module, nn.Module], None], samples: int
) -> None:
    assert trained(step) == samples


def test_a_batch_out_of_a_resident_data_set_is_as_large_as_its_product() -> None:
    data = site(frame(line=2))
    builder = TraceBuilder()
    rows = builder.run(factory_call(1000, 8), site=data)
    weight = builder.run(factory_call(8, 4))
    builder.end_step()
    builder.run(mm_call(16, 8, 4), (rows, weight), site=site(frame(line=3)))
    builder.end_step()
    samples = samples_of(account(builder.build()))
    assert samples is not None
    assert (samples.size, samples.op) == (16, "aten.mm")


def test_single_ids_are_tokens_and_the_product_tells_samples() -> None:
    rates = of(
        training(
            lambda: nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 4)),
            lambda net: net(torch.zeros(6, dtype=torch.long, device="cuda")),
        )
    )
    assert rates.tokens is not None
    assert rates.samples is not None
    assert (rates.tokens.size, rates.samples.size) == (6, 6)
    assert rates.samples.op.startswith("aten.addmm")


class Images(nn.Module):
    """Patches of 16 images with one label each, by a convolution or by a product; DiT in small."""

    def __init__(self, patch: nn.Module, *, is_column: bool = False) -> None:
        super().__init__()
        self.patch, self.is_column = patch, is_column
        self.label = nn.Embedding(1000, 8)
        self.time = nn.Linear(4, 8)
        self.block = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (16, 1) if self.is_column else (16,)
        labels = torch.zeros(shape, dtype=torch.long, device="cuda")
        time = self.time(torch.zeros(16, 4, device="cuda"))[:, None]
        h = self.patch(x)
        if h.dim() == 4:
            h = h.flatten(2).transpose(1, 2)
        condition = self.label(labels).view(16, 1, 8) + time
        return self.block(h + condition)  # type: ignore[no-any-return]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("is_column", [False, True])
@pytest.mark.parametrize(
    ("patch", "shape"),
    [(nn.Conv2d(3, 8, 4, 4), (16, 3, 32, 32)), (nn.Linear(48, 8), (16, 64, 48))],
    ids=["convolution", "product"],
)
def test_labels_of_images_are_no_tokens(
    patch: nn.Module, shape: tuple[int, ...], is_column: bool, micro_batches: int
) -> None:
    rates = of(
        training(
            lambda: Images(copy.deepcopy(patch), is_column=is_column).cuda(),
            lambda net: net(torch.zeros(shape, device="cuda")),
            micro_batches=micro_batches,
        )
    )
    assert rates.tokens is None
    assert rates.samples is not None
    assert rates.samples.size == 16 * micro_batches


def test_ids_of_packed_sequences_are_tokens() -> None:
    """One dimension of 64 ids, whose heads are multiplied one by one, too."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.up, self.head = nn.Embedding(9, 8), nn.Linear(8, 32), nn.Linear(4, 4)
            self.down = nn.Linear(32, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.down(self.head(self.up(self.words(ids)).view(64, 8, 4)).view(64, 32))

    rates = of(training(Packed, lambda net: net(torch.zeros(64, dtype=torch.long, device="cuda"))))
    assert rates.tokens is not None
    assert rates.tokens.size == 64


# By hand ---------------------------------------------------------------------------------------


def lookup(*ids: int) -> Call:
    def spec(*shape: int, argument: str, storage: int) -> TensorSpec:
        from tests.builders import spec as contiguous

        return contiguous(*shape, argument=argument, storage=storage, dtype="int64")

    return Call(
        "aten.embedding",
        "default",
        (spec(50, 2, argument="weight", storage=0), spec(*ids, argument="indices", storage=1)),
        (spec(*ids, 2, argument="", storage=2),),
    )


def test_a_rate_is_the_steps_batch_over_its_time() -> None:
    """Two lookups of 2 x 5 ids at 1 ms each."""
    builder = TraceBuilder()
    table, *batches = (builder.run(factory_call(*shape)) for shape in ((50, 2), (2, 5), (2, 5)))
    builder.end_step()
    for ids in batches:
        builder.run(lookup(2, 5), (table, ids))
    builder.end_step()
    rates = throughput(account(builder.build(), roofline=stopwatch()))
    assert rates is not None
    assert rates.seconds == pytest.approx(2 * MS)
    assert rates.steps_per_s == pytest.approx(500)
    assert rates.tokens_per_s == pytest.approx(20 / 2e-3)
    assert rates.samples_per_s == pytest.approx(4 / 2e-3)
    assert rates.tokens is not None
    assert rates.tokens.line is None


def test_what_a_compiler_looks_up_again_in_other_kernels_is_no_new_token() -> None:
    """Two micro-batches of 10 ids, each looked up in two kernels: 20 tokens."""
    builder = TraceBuilder()
    table, ids = builder.run(factory_call(50, 2)), builder.run(factory_call(2, 5))
    kernels = [
        replace(
            lookup(2, 5),
            name=f"inductor.triton_poi_fused_embedding_{number}",
            fused=FusedKernel("pointwise", (Part("aten.embedding", (lookup(2, 5),), 80, 80),)),
        )
        for number in range(2)
    ]
    builder.end_step()
    for kernel in (*kernels, *kernels):
        builder.run(kernel, (table, ids))
        builder.ops[-1] = replace(builder.ops[-1], parts=(0,))
    builder.end_step()
    rates = throughput(account(builder.build(), roofline=stopwatch()))
    assert rates is not None
    assert rates.tokens is not None
    assert rates.tokens.size == 20


def test_nothing_tells_nothing() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(8))
    builder.end_step()
    ledger = account(builder.build(), roofline=stopwatch())
    assert (tokens_of(ledger), samples_of(ledger), throughput(ledger)) == (None, None, None)


def test_without_a_step_or_a_time_there_is_no_rate() -> None:
    builder = TraceBuilder()
    number = builder.run(factory_call(3, 4))
    builder.run(mm_call(2, 3, 4), (number, number))
    assert throughput(account(builder.build(), roofline=stopwatch())) is None
    builder.end_step()
    assert throughput(account(builder.build())) is None
    assert throughput(account(builder.build(), roofline=stopwatch())) is not None
