"""Origin of an operator of a compiled graph: a line, a module, an operator of the script."""

import re
from dataclasses import dataclass
from typing import Any

FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a node of a graph. A backward node has the line of the forward one it was made
    for.
    """

    operator: str
    """As the script called it, before it was decomposed: "aten.gelu"."""
    module_id: int
    """Python's id of the innermost module that it ran in; 0 outside any."""
    module_class: str
    frames: tuple[tuple[str, int, str], ...]
    """(file, line, function), innermost first."""
    is_forward: bool
    """In a backward graph: it computes again what the forward pass had computed. What is not, in a
    forward graph, is backward work that waits for no gradient, as of a loss that has computed its
    own: AOTAutograd has it done with the forward pass.
    """


def origin_of(node: Any) -> Origin:
    meta = node.meta
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    module_id, module_class = 0, ""
    for key, (_, kind) in stack.items():
        if str(key).isdigit():
            module_id, module_class = int(key), class_name(kind)
    return Origin(
        operator_name(meta.get("original_aten") or node.target),
        module_id,
        module_class,
        frames_of(stack_trace_of(node)),
        is_forward=is_of_forward(node) if meta.get("stack_trace") else is_added_to_forward(node),
    )


def is_added_to_forward(node: Any) -> bool:
    """One that a pass has added, without a line, is of the backward pass if anything is that its
    result depends on, up to what has a line.
    """
    seen, waiting = {node}, [node]
    while waiting:
        nearest = waiting.pop()
        if nearest.meta.get("stack_trace") or not nearest.all_input_nodes:
            if not is_of_forward(nearest) or is_tangent(nearest):
                return False
            continue
        fresh = [each for each in nearest.all_input_nodes if each not in seen]
        seen.update(fresh)
        waiting += fresh
    return is_of_forward(node)


def is_tangent(node: Any) -> bool:
    """A gradient that the backward graph is given (torch/_functorch/_aot_autograd)."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_of_forward(node: Any) -> bool:
    """Whether it is of the forward pass, by the partitioner's tag, which most nodes of the backward
    pass keep; else by their modules, which a node of the backward pass has by another name. The
    backward of an `autograd.Function` that Dynamo traced has no tags where the forward has them,
    and lies within a second such function.
    """
    meta = node.meta
    tag = meta.get("partitioner_tag")
    if tag is not None:
        return str(tag).endswith("forward")
    names = [name for name, _ in meta.get("source_fn_stack") or ()]
    if names[:1] == FUNCTION and "seq_nr" not in meta:  # put in place (fx_passes/reinplace.py)
        return False
    if names[:2] == FUNCTION * 2 and is_differentiated(node.graph):
        return False
    return bool(meta.get("nn_module_stack")) or not meta.get("autograd_backward")


FUNCTION = ["autograd.function"]


def is_differentiated(graph: Any) -> bool:
    """Whether a graph is a part of forward and backward together, whose nodes have tags."""
    return any(node.meta.get("partitioner_tag") is not None for node in graph.nodes)


def stack_trace_of(node: Any) -> str:
    """Stack trace of the node; of one that a pass has added, that of the nearest whose result it
    uses.
    """
    seen, waiting = {node}, [node]
    while waiting:
        nearest = waiting.pop(0)
        trace: str = nearest.meta.get("stack_trace") or ""
        if trace:
            return trace
        for source in nearest.all_input_nodes:
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return ""


def class_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]


def operator_name(target: Any) -> str:
    """Name of an operator: "aten.mm" of the overload aten.mm.default; the plain name of anything
    else.
    """
    schema_name = getattr(target, "name", None)
    if callable(schema_name):
        name = schema_name()
        if isinstance(name, str):
            return name.split(".")[0].replace("::", ".")
    return getattr(target, "__name__", str(target))


def frames_of(stack_trace: str) -> tuple[tuple[str, int, str], ...]:
    matches = filter(None, map(FRAME.match, stack_trace.splitlines()))
    frames = [(match["file"], int(match["line"]), match["function"]) for match in matches]
    return tuple(reversed(frames))
