"""Loads models and tokenizers from a directory or a hub id. What fails raises ModelError with a sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from actors.engines.decoder.configuration import compiled_spec, described, spec_of
from actors.engines.decoder.spec import Experts
from actors.engines.text.kept_tokenizer import FastTokenizer, KeptTokenizer
from actors.engines.text.published import restore_published
from actors.engines.text.tokenizer import TokenizerFacts
from actors.engines.text.tokenizer_files import check_token_ids
from actors.engines.weights.biases import check_biases
from actors.engines.weights.draft_vocabulary import check_config, head_size, model_class, put_in_order
from actors.engines.weights.faults import check_checkpoint, quantisation_of, read_json
from actors.engines.weights.gguf_loading import (
    gguf_config,
    gguf_generation,
    gguf_tokenizer,
    gguf_weights,
    packed_model,
    transformers_config,
)
from actors.engines.weights.gguf_names import find_gguf, is_gguf
from actors.engines.weights.hub import FILES, located, unknown
from actors.engines.weights.identity import identity
from actors.engines.weights.kept_config import KeptConfig
from actors.engines.weights.matrices import put_together
from actors.engines.weights.quantisation import Scheme
from actors.engines.weights.quantised import Weight, read_weights
from actors.engines.weights.source import StoredSource
from actors.engines.weights.stored import Checkpoint, StoredModel, compare, generation_of, stored_model
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from actors.engines.weights.unneeded import refuse_unused, without_place
from actors.kept import kept_of_files
from actors.models import ModelInfo
from actors.settings import BUNDLED
from protocols.errors import ConfigError, ModelError
from protocols.messages import DEFAULTED, UNCHANGED, Sampling
from protocols.validation import problems

log = logging.getLogger("duoactor")


def resolve_device(name: str) -> torch.device:
    """The torch device by its name; ``auto`` is the first GPU, or the CPU if there is none. Raises ConfigError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is not a torch device; try cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} needs a CUDA GPU and none is visible; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} is not here: {torch.cuda.device_count()} GPUs are visible")
    return device


def _quiet() -> None:
    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each of its retries where there is no network
    hf_logging.disable_progress_bar()
    logging.getLogger("torch.ao").setLevel(logging.ERROR)


def _why(name: str, error: Exception) -> str:
    """Why loading has failed, as a sentence that says what to do."""
    path = Path(name)
    if not path.exists():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            return f"model directory {name} does not exist"
        return str(unknown(name))
    if not path.is_dir() and not is_gguf(name):
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


def load_config(name: str) -> Any:
    """The model's configuration. Raises ModelError."""
    from transformers import AutoConfig

    _quiet()
    if is_gguf(name):
        return transformers_config(name)
    directory = located(name)
    check_checkpoint(directory)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        kinds = [getattr(part, "dtype", None) for part in (config, config.get_text_config())]
    except Exception as error:
        raise ModelError(_why(name, error)) from None
    if not all(isinstance(kind, torch.dtype | None) for kind in kinds):
        raise ModelError(f"dtype in {Path(directory) / 'config.json'} is none that weights have; download it again")
    for part in (config, config.get_text_config()):
        if getattr(part, "quantization_config", None) is not None:
            del part.quantization_config  # the weights are loaded dequantised
    _take_one_base(config, Path(directory) / "config.json")
    return config


def _take_one_base(config: Any, file: Path) -> None:
    """Turn all layers of an older Olmo 3 by the one base that its file says: transformers takes it for those of full
    attention alone (findings/transformers_takes_the_base_of_olmo_3_once.sh)."""
    said = read_json(file) if config.model_type == "olmo3" and file.is_file() else {}
    if "rope_theta" in said and "rope_parameters" not in said:
        config.rope_parameters["sliding_attention"]["rope_theta"] = said["rope_theta"]


def known_config(name: str) -> Any:
    """The configuration, without transformers where the fused decoder runs the model: of a GGUF file, or as an earlier
    start has found. Raises ModelError."""
    if is_gguf(name):
        return gguf_config(name)
    read: list[Any] = []

    def find() -> KeptConfig:
        read.append(load_config(name))
        return KeptConfig.of(read[0])

    file = Path(located(name)) / "config.json"
    found = kept_of_files(KeptConfig, [file], find) if file.is_file() else KeptConfig()
    if read or not found.own:
        return read[0] if read else load_config(name)
    check_checkpoint(located(name))
    return found.config()


