"""What a compiled region keeps for its backward pass: the least bytes, since loops are made again.

A minimum cut between what cannot be made again and what the backward pass reads
(`min_cut_rematerialization_partition`, torch/_functorch/partitioners.py): a value costs its bytes,
twice as many where a loop could have handed it on without memory, and more the farther the backward
pass is. The names of rules are those of the partitioner.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchtally.programs.compiled.decomposition import KernelForm
from torchtally.programs.compiled.flow import FlowNode, Value

DISTANCE_FACTOR, MOST_DISTANCE = 1.1, 100
SMALLER_BY = 4
"""A result so many times smaller than its operands is kept: sums."""
LONGEST_CHAIN = 100
NOT_MADE_AGAIN = frozenset(("cat", "slice_backward", "constant_pad_nd", "embedding"))
"""Loops, besides those into tables, that are none of the partitioner's `recomputable_ops`."""

NO_LIMIT = 1 << 62


def kept_values(
    forward: Sequence[FlowNode], backward: Sequence[FlowNode], parameters: frozenset[int]
) -> set[Value]:
    """The values that the forward pass keeps, inputs of the region among them.

    `parameters` are recorded storages that are there anyway.
    """
    return Partition(list(forward), set(backward), parameters).kept()


@dataclass(slots=True)
class Partition:
    """The graph that is cut: each value an edge from its making to its reading."""

    forward: list[FlowNode]
    backward: set[FlowNode]
    parameters: frozenset[int]
    values: list[Value] = field(init=False)
    distance: dict[Value, int] = field(init=False)
    order: dict[FlowNode, int] = field(init=False)
    """Of the forward nodes."""

    def __post_init__(self) -> None:
        self.order = {node: n for n, node in enumerate(self.forward)}
        values: dict[Value, None] = {}
        for node in self.forward:
            values |= dict.fromkeys(access.value for access in node.reads)
            values |= dict.fromkeys(node.writes)
        for node in self.backward:
            made = (access.value for access in node.reads)
            values |= {v: None for v in made if v.maker is None or v.maker in self.order}
        self.values = list(values)
        self.distance = {}
        for value in reversed(self.values):
            self.distance[value] = self.distance_of(value)

    def distance_of(self, value: Value) -> int:
        """Operators between a value and the backward pass."""
        least = 10**9
        for user in value.users:
            if user in self.backward:
                return 1
            if user in self.order:
                least = min([least, *(self.distance.get(made, least) + 1 for made in user.writes)])
        return least

    def kept(self) -> set[Value]:
        """The values on the cut."""
        sources = {value for value in self.values if value.maker is None}
        sources |= {value for value in self.values if self.is_banned(value)}
        self.ban_used_far_apart(sources)
        self.ban_long_chains(sources)
        return self.cut(sources)

    def is_fusible(self, maker: FlowNode | None, user: FlowNode) -> bool:
        """Whether a loop could hand a value on to this one."""
        if user.call.plain_name == "cat":
            return True
        if maker is None or maker.call.plain_name == "cat":
            return False
        return maker.is_fusible and user.is_fusible

    def is_banned(self, value: Value) -> bool:
        """Not made again: a library's, or a sum's, or one that must be in memory anyway."""
        node = value.maker
        if node is None or node not in self.order:
            return False
        if (
            not node.is_fusible
            or node.is_random
            or node.work is KernelForm.SCATTER
            or node.call.plain_name in NOT_MADE_AGAIN
        ):
            return True
        for user in value.users:
            if user in self.backward and not self.is_fusible(node, user):
                return True
        return value.bytes * SMALLER_BY < sum(access.value.bytes for access in node.reads)

    def ban_used_far_apart(self, banned: set[Value]) -> None:
        """Ban the later reader of a value that is read before and behind a call of a library."""
        for value in self.values:
            users = [user for user in value.users if user in self.order]
            if len(users) < 2:
                continue
            first = self.first_unfusible(users, max(self.order[user] for user in users))
            for user in users:
                if self.order[user] > first and self.is_fusible(value.maker, user):
                    banned.update(user.writes)

    def first_unfusible(self, starts: Iterable[FlowNode], last: int) -> int:
        waiting = [(self.order[node], True) for node in starts]
        heapq.heapify(waiting)
        seen = set(waiting)
        while waiting:
            place, is_fusible = heapq.heappop(waiting)
            if not is_fusible:
                return place
            node = self.forward[place]
            for user in (user for made in node.writes for user in made.users):
                if user in self.order and self.order[user] <= last:
                    each = self.order[user], self.is_fusible(node, user)
                    if each not in seen:
                        seen.add(each)
                        heapq.heappush(waiting, each)
        return last

    def ban_long_chains(self, banned: set[Value]) -> None:
        """Ban one in a hundred of loops that follow one another without an end."""
        visited: set[FlowNode] = set()
        for start in self.forward:
            waiting = [self.order[start]]
            while waiting:
                place = heapq.heappop(waiting)
                node = self.forward[place]
                if node in visited:
                    continue
                visited.add(node)
                if place > self.order[start] + LONGEST_CHAIN and not waiting:
                    banned.update(node.writes)
                    break
                for made in node.writes:
                    for user in made.users:
                        if (
                            user in self.order
                            and self.is_fusible(node, user)
                            and not banned.issuperset(user.writes)
                        ):
                            heapq.heappush(waiting, self.order[user])

    def weight(self, value: Value) -> int:
        if value.storage in self.parameters:
            return 0
        far = max(1, min(self.distance[value], MOST_DISTANCE))
        weight = int(value.bytes * DISTANCE_FACTOR**far)
        is_in_memory = value.maker is None or not all(
            self.is_fusible(value.maker, user) for user in value.users
        )
        return weight if is_in_memory else 2 * weight

    def cut(self, sources: set[Value]) -> set[Value]:
        """The minimum cut, by shortest augmenting paths (Dinic)."""
        number = {value: 2 * n for n, value in enumerate(self.values)}
        source, sink = 2 * len(number), 2 * len(number) + 1
        network = Network(sink + 1)
        for value, made in number.items():
            network.add(made, made + 1, self.weight(value))
            if value in sources:
                network.add(source, made, NO_LIMIT)
            if any(user in self.backward for user in value.users):
                network.add(made + 1, sink, NO_LIMIT)
            for user in value.users:
                if user in self.order:
                    for written in user.writes:
                        if written in number:
                            network.add(made + 1, number[written], NO_LIMIT)
        reached = network.reached_behind_flow(source, sink)
        return {v for v, made in number.items() if made in reached and made + 1 not in reached}


