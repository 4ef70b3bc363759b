"""The source of a selective checkpoint: which outputs of a block's operators are kept."""

from collections.abc import Mapping
from contextlib import suppress

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.catalogue.checkpointed_blocks import checkpointed
from torchtally.fixes.fix import FileEvidence, Fix, NotApplicableError, ValueChange
from torchtally.fixes.syntax import has_keyword, with_keyword, with_statements

NAME = "selective checkpoint"
NEEDS = "a loop over blocks in a forward(): for block in self.blocks: x = block(x)"
IMPORTS = (
    "from collections import Counter",
    "from functools import partial",
    "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts",
)
HELPER = '''
def keep_outputs(blocks, number):
    """Contexts of a checkpoint that keeps the outputs which KEPT names, and recomputes others."""
    kept, calls = KEPT.get(blocks, {}), Counter()

    def policy(context, operator, *args, **kwargs):
        calls[operator, context.is_recompute] += 1
        first = kept.get(f"{operator}#{calls[operator, context.is_recompute]}")
        is_kept = first is not None and number >= first
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
'''
COMMENT = "# By operator and its call in a block: the first block from which on its output is kept."

KeptOutputs = Mapping[str, Mapping[str, int]]
"""By list of blocks ("blocks") and call ("aten.mm.default#2"): the first block that keeps it."""


class _Contexts(cst.CSTTransformer):
    """`checkpoint(block, ...)` in loops over `self.blocks`, with a context for each block."""

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number
        """A name that the file does not have."""
        self.loops: list[tuple[str, str, str]] = []
        self.changed: set[str] = set()
        self.is_changed = False

    def visit_For(self, node: cst.For) -> None:
        iterated, target, number = node.iter, node.target, self.number
        call = m.Call(func=m.Name("enumerate"), args=[m.Arg()])
        if m.matches(iterated, call) and isinstance(target, cst.Tuple):
            assert isinstance(iterated, cst.Call)
            iterated = iterated.args[0].value
            first, last = target.elements[0].value, target.elements[-1].value
            number = first.value if isinstance(first, cst.Name) else ""
            target = last if isinstance(last, cst.Name) else target
        blocks = iterated.attr.value if isinstance(iterated, cst.Attribute) else ""
        block = target.value if isinstance(target, cst.Name) else ""
        self.loops.append((block, blocks, number))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        block, blocks, number = self.loops[-1] if self.loops else ("", "", "")
        around = m.Call(func=m.Name("checkpoint"), args=[m.Arg(m.Name(block)), m.AtLeastN(n=1)])
        if not (block and blocks and number) or not m.matches(original_node, around):
            return updated_node
        if has_keyword(original_node, "context_fn"):
            return updated_node
        self.is_changed = True
        self.changed.add(block)
        return with_keyword(
            updated_node, "context_fn", f'partial(keep_outputs, "{blocks}", {number})'
        )

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        block, _, _ = self.loops.pop()
        if block not in self.changed or not isinstance(original_node.target, cst.Name):
            return updated_node
        self.changed.discard(block)
        space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        pair = [cst.Element(cst.Name(self.number), space), cst.Element(original_node.target)]
        return updated_node.with_changes(
            target=cst.Tuple(pair, lpar=[], rpar=[]),
            iter=cst.Call(cst.Name("enumerate"), [cst.Arg(updated_node.iter)]),
        )


def selective_checkpoint(kept: KeptOutputs, text: str) -> Fix:
    """The fix that puts a checkpoint around each block, and keeps these outputs."""

    def rewrite(module: cst.Module, evidence: FileEvidence) -> cst.Module:
        has_number = m.findall(module, m.Name("number"))
        contexts = _Contexts("block_number" if has_number else "number")
        with suppress(NotApplicableError):  # its own checkpoints get contexts
            module = checkpointed(module, evidence)
        changed = module.visit(contexts)
        if not contexts.is_changed:
            raise NotApplicableError(f"needs {NEEDS}")
        return with_statements(changed, (*IMPORTS, table(kept), HELPER))

    return Fix(NAME, text, ValueChange.SAME, NEEDS, rewrite)


def table(kept: KeptOutputs) -> str:
    """The statement that says which outputs are kept."""
    lines = []
    for blocks, calls in kept.items():
        rows = [f'        "{call}": {first},' for call, first in calls.items()]
        lines += [f'    "{blocks}": {{', *rows, "    },"]
    return "\n".join([COMMENT, "KEPT = {", *lines, "}"])
