"""ZeRO: what each of N chips holds of a model's states."""

from tests.plan.published.row import GB, Row, Source
from torchtally.plan.memory import states_of_count
from torchtally.plan.optimizers import optimizer
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.recipes import recipe
from torchtally.units import Unit

TABLE_1 = Source(
    "ZeRO: memory of model states on each chip",
    "Rajbhandari et al. 2019, arXiv 1910.02054, table 1",
    "Recipe `mixed` with Adam: weights 2, gradients 2, master weights and moments 12 bytes a "
    "parameter, of which N chips share what stands behind the name.",
)
TRUNCATED = "Of the larger models the paper cuts digits off, where it rounds at 7.5B."
SHARED = {
    "optimizer": "parameters + gradients + (master + optimizer) / chips",
    "and gradients": "parameters + (gradients + master + optimizer) / chips",
    "and parameters": "(parameters + gradients + master + optimizer) / chips",
}
PRINTED = (
    # size, parameters, N, GB as each of SHARED
    ("7.5B", 7.5e9, 1, ("120", "120", "120")),
    ("7.5B", 7.5e9, 4, ("52.5", "41.3", "30")),
    ("7.5B", 7.5e9, 16, ("35.6", "21.6", "7.5")),
    ("7.5B", 7.5e9, 64, ("31.4", "16.6", "1.88")),
    ("7.5B", 7.5e9, 256, ("30.4", "15.4", "0.47")),
    ("7.5B", 7.5e9, 1024, ("30.1", "15.1", "0.12")),
    ("128B", 128e9, 64, ("536", "284", "32")),
    ("128B", 128e9, 1024, ("513", "257", "2")),
    ("1T", 1e12, 4, ("7000", "5500", "4000")),
    ("1T", 1e12, 16, ("4750", "2875", "1000")),
    ("1T", 1e12, 64, ("4187", "2218", "250")),
    ("1T", 1e12, 256, ("4046", "2054", "62.5")),
    ("1T", 1e12, 1024, ("4011", "2013", "15.6")),
)
CUT_OFF = {
    "257": 0.004,
    "2218": 0.0005,
    "4046": 0.0003,
    "2054": 0.0005,
    "4011": 0.0003,
    "2013": 0.0005,
}


def held(parameters: float, chips: int, shared: str) -> Quantity:
    states = states_of_count(parameters, recipe("mixed"), optimizer("adam"))
    return derive(
        "states on a chip",
        Unit.BYTES,
        SHARED[shared],
        parameters=states.parameters,
        gradients=states.gradients,
        master=states.master,
        optimizer=states.optimizer,
        chips=of(chips, Unit.CHIPS),
    )


def rows() -> tuple[Row, ...]:
    return tuple(
        Row(
            source=TABLE_1,
            what=f"{size}, N {chips}, {shared}",
            published=gigabytes,
            unit=GB,
            computed=lambda options=(parameters, chips, shared): held(*options),
            tolerance=CUT_OFF.get(gigabytes, 0.0),
            why=TRUNCATED if gigabytes in CUT_OFF else "",
        )
        for size, parameters, chips, printed in PRINTED
        for shared, gigabytes in zip(SHARED, printed, strict=True)
    )
