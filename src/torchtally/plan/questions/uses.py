"""The options that a question depends on, declared beside it. Any other is refused.

@uses(MODEL, STEP, "tokens")
def layouts(request: Request) -> Answer: ...
"""

from collections.abc import Callable, Collection

from torchtally.errors import UsageError
from torchtally.options import Option, options_of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.plan_options import ADAPTED, BY_SIZES, COUNTED, IN_CLASS, PEAK, STEP
from torchtally.plan.questions.request import Request, sequence_of
from torchtally.plan.stacks.stack import Software

Question = Callable[[Request], Answer]
Fields = Collection[str]
Uses = str | Fields | Callable[[Request], Fields]
"""A field, several, or those that one request makes it depend on."""

_USES: dict[Question, tuple[Uses, ...]] = {}


def uses(*used: Uses) -> Callable[[Question], Question]:
    """Declare the fields of `PlanOptions` that a question's answer depends on."""

    def declare(question: Question) -> Question:
        _USES[question] = used
        return question

    return declare


def used_fields(request: Request, question: Question) -> frozenset[str]:
    """What the question's answer depends on, of this model on these chips."""
    fields = _declared_fields(request, question)
    is_of_checkpoint = request.checkpoint_every is not None  # which has no gradients
    if fields >= {"recipe", "optimizer"} and request.lora is None and not is_of_checkpoint:
        fields |= {"gradients"}  # among the states of every weight
    return fields | {"stack_name"} if _is_by(request.stack, fields) else fields


def is_by_stack(request: Request, question: Question) -> bool:
    """The answer depends on a fact of the stack."""
    return _is_by(request.stack, used_fields(request, question))


def _is_by(stack: Software | None, fields: Fields) -> bool:
    if stack is None:
        return False
    options = options_of(Request)
    words = {options[field].name.removeprefix("--").replace("-", "_") for field in fields}
    return bool(words & stack.options)


def _declared_fields(request: Request, question: Question) -> frozenset[str]:
    fields = set(BY_SIZES) if request.layers is not None else set()
    for used in _USES[question]:
        some = used(request) if callable(used) else used
        fields |= {some} if isinstance(some, str) else set(some)
    return frozenset(fields)


def counted_fields(request: Request) -> Fields:
    """Options that a number of parameters takes: attention's FLOPs are unknown, 6 FLOPs each."""
    if request.subject is None or request.subject.model is None:
        counted = None if request.subject is None else request.subject.counted
        return IN_CLASS if counted is not None and counted.step is not None else ()
    length, _ = sequence_of(request)
    return COUNTED if length is not None else ("sequence",)


def adapted_fields(request: Request) -> Fields:
    """Options of adapters, where they are trained."""
    return ADAPTED | {"weights"} if request.lora is not None else ()


def paced_fields(request: Request) -> Fields:
    """Options that decide the MFU: the user's, or the predicted step's where it is not given."""
    return {"mfu", *(PEAK if request.mfu is not None else STEP)}


def given_options(request: Request) -> dict[str, Option]:
    """The options given that have to change the answer, by field."""
    options = options_of(type(request))
    return {field: options[field] for field in request.given if options[field].is_checked}


def refuse_unused(request: Request, question: Question) -> None:
    """Raise UsageError for an option that this question does not depend on."""
    used = used_fields(request, question)
    unused = [option for field, option in given_options(request).items() if field not in used]
    for option in unused:
        if option.group.remedy and not getattr(request, option.group.asked_by):
            raise UsageError(f"{option.name} is {option.group.remedy}.")
    if unused:
        raise UsageError(_refusal(unused, question))


def _refusal(unused: list[Option], question: Question) -> str:
    verb, pronoun = ("changes", "it") if len(unused) == 1 else ("change", "them")
    name = question.__name__.replace("_", " ")
    *others, last = (option.name for option in unused)
    listed = f"{', '.join(others)} and {last}" if others else last
    return (
        f"{listed} {verb} nothing in the answer to this question ({name}).\n"
        f"Leave {pronoun} out, or ask another: `tally plan --help` says which arguments ask what."
    )
