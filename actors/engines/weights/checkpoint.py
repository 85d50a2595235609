"""The files of a model: a directory of Hugging Face's or a GGUF file, by one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from actors.engines.weights.source import StoredSource


class Checkpoint(Protocol):
    """Nothing is read or downloaded before a method asks for it. All raise ModelError for files that cannot be read."""

    @property
    def place(self) -> Path:
        """The directory or the (first) file, downloaded if it is not here."""
        ...

    @property
    def tool(self) -> str:
        """What quantised the weights, where that is no part of their own types; "": nothing."""
        ...

    def config(self) -> Any:
        """transformers' configuration."""
        ...

    def known_config(self) -> Any:
        """The configuration without transformers, where it is known: of a GGUF file, or as an earlier start found."""
        ...

    def numbers(self, config: Any, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor] | None:
        """The weights that transformers cannot read itself; None: it can."""
        ...

    def for_engine(
        self, config: Any, device: torch.device, dtype: torch.dtype, packed: bool, whole: Callable[[], nn.Module]
    ) -> nn.Module:
        """A model that leaves its weights in their files until an engine takes them, or what ``whole`` loads by
        transformers. ``packed``: products read weights as they are stored."""
        ...

    def ends(self) -> tuple[StoredSource, Mapping[str, Any] | None]:
        """float32 weights outside of layers, and what generation_config.json says."""
        ...

    def tokenizer(self) -> Any:
        """transformers' tokenizer."""
        ...

    def tokenizer_files(self) -> list[Path]:
        """All files of which the tokenizer may be made."""
        ...

    def sampling(self, generation: Any) -> Mapping[str, Any]:
        """The sampling that the publisher asks for. ``generation``: the model's configuration of it."""
        ...

    def weight_files(self) -> Iterable[Path]:
        """All files with weights."""
        ...

    def check_undamaged(self, layers: int) -> None:
        """Raise ModelError, which names tensor and file, if a tensor holds NaN or infinity.

        The files that are loaded are read once more, all but tensors that the model does not compute with. ``layers``:
        of the model; later ones draft."""
        ...
