"""Types for arguments that were recorded by their sizes alone, as NVTX ranges of PyTorch are.

Which argument is a tensor, an index or a mask is in the operator's schema; the dtype of the others
is in the names of the kernels that it launched, else the commonest of the file. Sizes of a list's
tensors stand among those of the arguments: lists of one operator are assumed to be equally long.

Known limits. A cast is assumed to read the dtype that its kernel names first. Of numbers the
defaults are known, and what shapes tell; a call whose cost depends on others (a convolution's
stride) is not counted.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

from torchtally import torch_private as private
from torchtally.profiles import Arguments, Profile
from torchtally.profiles.profile import ANY_ARGUMENT, ANY_TENSOR, NOWHERE
from torchtally.runs.explain.schemas import Overload, packet

KERNEL_TYPES = {
    "c10::BFloat16": r"BFloat16|bfloat16|bf16|nvjet_t",
    "c10::Half": r"c10::Half|__half|half_t|fp16|(?<![a-z0-9])f16|h1688|h16816|hgemm|nvjet_h",
    "float": r"\bfloat\b|sgemm|tf32|(?<![a-z0-9])f32|s1688|nvjet_s",
    "double": r"\bdouble\b|dgemm|d884|nvjet_d",
}
NAMED = re.compile("|".join(f"({pattern})" for pattern in KERNEL_TYPES.values()))
"""How kernels of PyTorch, CUTLASS and cuBLAS name what they compute in."""
INDICES = frozenset(
    """
    cum_seq_k cum_seq_q index indices offsets philox_offset philox_seed target
    """.split()
)
MASKS = frozenset(("condition", "mask"))
STATISTICS = frozenset(("invstd", "logsumexp", "mean", "rstd", "save_invstd", "save_mean"))
"""In float32, whatever the tensors are that they are of."""
NUMBERS = frozenset(("other", "value"))
"""What a Python number is handed over as, where a tensor is expected."""
LENGTHS = {"max_q": 1, "max_k": 2}
"""Of an attention's queries and keys, by the place of these."""
TAKEN_FROM_KERNELS = "dtypes not recorded: read from the kernels' names"
TAKEN_FROM_OTHERS = "dtypes not recorded, nor named by a kernel: taken to be {dtype}"
MOST_EMPTY_LISTS = 2

Shapes = tuple[object, ...]


def with_types(profile: Profile) -> Profile:
    """The profile with types wherever sizes alone were recorded, and notes that say so."""
    untyped = {
        number
        for number, arguments in enumerate(profile.arguments)
        if ANY_TENSOR in arguments.types or ANY_ARGUMENT in arguments.types
    }
    if not untyped:
        return profile
    named = dtypes_of_operators(profile)
    commonest = Counter(named.values()).most_common(1)
    usual = commonest[0][0] if commonest else "float"
    table = list(profile.arguments)
    numbers: dict[tuple[str, int, str], int] = {}
    operators = []
    notes: Counter[str] = Counter()
    for number, operator in enumerate(profile.operators):
        if operator.arguments in untyped:
            dtype = named.get(number, usual)
            key = operator.name, operator.arguments, dtype
            if key not in numbers:
                numbers[key] = len(table)
                table.append(
                    with_dtypes(operator.name, profile.arguments[operator.arguments], dtype)
                )
            note = TAKEN_FROM_KERNELS if number in named else TAKEN_FROM_OTHERS.format(dtype=usual)
            notes[note] += packet(operator.name) != ()
            operator = operator._replace(arguments=numbers[key])
        operators.append(operator)
    return replace(
        profile,
        operators=tuple(operators),
        arguments=tuple(table),
        notes=(*profile.notes, *((text, count) for text, count in notes.items() if count)),
    )


def dtypes_of_operators(profile: Profile) -> dict[int, str]:
    """Dtypes for each operator: what its first kernel that names a dtype names, those within it
    included; none for an operator without such a kernel.
    """
    kernels: dict[int, list[str]] = defaultdict(list)
    for activity in profile.activities:
        number = activity.operator
        while number != NOWHERE:
            kernels[number].append(activity.name)
            number = profile.operators[number].parent
    dtypes: dict[int, str] = {}
    for number, names in kernels.items():
        dtype = next(filter(None, map(dtype_of, names)), None)
        if dtype is not None:
            dtypes[number] = dtype
    return dtypes


