"""Models in directories of Hugging Face's, or of a hub id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.decoder.configuration import described, spec_of
from actors.engines.decoder.spec import DecoderSpec, Experts
from actors.engines.text.published import restore_published
from actors.engines.text.tokenizer_files import check_token_ids
from actors.engines.weights.biases import check_biases
from actors.engines.weights.checkpoint import Checkpoint
from actors.engines.weights.damage import check_tensors, tensors_in
from actors.engines.weights.draft_vocabulary import head_size
from actors.engines.weights.faults import check_checkpoint, files_of_weights, quantisation_of, read_json
from actors.engines.weights.gguf_names import SUFFIX
from actors.engines.weights.hub import FILES, located, unknown
from actors.engines.weights.kept_config import KeptConfig
from actors.engines.weights.matrices import numbers_of, put_together
from actors.engines.weights.quantisation import Scheme
from actors.engines.weights.quantised import Weight, read_weights
from actors.engines.weights.source import StoredSource, StoredWeight
from actors.engines.weights.stored import Likeness, StoredModel, compare, generation_of, stored_model
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from actors.engines.weights.unneeded import LAYER, drafts
from actors.kept import kept_of_files
from protocols.errors import ModelError

log = logging.getLogger("duoactor")


@dataclass(frozen=True, slots=True)
class Directory(Checkpoint):
    """A model's files by the path of their directory, or by a hub id; of a tokenizer also by its file."""

    name: str

    @property
    def place(self) -> Path:
        return Path(located(self.name))

    @property
    def scheme(self) -> Scheme | None:
        """What the config of a checkpoint with quantised weights says of them. Raises ModelError."""
        return quantisation_of(self.place) if (self.place / "config.json").is_file() else None

    @property
    def tool(self) -> str:
        return "" if (scheme := self.scheme) is None else scheme.tool

    def config(self) -> Any:
        from transformers import AutoConfig

        quiet()
        check_checkpoint(located(self.name))
        try:
            config = AutoConfig.from_pretrained(located(self.name), trust_remote_code=False)
            kinds = [getattr(part, "dtype", None) for part in (config, config.get_text_config())]
        except Exception as error:
            raise ModelError(why(self.name, error)) from None
        if not all(isinstance(kind, torch.dtype | None) for kind in kinds):
            raise ModelError(f"dtype in {self.place / 'config.json'} is none that weights have; download it again")
        for part in (config, config.get_text_config()):
            if getattr(part, "quantization_config", None) is not None:
                del part.quantization_config  # the weights are loaded dequantised
        _take_one_base(config, self.place / "config.json")
        return config

    def known_config(self) -> Any:
        """As an earlier start has found it, where the fused decoder runs the model."""
        read: list[Any] = []

        def find() -> KeptConfig:
            read.append(self.config())
            return KeptConfig.of(read[0])

        file = self.place / "config.json"
        found = kept_of_files(KeptConfig, [file], find) if file.is_file() else KeptConfig()
        if read or not found.own:
            return read[0] if read else self.config()
        check_checkpoint(located(self.name))
        return found.config()

    def numbers(self, config: Any, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor] | None:
        if (scheme := self.scheme) is None:
            return None
        log.info("%s has %s weights, which are computed in %s", self.name, scheme.tool, dtype)
        found: dict[str, Tensor] = {}
        for key, weight in _stored_weights(self.place, scheme, spec_of(config)).items():
            tensor = numbers_of(weight)
            found[key] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return found

    def for_engine(
        self, config: Any, device: torch.device, dtype: torch.dtype, packed: bool, whole: Callable[[], nn.Module]
    ) -> nn.Module:
        """Unquantised weights stay in files that an earlier start found to be what transformers makes of them."""
        directory = self.place
        if (scheme := self.scheme) is not None:
            return self._quantised(scheme, config, device, dtype, packed) or whole()
        loaded: list[nn.Module] = []

        def load() -> Likeness:
            loaded.append(whole())
            return compare(loaded[0], files)

        files = weight_files(directory)
        found = kept_of_files(Likeness, (*files, directory / "config.json"), load) if files else Likeness(False)
        if loaded:
            return loaded[0]
        return stored_model(config, directory, found, device, dtype) if found.is_plain else whole()

    def _quantised(
        self, scheme: Scheme, config: Any, device: torch.device, dtype: torch.dtype, packed: bool
    ) -> StoredModel | None:
        """None: the checkpoint has other names than the model in memory, or a head for a part of its vocabulary."""
        if head_size(config) < config.get_text_config().vocab_size:
            return None
        spec = described(config)
        weights = _stored_weights(self.place, scheme, spec)
        check_biases(self.name, weights)
        source = StoredSource(self.name, weights, dtype, device, packed)
        tied = config.get_text_config().tie_word_embeddings
        if any(key not in source for key in (*spec.names, *([] if tied else [spec.head]))):
            return None
        return StoredModel(config, source, scheme.tool, generation_of(self.place))

    def ends(self) -> tuple[StoredSource, Mapping[str, Any]]:
        stored = TensorFiles(weight_files(self.place))
        weights: Mapping[str, Tensor | StoredWeight] = stored
        if (scheme := quantisation_of(self.place)) is not None:
            weights = dict(read_weights({key: stored[key] for key in stored if LAYER.search(key) is None}, scheme))
        return StoredSource(self.name, weights, torch.float32), generation_of(self.place)

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        name = _tokenizer_directory(self.name)
        check_token_ids(Path(located(name)))
        try:
            tokenizer = AutoTokenizer.from_pretrained(located(name), trust_remote_code=False)
            for kind, token in tokenizer.special_tokens_map.items():
                if not str(token):  # it has no id, or that of an unknown token
                    setattr(tokenizer, kind, None)
            changed = restore_published(tokenizer, Path(located(name)) / "tokenizer.json")
        except Exception as error:
            if Path(name).is_dir():
                raise ModelError(f"{name} has no tokenizer that can be loaded; add tokenizer.json to it") from None
            raise ModelError(why(name, error)) from None
        if changed:
            log.warning(
                "transformers has replaced the %s of %s's tokenizer, which gives other token ids: tokenizer.json "
                "counts",
                " and ".join(changed),
                name,
            )
        return tokenizer

    def tokenizer_files(self) -> list[Path]:
        directory = Path(located(_tokenizer_directory(self.name)))
        return [file for pattern in FILES for file in directory.glob(pattern)] if directory.is_dir() else []

    def sampling(self, generation: Any) -> Mapping[str, Any]:
        """The model's own configuration, without transformers' own defaults."""
        if hasattr(generation, "to_diff_dict"):
            said: dict[str, Any] = generation.to_diff_dict()
            return said
        return vars(generation or SimpleNamespace())

    def weight_files(self) -> Iterable[Path]:
        others = (sorted(self.place.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))
        return weight_files(self.place) or next(filter(None, others), ())

    def check_undamaged(self, layers: int) -> None:
        for path in files_of_weights(self.place):
            tensors = tensors_in(path)
            check_tensors(path, ((one, tensors[one]) for one in tensors if not drafts(one, layers)))


