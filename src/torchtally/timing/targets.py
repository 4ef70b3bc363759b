"""What a script is run on, by name: a chip of the table, or "cpu" for this machine as measured."""

from torchtally.chips import Chip, Cluster, Peak, chip, cluster, find_chip
from torchtally.errors import UsageError
from torchtally.timing.calibration import Calibration
from torchtally.timing.calibration.library import of_chip, of_host
from torchtally.timing.roofline import Roofline

CPU = "CPU"


def target(name: str) -> Chip:
    """The chip of this name. Raises UnknownChipError, or UsageError for an unmeasured CPU."""
    return chip(name) if name.strip().upper() != CPU else host_chip(_measured_host())


def cluster_of(name: str) -> Cluster:
    """The chips that "8xH100-SXM" names; one of "cpu". Raises UnknownChipError and UsageError."""
    return cluster(name) if name.strip().upper() != CPU else Cluster(target(name))


def roofline(name: str) -> Roofline:
    """How long operators take on the chip of this name, by a calibration where there is one."""
    if name.strip().upper() == CPU:
        measured = _measured_host()
        return Roofline(host_chip(measured), measured)
    gpu = chip(name)
    return Roofline(gpu, of_chip(gpu))


def known_roofline(name: str) -> Roofline | None:
    """None for a chip that is in no table, and for a CPU without a calibration.

    Raises UsageError for a calibration that cannot be read: predicting without it would change
    the times without saying why.
    """
    if name.strip().upper() == CPU:
        measured = of_host()
        return None if measured is None else Roofline(host_chip(measured), measured)
    gpu = find_chip(name)
    return None if gpu is None else Roofline(gpu, of_chip(gpu))


def _measured_host() -> Calibration:
    calibration = of_host()
    if calibration is None:
        raise UsageError(
            "This CPU has no calibration yet, and no data sheet gives a CPU's speed.\n"
            "Run `tally bench --device cpu` first; it takes a minute or two."
        )
    return calibration


def host_chip(measured: Calibration) -> Chip:
    """A measured CPU as a chip. Its peaks are the best measured rates: no data sheet has any."""
    source = f"tally bench, {measured.date}"
    return Chip(
        name=CPU,
        vendor=CPU,
        architecture=measured.device,
        memory_bytes=measured.memory_bytes,
        memory_bandwidth_bytes_per_s=measured.bandwidth_bytes_per_s,
        peaks={dtype: Peak(rate, source) for dtype, rate in measured.peak_flop_per_s.items()},
        source=source,
        driver_names=(measured.device,),
    )
