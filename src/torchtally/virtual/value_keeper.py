"""Values of small tensors: computed on the host beside the shapes while all inputs have one.

Where an input has none, facts of the result are derived instead.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.torch_private import OpOverload
from torchtally.virtual import values
from torchtally.virtual.facts import (
    Derived,
    Facts,
    FallingLosses,
    assumption_of,
    constant,
    facts_of,
    is_any_informed,
    is_informed,
    is_whole,
    keep_facts,
    settle,
    turns,
)
from torchtally.virtual.invocation import Invocation, replace_tensors, tensors_in
from torchtally.virtual.observer import Observer
from torchtally.virtual.storage import HostMemory, VirtualStorage, virtual_of

OVERWRITES = frozenset(["aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_"])
"""In-place operators whose result does not depend on what was there before."""
GIVEN = frozenset(f"aten.{kind}_like" for kind in ("ones", "zeros", "full"))
"""Operators whose result does not depend on their tensor's values."""
UNCOMPUTED: set[OpOverload] = set()
"""Custom operators that failed to load, or to build, compiled code of theirs for the host."""


class ValueKeeper:
    """Carries values from a call's inputs to its results. `random` is the device's generator."""

    def __init__(
        self, host: HostMemory, observer: Observer, random: Callable[[], values.RandomState]
    ) -> None:
        self.host = host
        self.observer = observer
        self.random = random
        self.losses = FallingLosses()

    def keep(self, call: Invocation, outputs: Any, result: Any, home: Any) -> Any:
        """Compute the values of a call whose inputs all have one; drop those overwritten.

        Returns the result, which on the host is the real tensor where there is one.
        """
        if call.operator.name == "aten.set_":
            return result  # the tensor has other elements now; none were written
        is_mutating = call.operator.is_mutating
        # `copy_` and its like do not read their target: an unknown value does not stay unknown.
        if call.operator.name in OVERWRITES:
            revive(call.inputs[0])
        real = None
        if all(map(has_value, call.inputs)) and all(map(may_have_value, outputs)):
            real = None if turns(call) else self.compute(call)
        if real is None:
            if is_mutating:
                overwrite(call)
            elif call.operator.may_give_facts:
                give_derived(outputs, call)
            if call.operator.updated and is_training(call):
                forget(call, call.operator.updated)
            self.losses.ran(call, outputs)
            # A host leaf's gradient has to be on the CPU: the engine compares devices
            # (`validate_outputs`, torch/csrc/autograd/engine.cpp).
            if home is self.host and inside_backward():
                return self.as_real_gradient(result)
            return result
        # `compute` ran in place on a tensor that shares the kept value's memory.
        if is_mutating:
            update_assumption(call)
            return result
        is_given = call.operator.name in GIVEN
        assumption = None if is_given else assumption_of(call.virtuals)
        if home is self.host:
            self.note_read(call, assumption)
            return real
        give_values(outputs, tensors_in(real), assumption)
        if assumption is not None:  # how the values are spread holds for more than has values
            give_derived(outputs, call)
        return result

    def note_read(self, call: Invocation, assumption: str | None) -> None:
        """Notify the observer that the script reads what was assumed."""
        if assumption is not None:
            self.observer.assumption_read(call.operator.name, assumption)

    def as_real_gradient(self, result: Any) -> Any:
        """Real zeros for the gradient of a real tensor."""
        if not isinstance(result, Tensor) or not is_real_expected(result):
            return result
        self.observer.placeholder_given("aten._to_copy", "a gradient of zeros on the host")
        return torch.zeros(result.shape, dtype=result.dtype)

    def compute(self, call: Invocation) -> Any:
        """The call on real host tensors; None if a value is unknown or only CUDA has a kernel."""
        arguments = values.real_arguments(call.args, call.kwargs)
        if arguments is None:
            return None
        args, kwargs = arguments
        kwargs.pop("pin_memory", None)
        overload = call.operator.overload
        if overload in UNCOMPUTED:
            return None
        try:
            with values.OneThread():
                if call.operator.is_random:
                    with self.random().as_default():
                        result = overload(*args, **kwargs)
                else:
                    result = overload(*args, **kwargs)
        except (AttributeError, ImportError, OSError):
            UNCOMPUTED.add(overload)
            return None
        except (RuntimeError, NotImplementedError):
            return None
        return () if result is None else result


