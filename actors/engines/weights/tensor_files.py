"""Tensors of a checkpoint's safetensors."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from actors.engines.weights.faults import INDEX, SINGLE, named_weights, shards_of
from protocols.errors import ModelError


class TensorFiles(Mapping[str, Tensor]):
    """By name, in mapped files: a tensor is read when it is asked for."""

    def __init__(self, files: Iterable[Path], without: Container[str] = ()) -> None:
        """Raises ModelError for a file that cannot be read."""
        self._files: dict[str, Any] = {}
        for path in files:
            try:
                file: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read as safetensors: {error}; download it again") from None
            self._files |= dict.fromkeys((name for name in file.keys() if name not in without), file)  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...] | None:
        """As the file's header says it; None: there is no such tensor."""
        file = self._files.get(name)
        return None if file is None else tuple(file.get_slice(name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors of a checkpoint; none, where it has others or no directory is there."""
    usual = (directory / one for one in (SINGLE, INDEX))
    found = named_weights(directory) or next((one for one in usual if one.is_file()), None)
    if found is None:
        return []
    return shards_of(found) if found.suffix == ".json" else [found]