class Network:
    """Edges with capacities, and the flow through them."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.heads: list[int] = []
        self.capacities: list[int] = []

    def add(self, tail: int, head: int, capacity: int) -> None:
        """An edge, and the one back that flow through it opens."""
        for begin, end, limit in ((tail, head, capacity), (head, tail, 0)):
            self.edges[begin].append(len(self.heads))
            self.heads.append(end)
            self.capacities.append(limit)

    def reached_behind_flow(self, source: int, sink: int) -> set[int]:
        """What the source reaches still when no more flows to the sink."""
        while True:
            levels = self.levels(source)
            if sink not in levels:
                return set(levels)
            places = [0] * len(self.edges)
            while self.push(source, sink, levels, places):
                pass

    def levels(self, source: int) -> dict[int, int]:
        levels, waiting = {source: 0}, deque([source])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                head = self.heads[edge]
                if self.capacities[edge] > 0 and head not in levels:
                    levels[head] = levels[node] + 1
                    waiting.append(head)
        return levels

    def push(self, source: int, sink: int, levels: dict[int, int], places: list[int]) -> bool:
        """DataFlow along one path; False where there is none."""
        path: list[int] = []
        node = source
        while node != sink:
            if places[node] == len(self.edges[node]):
                if not path:
                    return False
                levels[node] = -1
                node = self.heads[path.pop() ^ 1]
                places[node] += 1
                continue
            edge = self.edges[node][places[node]]
            head = self.heads[edge]
            if self.capacities[edge] > 0 and levels.get(head, -1) == levels[node] + 1:
                path.append(edge)
                node = head
            else:
                places[node] += 1
        least = min(self.capacities[edge] for edge in path)
        for edge in path:
            self.capacities[edge] -= least
            self.capacities[edge ^ 1] += least
        return True