def has_value(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual.value is not None if virtual is not None else not private.is_meta(tensor)


def may_have_value(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual is not None and (
        virtual.value is not None or values.keeps_value(tensor.dtype, virtual.requested_bytes)
    )


def give_values(
    outputs: Sequence[Tensor], reals: Sequence[Tensor], assumption: str | None = None
) -> None:
    """Keep the values of results, unless host and device differ in shape."""
    if [tensor.shape for tensor in outputs] != [real.shape for real in reals]:
        return
    for tensor, real in zip(outputs, reals, strict=True):
        if may_have_value(tensor) and not has_value(tensor):
            values.give_value(tensor, real)
            virtual_of(tensor).assumption = assumption  # type: ignore[union-attr]


def derive(call: Invocation) -> Derived:
    """What is known of the results of a call of which not all values are known."""
    operator = call.operator
    if operator.needs_facts and not is_any_informed(call.virtuals):
        return None
    if operator.is_foreach:
        return [fold_one_of_each(call, args) for args in one_of_each(call)]
    if operator.is_elementwise and all(map(is_informed, call.virtuals)):
        folded = fold(call)
        if folded is not None:
            return folded
    return None if operator.fact_rule is None else operator.fact_rule(call)


def fold(call: Invocation) -> Facts | None:
    """An operator that works element by element, on constants: done once, on one element."""
    result = on_one_element(call, call.args, call.inputs)
    return None if result is None or result.is_complex() else constant(result.item())


def on_one_element(call: Invocation, args: Sequence[Any], inputs: Sequence[Tensor]) -> Any:
    """What an operator gives for one element of constants; None where one is not constant."""
    each = list(map(facts_of, inputs))
    if not each or not all(facts is not None and facts.is_constant for facts in each):
        return None
    elements = {  # a tensor of no dimension has no say in the dtype
        id(tensor): torch.full((1,) * tensor.dim(), facts.lower, dtype=tensor.dtype)  # type: ignore[union-attr]
        for tensor, facts in zip(inputs, each, strict=True)
    }
    try:
        result = call.operator.overload(
            *replace_tensors(args, elements),
            **{name: replace_tensors(arg, elements) for name, arg in call.kwargs.items()},
        )
    except (RuntimeError, NotImplementedError):  # no kernel on the host
        return None
    return next(iter(elements.values())) if result is None else result


def one_of_each(call: Invocation) -> Iterator[tuple[Any, ...]]:
    """The arguments of a `_foreach_` operator for one tensor after the other."""
    for place in range(len(call.args[0])):
        yield tuple([arg[place]] if isinstance(arg, (list, tuple)) else arg for arg in call.args)


def fold_one_of_each(call: Invocation, args: tuple[Any, ...]) -> Facts | None:
    """Facts as by `fold`. The norm of n elements is n ** (1 / order) times that of one."""
    if any(isinstance(arg, (list, tuple)) for arg in call.kwargs.values()):
        return None  # `out`
    result = on_one_element(call, args, tensors_in(args))
    if result is None:
        return None
    (element,) = result if isinstance(result, (list, tuple)) else (result,)
    if element.is_complex():
        return None
    if call.operator.name != "aten._foreach_norm":
        return constant(element.item())
    order = args[1] if len(args) > 1 else 2
    count = args[0][0].numel()
    return constant(element.item() * count ** (1 / order)) if order > 0 and count else None


def give_derived(outputs: Sequence[Tensor], call: Invocation) -> None:
    """Keep what follows for the results of a call, each of which has a storage of its own."""
    derived = derive(call)
    if derived is None:
        return
    each = [derived] if isinstance(derived, Facts) else derived
    for tensor, facts in zip(outputs, each, strict=False):
        if facts is not None:
            keep_facts(tensor, *settle(facts, call.virtuals))


def is_training(call: Invocation) -> bool:
    """An operator without the argument is called in training alone."""
    return "training" not in call.operator.arguments or bool(call.argument("training"))


def overwrite(call: Invocation) -> None:
    """Forget what was known of the tensors written to, but for what holds afterwards, too."""
    is_known = any(
        v is not None and (v.value is not None or v.facts is not None) for v in call.virtuals
    )
    if not is_known and call.operator.needs_facts:
        return
    after = facts_after(call)
    forget(call, call.operator.written)
    for each in after:
        keep_facts(*each)


def forget(call: Invocation, names: frozenset[str]) -> None:
    """Nothing is known any more of the tensors in these arguments."""
    for name, tensor in call.named_inputs:
        if name in names:
            values.drop_value(tensor)


def facts_after(call: Invocation) -> list[tuple[Tensor, Facts, str | None]]:
    """All elements of each storage written to, what is known of them, and on what it rests."""
    if not call.operator.returns_self and not call.operator.is_foreach:
        return []
    derived = derive(call)
    if derived is None:
        return []
    if call.operator.is_foreach:
        return [
            (target, *settle(facts, call.virtuals))
            for target, facts in zip(call.args[0], derived, strict=True)  # type: ignore[arg-type]
            if facts is not None and is_whole_storage(target)
        ]
    target, virtual = call.inputs[0], call.virtuals[0]
    if virtual is None or not isinstance(derived, Facts):
        return []
    if is_whole(target, virtual):
        return [(target, *settle(derived, sources_of(call)))]
    count = virtual.requested_bytes // target.element_size()
    storage = target.detach().as_strided((count,), (1,), 0)
    before = facts_of(storage)
    return [] if before is None else [(storage, *settle(before | derived, call.virtuals))]


def is_whole_storage(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual is not None and is_whole(tensor, virtual)


def sources_of(call: Invocation) -> Sequence[VirtualStorage | None]:
    """The storages that the elements written follow from: not the one overwritten as a whole."""
    target, virtual = call.inputs[0], call.virtuals[0]
    if call.operator.name in OVERWRITES and virtual is not None and is_whole(target, virtual):
        return call.virtuals[1:]
    return call.virtuals


def update_assumption(call: Invocation) -> None:
    """Updates what values rest on after they were written; facts of those before are gone."""
    assumption = assumption_of(sources_of(call))
    for (name, _), virtual in zip(call.named_inputs, call.virtuals, strict=True):
        if virtual is not None and name in call.operator.written:
            virtual.facts, virtual.assumption = None, assumption


def revive(tensor: Tensor) -> None:
    """Allow a small storage that is about to be overwritten whole to have a value again."""
    virtual = virtual_of(tensor)
    if (
        virtual is not None
        and virtual.value is None
        and values.keeps_value(tensor.dtype, virtual.requested_bytes)
        and tensor.numel() * tensor.element_size() == virtual.requested_bytes
    ):
        virtual.forget()
        virtual.value = torch.UntypedStorage(virtual.requested_bytes)


def is_real_expected(gradient: Tensor) -> bool:
    """The engine wants a real tensor: so was the forward input; of a part, by its size."""
    expected = private.device_of_gradient(gradient.shape)
    if expected is None:
        return gradient.nbytes <= values.SMALL_HOST_BYTES
    return expected.type != "meta"


def inside_backward() -> bool:
    return private.current_autograd_node() is not None
