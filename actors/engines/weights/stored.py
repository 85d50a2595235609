"""Models with weights in their files until an engine takes them: no module of transformers is built."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from actors.engines.weights.source import WeightSource, own_name

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class StoredModel(nn.Module):
    """``size``: number of parameters; ``kinds``: of blocks, where files hold such; ``generation``: what
    generation_config.json says."""

    def __init__(self, config: Any, source: WeightSource, size: int, kinds: str = "", generation: Any = None) -> None:
        super().__init__()
        self.config, self.source, self.size, self.kinds = config, source, size, kinds
        self.generation_config = SimpleNamespace(**{"eos_token_id": None, **(generation or {})})
        self.marker = nn.Parameter(torch.empty(0, dtype=source.dtype, device=source.device), requires_grad=False)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a directory's safetensors compare with the module that transformers makes of them."""

    is_plain: bool  # each parameter of the module is a tensor of the same name, shape and values
    unused: tuple[str, ...] = ()  # tensors that no parameter is made of


class TensorFiles:
    """:class:`actors.engines.weights.source.WeightSource` of safetensors, which stay mapped."""

    def __init__(self, files: Iterable[Path], unused: Iterable[str], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._files = dict(_tensors(files))
        for name in unused:
            del self._files[name]

    @property
    def size(self) -> int:
        return sum(math.prod(file.get_slice(name).get_shape()) for name, file in self._files.items())

    def __contains__(self, name: str) -> bool:
        return own_name(name, self._files) in self._files

    def take(self, name: str) -> Tensor:
        name = own_name(name, self._files)
        tensor: Tensor = self._files[name].get_tensor(name).to(self.device, self.dtype)
        return tensor

    def blocks(self, name: str) -> None:
        return None

    def expert_blocks(self, name: str) -> None:
        return None


def weight_files(directory: Path) -> list[Path]:
    """The safetensors of a checkpoint; none, where it has others or no directory is there."""
    if (directory / INDEX).is_file():
        names = set(json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return [directory / name for name in sorted(names)]
    return [directory / SINGLE] if (directory / SINGLE).is_file() else []


def compare(model: nn.Module, files: Iterable[Path]) -> Checkpoint:
    """Whether an engine may take the weights of a loaded model out of its files next time."""
    stored, parameters = dict(_tensors(files)), dict(model.named_parameters())
    has_more = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    alike = not has_more and all(
        name in stored and _agrees(one, stored[name].get_slice(name)) for name, one in parameters.items()
    )
    return Checkpoint(alike, tuple(sorted(stored.keys() - parameters.keys())) if alike else ())


def stored_model(
    config: Any, directory: Path, found: Checkpoint, device: torch.device, dtype: torch.dtype
) -> StoredModel:
    """The model of a checkpoint that was found to be plain."""
    source = TensorFiles(weight_files(directory), found.unused, device, dtype)
    return StoredModel(config, source, source.size, generation=generation_of(directory))


def generation_of(directory: Path) -> dict[str, Any]:
    """What generation_config.json says, if it is there."""
    said = directory / "generation_config.json"
    found: dict[str, Any] = json.loads(said.read_text(encoding="utf-8")) if said.is_file() else {}
    return found


def _tensors(files: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    for path in files:
        file: Any = safe_open(path, framework="pt")
        yield from ((name, file) for name in file.keys())  # noqa: SIM118  it is no mapping


def _agrees(parameter: Tensor, stored: Any) -> bool:
    """In shape, and in the values of a row in the middle."""
    if list(parameter.shape) != stored.get_shape() or not parameter.ndim:
        return False
    row = len(parameter) // 3
    return torch.equal(parameter[row].detach().cpu(), stored[row : row + 1][0].to(parameter.dtype))
