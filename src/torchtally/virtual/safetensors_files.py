"""safetensors in a simulated run: its files of virtual tensors hold shapes, and are read back.

The library reads raw memory, which virtual tensors lack. A file with any of them is saved as
`torch.save` would; files of real tensors stay the library's.
"""

import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from torchtally.errors import UnsupportedError
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.shown_devices import shown_virtual
from torchtally.virtual.stand_ins import StandIn

METADATA = "__metadata__"
"""The name under which the format itself keeps its own header."""

Save = Callable[[dict[str, Any], Any], None]
Load = Callable[[Any, Any], dict[str, Any]]


def patches(save: Save, load: Load) -> list[tuple[str, Replacements]]:
    """What is replaced once the library is loaded, also where others have imported it by name;
    `save` and `load` are those of torch.
    """
    return [
        ("safetensors", lambda module: opening(module, load)),
        ("safetensors.torch", lambda module: stand_ins(module, save, load)),
    ]


def opening(module: ModuleType, load: Load) -> list[StandIn]:
    native = module.safe_open

    def safe_open(filename: Any, *args: Any, **options: Any) -> Any:
        if not zipfile.is_zipfile(filename):
            return native(filename, *args, **options)
        from safetensors.torch import _TYPES

        device = options.get("device", args[1] if len(args) > 1 else "cpu")
        names = {dtype: name for name, dtype in _TYPES.items()}
        return ShapesFile(load(filename, device), names)

    return [StandIn(module, "safe_open", safe_open)]


def stand_ins(module: ModuleType, save: Save, load: Load) -> list[StandIn]:
    native_save_file, native_save, native_load_file = (
        module.save_file,
        module.save,
        module.load_file,
    )

    def save_file(tensors: dict[str, Tensor], filename: Any, metadata: Any = None) -> None:
        if any(shown_virtual(tensor) for tensor in tensors.values()):
            save({METADATA: metadata, **tensors}, filename)
        else:
            native_save_file(tensors, filename, metadata)

    def save_bytes(tensors: dict[str, Tensor], metadata: Any = None) -> bytes:
        if any(shown_virtual(tensor) for tensor in tensors.values()):
            raise UnsupportedError(
                "safetensors.torch.save needs bytes, which virtual tensors do not have.\n"
                "Use safetensors.torch.save_file: the simulated run keeps shapes only."
            )
        result: bytes = native_save(tensors, metadata)
        return result

    def load_file(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        if not zipfile.is_zipfile(filename):
            return native_load_file(filename, device, **options)
        tensors = load(filename, device)
        tensors.pop(METADATA, None)
        return tensors

    return [
        StandIn(module, "save_file", save_file),
        StandIn(module, "save", save_bytes),
        StandIn(module, "load_file", load_file),
    ]


class ShapesFile:
    """Stands for `safetensors.safe_open`, of a file that holds virtual tensors."""

    def __init__(self, tensors: dict[str, Any], dtype_names: dict[Any, str]) -> None:
        self._metadata: dict[str, str] | None = tensors.pop(METADATA, None)
        self._tensors: dict[str, Tensor] = tensors
        self._dtype_names = dtype_names

    def __enter__(self) -> "ShapesFile":
        return self

    def __exit__(self, *_: object) -> None: ...

    def keys(self) -> list[str]:
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        """Keys in the order of the file."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> "ShapesSlice":
        tensor = self._tensors[name]
        return ShapesSlice(tensor, self._dtype_names[tensor.dtype])


class ShapesSlice:
    """Stands for what its `get_slice` returns."""

    def __init__(self, tensor: Tensor, dtype_name: str) -> None:
        self._tensor, self._dtype_name = tensor, dtype_name

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._dtype_name

    def __getitem__(self, index: Any) -> Tensor:
        return self._tensor[index]
