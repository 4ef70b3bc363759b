"""Exercises of pages 14 to 19: checkpoints, precision, Transformers, compilers, many GPUs."""

from math import sqrt

from torchtally.chips import chip
from torchtally.integrations.lecture.exercise import exercise
from torchtally.integrations.lecture.own_script import (
    GIB,
    bound_share,
    cell,
    kind_share,
    peak,
    read_ms,
)
from torchtally.integrations.lecture.tensors import PERCENT

H100 = chip("H100-SXM")
MEMORY = H100.memory_bandwidth_bytes_per_s
BF16, FP8 = map(H100.peak_flop_per_s, ("bfloat16", "float8_e4m3fn"))

SCALE = (
    exercise(
        "14.1",
        "How many GB is a checkpoint of 8e9 parameters with AdamW, all in fp32?",
        "GB",
        8 * 12,
        "The parameter and two moments: 12 bytes.",
        (8 * 16, "Gradients are not saved."),
        (8 * 4, "Without the moments it does not resume as it was."),
    ),
    exercise(
        "14.2",
        "Saving takes 60 s, a crash comes every 8 hours. How many minutes apart should checkpoints "
        "be?",
        "minutes",
        sqrt(2 * 60 * 8 * 3600) / 60,
        "sqrt(2 x 60 s x 28800 s), in minutes.",
        (sqrt(60 * 8 * 3600) / 60, "The 2 is missing: on average half an interval is lost."),
        (sqrt(2 * 60 * 8 * 3600), "Those are seconds."),
    ),
    exercise(
        "14.3",
        "How many GiB does your script's checkpoint take: parameters and optimizer state?",
        "GiB",
        lambda ledger: peak("parameters", GIB)(ledger) + peak("optimizer state", GIB)(ledger),
        "The two rows of `--by category` added.",
        (peak("parameters", GIB), "The optimizer's state belongs to it."),
        (
            lambda ledger: sum(
                peak(name, GIB)(ledger) for name in ("parameters", "optimizer state", "gradients")
            ),
            "Gradients are not saved.",
        ),
    ),
    exercise(
        "15.1",
        "A bf16 weight is 1. Which update upwards is the least that it does not lose, rounding to "
        "nearest with ties to even (the limit)?",
        "a number",
        2.0**-8,
        "Half of the spacing 2^-7.",
        (2.0**-7, "That is the spacing: from its half on a sum is rounded up."),
        (2.0**-9, "Below 1 the spacing is half of that; upwards it is 2^-7."),
    ),
    exercise(
        "15.2",
        "How many bytes for each parameter has bf16 training with an fp32 copy and AdamW?",
        "bytes",
        2 + 2 + 4 + 8,
        "Weight 2, gradient 2, fp32 copy 4, moments 8.",
        (12, "The fp32 copy is missing, or the moments are fp32 and two."),
        (8, "The moments are two of 4 bytes alone."),
    ),
    exercise(
        "15.3",
        "Which share of your script's time is limited by compute (`--by bound`)? It is what a "
        "smaller format of products would shorten.",
        "a share from 0 to 1",
        bound_share("compute"),
        "The row compute over the total.",
        (lambda ledger: 100 * bound_share("compute")(ledger), PERCENT),
        (bound_share("memory"), "That is limited by memory."),
    ),
    exercise(
        "16.1",
        "4-bit weights have a scale of 16 bits for each 64. How many bits has a weight?",
        "bits",
        4 + 16 / 64,
        "4 + 16 / 64.",
        (4, "The scale is stored, too."),
        (4 + 16 / 32, "That is a scale for each 32."),
    ),
    exercise(
        "16.2",
        f"A model of 16e9 bytes is read once for each token. How many tokens/s at most on an H100 "
        f"({MEMORY / 1e12:.2f}e12 bytes/s), with one sequence?",
        "tokens/s",
        MEMORY / 16e9,
        "Bandwidth over bytes.",
        (1e3 * 16e9 / MEMORY, "Those are ms for a token."),
        (BF16 / 16e9, "With one sequence memory is the limit, not FLOP/s."),
    ),
    exercise(
        "16.3",
        "How many ms does the simulated chip take to read your script's parameters once, by its "
        "data sheet's bandwidth (`tally gpus CHIP`)?",
        "ms",
        read_ms,
        "The parameters' bytes at the peak over the bandwidth.",
        (lambda ledger: read_ms(ledger) / 1e3, "Those are seconds."),
        (lambda ledger: read_ms(ledger) * 1e3, "Those are us."),
    ),
    exercise(
        "17.1",
        "A layer of width 2048, with 12 d^2 parameters, sees 4096 tokens. How many MFLOPs a token "
        "has its forward pass, with 4 S d for attention in full?",
        "1e6 FLOPs",
        (24 * 2048**2 + 4 * 4096 * 2048) / 1e6,
        "24 d^2 + 4 S d.",
        (24 * 2048**2 / 1e6, "Attention's 4 S d is missing."),
        ((12 * 2048**2 + 4 * 4096 * 2048) / 1e6, "2 FLOPs for each of 12 d^2 parameters."),
        (72 * 2048**2 / 1e6, "6 is with the backward pass, and has no attention."),
    ),
    exercise(
        "17.2",
        "How many GiB are the logits of 8 sequences of 1024 tokens over 50257 words, in fp32?",
        "GiB",
        8 * 1024 * 50257 * 4 / 2**30,
        "8 x 1024 x 50257 numbers of 4 bytes.",
        (8 * 1024 * 50257 * 2 / 2**30, "fp32 has 4 bytes."),
        (1024 * 50257 * 4 / 2**30, "Of one sequence: there are 8."),
    ),
    exercise(
        "17.3",
        "Which share of your script's FLOPs is attention (`--by kind`; 0 if it has none)?",
        "a share from 0 to 1",
        kind_share("attention", "flops"),
        "The row attention over the total: what no parameter count has.",
        (lambda ledger: 100 * kind_share("attention", "flops")(ledger), PERCENT),
        (kind_share("attention", "seconds"), "That is its share of the time."),
    ),
    exercise(
        "18.1",
        "relu(x + 1) * 2 on numbers of bf16: how many bytes does it move eagerly, for each?",
        "bytes",
        3 * 2 * 2,
        "Three operators, each reads 2 bytes and writes 2.",
        (2 * 2, "That is the fused kernel."),
        (3 * 2, "Each operator reads and writes."),
    ),
    exercise(
        "18.2",
        "How many times faster is it fused into one kernel, where memory is the limit?",
        "times",
        3,
        "12 bytes against 4.",
        (1, "Fewer bytes take less time; the FLOPs are the same."),
        (6, "The fused kernel reads once and writes once: 4 bytes."),
    ),
    exercise(
        "18.3",
        "How many GiB do your script's elementwise operators move in a step (`--by kind "
        "--columns kind,bytes_moved`)?",
        "GiB",
        lambda ledger: cell(ledger, "kind", "elementwise", "bytes_moved", "kind") / GIB,
        "The row elementwise: what fusion can save a part of.",
        (
            lambda ledger: cell(ledger, "kind", "elementwise", "bytes_moved", "kind") / 1e9,
            "Those are GB.",
        ),
    ),
    exercise(
        "19.1",
        "A ring all-reduce of 4 GB over 16 ranks: how many GB does each rank send?",
        "GB",
        2 * 15 / 16 * 4,
        "2 (n - 1) / n times the bytes.",
        (15 / 16 * 4, "That is a reduce-scatter: the all-gather follows."),
        (15 * 4, "In a ring a rank sends parts, not the whole to each."),
    ),
    exercise(
        "19.2",
        "16 bytes a parameter, 13e9 parameters, FSDP over 8: how many GB does a rank hold, before "
        "activations?",
        "GB",
        13 * 16 / 8,
        "All 16 bytes are divided by the ranks.",
        (13 * 16, "That is data parallelism, which copies the model."),
        (13 * (4 + 12 / 8), "FSDP splits parameters, too: that is ZeRO-2."),
    ),
    exercise(
        "19.3",
        "How many GiB would each of 8 ranks send in a ring all-reduce of your script's gradients, "
        "taken as large as its parameters (`--by category`)?",
        "GiB",
        lambda ledger: 2 * 7 / 8 * peak("parameters", GIB)(ledger),
        "2 x 7 / 8 of the parameters' bytes.",
        (lambda ledger: 7 / 8 * peak("parameters", GIB)(ledger), "Reduce and gather: twice."),
        (peak("parameters", GIB), "A ring sends 2 (n - 1) / n of them."),
    ),
)
