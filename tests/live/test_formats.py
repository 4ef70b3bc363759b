"""Lines of logs, as the projects print them."""

import pytest

from torchtally.live import logs
from torchtally.live.formats import FORMATS, KNOWN, observation_of
from torchtally.live.logs import BLIND_LINES, LogLines
from torchtally.live.observation import StepObservation
from torchtally.train.logs import names

MIB, GIB = 1 << 20, 1 << 30

LINES = {
    "nanoGPT": (
        "iter 10: loss 2.3456, time 135.20ms, mfu 31.02%",
        StepObservation(step=10, step_s=0.1352, mfu=0.3102),
    ),
    "nanoGPT, its first": (
        "iter 0: loss 10.9867, time 25000.00ms, mfu -100.00%",
        StepObservation(step=0, step_s=25.0),
    ),
    "nanochat": (
        "step 00050/21400 (0.23%) | loss: 9.010938 | lrm: 0.03 | dt: 1350.00ms | "
        "tok/sec: 388,361 | bf16_mfu: 48.07 | epoch: 1 | total time: 0.00m",
        StepObservation(step=50, step_s=1.35, tokens_per_s=388361.0, mfu=0.4807),
    ),
    "nanochat with memory": (
        "step 00039/00040 (97.50%) | loss: 4.0 | dt: 100.00ms | tok/sec: 327,680 | "
        "bf16_mfu: 12.50 | peak_mem: 1234.50MiB | epoch: 0",
        StepObservation(step=39, step_s=0.1, tokens_per_s=327680.0, mfu=0.125,
                        peak_bytes=1234 * MIB + MIB // 2),
    ),
    "llm.c": (
        "step   10/18865 | loss 7.213412 (+nanz)| norm 2.1 (+nanz)| lr 8.57e-06 | "
        "250.00 ms | 38.1% bf16 MFU | 262144 tok/s",
        StepObservation(step=10, step_s=0.25, tokens_per_s=262144.0, mfu=0.381),
    ),
    "torchtitan": (
        "[rank0]:[titan] - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  8.03210  "
        "\x1b[38mgrad_norm:  1.2  \x1b[33mmemory: 40.50GiB(50.67%)  \x1b[34mtps: 5,678  "
        "\x1b[36mtflops: 345.67  \x1b[35mmfu: 35.00%\x1b[39m",
        StepObservation(step=10, rank=0, device_tokens_per_s=5678.0, mfu=0.35,
                        reserved_bytes=40 * GIB + GIB // 2),
    ),
    "Megatron-LM": (
        " [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:  128 | "
        "elapsed time per iteration (ms): 19125.0 | throughput per GPU (TFLOP/s/GPU): 80.2 |",
        StepObservation(step=1, step_s=19.125),
    ),
    "tally train": (
        "1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.20 GiB",
        StepObservation(step=1200, tokens_per_s=12350.0, mfu=0.431,
                        peak_bytes=GIB + GIB // 4),
    ),
}  # fmt: skip

OTHERS = (
    "step 0: train loss 10.9, val loss 10.9",  # nanoGPT's evaluation
    "Step 00000 | Validation bpb: 3.241170",
    "validate step: 10  loss:  8.03",
    "number of parameters: 123.59M",
    "iter ten: loss 2",
    "iter 99999999999999999999: loss 2.3, time 1.00ms, mfu 1.00%",
    "{'eval_loss': 2.3, 'eval_runtime': 1.5, 'epoch': 1.0}",
    "{'loss': __import__('os')}",
    '{"not": "ours"}',
    '{"step": true, "train/loss": 1.0}',
    "{" * 5000,
    "",
)


def of_line(line: str) -> list[StepObservation]:
    log = LogLines("train.log")
    return [*log.observations(line), *log.rest()]


@pytest.mark.parametrize(("line", "seen"), LINES.values(), ids=LINES)
def test_a_line_says_what_is_in_it(line: str, seen: StepObservation) -> None:
    assert of_line(line) == [seen]


def test_every_format_has_a_line() -> None:
    assert {name.partition(",")[0] for name in LINES} >= FORMATS.keys()
    assert len(set(KNOWN)) == len(FORMATS) + 2


@pytest.mark.parametrize("line", OTHERS, ids=range(len(OTHERS)))
def test_other_lines_say_nothing(line: str) -> None:
    assert of_line(line) == []


def test_a_stamp_of_time_is_read() -> None:
    first, second = (
        observation_of(f"2025-01-01 12:00:{stamp} - root - INFO - step: {step}  loss: 8.0")
        for step, stamp in ((10, "00,250"), (20, "05,750"))
    )
    assert first is not None
    assert second is not None
    assert first.logged_at_s is not None
    assert second.logged_at_s is not None
    assert second.logged_at_s - first.logged_at_s == 5.5


def test_the_trainers_dictionary_is_of_the_step_that_the_bar_shows_next() -> None:
    """The bar before it may be behind, and an evaluation has a bar of its own."""
    log = LogLines("train.log")
    lines = (
        "Loading weights: 100%|██████████| 290/290 [00:00<00:00, 900.00it/s]",
        "  0%|          | 0/40 [00:00<?, ?it/s]",
        " 20%|██        | 8/40 [00:02<00:10,  2.00it/s]",
        "{'loss': '3.882', 'grad_norm': '0.9774', 'learning_rate': '1.25e-06', 'epoch': '0.4'}",
        " 25%|██▌       | 10/40 [00:02<00:10,  4.00it/s]",
        " 72%|███████▏  | 18/25 [00:02<00:01,  6.77it/s]\x1b[A",
        "\x1b[A{'eval_loss': '3.896', 'eval_runtime': '4.287', 'epoch': '0.2'}",
        "{'loss': 3.8, 'epoch': 0.8, 'tokens_per_second': 1000.0}",
        "100%|██████████| 25/25 [00:04<00:00,  5.32it/s]",
        " 50%|█████     | 20/40 [00:13<00:40,  2.00s/it]",
        "{'train_runtime': 20.0, 'train_steps_per_second': 2.0, 'train_loss': 3.9}",
    )
    seen = [observation for line in lines for observation in log.observations(line)]
    assert seen == [
        StepObservation(step=10, step_s=0.25),
        StepObservation(step=20, step_s=2.0, tokens_per_s=1000.0),
        StepObservation(step_s=0.5, is_end=True),
    ]


def test_a_dictionary_without_a_bar_names_no_step() -> None:
    assert of_line("{'loss': 3.8, 'epoch': 0.8}") == [StepObservation()]


def test_our_own_log_has_a_prediction_and_steps() -> None:
    log = LogLines("runs/log.jsonl")
    header = '{"kind": "run", "predicted": {"train/step_s": 0.5, "memory/peak_bytes": 1024}}'
    assert list(log.observations(header)) == []
    assert log.predicted.file
    assert (log.predicted.step_s, log.predicted.peak_bytes) == (0.5, 1024)
    line = (
        '{"step": 7, "unix_s": 100.5, "train/loss": "NaN", "train/step_s": 0.25, '
        '"train/tokens_per_second": 4096, "train/mfu": 40.0, "memory/peak_bytes": 2048}'
    )
    assert list(log.observations(line)) == [
        StepObservation(
            step=7, step_s=0.25, tokens_per_s=4096, mfu=0.4, peak_bytes=2048, logged_at_s=100.5
        )
    ]


def test_the_names_are_those_that_trainings_log() -> None:
    assert {logs.STEP_S, logs.TOKENS_PER_S, logs.MFU, logs.LOSS, logs.PEAK} == {
        names.STEP_S, names.TOKENS_PER_S, names.MFU, names.LOSS, names.memory_name("peak")
    }  # fmt: skip


def test_a_log_of_something_else_is_noticed() -> None:
    log = LogLines("train.log")
    for _ in range(BLIND_LINES):
        assert not log.is_blind
        assert list(log.observations("epoch 1 done")) == []
    assert log.is_blind
