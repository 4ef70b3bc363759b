"""`tally gpus`: the chips that can be simulated, and their data sheets."""

from dataclasses import dataclass

from torchtally.cli.chip_names import say_variants
from torchtally.cli.output import ColumnOptions, ReportOptions, write_report
from torchtally.errors import UsageError
from torchtally.options import Form, own

SUMMARY = "list the GPUs that can be simulated"

EPILOG = """\
examples:
  tally gpus
  tally gpus H100-SXM
  tally gpus H100               a family: its commonest variant, and which others there are
  tally gpus --json | jq -r '.chips[] | select(.memory_bytes > 8e10) | .name'

chips of your own: name their file in the environment variable TALLY_CHIPS.
One with the name of a built-in chip replaces it. A chip needs only:

  [[chip]]
  name = "Mine-1"
  vendor = "Me"
  architecture = "One"
  memory_bytes = 64_000_000_000
  memory_bandwidth_bytes_per_s = 1e12
  source = "https://example.com/mine"
  [chip.peaks]              # dense, in FLOP/s, by torch dtype; tf32 too
  bfloat16 = 100e12

It may also have, before [chip.peaks], among other things:

  compute_capability = [9, 0]         # makes it a CUDA device
  link = { name = "NVLink4", bytes_per_s_per_direction = 450e9 }
  node = { gpus = 8, name = "my server", network = { name = "InfiniBand",
           bytes_per_s_per_direction = 50e9 } }     # each chip's own share
  price = { usd_per_hour = 1.5, source = "our contract", as_of = "2026-06-30" }
          # or several, of which the median counts: [{ ... }, { ... }]
"""


def known_name(name: str) -> str:
    """The name, if it is that of a chip. The table is not loaded for `--help`."""
    from torchtally.chips import chip

    chip(name)
    return name


@dataclass(frozen=True, kw_only=True)
class GpusOptions(ColumnOptions, ReportOptions):
    """List the chips of the hardware table: memory, bandwidth, dense bf16 peak; or every number
    of one chip, each with its source.
    """

    chip: str | None = own(
        "CHIP", "every number of this one, by any of its names", Form("CHIP", known_name), nargs="?"
    )


def command(options: GpusOptions) -> int:
    """Print all chips, or one."""
    from torchtally.chips import chip, known_chips
    from torchtally.report.chip import chip_report, chips_report

    if options.chip is None:
        write_report(chips_report(known_chips(), options.columns), options)
        return 0
    if options.columns is not None:
        raise UsageError("--columns is for the list of chips: leave out the chip's name.")
    say_variants([options.chip])
    write_report(chip_report(chip(options.chip)), options)
    return 0
