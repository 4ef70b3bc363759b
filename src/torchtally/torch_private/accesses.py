"""What a script's Triton kernel reads and writes: PyTorch's own analysis, in time linear in the
kernel's size.

PyTorch 2.13 counts in how many ways a load or a store depends on an argument (a kernel that
depends on its result in one way alone may have what follows it fused into it), and walks each of
these ways: twice as long for every value that is used twice. A kernel unrolled over tiles never
ends (pytorch/pytorch issue 193703). Here the same numbers are sums: to a value lead as many ways
as to all the values that are computed from it.
"""

from types import CodeType, FunctionType
from typing import Any

from torch._higher_order_ops import triton_kernel_wrap
from torch._higher_order_ops.triton_kernel_wrap import Intermediate, Param

from torchtally.torch_private.places import PrivateName

WALK = "_find_arg_access_count"


def analysis() -> list[tuple[PrivateName, Any]]:
    """What to put in the place of PyTorch's analysis; nothing for a release without that count."""
    analyze = getattr(triton_kernel_wrap, "analyze_kernel_access", None)
    if analyze is None:  # torch 2.11
        return []
    native: FunctionType = analyze.fn
    walk = code_within(native.__code__, WALK)
    summing = code_within(walk_of.__code__, WALK)
    if walk is None or summing is None or walk.co_freevars != summing.co_freevars:
        return []
    constants = tuple(summing if each is walk else each for each in native.__code__.co_consts)
    code = native.__code__.replace(co_consts=constants)
    linear = FunctionType(
        code, native.__globals__, native.__name__, native.__defaults__, native.__closure__
    )
    return [(PrivateName(analyze, "fn"), linear)]


def code_within(code: CodeType, name: str) -> CodeType | None:
    """Code of a function that another one defines."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return next((each for each in inner if each.co_name == name), None)


def walk_of(ops: Any, num_args: Any, tensor_arg_indices: Any, POINTER_ONLY_OPS: Any) -> Any:
    """The function within PyTorch's: it has the same variables around it, and PyTorch's globals."""

    def _find_arg_access_count(initial_stack: Any, skip_loads: bool) -> dict[int, int]:
        def sources(value: Any) -> list[Any]:
            if not isinstance(value, Intermediate) or value.fake():
                return []
            walks: list[Any] = []
            for op in ops[value]:
                if skip_loads and op.name == "tt.load":
                    continue
                walks += op.args[:1] if op.name in POINTER_ONLY_OPS else op.args
            return walks

        later_first: list[Any] = []
        seen = set()
        stack = [(value, False) for value in initial_stack]
        while stack:
            value, is_done = stack.pop()
            if is_done:
                later_first.append(value)
            elif value not in seen:
                seen.add(value)
                stack.append((value, True))
                stack += [(source, False) for source in sources(value)]
        ways = dict.fromkeys(later_first, 0)
        for value in initial_stack:
            ways[value] += 1
        for value in reversed(later_first):
            for source in sources(value):
                ways[source] += ways[value]
        return {
            value.idx: count
            for value, count in ways.items()
            if isinstance(value, Param)
            and value.idx < num_args
            and (tensor_arg_indices is None or value.idx in tensor_arg_indices)
        }

    return _find_arg_access_count
