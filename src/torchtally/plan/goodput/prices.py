"""Prices of one's own: of chips on demand, reserved and spot, with their day and source."""

from pathlib import Path

import msgspec

from torchtally.errors import UsageError
from torchtally.files.reading import parse_toml, read_text


class ChipPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars of a chip for an hour, by how it is rented. None: not offered."""

    on_demand: float | None = None
    reserved: float | None = None
    spot: float | None = None
    spot_mtbf_hours: float | None = None
    """Hours from one interruption of a spot node to its next."""

    def __post_init__(self) -> None:
        amounts = (self.on_demand, self.reserved, self.spot, self.spot_mtbf_hours)
        given = [amount for amount in amounts if amount is not None]
        if not all(0 < amount < 1e6 for amount in given):
            raise ValueError("prices and hours are above 0 and below 1e6")
        if (self.spot is None) != (self.spot_mtbf_hours is None):
            raise ValueError("spot and spot_mtbf_hours are given together")


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dated table of prices."""

    as_of: str
    source: str
    chips: dict[str, ChipPrices]


def read_prices(path: str) -> Prices:
    """The table in a file. Raises UsageError for one that cannot be read."""
    document = parse_toml(read_text(Path(path), "prices"), path, "prices")
    try:
        return msgspec.convert(document, Prices)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: {error}.\nIt needs as_of, source and a table for each chip: "
            "[chips.H100-SXM] on_demand = 2.99, reserved = 2.10, spot = 1.20, spot_mtbf_hours = 40."
        ) from None
