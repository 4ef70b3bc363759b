"""Time, tokens, chips, MFU, energy and money of a training: one equation, solved for each of them.

    model FLOPs = chips * peak FLOP/s * MFU * seconds

MFU is the share of the chips' dense peak that the model's own FLOPs make; usually 0.3 to 0.6. Real
trainings also restart and evaluate, which no formula here counts.
"""

from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit

SIX_ND = "Kaplan et al. 2020, arXiv 2001.08361, section 2.1"
NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, equation 4"


def training_flops(parameters: Amount, tokens: Amount) -> Quantity:
    """FLOPs of a training: six for each parameter and token; attention scores excluded."""
    return derive(
        "training FLOPs",
        Unit.FLOPS,
        "6 * parameters * tokens",
        SIX_ND,
        "2 forward, 4 backward; attention scores excluded",
        parameters=of(parameters, Unit.PARAMETERS),
        tokens=of(tokens, Unit.TOKENS),
    )


def training_flops_of(flops_per_token: Amount, tokens: Amount) -> Quantity:
    """FLOPs of a training, from those of one token."""
    return derive(
        "training FLOPs",
        Unit.FLOPS,
        "flops_per_token * tokens",
        flops_per_token=of(flops_per_token, Unit.FLOPS_PER_TOKEN),
        tokens=of(tokens, Unit.TOKENS),
    )


def training_s(flops: Amount, chips: Amount, peak_flop_per_s: Amount, mfu: Amount) -> Quantity:
    """Seconds of a training: FLOPs over what the chips do in one second."""
    return derive(
        "training time",
        Unit.SECONDS,
        "flops / (chips * peak_flop_per_s * mfu)",
        flops=of(flops, Unit.FLOPS),
        chips=of(chips, Unit.CHIPS),
        peak_flop_per_s=of(peak_flop_per_s, Unit.FLOP_PER_S),
        mfu=of(mfu, Unit.FRACTION),
    )


def training_s_with_recompute(
    tokens: Amount, parameters: Amount, chips: Amount, reached_flop_per_s: Amount
) -> Quantity:
    """Seconds of a training with full recomputation, at so many FLOP/s reached by each chip.

    Eight FLOPs for each parameter and token: the forward pass is done twice.
    """
    return derive(
        "training time",
        Unit.SECONDS,
        "8 * tokens * parameters / (chips * reached_flop_per_s)",
        NARAYANAN,
        tokens=of(tokens, Unit.TOKENS),
        parameters=of(parameters, Unit.PARAMETERS),
        chips=of(chips, Unit.CHIPS),
        reached_flop_per_s=of(reached_flop_per_s, Unit.FLOP_PER_S),
    )


def chips_needed(flops: Amount, seconds: Amount, peak_flop_per_s: Amount, mfu: Amount) -> Quantity:
    """The fewest chips that do so many FLOPs in so many seconds."""
    return derive(
        "chips",
        Unit.CHIPS,
        "ceil(flops / (seconds * peak_flop_per_s * mfu))",
        flops=of(flops, Unit.FLOPS),
        seconds=of(seconds, Unit.SECONDS),
        peak_flop_per_s=of(peak_flop_per_s, Unit.FLOP_PER_S),
        mfu=of(mfu, Unit.FRACTION),
    )


def flops_within(seconds: Amount, chips: Amount, peak_flop_per_s: Amount, mfu: Amount) -> Quantity:
    """FLOPs that so many chips do in so many seconds."""
    return derive(
        "FLOPs",
        Unit.FLOPS,
        "chips * peak_flop_per_s * mfu * seconds",
        chips=of(chips, Unit.CHIPS),
        peak_flop_per_s=of(peak_flop_per_s, Unit.FLOP_PER_S),
        mfu=of(mfu, Unit.FRACTION),
        seconds=of(seconds, Unit.SECONDS),
    )


def tokens_for(flops: Amount, flops_per_token: Amount) -> Quantity:
    """Tokens that so many FLOPs train on."""
    return derive(
        "tokens",
        Unit.TOKENS,
        "floor(flops / flops_per_token)",
        flops=of(flops, Unit.FLOPS),
        flops_per_token=of(flops_per_token, Unit.FLOPS_PER_TOKEN),
    )


