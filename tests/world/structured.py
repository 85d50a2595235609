"""A tiny random target with the bundled pair's vocabulary, and drafts that know what it will say, more or less."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import duoactor
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.targets.target import Target
from actors.engines.text.tokenizer import TokenizerCodec
from actors.engines.weights.loading import load_tokenizer
from protocols.messages import Sampling, StructuredOutputs
from tests.world.models import INFO, VOCAB, ToyLanguage, draw

PAIR = Path(duoactor.__file__).parent / "pair"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LARK = """
start: "set " NAME " to " expression ";"
expression: NUMBER | "(" expression (" + " | " - ") expression ")"
NAME: /[a-z]{2,8}/
NUMBER: /[0-9]{1,3}/
"""
WANTED = {
    "schema": StructuredOutputs(json_schema=json.dumps(SCHEMA)),
    "regex": StructuredOutputs(regex=r"Order [A-Z]{3}-[0-9]{4}, sent (Monday|Tuesday|Wednesday)( morning| evening)?\."),
    "lark": StructuredOutputs(grammar=LARK),
    "gbnf": StructuredOutputs(grammar='root ::= "answer: " ("yes" | "no") [0-9]+'),
}


@functools.cache
def codec() -> TokenizerCodec:
    return TokenizerCodec(load_tokenizer(str(PAIR / "target")))


@functools.cache
def engine() -> GpuEngine:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
    config = LlamaConfig(vocab_size=8192, max_position_embeddings=512, **special, **sizes)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # the default initialisation is so small that every prediction is the same
        for name, parameter in model.named_parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 and "embed" not in name else 1.0)
    info = replace(INFO, model_id="tiny", vocab_size=8192, max_context=512, eos_token_ids=frozenset({1}))
    return GpuEngine(model, info, 4096, plain=True)


def target() -> Target:
    return Target(engine(), rows_agree=(1, 2, 4, 8, 16))


@dataclass(frozen=True)
class Told:
    """Texts as a language: what follows each of their beginnings, and something else everywhere else."""

    texts: Sequence[Sequence[int]]

    def next(self, context: Sequence[int], sampling: Sampling) -> int:
        for text in self.texts:
            if len(context) < len(text) and list(context) == list(text[: len(context)]):
                return text[len(context)]
        return 2 + int(draw(tuple(context[-3:])) * (VOCAB - 2))

    guesses = ToyLanguage.guesses
