"""Inductor's templates of kernels, parsed when one is first written: of most that is never."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch._inductor.codegen.common as common


class Template:
    """Stands for jinja's."""

    def __init__(self, parse: Callable[[str], Any], source: str) -> None:
        self._parse, self._source = parse, source

    @cached_property
    def _parsed(self) -> Any:
        return self._parse(self._source)

    def render(self, *args: Any, **options: Any) -> str:
        text: str = self._parsed.render(*args, **options)
        return text


@contextmanager
def parsed_late() -> Iterator[None]:
    """Context that parses templates made within it when they are used: all of inductor's, while it
    is imported.
    """
    owner: Any = common.KernelTemplate
    native = vars(owner)["_template_from_string"]
    owner._template_from_string = staticmethod(lambda source: Template(native.__func__, source))
    try:
        yield
    finally:
        owner._template_from_string = native
