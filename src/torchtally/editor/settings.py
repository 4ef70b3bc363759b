"""What a client sets: its initialization options, or its settings' section `tally`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from torchtally.errors import UsageError

SECTION = "tally"


class EditorSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Which script is run, on what, and when."""

    gpu: str = ""
    """As --gpu takes it; "" for the default of `tally run`."""
    script: str = ""
    """From the folder that is open; "" for the saved file, where it imports torch."""
    arguments: tuple[str, ...] = ()
    """Of the script."""
    steps: Annotated[int, Meta(ge=1)] = 2
    run_on_save: bool = True
    max_seconds: Annotated[float, Meta(gt=0)] = 600.0


def settings_of(given: Any) -> EditorSettings:
    """The settings, by themselves or in their section. Raises UsageError, which names the key."""
    if isinstance(given, dict) and SECTION in given:
        given = given[SECTION]
    try:
        return msgspec.convert(given or {}, EditorSettings)
    except msgspec.ValidationError as error:
        names = ", ".join(EditorSettings.__struct_encode_fields__)
        raise UsageError(f"settings of {SECTION}: {error}. There are: {names}.") from error
