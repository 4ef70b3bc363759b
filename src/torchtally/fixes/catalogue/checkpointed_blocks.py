"""Blocks whose activations are made again in the backward pass."""

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, NotApplicableError, ValueChange, fix
from torchtally.fixes.syntax import names_assigned, with_statements

IMPORT = "from torch.utils.checkpoint import checkpoint"
CLASSES_WITH_BLOCKS = (
    *("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"),
    *("ForSequenceClassification", "ForQuestionAnswering", "ForImageClassification"),
)
"""Ends of names of transformers' classes, whose models checkpoint each layer by a method."""


class _Loops(cst.CSTTransformer):
    """Checkpoints in loops over blocks: `for block in self.blocks: x = block(x)`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.functions: list[str] = []
        self.is_changed = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.functions.append(node.name.value)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self.functions.pop()
        return updated_node

    def visit_For(self, node: cst.For) -> None:
        over = m.findall(node.iter, m.Attribute(value=m.Name("self") | m.Attribute()))
        target: cst.BaseExpression = node.target
        if m.matches(node.iter, m.Call(func=m.Name("enumerate"))) and isinstance(target, cst.Tuple):
            target = target.elements[-1].value
        is_block = over and isinstance(target, cst.Name) and self.functions[-1:] == ["forward"]
        self.blocks.append(target.value if is_block and isinstance(target, cst.Name) else "")

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        self.blocks.pop()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        func = original_node.func
        is_block = isinstance(func, cst.Name) and self.blocks and func.value == self.blocks[-1]
        if not is_block or not updated_node.args:
            return updated_node
        self.is_changed = True
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        *others, last = updated_node.args
        args = [cst.Arg(updated_node.func, comma=comma), *others, last.with_changes(comma=comma)]
        plain = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        option = cst.Arg(cst.Name("False"), cst.Name("use_reentrant"), equal=plain)
        return updated_node.with_changes(func=cst.Name("checkpoint"), args=[*args, option])


class _Models(cst.CSTTransformer):
    """Models of transformers, told to checkpoint where they are made."""

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        made = m.extract(
            original_node,
            m.SimpleStatementLine(
                body=[
                    m.Assign(
                        targets=[m.AssignTarget(m.SaveMatchedNode(m.Name(), "name"))],
                        value=m.SaveMatchedNode(m.DoNotCare(), "value"),
                    )
                ]
            ),
        )
        if made is None:
            return updated_node
        calls = m.findall(made["value"], m.Call(func=m.Name() | m.Attribute(value=m.Name())))  # type: ignore[arg-type]
        if not any(isinstance(call, cst.Call) and _is_model(call.func) for call in calls):
            return updated_node
        name = made["name"]
        assert isinstance(name, cst.Name)
        enabled = cst.parse_statement(f"{name.value}.gradient_checkpointing_enable()")
        return cst.FlattenSentinel([updated_node, enabled])


def _is_model(func: cst.BaseExpression) -> bool:
    if isinstance(func, cst.Attribute):  # AutoModelForCausalLM.from_config(...)
        made_by = ("from_config", "from_pretrained", "_from_config")
        return func.attr.value in made_by and isinstance(func.value, cst.Name)
    return isinstance(func, cst.Name) and func.value.endswith(CLASSES_WITH_BLOCKS)


@fix(
    "checkpointed blocks", "recompute each block in the backward pass", ValueChange.SAME,
    "a loop over blocks in a forward(), or a model of transformers made by name",
)  # fmt: skip
def checkpointed(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Loops over blocks with a checkpoint around each; transformers' models by their method."""
    own = m.Call(func=m.Name("checkpoint") | m.Attribute(attr=m.Name("checkpoint")))
    has_own = m.findall(module, own) or "gradient_checkpointing" in module.code
    if has_own:
        raise NotApplicableError("the sources checkpoint already")
    if not evidence.recomputable:
        raise NotApplicableError("no class of the model has several modules that hold activations")
    loops = _Loops()
    changed = module.visit(loops)
    if loops.is_changed and "checkpoint" in names_assigned(module):
        raise NotApplicableError("the file calls something of its own `checkpoint`")
    if loops.is_changed and "BatchNorm" in module.code:
        raise NotApplicableError("running statistics of BatchNorm would be updated twice")
    if loops.is_changed:
        return with_statements(changed, (IMPORT,))
    return module.visit(_Models()) if "transformers" in module.code else module