def _quantisation(directory: str) -> Scheme | None:
    """What the config of a checkpoint with quantised weights says of them. Raises ModelError."""
    return quantisation_of(Path(directory)) if (Path(directory) / "config.json").is_file() else None


def _published(name: str) -> str:
    """How a directory's or hub model's weights were quantised by its publisher; "": they were not."""
    scheme = None if is_gguf(name) else _quantisation(located(name))
    return "" if scheme is None else scheme.tool


def _auto_class(config: Any) -> Any:
    """transformers' class of causal language models, or of multimodal ones: only their text part is computed."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:
            return auto
    return AutoModelForCausalLM  # it says what is wrong


def _read_weights(name: str, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor] | None:
    """What transformers cannot read: weights in a GGUF file, or quantised ones, in numbers. None: it can."""
    if is_gguf(name):
        return gguf_weights(name, device, dtype)
    directory = Path(located(name))
    if (scheme := _quantisation(str(directory))) is None:
        return None
    log.info("%s has %s weights, which are computed in %s", name, scheme.tool, dtype)
    found: dict[str, Tensor] = {}
    for key, weight in _stored_weights(directory, scheme).items():
        tensor = weight if isinstance(weight, Tensor) else weight.values()
        found[key] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return found


def _stored_weights(directory: Path, scheme: Scheme) -> dict[str, Weight]:
    """Those that transformers would read, if there are others beside them; some tools name their one file after
    themselves. Raises ModelError."""
    files = TensorFiles(weight_files(directory) or sorted(directory.glob("*.safetensors")))
    try:
        return dict(read_weights(files, scheme))
    except ModelError as error:
        raise ModelError(f"in {directory}, {error}") from None


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A causal language model in evaluation mode. Raises ModelError."""
    _quiet()
    config = load_config(name)
    check_config(name, config)
    part = head_size(config) < config.get_text_config().vocab_size
    options = {"config": config, "dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        if (weights := _read_weights(name, device, dtype)) is not None:
            kind = model_class(config) if part else _auto_class(config)._model_mapping[type(config)]
            model, report = kind.from_pretrained(None, state_dict=weights, **options)
        else:
            kind = model_class(config) if part else _auto_class(config)
            model, report = kind.from_pretrained(located(name), trust_remote_code=False, **options)
    except (ModelError, torch.OutOfMemoryError):  # the second has its sentence where the other device is known
        raise
    except Exception as error:
        raise ModelError(_why(name, error)) from None
    lacking, layers = sorted(report["missing_keys"]), int(config.get_text_config().num_hidden_layers)
    for key, *shapes in report["mismatched_keys"]:
        stored, said = (" x ".join(map(str, shape)) for shape in shapes)
        lacking.append(f"{key}, which is {stored} where config.json says {said},")
    if lacking:  # transformers initialises them at random
        strange = without_place(report["unexpected_keys"], layers)
        other = f", and its {min(strange)} has no place" if strange else ""
        raise ModelError(
            f"the checkpoint of model {name} does not fit its configuration: {len(lacking)} weights are missing or of "
            f"another shape, {lacking[0]} first{other}; choose a checkpoint that transformers reads without a warning, "
            "or download it again if its files were changed"
        )
    refuse_unused(name, report["unexpected_keys"], layers)
    if part:
        put_in_order(name, model)
    model.requires_grad_(False)
    result: nn.Module = model.to(device).eval()
    return result


def load_for_engine(name: str, device: torch.device, dtype: torch.dtype, config: Any = None) -> nn.Module:
    """:func:`load_model`, or for the fused decoder what leaves its weights in their files: GGUF files, quantised
    safetensors, and others that an earlier start found to be what transformers makes of them. ``config``: the model's
    :func:`known_config`, where that was read already."""
    config = known_config(name) if config is None else config
    packed = device.type != "cpu" or compiled_spec(config, device, dtype) is not None  # torch multiplies no blocks
    if is_gguf(name):
        return packed_model(name, config, device, dtype, packed)
    if _published(name):
        return _quantised_model(name, config, device, dtype, packed) or load_model(name, device, dtype)
    loaded: list[nn.Module] = []

    def load_whole() -> Checkpoint:
        loaded.append(load_model(name, device, dtype))
        return compare(loaded[0], files)

    directory = Path(located(name))
    files = weight_files(directory)
    found = kept_of_files(Checkpoint, (*files, directory / "config.json"), load_whole) if files else Checkpoint(False)
    if loaded:
        return loaded[0]
    return stored_model(config, directory, found, device, dtype) if found.is_plain else load_model(name, device, dtype)


def _quantised_model(
    name: str, config: Any, device: torch.device, dtype: torch.dtype, packed: bool
) -> StoredModel | None:
    """None: the checkpoint has other names than the model in memory, or a head for a part of its vocabulary."""
    if head_size(config) < config.get_text_config().vocab_size:
        return None
    directory = Path(located(name))
    scheme = _quantisation(str(directory))
    assert scheme is not None
    weights, spec = _stored_weights(directory, scheme), described(config)
    for mixture in (layer.mlp for layer in spec.layers if isinstance(layer.mlp, Experts)):
        put_together(weights, mixture.up, mixture.down, mixture.count, mixture.gated)
    check_biases(name, weights)
    source = StoredSource(name, weights, dtype, device, packed)
    tied = config.get_text_config().tie_word_embeddings
    if any(key not in source for key in (*spec.names, *([] if tied else [spec.head]))):
        return None
    return StoredModel(config, source, scheme.tool, generation_of(directory))


def load_tokenizer(name: str) -> Any:
    """The model's tokenizer. Raises ModelError."""
    from transformers import AutoTokenizer

    _quiet()
    if is_gguf(name):
        return gguf_tokenizer(name)
    name = _tokenizer_directory(name)
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
        raise ModelError(_why(name, error)) from None
    if changed:
        log.warning(
            "transformers has replaced the %s of %s's tokenizer, which gives other token ids: tokenizer.json counts",
            " and ".join(changed),
            name,
        )
    return tokenizer


def serving_tokenizer(name: str) -> Any:
    """The model's tokenizer, or an equal one kept by an earlier start. Raises ModelError."""
    read: list[Any] = []

    def find() -> KeptTokenizer:
        read.append(load_tokenizer(name))
        try:
            return KeptTokenizer.of(read[0])
        except Exception as error:  # the library's, for a text that the tokenizer cannot encode
            raise ModelError(f"the tokenizer of {name} cannot encode a text: {error}; download it again") from None

    found = kept_of_files(KeptTokenizer, files, find) if (files := tokenizer_files(name)) else KeptTokenizer()
    if read or not found.backend:
        return read[0] if read else load_tokenizer(name)
    return FastTokenizer(found)


def _tokenizer_directory(name: str) -> str:
    return str(Path(name).parent) if Path(name).name == "tokenizer.json" else name


def tokenizer_files(name: str) -> list[Path]:
    """All files of which a model's tokenizer may be made."""
    if is_gguf(name):
        file = find_gguf(name)
        beside = ("tokenizer.json", "tokenizer_config.json")
        return [file, *(one for part in beside if (one := file.with_name(part)).exists())]
    directory = Path(located(_tokenizer_directory(name)))
    return [file for pattern in FILES for file in directory.glob(pattern)] if directory.is_dir() else []


def _ids(name: str, value: Any) -> set[int]:
    """The ids in a configuration's ``eos_token_id``. Raises ModelError."""
    ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(type(one) is int for one in ids):
        raise ModelError(f"eos_token_id of {name} is {value!r}, which is no number of a token; download it again")
    return set(ids)


def vocab_size(model: nn.Module) -> int:
    config: Any = model.config
    return int(config.get_text_config().vocab_size)


def longest_context(model: nn.Module) -> int:
    """The longest text: with YaRN by its factor, as others count it, where the configuration names a shorter one.
    Raises ModelError."""
    config: Any = model.config
    text = config.get_text_config()
    longest = int(getattr(text, "max_position_embeddings", 4096))
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "yarn":
        longest = max(longest, int(rope["factor"] * rope.get("original_max_position_embeddings", longest)))
    if longest < 1:
        raise ModelError(f"max_position_embeddings of {config._name_or_path} is {longest}; download it again")
    return longest


def max_context(model: nn.Module, asked: int = 0) -> int:
    """The longest text that is served: with LongRoPE that of the first training, since more changes short texts too.
    ``asked``: another; 0: none. Raises ModelError and ConfigError."""
    config: Any = model.config
    longest, spec = longest_context(model), spec_of(config)
    if asked == 1:
        raise ConfigError("a context of 1 token has no room for a prompt and its answer; ask for 2 tokens or more")
    if asked > longest:
        raise ConfigError(
            f"context {asked} is longer than the {longest} tokens of {config._name_or_path}; ask for less"
        )
    return asked or min(longest, (spec and spec.edge) or longest)


def tokenizer_facts(name: str, tokenizer: Any = None) -> TokenizerFacts:
    """The facts of a model's tokenizer, which is loaded if it is not given and an earlier start has not kept them."""

    def read() -> TokenizerFacts:
        return TokenizerFacts.of(serving_tokenizer(name) if tokenizer is None else tokenizer)

    return kept_of_files(TokenizerFacts, files, read) if (files := tokenizer_files(name)) else read()


def describe(
    name: str, model: nn.Module, tokenizer: Any, device: torch.device, dtype: str, tokenizer_of: str = ""
) -> ModelInfo:
    """What the actors need to know of a model. ``tokenizer_of``: the model that the tokenizer came with.

    End-of-sequence ids are those of its generation configuration, of its configuration and of its tokenizer, which may
    differ.
    """

    config: Any = model.config
    stored = model if isinstance(model, StoredModel) else None
    text = config.get_text_config()
    generation = getattr(model, "generation_config", None)
    eos: set[int] = set()
    for place in (generation, text, tokenizer):
        eos |= _ids(name, getattr(place, "eos_token_id", None))
    facts = tokenizer_facts(tokenizer_of or name, tokenizer)
    published = "" if stored else _published(name)
    return ModelInfo(
        model_id=_model_id(name),
        vocab_size=vocab_size(model),
        max_context=max_context(model),
        eos_token_ids=frozenset(int(i) for i in eos if 0 <= int(i) < text.vocab_size),
        tokenizer_digest=facts.digest,
        tokenizer=facts.parts,
        parameters=stored.source.size if stored else sum(p.numel() for p in model.parameters()),
        device=str(device),
        layers=int(text.num_hidden_layers),
        dtype=(stored and stored.kinds) or (f"{published}, computed in {dtype}" if published else dtype),
        tool_form=facts.tool_form,
        response_template=facts.response_template,
        thinking=facts.thinking,
        sampling=_defaults(gguf_generation(name) if is_gguf(name) else _said(generation)),
        identity=identity(name, tokenizer_of or name, facts.digest),
    )


def _said(generation: Any) -> Mapping[str, Any]:
    """A generation configuration without transformers' own defaults."""
    if hasattr(generation, "to_diff_dict"):
        said: dict[str, Any] = generation.to_diff_dict()
        return said
    return vars(generation or SimpleNamespace())


def _defaults(given: Mapping[str, Any]) -> Sampling:
    """What the model's publisher asks for: the sampling of a request that names none. What ``do_sample`` turns off
    counts nevertheless, as in other servers: it is transformers' default for a call of ``generate``."""
    values = {name: given[name] for name in DEFAULTED if isinstance(given.get(name), int | float)}
    made = msgspec.structs.replace(UNCHANGED, **values)
    return UNCHANGED if any(problems(made)) else made


def _model_id(name: str) -> str:
    """The hub id, or the name of the directory; "bundled" for both models of the bundled pair."""
    path = Path(name)
    if path.suffix == ".gguf":
        return path.stem
    if not path.exists():
        return name
    return BUNDLED if path.parent.parts[-2:] == ("duoactor", "pair") else path.name
