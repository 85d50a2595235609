"""Tensors of a checkpoint's safetensors."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class TensorFiles(Mapping[str, Tensor]):
    """By name, in mapped files: a tensor is read when it is asked for."""

    def __init__(self, files: Iterable[Path], without: Container[str] = ()) -> None:
        self._files: dict[str, Any] = {}
        for path in files:
            file: Any = safe_open(path, framework="pt")
            self._files |= dict.fromkeys((name for name in file.keys() if name not in without), file)  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors of a checkpoint; none, where it has others or no directory is there."""
    if (directory / INDEX).is_file():
        names = set(json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return [directory / name for name in sorted(names)]
    return [directory / SINGLE] if (directory / SINGLE).is_file() else []
