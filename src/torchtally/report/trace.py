"""A trace in a few sentences: what was run, and what there is to ask of it."""

from torchtally.report.report import Report
from torchtally.trace import Ending, Trace
from torchtally.units import format_count


def trace_report(trace: Trace) -> Report:
    """What happened, in sentences. A trace holds facts; what they cost, a ledger says."""
    facts = tuple(sentence for sentence in sentences(trace) if sentence)
    title = f"{trace.script}, traced on {trace.chip}"
    return Report(title=title, facts=facts)


def sentences(trace: Trace) -> tuple[str, ...]:
    """Counts, the end of the run, where it was made, and the way to its costs."""
    steps, world = len(trace.step_ends), trace.world
    made_by = " ".join(
        f"{name} {value}"
        for name, value in (("PyTorch", trace.torch_version), ("Python", trace.facts.get("python")))
        if value
    )
    return (
        f"{format_count(len(trace.ops))} operators on the device, {format_count(trace.host_ops)} "
        f"on the host; {format_count(len(trace.storages))} storages; {steps} training steps.",
        f"Rank {world.rank} of {world.size}." if world.size > 1 else "",
        ending_sentence(trace.ending),
        f"{made_by}, {trace.facts.get('date', 'date unknown')}." if made_by else "",
        f"Placeholders for values that virtual tensors do not have: {len(trace.placeholders)}."
        if trace.placeholders
        else "",
        "torchtally.account(trace) computes its cost, trace.save(path) keeps it.",
    )


def ending_sentence(ending: Ending) -> str:
    """How it ended, where it did not come to its end."""
    how = {"steps": "Stopped when its steps were done.", "exit": ""}.get(
        ending.kind, f"Ended by {ending.kind}."
    )
    return f"{how} {ending.message}".strip()