@cache
def dtype_of(kernel: str) -> str | None:
    """Dtype as Kineto spells it."""
    match = NAMED.search(kernel)
    return None if match is None else list(KERNEL_TYPES)[(match.lastindex or 1) - 1]


def with_dtypes(name: str, arguments: Arguments, dtype: str) -> Arguments:
    """Arguments as Kineto would have recorded them; as they are where no overload fits."""
    for overload in packet(name):
        parts = private.schema(overload).arguments
        if any(part.is_out for part in parts):
            continue
        shapes = group_sizes(overload, arguments.shapes or ())
        if shapes is not None:
            names = [part.name for part in parts]
            return Arguments(
                shapes,
                None,
                tuple(
                    type_of(str(part.type), part.name, shapes, place, dtype)
                    for place, part in enumerate(parts)
                ),
                tuple(value_of(part.name, shapes, names) for part in parts),
            )
    return arguments


def group_sizes(overload: Overload, sizes: Shapes) -> Shapes | None:
    """Sizes by argument, those of a list's tensors together; None where they do not fit."""
    expected = [str(part.type) for part in private.schema(overload).arguments]
    lists = [place for place, kind in enumerate(expected) if is_list(kind)]
    for empty in range(min(len(lists), MOST_EMPTY_LISTS) + 1):
        filled, rest = len(lists) - empty, len(sizes) - (len(expected) - len(lists)) - empty
        if (rest % filled if filled else rest) or (filled and rest <= 0):
            continue
        for left_empty in combinations(lists, empty):
            length = rest // filled if filled else 0
            parts = list(deal_out(expected, sizes, left_empty, length))
            if are_fitting(expected, parts, lists):
                return tuple(parts)
    return None


def deal_out(
    expected: Sequence[str], sizes: Shapes, left_empty: Sequence[int], length: int
) -> Iterator[object]:
    """An argument's part of the sizes. An empty list has one, like a number."""
    place = 0
    for number, kind in enumerate(expected):
        if is_list(kind) and number not in left_empty:
            yield sizes[place : place + length]
            place += length
        else:
            yield sizes[place]
            place += 1


def are_fitting(expected: Sequence[str], parts: Sequence[object], lists: Sequence[int]) -> bool:
    """Whether what has sizes is a tensor, and the tensors of lists are alike: steps that an
    optimizer counts, which have no dimensions, aside.
    """
    if any(part and "Tensor" not in kind for part, kind in zip(parts, expected, strict=True)):
        return False
    full = [
        rows for rows in (parts[place] for place in lists) if isinstance(rows, tuple) and any(rows)
    ]
    return all(rows == full[0] for rows in full)


def is_list(kind: str) -> bool:
    return kind == "List[Tensor]"


def type_of(kind: str, name: str, shapes: Shapes, place: int, dtype: str) -> str:
    if is_list(kind):
        return "TensorList"
    if "Tensor" not in kind or "List[" in kind:
        return ""
    if not shapes[place]:
        if kind != "Tensor":
            return ""  # an optional tensor that is not given
        is_number = name in NUMBERS and any(shapes)
        if is_number:
            return "double"
    if name in INDICES:
        return "long int"
    if name in MASKS:
        return "bool"
    return "float" if name in STATISTICS else dtype


def value_of(name: str, shapes: Shapes, names: Sequence[str]) -> str:
    """A number that shapes tell, as text; "" for any other: attention's lengths, the last dimension
    but one of (batch, heads, length, width), and the dimensions that a layer norm's weight has.
    """
    if name == "normalized_shape" and "weight" in names:
        weight = shapes[names.index("weight")]
        return str(list(weight)) if isinstance(weight, tuple) and weight else ""
    place = LENGTHS.get(name)
    shape = shapes[place] if place is not None and place < len(shapes) else ()
    return str(shape[-2]) if isinstance(shape, tuple) and len(shape) > 1 else ""
