"""How often chips fail: rates that operators of clusters published, each with its source."""

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

CARBON_SOURCE = "GoogleCloudPlatform/region-carbon-info @df927143, data/yearly/2024.csv"


class FailureRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Failures that stopped a training, and the chip-hours in which they happened."""

    failures: int
    chip_hours: float
    chip: str
    what: str
    source: str

    @property
    def failure_chip_hours(self) -> Quantity:
        """Chip-hours for each failure."""
        return Quantity(
            "chip-hours of a failure",
            self.chip_hours / self.failures,
            Unit.HOURS,
            source=self.source,
            note=self.what,
        )


@cache
def rates() -> dict[str, FailureRate]:
    """Published rates, by name."""
    text = Path(__file__).with_name("rates.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, FailureRate])


@cache
def carbon_regions() -> dict[str, float]:
    """Grams of CO2 equivalents for each kWh of the grid at a region of Google Cloud, of 2024."""
    text = Path(__file__).with_name("carbon_2024.csv").read_text(encoding="utf-8")
    rows = (line.split(",") for line in text.splitlines() if not line.startswith("#"))
    return {region: float(grams) for region, grams in rows}
