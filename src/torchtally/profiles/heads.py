"""What stands around the events of a Kineto trace: devices, ranks, groups, versions."""

from collections.abc import Sequence
from typing import Any

import msgspec

from torchtally.profiles.profile import ProfiledDevice, ProfiledGroup


class Head(msgspec.Struct):
    """What is read of a trace beside its events; all else, `metadata` above all, is skipped."""

    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    cuda_runtime_version: Any = None
    cuda_driver_version: Any = None
    hip_runtime_version: Any = None


def merge(heads: Sequence[Head]) -> Head:
    """What stands before the events, and behind them where that says more."""
    values: dict[str, Any] = {}
    for head in heads:
        for field in Head.__struct_fields__:
            value = getattr(head, field)
            if value is not None:
                values[field] = value
    return Head(**values)


def devices_of(value: object) -> tuple[ProfiledDevice, ...]:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return tuple(
        ProfiledDevice(
            int_of(row.get("id")),
            str(row.get("name", ""))[:200],
            int_of(row.get("totalGlobalMem")),
            int_of(row.get("numSms")),
        )
        for row in rows
    )


def distributed_info(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    rank, size = int_of(value.get("rank")), int_of(value.get("world_size"))
    groups = value.get("pg_config")
    return {
        "rank": rank,
        "world_size": max(size, rank + 1),
        "groups": tuple(
            ProfiledGroup(
                str(group.get("pg_name", "")),
                str(group.get("pg_desc", "")),
                tuple(int_of(member) for member in list_of(group.get("ranks"))),
            )
            for group in list_of(groups)
            if isinstance(group, dict)
        ),
    }


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def int_of(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def facts_of(head: Head) -> dict[str, str]:
    named = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version")
    versions = {name: getattr(head, name) for name in named}
    return {name: str(value)[:40] for name, value in versions.items() if isinstance(value, int)}
