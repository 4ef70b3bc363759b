"""What is kept for a backward pass: the solver against every choice, the trace against a run."""

import itertools
from pathlib import Path
from random import Random

import libcst as cst
import numpy as np
import pytest
import torch

from tests.fixes.blocks import GPT, LLAMA
from tests.fixes.test_catalogue import trained
from tests.fixes.training import SOURCE
from torchtally.fixes.fix import FileEvidence
from torchtally.fixes.patch import ScriptSources
from torchtally.fixes.policy import BytesBetween, Keeping, PolicyProblem, solve
from torchtally.fixes.policy_graph import policy_graph
from torchtally.fixes.policy_search import with_policy
from torchtally.fixes.policy_source import selective_checkpoint
from torchtally.fixes.trial import TrialRequest, try_patch
from torchtally.memory.allocator import replay

pytest.importorskip("scipy")
TICKS = 12
EVIDENCE = FileEvidence(frozenset(), frozenset(("Block",)))


def random_problem(random: Random) -> tuple[PolicyProblem, int]:
    """A graph of at most nine outputs, which hold bytes over some ticks and free some at others,
    and a limit between what is live with none of them and with all.
    """
    count = random.randint(1, 9)

    def effect(most_bytes: int) -> BytesBetween:
        start, end = sorted((random.randrange(TICKS), random.randrange(TICKS)))
        return BytesBetween(start, end + 1, most_bytes // random.randint(1, 9))

    keepings = tuple(
        Keeping(
            random.random(),
            (effect(2**24), effect(2**23), effect(-(2**20))),
            (random.randrange(count),) if random.random() < 0.3 else (),
        )
        for _ in range(count)
    )
    live = [random.randrange(2**24) for _ in range(TICKS)]
    limit_bytes = max(live) + random.randrange(2**22 * count)
    return PolicyProblem(keepings, range(TICKS + 1), [*live, 0]), limit_bytes


def best(problem: PolicyProblem, limit_bytes: int) -> float | None:
    """Seconds saved by the best of all choices, each counted by itself."""
    found = None
    held = np.zeros((len(problem.keepings), TICKS), dtype=np.int64)
    for number, keeping in enumerate(problem.keepings):
        for effect in keeping.effects:
            held[number, effect.start : effect.end] += effect.bytes
    live = np.array(problem.live_bytes[:TICKS])
    for bits in itertools.product((0, 1), repeat=len(problem.keepings)):
        kept = [keeping for bit, keeping in zip(bits, problem.keepings, strict=True) if bit]
        if any(not bits[other] for keeping in kept for other in keeping.implies):
            continue
        if max(live + np.array(bits) @ held) <= limit_bytes:
            found = max(found or 0.0, sum(keeping.saved_s for keeping in kept))
    return found


def test_the_solver_finds_what_the_best_of_all_choices_saves() -> None:
    some = 0
    for seed in range(200):
        problem, limit_bytes = random_problem(Random(seed))
        solved, optimum = solve(problem, limit_bytes), best(problem, limit_bytes)
        assert (solved is None) == (optimum is None)
        if solved is not None and optimum is not None:
            assert solved.saved_s == pytest.approx(optimum, rel=1e-6, abs=1e-6)
            assert solved.peak_bytes <= limit_bytes
            some += 0 < len(solved.kept) < len(problem.keepings)
    assert some > 100  # of them keep some outputs, and not all


def test_two_of_three_equal_blocks_are_kept_in_two_thirds_of_the_memory() -> None:
    keepings = tuple(Keeping(1.0, (BytesBetween(n, 6 - n, 300),)) for n in range(3))
    solved = solve(PolicyProblem(keepings, range(7), (0,) * 7), 600)
    assert solved is not None
    assert (solved.saved_s, solved.peak_bytes) == (2.0, 600)


def test_the_source_keeps_outputs_in_the_loop_over_blocks() -> None:
    fix = selective_checkpoint({"blocks": {"aten.gelu.default#1": 2}}, "")
    code = fix.rewrite(cst.parse_module(SOURCE), EVIDENCE).code
    assert "for number, block in enumerate(self.blocks):" in code
    assert 'context_fn=partial(keep_outputs, "blocks", number))' in code
    assert '        "aten.gelu.default#1": 2,' in code


def test_a_number_of_the_script_is_not_overwritten() -> None:
    code = selective_checkpoint({}, "").rewrite(cst.parse_module(f"number = 1\n{SOURCE}"), EVIDENCE)
    assert "for block_number, block in enumerate(self.blocks):" in code.code
    assert 'partial(keep_outputs, "blocks", block_number)' in code.code


def test_a_loop_that_counts_keeps_its_counter() -> None:
    counting = SOURCE.replace("for block in self.blocks", "for i, block in enumerate(self.blocks)")
    code = selective_checkpoint({}, "").rewrite(cst.parse_module(counting), EVIDENCE).code
    assert "for i, block in enumerate(self.blocks):" in code
    assert 'partial(keep_outputs, "blocks", i)' in code


@pytest.mark.parametrize(
    "calls",
    [
        {},
        {"aten.gelu.default#1": 0, "aten.addmm.default#1": 1},
        {"aten.native_layer_norm.default#1": 0, "aten.native_dropout.default#1": 2},
    ],
)
def test_the_training_computes_the_same_bits(calls: dict[str, int]) -> None:
    fix = selective_checkpoint({"blocks": calls}, "")
    weights, total = trained(SOURCE)
    others, other_total = trained(fix.rewrite(cst.parse_module(SOURCE), EVIDENCE).code)
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))
    assert total == other_total


@pytest.mark.parametrize("source", [GPT, LLAMA], ids=["GPT", "Llama"])
def test_the_peak_is_the_runs_to_the_byte(source: str, tmp_path: Path) -> None:
    script = str(tmp_path / "train.py")
    Path(script).write_text(source)
    sources = ScriptSources(script, {script: source}, {script: EVIDENCE})
    request = TrialRequest(script, (), "H100-SXM", 2, str(tmp_path))
    before = try_patch(request, sources, with_policy(sources, {}, ""), is_limited=False)
    assert before.ledger is not None
    graph = policy_graph(before.ledger)
    every_other = [number for number, call in enumerate(graph.calls) if call.number >= 2]
    predicted = replay(graph.predicted(every_other))
    kept = with_policy(sources, graph.kept(every_other), "")
    after = try_patch(request, sources, kept, is_limited=False)
    assert after.ledger is not None
    assert predicted.peak_allocated_bytes == after.ledger.memory.peak_bytes
    assert predicted.peak_reserved_bytes == after.reserved_bytes
