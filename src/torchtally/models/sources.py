"""Models by name: a class in the user's code, a config.json of transformers or diffusers, a name of
timm.
"""

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from torchtally.errors import ScriptError, UsageError, did_you_mean
from torchtally.models.calls import CHANNELS, IMAGE, LABELLED, USUAL_SEQUENCE
from torchtally.models.config_sizes import check_sizes
from torchtally.models.config_values import config_values
from torchtally.models.inputs import InputSpec, input_spec
from torchtally.plan.architecture.known import known_row

CONFIG = "config.json"
TOKENS, PIXELS = "input_ids", "pixel_values"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """How to build a model, and what it is called with where nothing is given."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    """By name; empty where it must be given."""
    first: str = ""
    """The name of the first of them."""
    copied_as_labels: bool = False
    """The first is given again as `labels`, and the model returns its loss."""

    def fill(
        self, positional: Sequence[str], named: Mapping[str, str], *, is_training: bool
    ) -> tuple[list[InputSpec], dict[str, InputSpec]]:
        """The inputs given, else the model's own. Raises UsageError where there are none."""
        in_order = [input_spec(text) for text in positional]
        by_name = {name: input_spec(text) for name, text in named.items()}
        if not in_order and not by_name:
            if not self.inputs:
                raise UsageError(
                    "missing inputs. Give their shapes and dtypes: --input 4x512:int64, or by "
                    "name: --input x=8x3x224x224."
                )
            in_order, by_name = [], dict(self.inputs)
        elif self.first and in_order:
            by_name = {self.first: in_order.pop(0), **by_name}
        usual = self.inputs.get(self.first)
        given = by_name.get(self.first)
        if given is not None and given.dtype is None and usual is not None:
            by_name[self.first] = given = replace(given, dtype=usual.dtype)
        if self.copied_as_labels and is_training and given is not None:
            by_name.setdefault("labels", given)
        return in_order, by_name


def model_source(name: str) -> ModelSource:
    """What `pkg.module:Model`, `file.py:Model(8, heads=4)`, `config.json`, a name that `tally plan`
    knows, or one of timm means.

    Raises UsageError and ScriptError where there is no such thing.
    """
    if os.path.isdir(name) and os.path.isfile(os.path.join(name, CONFIG)):
        name = os.path.join(name, CONFIG)
    if name.endswith(".json"):
        return _of_config(name)
    if ":" in name:
        return ModelSource(_of_code(name))
    known = _known_config(name)
    return _of_timm(name) if known is None else _of_values(known, name)


# The user's own code ------------------------------------------------------------------------------


def _of_code(name: str) -> Callable[[], nn.Module]:
    place, _, expression = name.rpartition(":")
    attribute, positional, named = _call(expression, name)

    def build() -> nn.Module:
        value: Any = _module(place)
        for part in attribute.split("."):
            if not hasattr(value, part):
                near = did_you_mean(part, [key for key in dir(value) if not key.startswith("_")])
                raise UsageError(f"{place} has no {attribute}. {near[:300]}")
            value = getattr(value, part)
        return value if isinstance(value, nn.Module) else value(*positional, **named)

    return build


def _call(expression: str, name: str) -> tuple[str, list[Any], dict[str, Any]]:
    """(attribute, arguments, named arguments) of "Model" or "Model(8, heads=4)": literals alone."""
    try:
        node = ast.parse(expression, mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("** is not a literal")
        attribute = ast.unparse(call.func)
        if not all(part.isidentifier() for part in attribute.split(".")):
            raise ValueError(attribute)
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        return attribute, [ast.literal_eval(value) for value in call.args], named
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{name[:200]!r} does not name a model.\n"
            "These work: package.module:Model, file.py:make_model, 'file.py:Model(8, "
            "width=512)'; arguments are literals."
        ) from error


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _file(place)
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and not (place == missing or place.startswith(f"{missing}.")):
            raise
        raise ScriptError(f"{place}: no such module, from {directory} or installed.") from error


def _file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise ScriptError(f"{path}: no such file.")
    name = os.path.splitext(os.path.basename(path))[0]
    specification = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules[name] = module  # classes are looked up there: dataclasses, pickle
    specification.loader.exec_module(module)
    return module


# transformers and diffusers -----------------------------------------------------------------------


