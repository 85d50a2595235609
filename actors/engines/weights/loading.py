"""Loads models and tokenizers by a name: a path, or a hub's. What fails raises ModelError with a sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from actors.engines.decoder.configuration import compiled_spec, spec_of
from actors.engines.text.kept_tokenizer import FastTokenizer, KeptTokenizer
from actors.engines.text.tokenizer import TokenizerFacts
from actors.engines.weights.checkpoint import Checkpoint
from actors.engines.weights.directory import Directory, quiet, why
from actors.engines.weights.draft_vocabulary import check_config, head_size, model_class, put_in_order
from actors.engines.weights.gguf_loading import GGUFFile
from actors.engines.weights.gguf_names import is_gguf
from actors.engines.weights.hub import located
from actors.engines.weights.identity import identity
from actors.engines.weights.stored import StoredModel
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


def checkpoint_of(name: str) -> Checkpoint:
    """The files of a model by its name: a path, or a hub's."""
    return GGUFFile(name) if is_gguf(name) else Directory(name)


def load_config(name: str) -> Any:
    """The model's configuration as transformers has it. Raises ModelError."""
    quiet()
    return checkpoint_of(name).config()


def _auto_class(config: Any) -> Any:
    """transformers' class of causal language models, or of multimodal ones: only their text part is computed."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:
            return auto
    return AutoModelForCausalLM  # it says what is wrong


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A causal language model in evaluation mode. Raises ModelError."""
    quiet()
    config = load_config(name)
    check_config(name, config)
    part = head_size(config) < config.get_text_config().vocab_size
    options = {"config": config, "dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        if (weights := checkpoint_of(name).numbers(config, device, dtype)) is not None:
            kind = model_class(config) if part else _auto_class(config)._model_mapping[type(config)]
            model, report = kind.from_pretrained(None, state_dict=weights, **options)
        else:
            kind = model_class(config) if part else _auto_class(config)
            model, report = kind.from_pretrained(located(name), trust_remote_code=False, **options)
    except (ModelError, torch.OutOfMemoryError):  # the second has its sentence where the other device is known
        raise
    except Exception as error:
        raise ModelError(why(name, error)) from None
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
    :meth:`Checkpoint.known_config`, where that was read already."""
    files = checkpoint_of(name)
    config = files.known_config() if config is None else config
    packed = device.type != "cpu" or compiled_spec(config, device, dtype) is not None  # torch multiplies no blocks
    return files.for_engine(config, device, dtype, packed, lambda: load_model(name, device, dtype))


def load_tokenizer(name: str) -> Any:
    """The model's tokenizer. Raises ModelError."""
    quiet()
    return checkpoint_of(name).tokenizer()


def serving_tokenizer(name: str) -> Any:
    """The model's tokenizer, or an equal one kept by an earlier start. Raises ModelError."""
    read: list[Any] = []

    def find() -> KeptTokenizer:
        read.append(load_tokenizer(name))
        try:
            return KeptTokenizer.of(read[0])
        except Exception as error:  # the library's, for a text that the tokenizer cannot encode
            raise ModelError(f"the tokenizer of {name} cannot encode a text: {error}; download it again") from None

    files = checkpoint_of(name).tokenizer_files()
    found = kept_of_files(KeptTokenizer, files, find) if files else KeptTokenizer()
    if read or not found.backend:
        return read[0] if read else load_tokenizer(name)
    return FastTokenizer(found)


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

    return kept_of_files(TokenizerFacts, files, read) if (files := checkpoint_of(name).tokenizer_files()) else read()


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
    files = checkpoint_of(name)
    published = "" if stored else files.tool
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
        sampling=_defaults(files.sampling(generation)),
        identity=identity(files, checkpoint_of(tokenizer_of or name), facts.digest),
    )


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
