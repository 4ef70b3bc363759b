"""The policy of a script's checkpoints for a budget: solved by a trace, proved by a run."""

from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.fixes.choosing import ChosenFixes, FixGoal, Run, Tried
from torchtally.fixes.fix import NotApplicableError
from torchtally.fixes.patch import Patch, ScriptSources, patch
from torchtally.fixes.policy import SolvedPolicy, solve
from torchtally.fixes.policy_graph import PolicyGraph, policy_graph
from torchtally.fixes.policy_source import KeptOutputs, selective_checkpoint
from torchtally.fixes.trial import FixTrial
from torchtally.memory.allocator.replay import Replayed, replay

ROUNDS = 8
"""Of lowering the limit by what the allocator reserves beyond it."""
GAP = 0.005
"""Of the saved seconds: within so much of the optimum the solver ends."""


@dataclass(frozen=True, slots=True)
class BudgetedPolicy:
    """A policy, and what the allocator does in a run of it."""

    solved: SolvedPolicy
    replayed: Replayed
    kept: KeptOutputs


def policy_for(graph: PolicyGraph, budget_bytes: int) -> BudgetedPolicy | None:
    """The policy that recomputes least of those of which the allocator reserves no more than the
    budget; None where none was found.
    """
    limit = budget_bytes
    for _ in range(ROUNDS):
        solved = solve(graph.problem, limit, gap=GAP)
        if solved is None:
            return None
        replayed = replay(graph.predicted(solved.kept), device=graph.device)
        excess = replayed.peak_reserved_bytes - budget_bytes
        if excess <= 0:
            return BudgetedPolicy(solved, replayed, graph.kept(solved.kept))
        limit = min(limit, solved.peak_bytes) - excess
    return None


def choose_policy(
    before: FixTrial, sources: ScriptSources, budget_bytes: int, run: Run
) -> ChosenFixes:
    """The script with selective checkpoints for a budget of reserved memory; as it is, where that
    suffices.

    Raises UsageError where the script has no loop over blocks, its changed form fails, or not even
    with all of them recomputed it stays within the budget.
    """
    choice = ChosenFixes(before, FixGoal.BUDGET)
    if before.reserved_bytes <= budget_bytes:
        return choice
    whole = with_policy(sources, {}, "recompute each block in the backward pass")
    trial = run(whole)
    if trial.ledger is None:
        raise UsageError(f"The script with a checkpoint around each block fails: {trial.failure}")
    choice.alone.append(tried(whole, trial, before))
    graph = policy_graph(trial.ledger)
    found = policy_for(graph, budget_bytes)
    if found is None:
        choice.kept = choice.alone[0] if trial.reserved_bytes <= budget_bytes else None
        return choice
    count = sum(len(calls) for calls in found.kept.values())
    text = (
        f"keep {count} kinds of outputs for the backward pass and recompute the others: "
        f"{found.solved.saved_s:.3g} s of {graph.problem.recomputed_s:.3g} s are not recomputed, "
        f"at most {found.solved.bound_s:.3g} s can be; predicted peak "
        f"{found.replayed.peak_allocated_bytes:,} bytes allocated, "
        f"{found.replayed.peak_reserved_bytes:,} reserved"
    )
    selective = with_policy(sources, found.kept, text)
    proof = run(selective)
    choice.alone.append(tried(selective, proof, before))
    if proof.ledger is not None and proof.reserved_bytes <= budget_bytes:
        choice.kept = choice.alone[-1]
    return choice


def with_policy(sources: ScriptSources, kept: KeptOutputs, text: str) -> Patch:
    """The sources with selective checkpoints. Raises UsageError where there are no blocks."""
    try:
        return patch(sources, (selective_checkpoint(kept, text),))
    except NotApplicableError as error:
        raise UsageError(f"--memory-budget puts a checkpoint around each block: {error}") from error


def tried(changed: Patch, trial: FixTrial, before: FixTrial) -> Tried:
    share = 0.0 if trial.ledger is None else 1 - trial.reserved_bytes / before.reserved_bytes
    return Tried(changed, trial, share)
