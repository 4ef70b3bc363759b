"""Memory of communicators: buffers by their sizes, by hand."""

import pytest

from torchtally.chips.clusters import cluster
from torchtally.timing.network import RankGroup, buffer_bytes
from torchtally.timing.network.buffers import BUFFERS_BYTES, CONNECTION_BYTES

NODE, NODES = cluster("8xH100-SXM"), cluster("64xH100-SXM")


def test_a_connection_has_a_buffer_for_each_protocol() -> None:
    """4 MiB of simple, 512 KiB of LL, 4.6875 MiB of LL128: 5 pages of 2 MiB; one at the sender."""
    assert BUFFERS_BYTES == (4 << 20) + (512 << 10) + 4_915_200
    assert CONNECTION_BYTES == (10 << 20) + (2 << 20)


def test_all_to_all_beside_what_was_seen_on_8_h100() -> None:
    """NVIDIA/nccl#1685: 1.06 GB before the first all_to_all_single, 4.34 GB after it."""
    assert buffer_bytes(["pairwise"], RankGroup(8), NODE) == pytest.approx(
        4.34e9 - 1.06e9, rel=0.15
    )


def test_a_ring_receives_once_for_each_channel() -> None:
    assert buffer_bytes(["ring"], RankGroup(8), NODE) == 24 * CONNECTION_BYTES
    assert buffer_bytes(["ring", "ring"], RankGroup(8), NODE) == 24 * CONNECTION_BYTES
    assert buffer_bytes(["ring", "tree"], RankGroup(8), NODE) == 3 * 24 * CONNECTION_BYTES


def test_a_switch_has_a_mebibyte_for_each_channel_head_and_direction() -> None:
    assert buffer_bytes(["NVLS"], RankGroup(8), NODE) == 2 * 16 * 8 << 20
    assert buffer_bytes(["NVLSTree"], RankGroup(64, 8), NODES) == 2 * 16 * 8 << 20


def test_sends_have_32_channels_to_each_rank_of_the_node() -> None:
    assert buffer_bytes(["pairwise"], RankGroup(8), NODE) == 7 * 32 * CONNECTION_BYTES
    far = buffer_bytes(["pairwise"], RankGroup(64, 8), NODES)
    assert far == 7 * 16 * CONNECTION_BYTES + 2 * 16 * 16 * 128 * 1024


def test_one_rank_has_none() -> None:
    assert buffer_bytes(["ring", "pairwise"], RankGroup(1), NODE) == 0
