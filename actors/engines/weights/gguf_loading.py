"""Models in GGUF files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from actors.engines.text.gguf_tokenizer import build_tokenizer, end_ids
from actors.engines.weights.checkpoint import Checkpoint
from actors.engines.weights.damage import check_weights
from actors.engines.weights.gguf import parts_of
from actors.engines.weights.gguf_models import GGUFCheckpoint
from actors.engines.weights.gguf_names import find_gguf
from actors.engines.weights.kept_config import PlainConfig
from actors.engines.weights.source import CPU, StoredSource
from actors.engines.weights.stored import StoredModel
from protocols.errors import ModelError

SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@functools.lru_cache(maxsize=2)
def open_gguf(name: str) -> GGUFCheckpoint:
    """The checkpoint by its name; a target and a draft stay open. Raises ModelError."""
    return GGUFCheckpoint(find_gguf(name))


@dataclass(frozen=True, slots=True)
class GGUFFile(Checkpoint):
    """A model in a GGUF file, by its path or as a hub's repository and quantisation."""

    name: str
    tool: ClassVar[str] = ""

    @property
    def place(self) -> Path:
        return find_gguf(self.name)

    @property
    def opened(self) -> GGUFCheckpoint:
        return open_gguf(self.name)

    def known_config(self) -> PlainConfig:
        ends = end_ids(self.opened.file.metadata, self.name)
        return PlainConfig(self.opened.config | {"eos_token_id": sorted(ends) or None, "_name_or_path": self.name})

    def config(self) -> Any:
        from transformers import CONFIG_MAPPING, AutoConfig

        known = {**self.opened.config, "eos_token_id": self.known_config().eos_token_id}
        if isinstance(getattr(CONFIG_MAPPING[known["model_type"]], "head_dim", None), property):  # Falcon's own
            del known["head_dim"]
        try:
            config = AutoConfig.for_model(known.pop("model_type"), **known)
        except Exception as error:  # transformers' own checks raise anything
            reason = str(error).strip().splitlines()[:2] or [type(error).__name__]
            raise ModelError(
                f"the metadata of {self.name} make no configuration: {' '.join(reason)}; download it again"
            ) from None
        config._name_or_path = self.name
        config.dtype = getattr(torch, known["dtype"])
        return config

    def tokenizer(self) -> Any:
        """transformers' fast tokenizer: the one beside the file, or the file's own."""
        own = self.place.with_name("tokenizer.json")
        if own.exists():
            from transformers import PreTrainedTokenizerFast

            if own.with_name("tokenizer_config.json").exists():
                return PreTrainedTokenizerFast.from_pretrained(str(own.parent))
            return PreTrainedTokenizerFast(tokenizer_file=str(own))
        return build_tokenizer(self.opened.file.metadata, self.name)

    def tokenizer_files(self) -> list[Path]:
        file, beside = self.place, ("tokenizer.json", "tokenizer_config.json")
        return [file, *(one for part in beside if (one := file.with_name(part)).exists())]

    def source(self, dtype: torch.dtype, device: torch.device = CPU, packed: bool = True) -> StoredSource:
        """The weights of the file, see :class:`StoredSource`. Raises ModelError."""
        found = self.opened
        return StoredSource(str(found.file.path), found.own(), dtype, device, packed, found.name_in_file)

    def for_engine(
        self, config: Any, device: torch.device, dtype: torch.dtype, packed: bool = True, whole: object = None
    ) -> StoredModel:
        source = self.source(dtype, device, packed)
        return StoredModel(config, source, self.opened.kinds, let_go=self.opened.file.let_go)

    def ends(self) -> tuple[StoredSource, None]:
        return self.source(torch.float32), None

    def numbers(self, config: Any, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        found = self.opened
        made = {key: torch.from_numpy(found.side_by_side(key)).to(device, dtype) for key in found.own()}
        return made | {key: torch.tensor(one, device=device, dtype=dtype) for key, one in found.constants().items()}

    def sampling(self, generation: object = None) -> dict[str, float]:
        """The sampling that the file asks for, by the names of generation_config.json."""
        said = self.opened.file.metadata
        found = {ours: said[key] for key, ours in SAMPLING.items() if isinstance(said.get(key), int | float)}
        return {ours: round(value, 6) for ours, value in found.items()}  # the file has 32 bits of it

    def weight_files(self) -> list[Path]:
        return parts_of(self.place)

    def check_undamaged(self, layers: int) -> None:
        check_weights(self.opened.file.path, self.opened.own().values())
