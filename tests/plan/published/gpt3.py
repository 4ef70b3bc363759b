"""GPT-3: training FLOPs of it and its forerunners, and the sizes that follow from its shapes."""

from tests.plan.published.row import FLOPS, MILLIONS, PF_DAYS, Row, Source
from torchtally.plan.parameters import decoder_parameters
from torchtally.plan.training import training_flops

BROWN = "Brown et al. 2020, arXiv 2005.14165"
COMPUTE = Source(
    "GPT-3: total training compute",
    f"{BROWN}, table D.1, read in a translation",
    "6 N D with the table's own N and D. Of T5, an encoder with a decoder, every token meets half "
    "of the parameters.",
)
SHAPES = Source(
    "GPT-3: parameters",
    f"{BROWN}, table D.1, from the shapes of table 2.1",
    "Equation 2 of Narayanan et al. 2021 with a vocabulary of 50,257 and 2048 positions; the last "
    "norm, 2 h, is not in it.",
    is_secondary=True,
)
TRAININGS = (
    # model, M parameters, B tokens, share of the parameters that a token meets, FLOPs
    ("T5-Small", 60, 1000, 0.5, "1.80e20"),
    ("T5-Base", 220, 1000, 0.5, "6.60e20"),
    ("T5-Large", 770, 1000, 0.5, "2.31e21"),
    ("T5-3B", 3000, 1000, 0.5, "9.00e21"),
    ("T5-11B", 11_000, 1000, 0.5, "3.30e22"),
    ("BERT-Base", 109, 250, 1, "1.64e20"),
    ("BERT-Large", 355, 250, 1, "5.33e20"),
    ("RoBERTa-Base", 125, 2000, 1, "1.50e21"),
    ("RoBERTa-Large", 355, 2000, 1, "4.26e21"),
    ("GPT-3 Small", 125, 300, 1, "2.25e20"),
    ("GPT-3 Medium", 356, 300, 1, "6.41e20"),
    ("GPT-3 Large", 760, 300, 1, "1.37e21"),
    ("GPT-3 XL", 1320, 300, 1, "2.38e21"),
    ("GPT-3 2.7B", 2650, 300, 1, "4.77e21"),
    ("GPT-3 6.7B", 6660, 300, 1, "1.20e22"),
    ("GPT-3 13B", 12_850, 300, 1, "2.31e22"),
    ("GPT-3 175B", 174_600, 300, 1, "3.14e23"),
)
SIZES = (
    # model, layers, width, parameters as far as they are printed in other than zeros
    ("Small", 12, 768, "125"),
    ("Medium", 24, 1024, "356"),
    ("Large", 24, 1536, "76e1"),
    ("XL", 24, 2048, "132e1"),
    ("2.7B", 32, 2560, "265e1"),
    ("6.7B", 32, 4096, "666e1"),
    ("13B", 40, 5120, "1285e1"),
    ("175B", 96, 12_288, "1746e2"),
)


def rows() -> tuple[Row, ...]:
    trainings = tuple(
        Row(
            source=COMPUTE,
            what=model,
            inputs=f"{millions:,} M, {billions} B tokens",
            published=flops,
            unit=FLOPS,
            computed=lambda N=millions * 1e6 * share, D=billions * 1e9: training_flops(N, D),
        )
        for model, millions, billions, share, flops in TRAININGS
    )
    in_days = Row(
        source=COMPUTE,
        what="GPT-3 175B",
        inputs="174,600 M, 300 B tokens",
        published="364e1",
        unit=PF_DAYS,
        computed=lambda: training_flops(174.6e9, 300e9),
    )
    sizes = tuple(
        Row(
            source=SHAPES,
            what=model,
            inputs=f"l {layers}, h {width}" + (" (5140 in print)" if model == "13B" else ""),
            published=millions,
            unit=MILLIONS,
            computed=lambda L=layers, h=width: decoder_parameters(L, h, 50_257, 2048),
        )
        for model, layers, width, millions in SIZES
    )
    return (*trainings, in_days, *sizes)
