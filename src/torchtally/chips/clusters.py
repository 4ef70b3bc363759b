"""Several chips of one kind: how they stand in nodes, and what joins them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.chips.chip import Chip, Link
from torchtally.chips.lookup import chip
from torchtally.errors import UsageError


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many of one chip, in nodes of `gpus_per_node`, or else in those it is sold in.

    What no source gives is an error when it is asked for, not before: memory on eight cards can be
    known where the wires between them are not.
    """

    chip: Chip
    count: int = 1
    gpus_per_node: int | None = None

    @property
    def node_size(self) -> int:
        """Chips that a node has room for. Raises UsageError where nothing says how many."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        if self.chip.node is not None:
            return self.chip.node.gpus
        if self.count == 1:
            return 1
        raise UsageError(
            f"How many {self.chip.name} share one node is unknown: no source gives it. Give the "
            f"nodes: 1x{self.count}x{self.chip.name} is one node of {self.count}."
        )

    @property
    def nodes(self) -> int:
        """Nodes that it takes; the last may be part empty."""
        return -(-self.count // self.node_size)

    @property
    def is_one_node(self) -> bool:
        return self.nodes == 1

    @property
    def link_in_node(self) -> Link:
        """What joins the chips of one node: their own link, or the host's where that is too short.

        Raises UsageError where its speed is not known.
        """
        own, together = self.chip.link, min(self.count, self.node_size)
        reaches_all = own is not None and (own.chips is None or together <= own.chips)
        return self._with_speed(
            own if reaches_all else self.chip.host_link, f"two {self.chip.name} of one node"
        )

    @property
    def link_between_nodes(self) -> Link:
        """Each chip's share of the network between nodes. Raises UsageError where not known."""
        node = self.chip.node
        return self._with_speed(node.network if node else None, f"nodes of {self.chip.name}")

    @property
    def cards_per_chip(self) -> float:
        """Network cards of a node for each of its chips: one, unless its row says otherwise."""
        node = self.chip.node
        return node.network_cards / node.gpus if node and node.network_cards else 1.0

    @property
    def has_multicast(self) -> bool:
        """The switch of its nodes sends to many chips at once and adds up on the way."""
        link = self.chip.link
        return link is not None and link.has_multicast and self.link_in_node is link

    @property
    def link(self) -> Link:
        """The slower of the wires between any two of its chips. Raises UsageError as they do."""
        return self.link_in_node if self.is_one_node else self.link_between_nodes

    def _with_speed(self, link: Link | None, ends: str) -> Link:
        if link is None or link.bytes_per_s_per_direction is None:
            name = f" ({link.name})" if link else ""
            raise UsageError(
                f"The network speed between {ends}{name} is unknown: no source gives it. Between "
                "nodes, `tally plan` takes --network 8x400Gb/s; else give it in a chip file of "
                "your own: `tally gpus --help`."
            )
        return link


CLUSTER = re.compile(r"((?:\d+\s*[xX×]\s*){0,2})(.+)")


def chip_name(text: str) -> str:
    """The name alone: "H100-SXM" of "4x2xH100-SXM"."""
    match = CLUSTER.fullmatch(text.strip())
    return match[2] if match else text


def cluster(text: str, among: Sequence[Chip] | None = None) -> Cluster:
    """The chips that "1024xH100-SXM" names; 4 nodes of 2 for "4x2xA100-PCIe"; one for "T4".

    Raises UsageError for a count of zero and UnknownChipError for a chip that is not known.
    """
    match = CLUSTER.fullmatch(text.strip())
    counts = [int(number) for number in re.findall(r"\d+", match[1])] if match else [0]
    if match is None or 0 in counts:
        raise UsageError(
            f"{text!r} does not name chips. These work: H100-SXM, 8xH100-SXM, 4x2xH100-SXM (4 "
            "nodes of 2)."
        )
    gpu = chip(match[2], among)
    if len(counts) == 2:
        nodes, gpus_per_node = counts
        return Cluster(gpu, nodes * gpus_per_node, gpus_per_node)
    return Cluster(gpu, *counts)