def _tokenizer_directory(name: str) -> str:
    return str(Path(name).parent) if Path(name).name == "tokenizer.json" else name


def quiet() -> None:
    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each of its retries where there is no network
    hf_logging.disable_progress_bar()
    logging.getLogger("torch.ao").setLevel(logging.ERROR)


def why(name: str, error: Exception) -> str:
    """Why loading has failed, as a sentence that says what to do."""
    path = Path(name)
    if not path.exists():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            return f"model directory {name} does not exist"
        return str(unknown(name))
    if not path.is_dir() and path.suffix != SUFFIX:
        return f"{name} is a file; give the directory of a Hugging Face model, or a .gguf file"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]  # a heading and its reason, both
    if "custom code" in first:
        return f"model {name} brings its own program code, which duoactor does not run; use a model of a stock family"
    if "for this kind of AutoModel" in first:
        return f"{name} is not a causal language model, so it cannot generate text; choose another model"
    if not isinstance(error, OSError | ImportError):  # its own words, about a value that it has read
        words = first.rstrip(".") if isinstance(error, ValueError) else f"{type(error).__name__}: {first}"
        first = f"transformers cannot read its files ({words}); download it again, or install a newer transformers"
    return f"model {name} cannot be loaded: {first}"


def _take_one_base(config: Any, file: Path) -> None:
    """Turn all layers of an older Olmo 3 by the one base that its file says: transformers takes it for those of full
    attention alone (findings/transformers_takes_the_base_of_olmo_3_once.sh)."""
    said = read_json(file) if config.model_type == "olmo3" and file.is_file() else {}
    if "rope_theta" in said and "rope_parameters" not in said:
        config.rope_parameters["sliding_attention"]["rope_theta"] = said["rope_theta"]


def _stored_weights(directory: Path, scheme: Scheme, spec: DecoderSpec | None) -> dict[str, Weight]:
    """Those that transformers would read, if there are others beside them; some tools name their one file after
    themselves. Raises ModelError."""
    files = TensorFiles(weight_files(directory) or sorted(directory.glob("*.safetensors")))
    try:
        weights = dict(read_weights(files, scheme))
        for mixture in (layer.mlp for layer in (spec.layers if spec else ()) if isinstance(layer.mlp, Experts)):
            put_together(weights, mixture.up, mixture.down, mixture.count, mixture.gated)
    except ModelError as error:
        raise ModelError(f"in {directory}, {error}") from None
    return weights
