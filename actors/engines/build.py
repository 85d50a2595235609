"""From a model's name to a TargetModel or a DraftModel: which engine, which type of weights, how large a pool."""

from __future__ import annotations

import torch
from torch import nn

from actors.engines.backends.llama.engine import LlamaEngine, supports
from actors.engines.backends.transformers import TransformersEngine
from actors.engines.draft import Draft
from actors.engines.engine import Engine
from actors.engines.loading import (
    TokenizerCodec,
    describe,
    load_config,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
)
from actors.engines.target import Target
from actors.models import ModelInfo
from protocols.errors import ConfigError

CONTEXTS = 4  # full contexts that a KV pool holds by default ...
MAX_TOKENS = 16_384  # ... but no more tokens than this
SMALL_DRAFT = 8_000_000  # parameters below which dispatch, not arithmetic, is a draft step's time: int8 buys nothing


def _slots(asked: int, max_context: int) -> int:
    return asked or max(max_context + 1024, min(CONTEXTS * max_context, MAX_TOKENS))


def _parameters(name: str) -> int:
    """A rough count from the configuration alone, to choose the type of the weights before loading them."""
    config = load_config(name)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    hidden, layers = int(text.hidden_size), int(text.num_hidden_layers)
    inner = int(getattr(text, "intermediate_size", 4 * hidden) or 4 * hidden)
    return layers * hidden * (4 * hidden + 3 * inner) + int(text.vocab_size) * hidden


def _engine(model: nn.Module, info: ModelInfo, slots: int, *, exact: bool, int8: bool = False) -> Engine:
    """By hand for the Llama family, through transformers for everything else."""
    if supports(model.config):
        return LlamaEngine(model, info, slots, int8=int8, exact=exact)
    return TransformersEngine(model, info, slots, int8=int8)


def build_target(name: str, device: str, dtype: str, kv_tokens: int, threads: int) -> tuple[Target, TokenizerCodec]:
    """The verifier's model and its tokenizer. ModelError or ConfigError in one sentence."""
    torch.set_num_threads(threads)
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where, _parameters(name))
    tokenizer = load_tokenizer(name)
    model = load_model(name, where, kind)
    info = describe(name, model, tokenizer, where, str(kind).removeprefix("torch."))
    engine = _engine(model, info, _slots(kv_tokens, info.max_context), exact=True)
    return Target(engine), TokenizerCodec(tokenizer)


def build_draft(name: str, device: str, dtype: str, kv_tokens: int, threads: int) -> Draft:
    """The drafter's model. On a CPU its weights are int8 unless it is too small to gain from it."""
    torch.set_num_threads(threads)
    where = resolve_device(device)
    parameters = _parameters(name)
    int8 = dtype == "int8" or (dtype == "auto" and where.type == "cpu" and parameters >= SMALL_DRAFT)
    if int8 and where.type != "cpu":
        raise ConfigError("int8 drafts run on a CPU; choose --draft-dtype bfloat16 on a GPU")
    kind = torch.float32 if int8 else resolve_dtype(dtype, where, parameters)
    tokenizer = load_tokenizer(name)
    model = load_model(name, where, kind)
    info = describe(name, model, tokenizer, where, "int8" if int8 else str(kind).removeprefix("torch."))
    return Draft(_engine(model, info, _slots(kv_tokens, info.max_context), int8=int8, exact=False))
