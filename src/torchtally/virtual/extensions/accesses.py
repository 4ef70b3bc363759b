"""What a Triton kernel loads from and stores to, read from its source.

A pointer is followed from the kernel's parameters through assignments, arithmetic and calls of
other kernels to `tl.load`, `tl.store` and `tl.atomic_*`, regardless of the order of statements and
of which branch is taken. What is loaded is a value, no pointer. A pointer that is handed to
something unknown counts as read and written.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)
Parameters = frozenset[str]
NONE: Parameters = frozenset()


@dataclass(frozen=True, slots=True)
class Accesses:
    """Names of parameters."""

    read: Parameters = NONE
    written: Parameters = NONE


class Known:
    """A called function that is known: one of Triton's own that only computes."""


KNOWN = Known()
Called = ast.FunctionDef | Known | None
"""A function of the script's, one that only computes, or something unknown."""
Resolve = Callable[[ast.expr], Called]
"""What the expression before a call's parentheses stands for."""

LOADS = frozenset(["load", "gather"])
STORES = frozenset(["store", "scatter"])
OPAQUE = frozenset(["inline_asm_elementwise", "extern_elementwise"])
"""Functions of `triton.language` that may do anything with what they are given."""


@dataclass(slots=True)
class Reading:
    """Reading of one kernel's source."""

    function: ast.FunctionDef
    resolve: Resolve
    callers: tuple[str, ...]
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    names: dict[str, Parameters] = field(default_factory=dict)
    """The parameters that a variable's value is computed from."""

    def accesses(self) -> Accesses:
        self.names = {name: frozenset([name]) for name in parameters_of(self.function)}
        while self.follow_assignments():
            pass
        for call in nodes(self.function, ast.Call):
            self.note(call)
        return Accesses(frozenset(self.read), frozenset(self.written))

    def follow_assignments(self) -> bool:
        """Whether a variable turned out to come from more parameters."""
        has_changed = False
        for targets, value in assignments(self.function):
            sources = self.sources(value)
            for target in targets:
                for name in nodes(target, ast.Name):
                    known = self.names.get(name.id, NONE)
                    if not sources <= known:
                        self.names[name.id] = known | sources
                        has_changed = True
        return has_changed

    def sources(self, expression: ast.AST) -> Parameters:
        """The parameters that a pointer is computed from."""
        if isinstance(expression, ast.Name):
            return self.names.get(expression.id, NONE)
        if isinstance(expression, ast.Call) and called_name(expression) in LOADS:
            return NONE
        inner = (self.sources(child) for child in ast.iter_child_nodes(expression))
        return frozenset().union(*inner)

    def note(self, call: ast.Call) -> None:
        name = called_name(call)
        if name in LOADS:
            self.read |= self.address(call)
        elif name in STORES:
            self.written |= self.address(call)
        elif name.startswith("atomic_"):
            self.read |= self.address(call)
            self.written |= self.address(call)
        else:
            self.note_unlike(call, name)

    def note_unlike(self, call: ast.Call, name: str) -> None:
        """A call that is no access itself."""
        is_method = isinstance(call.func, ast.Attribute) and self.is_value(call.func)
        called = KNOWN if is_method else self.resolve(call.func)
        if called is KNOWN and name not in OPAQUE:
            return
        if isinstance(called, ast.FunctionDef) and called.name not in self.callers:
            inner = Reading(called, self.resolve, (*self.callers, called.name)).accesses()
            for parameter, value in arguments_of(call, called):
                sources = self.sources(value)
                self.read |= sources if parameter in inner.read else NONE
                self.written |= sources if parameter in inner.written else NONE
        elif not isinstance(called, ast.FunctionDef):
            sources = frozenset().union(*(self.sources(value) for value in values_of(call)))
            self.read |= sources
            self.written |= sources

    def is_value(self, function: ast.Attribute) -> bool:
        """A method of a variable: `offsets.to(tl.int64)`."""
        root: ast.AST = function.value
        while isinstance(root, (ast.Attribute, ast.Call, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        return not isinstance(root, ast.Name) or root.id in self.names

    def address(self, call: ast.Call) -> Parameters:
        """Parameters that the address of an access is made of: `tl.load(pointer)`, or
        `descriptor.load(offsets)`.
        """
        function = call.func
        if isinstance(function, ast.Attribute) and (own := self.sources(function.value)):
            return own
        named = [keyword.value for keyword in call.keywords if keyword.arg in ("pointer", "desc")]
        return frozenset().union(*map(self.sources, [*call.args[:1], *named][:1]))


def parameters_of(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def nodes(tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def assignments(function: ast.FunctionDef) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """(targets, value)."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from pairwise(targets, value)
            case ast.AugAssign(target=target, value=value):
                yield [target], value
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield [target], value
            case ast.NamedExpr(target=target, value=value):
                yield [target], value
            case ast.For(target=target, iter=value):
                yield [target], value


def pairwise(targets: list[ast.expr], value: ast.expr) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """`a, b = c, d` is two assignments."""
    for target in targets:
        is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if is_tuple and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
            for each, other in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
                yield [each], other
        else:
            yield [target], value


def called_name(call: ast.Call) -> str:
    """Name called, without what it is an attribute of."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def values_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def arguments_of(call: ast.Call, called: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    yield from zip(parameters_of(called), call.args, strict=False)
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value


def accesses_of(function: ast.FunctionDef, resolve: Resolve) -> Accesses:
    return Reading(function, resolve, (function.name,)).accesses()


# What names stand for.


def in_namespace(namespace: Mapping[str, Any], source_of: Callable[[Any], Any]) -> Resolve:
    """Resolves names by the globals of a kernel's module. `source_of` gives the `ast.FunctionDef`
    of a kernel, and None of anything else.
    """

    def resolve(expression: ast.expr) -> Called:
        value = value_of(expression, namespace)
        if value is None:
            return None
        function = source_of(value)
        if isinstance(function, ast.FunctionDef):
            return function
        return KNOWN if only_computes(value) else None

    return resolve


def value_of(expression: ast.expr, namespace: Mapping[str, Any]) -> Any:
    match expression:
        case ast.Name(id=name):
            builtins = namespace.get("__builtins__", {})
            others = builtins if isinstance(builtins, dict) else vars(builtins)
            return namespace.get(name, others.get(name))
        case ast.Attribute(value=inner, attr=name):
            return getattr(value_of(inner, namespace), name, None)
    return None


COMPUTING = ("triton.language", "triton.runtime", "triton._utils", "builtins", "math", "torch")


def only_computes(value: Any) -> bool:
    """One of Triton's own functions, a type, or a function of constants (`triton.constexpr`)."""
    module = getattr(value, "__module__", "") or ""
    return module.startswith(COMPUTING)


def in_source(source: ast.Module) -> Resolve:
    """Resolves names by the functions of a program that is complete by itself."""
    functions = {each.name: each for each in nodes(source, ast.FunctionDef)}

    def resolve(expression: ast.expr) -> Called:
        match expression:
            case ast.Name(id=name):
                return functions.get(name, KNOWN)
        return KNOWN

    return resolve