def _known_config(name: str) -> dict[str, Any] | None:
    """The configuration of a model known by name; None of any other."""
    try:
        config = known_row(name).config
    except UsageError:
        return None
    return None if config is None else dict(config)


def _of_config(path: str) -> ModelSource:
    return _of_values(config_values(path), path)


def _of_values(values: dict[str, Any], path: str) -> ModelSource:
    if isinstance(values.get("_class_name"), str):
        return _of_diffusers(values, path)
    kind, config = class_of_values(values, path)

    def build() -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(config.dtype or before)  # as transformers' own from_pretrained
        try:
            model: nn.Module = kind(config)
        finally:
            torch.set_default_dtype(before)
        return model

    return _source_for(build, kind, config)


def class_of_values(values: dict[str, Any], path: str) -> tuple[Any, Any]:
    """The class of transformers that a config.json is for, and its configuration.

    Raises UsageError where transformers has neither, or rejects the values.
    """
    check_sizes(path, values)
    transformers = _import_library("transformers", path)
    try:
        config = transformers.AutoConfig.for_model(**values)
    except Exception as error:  # each configuration has checks of its own
        message = " ".join(str(error).split())[:300]
        raise UsageError(f"{path}: transformers rejects it: {message}") from error
    return _class_of(transformers, config, path), config


def _class_of(transformers: Any, config: Any, path: str) -> Any:
    """The class that the configuration names, else the one for causal language models, else the
    bare model.
    """
    for name in config.architectures or ():
        kind = getattr(transformers, str(name), None)
        if kind is None:
            raise UsageError(
                f"{path}: transformers {transformers.__version__} has no class {str(name)[:100]}, "
                "and code that comes with a checkpoint is not run.\n"
                "Give a class of your own: tally summary package.module:Model"
            )
        return kind
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise UsageError(f"{path}: transformers has no model for {type(config).__name__}.")


def _source_for(build: Callable[[], nn.Module], kind: Any, config: Any) -> ModelSource:
    first = kind.main_input_name
    if first == TOKENS:
        text = config.get_text_config()
        longest = getattr(text, "max_position_embeddings", None) or USUAL_SEQUENCE
        spec = InputSpec((1, min(USUAL_SEQUENCE, longest)), torch.int64)
        has_loss = kind.__name__.endswith(LABELLED)
        return ModelSource(build, {first: spec}, first, has_loss)
    if first == PIXELS:
        image = getattr(config, "image_size", None) or IMAGE
        height, width = (image, image) if isinstance(image, int) else image
        channels = getattr(config, "num_channels", None) or CHANNELS
        return ModelSource(build, {first: InputSpec((1, channels, height, width), None)}, first)
    return ModelSource(build, {}, first)


def _of_diffusers(values: dict[str, Any], path: str) -> ModelSource:
    diffusers = _import_library("diffusers", path)
    name = values["_class_name"]
    kind = getattr(diffusers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UsageError(
            f"{path}: diffusers {diffusers.__version__} has no model {name[:100]}.\n"
            "Of a pipeline give the part that is trained: unet/config.json, transformer/config.json"
        )

    def build() -> nn.Module:
        model: nn.Module = kind.from_config(values)  # type: ignore[attr-defined]
        return model

    return ModelSource(build)


# timm ---------------------------------------------------------------------------------------------


def _of_timm(name: str) -> ModelSource:
    timm = _import_library("timm", name)
    if not timm.is_model(name):
        names = timm.list_models()
        known = did_you_mean(name, names) if len(name) < 100 else ""
        remedy = known if known.startswith("Did") else "timm.list_models() lists them."
        raise UsageError(f"timm has no model {name[:100]!r}. {remedy}")
    settings = timm.get_pretrained_cfg(name)
    size = tuple(settings.input_size) if settings is not None else (CHANNELS, IMAGE, IMAGE)

    def build() -> nn.Module:
        model: nn.Module = timm.create_model(name, pretrained=False)
        return model

    return ModelSource(build, {"x": InputSpec((1, *size), None)}, "x")


def _import_library(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except Exception as error:  # also what a library raises that is built for another torch
        raise UsageError(
            f"{name[:200]}: {library} is needed, and cannot be imported ({error}).\n"
            f"Install it: pip install {library}. A model of your own is package.module:Model."
        ) from error
