"""DeepEP's exchange of tokens with experts on other GPUs (`libraries/deep_ep` calls it).

T: tokens of a rank.  K: experts of a token.  E: experts.  n: ranks; rank r has the experts from
r * E/n on. A token goes to a rank once, even for two experts there.

Where choices are assumed, which token meets which is unknown: its K experts are assumed to be drawn
without replacement, each as often as it is chosen. What others send is what this rank sends to
them; with an imbalance declared, what it keeps for itself (`collectives.assign_exchanged`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import Library

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.dispatch import SPECIAL, VirtualDispatch
from torchtally.virtual.distributed.collectives import assign
from torchtally.virtual.facts import assumption_of, routing
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import virtual_of
from torchtally.virtual.value_keeper import has_value

SCHEMAS = (
    "layout(Tensor topk_idx, Tensor(a!) per_rank, Tensor(b!) per_expert, Tensor(c!) in_rank) -> ()",
    "notify_dispatch(Tensor per_rank, Tensor per_expert, Tensor in_rank, Tensor(a!) received, "
    "Tensor(b!) received_by_expert, str group_name) -> ()",
    "dispatch(Tensor[] sources, Tensor in_rank, Tensor? received_by_expert, Tensor(a!)[] targets, "
    "str group_name, int[] input_split_sizes, int[] output_split_sizes) -> ()",
    "combine(Tensor[] sources, Tensor[] bias, Tensor(a!)[] targets, str group_name, "
    "int[] input_split_sizes, int[] output_split_sizes) -> ()",
)
DISPATCH = "deep_ep.dispatch"
ALMOST_ALL = 1 - 1e-9
"""The largest share of tokens that choose an expert, where its odds are still a number."""


def share_reaching(chosen: Sequence[float], K: int, own: range) -> float:
    """Share of tokens with an expert among `own`: 1 - C(E - E/n, K) / C(E, K) where all experts are
    chosen equally often, and else 1 - e_K(odds of others) / e_K(odds of all), of the elementary
    symmetric polynomials (conditional Poisson sampling: Hajek 1964).
    """
    odds = [min(share, ALMOST_ALL) / (1 - min(share, ALMOST_ALL)) for share in chosen]
    others = [odd for expert, odd in enumerate(odds) if expert not in own]
    return 1 - symmetric_polynomial(others, K) / symmetric_polynomial(odds, K)


def symmetric_polynomial(odds: Sequence[float], degree: int) -> float:
    """The sum, over all sets of so many, of the products of their odds."""
    sums = [1.0] + [0.0] * degree
    for odd in odds:
        for size in range(degree, 0, -1):
            sums[size] += odd * sums[size - 1]
    return sums[degree]


def value_of(tensor: Tensor) -> Tensor | None:
    return values.real_of(tensor) if has_value(tensor) else None


def give(target: Tensor, real: Tensor | None, assumption: str | None) -> None:
    assign(target, None if real is None else real.to(target.dtype))
    virtual = virtual_of(target)
    if virtual is not None:
        virtual.assumption = assumption


def layout(mode: VirtualDispatch, call: Invocation) -> None:
    topk_idx, per_rank, per_expert, in_rank = map(
        call.argument, ("topk_idx", "per_rank", "per_expert", "in_rank")
    )
    mode.notify(call, (), call.home)
    chosen, assumption = value_of(topk_idx), assumption_of([virtual_of(topk_idx)])
    (T, K), E, n = topk_idx.shape, per_expert.numel(), per_rank.numel()
    if chosen is None:
        assumption = routing.BALANCED
        counts = torch.tensor([round(T * K / E)] * E)
    else:
        counts = chosen[chosen >= 0].bincount(minlength=E)
    give(per_expert, counts, assumption)
    if chosen is not None and assumption is None:
        reached = torch.zeros(T, n + 1, dtype=torch.bool)
        ranks = torch.where(chosen < 0, n, chosen // (E // n))
        reached.scatter_(1, ranks.long(), True)
        give(in_rank, reached[:, :n], None)
        give(per_rank, reached[:, :n].sum(0), None)
        return
    if routing.is_declared(assumption):
        shares = [count / max(1, T) for count in counts.tolist()]
    else:
        shares = [K / E] * E
    each = [share_reaching(shares, K, range(r * (E // n), (r + 1) * (E // n))) for r in range(n)]
    assign(in_rank, None)
    give(per_rank, torch.tensor([round(T * share) for share in each]), assumption)


def notify_dispatch(mode: VirtualDispatch, call: Invocation) -> None:
    """Numbers of tokens are exchanged: those that come, by rank, and by expert of this rank."""
    group = private.process_group(call.argument("group_name"))
    call.settings = (("group", mode.groups.number(group)),)
    mode.notify(call, (), call.home)
    per_rank, per_expert = call.argument("per_rank"), call.argument("per_expert")
    sent, counts = value_of(per_rank), value_of(per_expert)
    assumption = assumption_of([virtual_of(per_rank)])
    rows = by_expert = None
    if sent is not None and counts is not None:
        counts = counts.view(group.size(), -1)
        if routing.is_declared(assumption):
            rows = sent[group.rank()].expand_as(sent)
            by_expert = counts[group.rank()] * group.size()
        else:
            rows, by_expert = sent, counts.sum(0)
    give(call.argument("received"), rows, assumption)
    give(call.argument("received_by_expert"), by_expert, assumption)


def exchange(mode: VirtualDispatch, call: Invocation) -> None:
    group = private.process_group(call.argument("group_name"))
    call.settings = (("group", mode.groups.number(group)),)
    mode.notify(call, (), call.home)
    by_expert = call.argument("received_by_expert") if call.operator.name == DISPATCH else None
    counts = None if by_expert is None else value_of(by_expert)
    assumption = None if by_expert is None else assumption_of([virtual_of(by_expert)])
    for target in call.argument("targets"):
        if counts is None or target.is_floating_point():
            assign(target, None)
        else:
            give(target, choices(counts, *target.shape), assumption)


def choices(counts: Tensor, rows: int, K: int) -> Tensor:
    """Experts of the tokens that came, -1 elsewhere: as many of each as were counted, and none
    twice for a token.
    """
    experts = torch.arange(counts.numel()).repeat_interleave(counts.long())[: rows * K]
    filled = torch.full((rows * K,), -1)
    filled[: experts.numel()] = experts
    return filled.view(K, rows).T.contiguous()


HANDLERS = {
    "layout": layout,
    "notify_dispatch": notify_dispatch,
    "dispatch": exchange,
    "combine": exchange,
}
_defined: list[Library] = []
"""Operators are known as long as it lives."""


def register() -> None:
    """Define the operators, once, and enter their handlers."""
    if not _defined:
        library = Library("deep_ep", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        _defined.append(library)
    for name, handler in HANDLERS.items():
        SPECIAL[getattr(torch.ops.deep_ep, name).default] = handler
