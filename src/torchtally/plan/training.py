"""Time, tokens, chips, MFU, energy and money of a training: one equation, solved for each of them.

    model FLOPs = chips * peak FLOP/s * MFU * seconds

MFU is the share of the chips' dense peak that the model's own FLOPs make; usually 0.3 to 0.6. Real
trainings also restart and evaluate, which no formula here counts.
"""

from torchtally.plan.closed_form import (
    Chips,
    FlopPerS,
    Flops,
    FlopsPerToken,
    Fraction,
    Hours,
    ParameterCount,
    Seconds,
    TokenPerS,
    Tokens,
    Usd,
    UsdPerHour,
    Watts,
    closed_form,
)
from torchtally.units import Unit

SIX_ND = "Kaplan et al. 2020, arXiv 2001.08361, section 2.1"
WITHOUT_SCORES = "2 forward, 4 backward; attention scores excluded"
NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, equation 4"
LLAMA_2 = "Touvron et al. 2023, arXiv 2307.09288, section 2.2.1"


@closed_form("training FLOPs", Unit.FLOPS, SIX_ND, WITHOUT_SCORES)
def training_flops(parameters: ParameterCount, tokens: Tokens) -> str:
    """FLOPs of a training: six for each parameter and token; attention scores excluded."""
    return "6 * parameters * tokens"


@closed_form("FLOPs per token", Unit.FLOPS_PER_TOKEN, SIX_ND, WITHOUT_SCORES)
def six_flops_per_token(parameters: ParameterCount) -> str:
    """FLOPs of a training for one token; attention scores excluded."""
    return "6 * parameters"


@closed_form("training FLOPs", Unit.FLOPS)
def training_flops_of(flops_per_token: FlopsPerToken, tokens: Tokens) -> str:
    """FLOPs of a training, from those of one token."""
    return "flops_per_token * tokens"


@closed_form("training time", Unit.SECONDS)
def training_s(flops: Flops, chips: Chips, peak_flop_per_s: FlopPerS, mfu: Fraction) -> str:
    """Seconds of a training: FLOPs over what the chips do in one second."""
    return "flops / (chips * peak_flop_per_s * mfu)"


@closed_form("training time", Unit.SECONDS, NARAYANAN)
def training_s_with_recompute(
    tokens: Tokens, parameters: ParameterCount, chips: Chips, reached_flop_per_s: FlopPerS
) -> str:
    """Seconds of a training with full recomputation, at so many FLOP/s reached by each chip.

    Eight FLOPs for each parameter and token: the forward pass is done twice.
    """
    return "8 * tokens * parameters / (chips * reached_flop_per_s)"


@closed_form("chips", Unit.CHIPS)
def chips_needed(flops: Flops, seconds: Seconds, peak_flop_per_s: FlopPerS, mfu: Fraction) -> str:
    """The fewest chips that do so many FLOPs in so many seconds."""
    return "ceil(flops / (seconds * peak_flop_per_s * mfu))"


@closed_form("FLOPs", Unit.FLOPS)
def flops_within(seconds: Seconds, chips: Chips, peak_flop_per_s: FlopPerS, mfu: Fraction) -> str:
    """FLOPs that so many chips do in so many seconds."""
    return "chips * peak_flop_per_s * mfu * seconds"


@closed_form("tokens", Unit.TOKENS)
def tokens_for(flops: Flops, flops_per_token: FlopsPerToken) -> str:
    """Tokens that so many FLOPs train on."""
    return "floor(flops / flops_per_token)"


@closed_form("MFU", Unit.FRACTION, "PaLM, arXiv 2204.02311, appendix B")
def mfu(
    tokens_per_s: TokenPerS, flops_per_token: FlopsPerToken, chips: Chips, peak_flop_per_s: FlopPerS
) -> str:
    """The MFU that an observed speed implies: a fraction of the promised dense peak."""
    return "tokens_per_s * flops_per_token / (chips * peak_flop_per_s)"


@closed_form("MFU", Unit.FRACTION)
def mfu_of_training(flops: Flops, chip_hours: Hours, peak_flop_per_s: FlopPerS) -> str:
    """The MFU that a training's published chip-hours imply."""
    return "flops / (3600 * chip_hours * peak_flop_per_s)"


@closed_form("MFU", Unit.FRACTION)
def mfu_of_step(flops: Flops, step_s: Seconds, peak_flop_per_s: FlopPerS) -> str:
    """The share of the chip's dense peak that a step reaches."""
    return "flops / (step_s * peak_flop_per_s)"


@closed_form("tokens/s", Unit.TOKEN_PER_S)
def tokens_per_s(
    flops_per_token: FlopsPerToken, chips: Chips, peak_flop_per_s: FlopPerS, mfu: Fraction
) -> str:
    """Tokens that all chips together train on in a second."""
    return "chips * peak_flop_per_s * mfu / flops_per_token"


@closed_form("reached FLOP/s", Unit.FLOP_PER_S)
def reached_flop_per_s(
    tokens_per_s: TokenPerS, flops_per_token: FlopsPerToken, chips: Chips
) -> str:
    """FLOP/s that each of so many chips reaches at an observed speed."""
    return "tokens_per_s * flops_per_token / chips"


@closed_form("chip-hours", Unit.HOURS)
def chip_hours(chips: Chips, seconds: Seconds) -> str:
    """Hours that are paid for: of all chips together."""
    return "chips * seconds / 3600"


@closed_form("cost", Unit.USD)
def cost_usd(chip_hours: Hours, usd_per_hour: UsdPerHour) -> str:
    """What so many chip-hours cost at a price for one."""
    return "chip_hours * usd_per_hour"


@closed_form("chip-hours", Unit.HOURS)
def chip_hours_for(budget: Usd, usd_per_hour: UsdPerHour) -> str:
    """Chip-hours that a budget buys."""
    return "budget / usd_per_hour"


@closed_form(
    "energy",
    Unit.JOULES,
    LLAMA_2,
    "estimated: chips at rated power; hosts, network and cooling excluded",
)
def energy_joules(chip_hours: Hours, chip_watts: Watts) -> str:
    """Energy of the chips alone at their rated power: an upper bound.

    Hosts, network and cooling are not in it: Llama 2's and 3's authors count so as well.
    """
    return "3600 * chip_hours * chip_watts"
