"""Models and tasks of the user's own: `model.code` and `task` are module:name.

    task(config)   an object with
        batch(step)                   (inputs, targets) of config.batch rows: a function of the step
                                      alone, so that a resumed training sees the same
        loss(model, inputs, targets)  optional: the mean loss; else see `loss_of`
        validation()                  optional: the same (inputs, targets) every time
        model                         optional: trained where the config names no model

Modules are imported from the current folder, or as installed. What a checkpoint compares is the
fingerprint of their own files: what they import is not in it.
"""

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchtally.errors import UsageError, did_you_mean
from torchtally.train.data.fingerprint import Fingerprint
from torchtally.train.models.loss import IGNORED


def load(key: str, reference: str) -> Callable[..., Any]:
    """What a key of the config names. Raises UsageError where it is not there."""
    module_name, _, name = reference.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as error:
        place = _place(error)
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module_name
        reason = (
            f"there is no such module in {here}, or installed"
            if is_missing
            else (f"importing it failed{place}: {type(error).__name__}: {error}")
        )
        raise UsageError(f"{key}: {reference}: {reason}.") from error
    value_of_name = getattr(module, name, None)
    if not callable(value_of_name):
        names = [each for each, value in vars(module).items() if callable(value)]
        raise UsageError(
            f"{key}: {module.__file__} has no {name!r} to call. {did_you_mean(name, names)}"
        )
    named: Callable[..., Any] = value_of_name
    return named


def call(key: str, reference: str, *args: Any, **options: Any) -> Any:
    """What it returns. Raises UsageError for arguments that it does not take."""
    function = load(key, reference)
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        raise UsageError(f"{key}: {reference}: {error}.") from error
    return function(*args, **options)


def module_of(reference: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The model of `model.code`."""
    model = call("model.code", reference, **arguments)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model.code: {reference}: is a {type(model).__name__}, not an nn.Module.")
    return model


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The model's own `loss(inputs, targets)`; else of what it returns: cross-entropy with whole
    targets, of which -100 does not count, and the mean squared error with others.
    """
    if callable(own := getattr(model, "loss", None)):
        loss: Tensor = own(inputs, targets)
        return loss
    outputs = model(inputs)
    if targets.is_floating_point():
        return nn.functional.mse_loss(outputs, targets)
    logits = outputs.flatten(0, -2)
    return nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)


def fingerprint_of(references: Mapping[str, str]) -> dict[str, Fingerprint]:
    """Fingerprints of the files that these keys name, under "code"; empty without keys."""
    files = [inspect.getsourcefile(load(*each)) for each in references.items()]
    digest = hashlib.sha256()
    for file in dict.fromkeys(filter(None, files)):
        digest.update(Path(file).read_bytes())
    return {"code": {"files": len({*files}), "sha256": digest.hexdigest()}} if files else {}


def _place(error: Exception) -> str:
    """Line at which it was raised, if that is in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
