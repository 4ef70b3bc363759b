"""Exercises of pages 7 to 13: measuring, gradients, initialisation, data, optimizers, a loop."""

from math import sqrt

from torchtally.chips import chip
from torchtally.integrations.lecture.exercise import exercise
from torchtally.integrations.lecture.own_script import (
    GIB,
    KIB,
    bound_share,
    cell,
    first_utilisation,
    peak,
)
from torchtally.integrations.lecture.tensors import PERCENT

H100 = chip("H100-SXM")
assert H100.host_link is not None
BF16, FP8 = map(H100.peak_flop_per_s, ("bfloat16", "float8_e4m3fn"))
LINK = H100.host_link.bytes_per_s_per_direction
assert LINK is not None

STEPS = (
    exercise(
        "7.1",
        "A step of 2e9 parameters and 65536 tokens takes 1.6 s on one H100 in bf16. What is its "
        "MFU, by 6 N?",
        "a share from 0 to 1",
        6 * 2e9 * 65536 / 1.6 / BF16,
        "6 x 2e9 x 65536 FLOPs / 1.6 s, over 989.4e12.",
        (6 * 2e9 * 65536 / 1.6 / FP8, "1979e12 is fp8's, or bf16's with sparsity."),
        (2 * 2e9 * 65536 / 1.6 / BF16, "A step has a backward pass: 6, not 2."),
    ),
    exercise(
        "7.2",
        "Five calls are timed: the first takes 40 ms, each further 10 ms. How many times too long "
        "is the mean, without a warm-up?",
        "times",
        (40 + 4 * 10) / 5 / 10,
        "16 ms on average, where a call takes 10.",
        (4, "That is the first call by itself: it is one of five."),
        (16, "That is the mean in ms: divide by what a call takes."),
    ),
    exercise(
        "7.3",
        "What is the MFU of your script's step (`--by utilisation`, first row)?",
        "a share from 0 to 1",
        first_utilisation,
        "The products' FLOPs over the step's time and the promised peak.",
        (lambda ledger: 100 * first_utilisation(ledger), PERCENT),
    ),
    exercise(
        "8.1",
        "Two products x @ w1 @ w2 with sizes (B, D), (D, D), (D, D); x needs no gradient. How many "
        "times B D D are the FLOPs of the backward pass?",
        "times B D D",
        6,
        "w2's gradient 2, h1's gradient 2, w1's gradient 2.",
        (8, "x needs no gradient: the product for it is not run."),
        (4, "That is the forward pass, or the two weights alone: h1 needs its gradient."),
    ),
    exercise(
        "8.2",
        "With full activation recomputation, how many FLOPs has a step for each parameter and "
        "token?",
        "FLOPs",
        8,
        "Forward 2, forward again 2, backward 4.",
        (6, "The forward pass runs a second time."),
        (10, "The backward pass runs once: 2 + 2 + 4."),
    ),
    exercise(
        "8.3",
        "How many times the forward FLOPs are your script's backward FLOPs (`--by phase`)?",
        "times",
        lambda ledger: ledger.total.flops_backward / max(ledger.total.flops_forward, 1),
        "Near 2: less where inputs need no gradient, more where attention's backward recomputes.",
        (
            lambda ledger: ledger.total.flops_forward / max(ledger.total.flops_backward, 1),
            "The other way round.",
        ),
        (
            lambda ledger: ledger.total.flops / max(ledger.total.flops_forward, 1),
            "That is the whole step over its forward pass.",
        ),
    ),
    exercise(
        "9.1",
        "x has 1024 numbers of variance 1, w has variance 4. What is the standard deviation of "
        "x @ w?",
        "a number",
        sqrt(1024 * 4),
        "1024 terms of variance 4: the root of 4096.",
        (1024 * 4, "That is the variance: take its root."),
        (sqrt(1024), "w has variance 4."),
    ),
    exercise(
        "9.2",
        "Which standard deviation must weights of 4096 inputs have for outputs of variance 1?",
        "a number",
        1 / sqrt(4096),
        "1 / sqrt(4096).",
        (1 / 4096, "That is their variance."),
        (sqrt(4096), "Divide by the root."),
    ),
    exercise(
        "9.3",
        "How many storages of parameters does your script hold at the peak (`--by category`)?",
        "storages",
        lambda ledger: cell(ledger, "category", "parameters", "count", "category"),
        "Each matrix, bias and norm of its own has one; tied ones share it.",
        (
            lambda ledger: sum(
                cell(ledger, "category", name, "count", "category")
                for name in ("parameters", "gradients", "optimizer state")
            ),
            "Gradients and state have storages, too: count those of parameters alone.",
        ),
    ),
    exercise(
        "10.1",
        "How many ms does a batch of 64 MiB take over the H100's link to its host, at best "
        f"({LINK / 1e9:.0f}e9 bytes/s)?",
        "ms",
        64 * 2**20 / LINK * 1e3,
        "64 x 1024^2 bytes / 63e9 bytes/s.",
        (64 * 2**20 / H100.memory_bandwidth_bytes_per_s * 1e3, "That is the GPU's own memory."),
    ),
    exercise(
        "10.2",
        "The copy takes 5 ms, computing 20 ms. How many ms does a step take if the next batch is "
        "copied meanwhile, on a second stream?",
        "ms",
        20,
        "The longer of the two: the copy is hidden.",
        (25, "That is one after the other, as on a single stream."),
        (5, "The longer of the two remains."),
    ),
    exercise(
        "10.3",
        "How many KiB of inputs does your script hold at its peak (`--by category`; 0 if none)?",
        "KiB",
        peak("inputs", KIB),
        "What came from the host and is needed at the peak.",
        (peak("inputs", 1000), "Those are KB."),
        (peak("inputs"), "Those are bytes."),
    ),
    exercise(
        "11.1",
        "How many GB is AdamW's state of 7e9 parameters in fp32?",
        "GB",
        7 * 8,
        "Two moments of 4 bytes.",
        (7 * 4, "That is one moment: AdamW has two."),
        (7 * 16, "Parameters and gradients are not its state."),
    ),
    exercise(
        "11.2",
        "Adafactor keeps a sum for each row and each column of a matrix. How many are that "
        "for 4096 x 11008, instead of AdamW's two moments?",
        "numbers",
        4096 + 11008,
        "One for each row and one for each column.",
        (4096 * 11008, "That is a number for each element: a whole moment."),
        (2 * (4096 + 11008), "Rows and columns once; it has no first moment."),
    ),
    exercise(
        "11.3",
        "How many times the parameters' bytes is your script's optimizer state (`--by category`)?",
        "times",
        lambda ledger: peak("optimizer state")(ledger) / max(peak("parameters")(ledger), 1),
        "2 with Adam in fp32, 1 with momentum, 0 with SGD.",
        (
            lambda ledger: peak("parameters")(ledger) / max(peak("optimizer state")(ledger), 1),
            "The other way round.",
        ),
    ),
    exercise(
        "12.1",
        "The sum of page 12 with D 1024, L 8, B 64 and AdamW: how many MiB are parameters, "
        "gradients and state (16 bytes for each of D D L + D)?",
        "MiB",
        16 * (1024 * 1024 * 8 + 1024) / 2**20,
        "16 bytes for each of 8,389,632 parameters.",
        (12 * (1024 * 1024 * 8 + 1024) / 2**20, "12 bytes are AdaGrad's: AdamW has two moments."),
        (4 * (1024 * 1024 * 8 + 1024) / 2**20, "That is the parameters alone."),
    ),
    exercise(
        "12.2",
        "The same model: how many KiB are its activations, 4 B D L bytes?",
        "KiB",
        4 * 64 * 1024 * 8 / 1024,
        "4 x 64 x 1024 x 8 bytes.",
        (4 * 64 * 1024 / 1024, "Each of 8 layers has an output."),
        (4 * 1024 * 8 / 1024, "Each of 64 samples has its own."),
    ),
    exercise(
        "12.3",
        "Which share of your script's peak are activations (`--by category`)?",
        "a share from 0 to 1",
        lambda ledger: peak("activations")(ledger) / ledger.memory.peak_bytes,
        "What the backward pass waits for, over all that is allocated.",
        (lambda ledger: 100 * peak("activations")(ledger) / ledger.memory.peak_bytes, PERCENT),
        (peak("activations", GIB), "Those are GiB: divide by the peak."),
    ),
    exercise(
        "13.1",
        "A sweep tries 4 learning rates, 3 batch sizes and 2 seeds, as a grid. How many runs?",
        "runs",
        4 * 3 * 2,
        "Each with each: 4 x 3 x 2.",
        (4 + 3 + 2, "A grid tries each with each: the numbers multiply."),
        (4 * 3, "Each of them with both seeds."),
    ),
    exercise(
        "13.2",
        "The weight of a linear model is 3, the teacher's 5, the input 2, SGD's rate 0.1, the loss "
        "(2 w - 2 x 5)^2. What is the weight after one step?",
        "a number",
        3 - 0.1 * 2 * (2 * 3 - 2 * 5) * 2,
        "The gradient is 2 x (6 - 10) x 2 = -16.",
        (3 - 0.1 * 2 * (2 * 3 - 2 * 5), "The inner derivative is missing: times the input."),
        (3 + 0.1 * 2 * (2 * 3 - 2 * 5) * 2, "Against the gradient, not along it."),
    ),
    exercise(
        "13.3",
        "Which share of your script's step is overhead, neither compute nor memory (`--by bound`)?",
        "a share from 0 to 1",
        bound_share("overhead"),
        "Kernels too short to be limited by either, and the wait for the host.",
        (lambda ledger: 100 * bound_share("overhead")(ledger), PERCENT),
        (bound_share("memory"), "That is limited by memory."),
    ),
)
