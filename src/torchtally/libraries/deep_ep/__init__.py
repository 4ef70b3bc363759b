"""deep_ep: tokens to experts on other GPUs of a node, and back (deepseek-ai/DeepEP).

Its legacy `Buffer` between the GPUs of one node. Between nodes, low latency and `ElasticBuffer`
are refused by name.
"""

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .utils import EventHandle, EventOverlap

__version__ = "2.1.0"
topk_idx_t = torch.int64
NVLINK_PEERS = 8
SOURCE_BYTES, INDEX_BYTES, NUMBER_BYTES, MOST = 8, 8, 4, 128
"""Of a token's source, of an index and of a number; and of how many indices and scales there is
room in a buffer (csrc/legacy/config.hpp)."""


class Config:
    def __init__(
        self,
        num_sms: int,
        num_max_nvl_chunked_send_tokens: int,
        num_max_nvl_chunked_recv_tokens: int,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 128,
    ) -> None:
        self.num_sms = num_sms
        self.received_tokens = num_max_nvl_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """A channel, of two multiprocessors, has a queue of tokens for each GPU of the node."""
        nodes, peers = max(num_ranks // NVLINK_PEERS, 1), min(num_ranks, NVLINK_PEERS)
        token_bytes = hidden_bytes + SOURCE_BYTES + MOST * (INDEX_BYTES + 2 * NUMBER_BYTES)
        queue_bytes = (2 * nodes + 3) * NUMBER_BYTES + self.received_tokens * token_bytes
        return -(-self.num_sms // 2 * peers * queue_bytes // 128) * 128

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0 if num_ranks <= NVLINK_PEERS else refuse("a buffer between nodes")


def refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"deep_ep is not installed, and tally's stand-in does not support {what}: it has "
        "Buffer.dispatch and Buffer.combine between the GPUs of one node (docs/kernels.md)"
    )


class Handle(NamedTuple):
    """Handle of a dispatch: what a combine, and a dispatch along the same ways, need of it."""

    is_token_in_rank: Tensor
    sent: list[int]
    received: list[int]


class Buffer:
    num_sms = 20

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
        low_latency_mode: bool = False, num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
        explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
    ) -> None:  # fmt: skip
        if low_latency_mode:
            refuse("low_latency_mode")
        if group is None:
            refuse("an MPI communicator in place of a process group")
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        if self.group_size > NVLINK_PEERS:
            refuse("exchanges between nodes")
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.explicitly_destroy = explicitly_destroy
        self.stream = torch.cuda.Stream()
        self.memory: Tensor | None = torch.empty(num_nvl_bytes, dtype=torch.uint8, device="cuda")

    def destroy(self) -> None:
        assert self.explicitly_destroy, "`explicitly_destroy` flag must be set"
        self.memory = None

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        assert new_num_sms % 2 == 0, "The SM count must be even"
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Any:
        return self.stream

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms, chunk(num_ranks, {2: 24, 4: 6, 8: 6}), 256)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms, chunk(num_ranks, {2: 10, 4: 9, 8: 4}), 256)

    @staticmethod
    def get_low_latency_rdma_size_hint(*arguments: int) -> int:
        refuse("low latency")

    def low_latency_dispatch(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse("low_latency_dispatch")

    def low_latency_combine(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse("low_latency_combine")

    @torch.no_grad()
    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, None, Tensor, Tensor, EventOverlap]:
        """(tokens by rank, None within a node, tokens by expert, who goes where, event)"""
        per_rank, per_expert = (
            topk_idx.new_empty(size, dtype=torch.int32) for size in (self.group_size, num_experts)
        )
        in_rank = topk_idx.new_empty((len(topk_idx), self.group_size), dtype=torch.bool)
        with Communication(self.stream, previous_event, async_finish) as communication:
            torch.ops.deep_ep.layout(topk_idx, per_rank, per_expert, in_rank)
        return per_rank, None, per_expert, in_rank, communication.event

    @torch.no_grad()
    def dispatch(
        self, x: Any, handle: Handle | None = None, num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None, is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
        config: Config | None = None, previous_event: EventOverlap | None = None,
        async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(tokens, their experts, their weights, counts by expert, handle, event)"""
        if num_worst_tokens:
            refuse("num_worst_tokens")
        name, by_expert, counts = self.group.group_name, None, None
        is_new = handle is None
        communication = Communication(self.stream, previous_event, async_finish)
        if handle is None:
            assert num_tokens_per_rank is not None
            assert num_tokens_per_expert is not None
            assert is_token_in_rank is not None
            received = torch.empty_like(num_tokens_per_rank)
            by_expert = num_tokens_per_expert.new_empty(
                num_tokens_per_expert.numel() // self.group_size
            )
            with communication:
                torch.ops.deep_ep.notify_dispatch(
                    num_tokens_per_rank,
                    num_tokens_per_expert,
                    is_token_in_rank,
                    received,
                    by_expert,
                    name,
                )
                # The host waits for the numbers of tokens, to allocate what they come into.
                sent, came = num_tokens_per_rank.tolist(), received.tolist()
                counts = [
                    -(-count // expert_alignment) * expert_alignment for count in by_expert.tolist()
                ]
            handle = Handle(is_token_in_rank, sent, came)
        rows = sum(handle.received)
        parts = list(x) if isinstance(x, tuple) else [x]
        extra = [part for part in (topk_idx, topk_weights) if part is not None]
        sources = [*parts, *extra]
        targets = [part.new_empty((rows, *part.shape[1:])) for part in sources]
        with communication:
            torch.ops.deep_ep.dispatch(
                sources, handle.is_token_in_rank, by_expert, targets, name, handle.sent,
                handle.received,
            )  # fmt: skip
        came_to = iter(targets[len(parts) :])
        experts = next(came_to) if topk_idx is not None else None
        weights = next(came_to) if topk_weights is not None else None
        tokens = tuple(targets[: len(parts)]) if isinstance(x, tuple) else targets[0]
        return tokens, experts, weights, counts, handle if is_new else None, communication.event

    @torch.no_grad()
    def combine(
        self, x: Tensor, handle: Handle, topk_weights: Tensor | None = None, bias: Any = None,
        config: Config | None = None, previous_event: EventOverlap | None = None,
        async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:  # fmt: skip
        """(the sums of what comes back for each token, of weights, event)"""
        sources = [part for part in (x, topk_weights) if part is not None]
        tokens = len(handle.is_token_in_rank)
        targets = [part.new_empty((tokens, *part.shape[1:])) for part in sources]
        biases = list(bias) if isinstance(bias, tuple) else [] if bias is None else [bias]
        with Communication(self.stream, previous_event, async_finish) as communication:
            torch.ops.deep_ep.combine(
                sources, biases, targets, self.group.group_name, handle.received, handle.sent
            )
        weights = targets[1] if topk_weights is not None else None
        return targets[0], weights, communication.event


class Communication:
    """Communication on its own stream: after an event, or what the current stream was given; the
    current stream waits for it unless its end is asked for.
    """

    def __init__(self, stream: Any, previous: EventOverlap | None, is_asynchronous: bool) -> None:
        self.stream, self.previous, self.is_asynchronous = stream, previous, is_asynchronous
        self.event = EventOverlap()

    def __enter__(self) -> "Communication":
        self.caller = torch.cuda.current_stream()
        if self.previous is not None and self.previous.event is not None:
            self.stream.wait_event(self.previous.event.event)
        else:
            self.stream.wait_stream(self.caller)
        self.within = torch.cuda.stream(self.stream)
        self.within.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.is_asynchronous:
            self.event = EventOverlap(EventHandle())
        self.within.__exit__(*raised)
        if not self.is_asynchronous:
            self.caller.wait_stream(self.stream)


def chunk(num_ranks: int, sizes: dict[int, int]) -> int:
    return sizes[num_ranks] if num_ranks in sizes else refuse(f"a config of {num_ranks} ranks")


class ElasticBuffer:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        refuse("ElasticBuffer")
