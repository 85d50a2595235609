"""Small random models of every family that the engines are tested with."""

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from actors.engines.decoder.configuration import compiled_spec
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.models import ModelInfo

VOCAB = 160
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

GPT_OSS = {
    "head_dim": 16,
    "num_local_experts": 4,
    "sliding_window": 9,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=None)),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=9)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**COMMON, head_dim=16, sliding_window=9)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**COMMON | {"num_key_value_heads": 4})),
    "gpt-oss": lambda: GptOssForCausalLM(GptOssConfig(**COMMON, **GPT_OSS)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**COMMON, head_dim=16, sliding_window=9)),
}


def make(family: str, seed: int = 0):
    return make_model(FAMILIES[family], seed)


def make_model(build, seed: int = 0):
    torch.manual_seed(seed)
    model = build()
    with torch.no_grad():  # the default initialisation is so small that every prediction is the same
        for name, parameter in model.named_parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 and "embed" not in name else 1.0)
    return model.eval()


def torch_engine(model, info: ModelInfo, slots: int, exact: bool = True) -> GpuEngine:
    """As where nothing is compiled."""
    return GpuEngine(model, info, slots, exact, plain=True)


def engine_of(model, slots: int = 4096) -> CompiledEngine | GpuEngine:
    """The one that a user would get."""
    return (CompiledEngine if compiled_spec(model.config) else torch_engine)(model, info(model), slots)


def info(model) -> ModelInfo:
    return ModelInfo("tiny", VOCAB, 512, frozenset({1}), "tiny-tokenizer")