def mfu(
    tokens_per_s: Amount, flops_per_token: Amount, chips: Amount, peak_flop_per_s: Amount
) -> Quantity:
    """The MFU that an observed speed implies: a fraction of the promised dense peak."""
    return derive(
        "MFU",
        Unit.FRACTION,
        "tokens_per_s * flops_per_token / (chips * peak_flop_per_s)",
        "PaLM, arXiv 2204.02311, appendix B",
        tokens_per_s=of(tokens_per_s, Unit.TOKEN_PER_S),
        flops_per_token=of(flops_per_token, Unit.FLOPS_PER_TOKEN),
        chips=of(chips, Unit.CHIPS),
        peak_flop_per_s=of(peak_flop_per_s, Unit.FLOP_PER_S),
    )


def mfu_of_training(flops: Amount, chip_hours: Amount, peak_flop_per_s: Amount) -> Quantity:
    """The MFU that a training's published chip-hours imply."""
    return derive(
        "MFU",
        Unit.FRACTION,
        "flops / (3600 * chip_hours * peak_flop_per_s)",
        flops=of(flops, Unit.FLOPS),
        chip_hours=of(chip_hours, Unit.HOURS),
        peak_flop_per_s=of(peak_flop_per_s, Unit.FLOP_PER_S),
    )


def tokens_per_s(
    flops_per_token: Amount, chips: Amount, peak_flop_per_s: Amount, mfu: Amount
) -> Quantity:
    """Tokens that all chips together train on in a second."""
    return derive(
        "tokens/s",
        Unit.TOKEN_PER_S,
        "chips * peak_flop_per_s * mfu / flops_per_token",
        chips=of(chips, Unit.CHIPS),
        peak_flop_per_s=of(peak_flop_per_s, Unit.FLOP_PER_S),
        mfu=of(mfu, Unit.FRACTION),
        flops_per_token=of(flops_per_token, Unit.FLOPS_PER_TOKEN),
    )


def reached_flop_per_s(tokens_per_s: Amount, flops_per_token: Amount, chips: Amount) -> Quantity:
    """FLOP/s that each of so many chips reaches at an observed speed."""
    return derive(
        "reached FLOP/s",
        Unit.FLOP_PER_S,
        "tokens_per_s * flops_per_token / chips",
        tokens_per_s=of(tokens_per_s, Unit.TOKEN_PER_S),
        flops_per_token=of(flops_per_token, Unit.FLOPS_PER_TOKEN),
        chips=of(chips, Unit.CHIPS),
    )


def chip_hours(chips: Amount, seconds: Amount) -> Quantity:
    """Hours that are paid for: of all chips together."""
    return derive(
        "chip-hours",
        Unit.HOURS,
        "chips * seconds / 3600",
        chips=of(chips, Unit.CHIPS),
        seconds=of(seconds, Unit.SECONDS),
    )


def cost_usd(chip_hours: Amount, usd_per_hour: Amount) -> Quantity:
    """What so many chip-hours cost at a price for one."""
    return derive(
        "cost",
        Unit.USD,
        "chip_hours * usd_per_hour",
        chip_hours=of(chip_hours, Unit.HOURS),
        usd_per_hour=of(usd_per_hour, Unit.USD_PER_HOUR),
    )


def chip_hours_for(budget_usd: Amount, usd_per_hour: Amount) -> Quantity:
    """Chip-hours that a budget buys."""
    return derive(
        "chip-hours",
        Unit.HOURS,
        "budget / usd_per_hour",
        budget=of(budget_usd, Unit.USD),
        usd_per_hour=of(usd_per_hour, Unit.USD_PER_HOUR),
    )


def energy_joules(chip_hours: Amount, chip_watts: Amount) -> Quantity:
    """Energy of the chips alone at their rated power: an upper bound.

    Hosts, network and cooling are not in it: Llama 2's and 3's authors count so as well.
    """
    return derive(
        "energy",
        Unit.JOULES,
        "3600 * chip_hours * chip_watts",
        "Touvron et al. 2023, arXiv 2307.09288, section 2.2.1",
        "estimated: chips at rated power; hosts, network and cooling excluded",
        chip_hours=of(chip_hours, Unit.HOURS),
        chip_watts=of(chip_watts, Unit.WATTS),
    )
