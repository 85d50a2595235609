"""Models with weights in their files until an engine takes them: no module of transformers is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.weights.faults import read_json
from actors.engines.weights.source import StoredSource
from actors.engines.weights.tensor_files import TensorFiles, weight_files


class StoredModel(nn.Module):
    """``kinds``: of blocks, where files hold such; ``generation``: what generation_config.json says; ``let_go``: called
    when an engine has taken the weights."""

    def __init__(
        self,
        config: Any,
        source: StoredSource,
        kinds: str = "",
        generation: Any = None,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.let_go = let_go
        self.config, self.source, self.kinds = config, source, kinds
        self.generation_config = SimpleNamespace(**{"eos_token_id": None, **(generation or {})})
        self.marker = nn.Parameter(torch.empty(0, dtype=source.dtype, device=source.device), requires_grad=False)


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a directory's safetensors compare with the module that transformers makes of them."""

    is_plain: bool  # each parameter of the module is a tensor of the same name, shape and values
    unused: tuple[str, ...] = ()  # tensors that no parameter is made of


def compare(model: nn.Module, files: Iterable[Path]) -> Likeness:
    """Whether an engine may take the weights of a loaded model out of its files next time."""
    stored, parameters = TensorFiles(files), dict(model.named_parameters())
    has_more = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    alike = not has_more and all(name in stored and _agrees(one, stored[name]) for name, one in parameters.items())
    return Likeness(alike, tuple(sorted(stored.keys() - parameters.keys())) if alike else ())


def stored_model(
    config: Any, directory: Path, found: Likeness, device: torch.device, dtype: torch.dtype
) -> StoredModel:
    """The model of a checkpoint that was found to be plain."""
    source = StoredSource(str(directory), TensorFiles(weight_files(directory), found.unused), dtype, device)
    return StoredModel(config, source, generation=generation_of(directory))


def generation_of(directory: Path) -> dict[str, Any]:
    """What generation_config.json says, if it is there. Raises ModelError if it cannot be read."""
    said = directory / "generation_config.json"
    return read_json(said) if said.is_file() else {}


def _agrees(parameter: Tensor, stored: Tensor) -> bool:
    """In shape, and in the values of a row in the middle."""
    if parameter.shape != stored.shape or not parameter.ndim:
        return False
    row = len(parameter) // 3
    return torch.equal(parameter[row].detach().cpu(), stored[row].to(parameter.dtype))
