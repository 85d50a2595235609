"""A forward of the generic engine against one of plain transformers, in turns in one process.

    taskset -c 0 python docs/generic_forward.py

Times are the thread's own on the processor, so that others on that core cost neither anything but cold caches. What
came out: docs/experiments/engine-forward.md.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from actors.engines.flat_batch import FlatBatch
from actors.engines.generic.engine import TransformersEngine
from actors.models import ModelInfo

CONTEXT, TURNS, WARM_UP = 64, 60, 5
TARGET = str(Path(__file__).parents[1] / "duoactor" / "pair" / "target")
SIZE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 8192}
GROUPS = {"intermediate_size": 2048, "num_key_value_heads": 4}
MODELS = {
    "bundled target": lambda: AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32),
    "Mistral": lambda: MistralForCausalLM(MistralConfig(**SIZE, **GROUPS)),
    "Gemma 2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZE, **GROUPS, head_dim=64)),
    "GPT-NeoX": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZE, intermediate_size=3072)),
}


def milliseconds(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    begin = time.thread_time()
    found = call()
    return found, (time.thread_time() - begin) * 1e3


@torch.inference_mode()
def compare(name: str) -> None:
    plain = MODELS[name]().eval()
    vocabulary = plain.config.vocab_size
    info = ModelInfo(name, vocabulary, 512, frozenset(), "")
    engine = TransformersEngine(copy.deepcopy(plain), info, 1024)
    tokens = [7919 * (i + 1) % vocabulary for i in range(CONTEXT + 8)]

    def ours(start: int, end: int) -> torch.Tensor:
        places, batch = [*range(start, end)], FlatBatch()
        batch.add(0, tokens[start:end], places, places, np.tri(end - start, end, start, dtype=np.bool_))
        return engine.forward(batch)

    def theirs(ids: torch.Tensor) -> torch.Tensor:
        return plain(input_ids=ids, past_key_values=cache).logits[0]

    cache = DynamicCache(config=plain.config)
    theirs(torch.tensor([tokens[:CONTEXT]]))
    ours(0, CONTEXT)
    for rows in (1, 4, 8):
        ids, times = torch.tensor([tokens[CONTEXT : CONTEXT + rows]]), []
        for _ in range(WARM_UP + TURNS):
            expected, their_ms = milliseconds(partial(theirs, ids))
            cache.crop(-rows)
            found, our_ms = milliseconds(partial(ours, CONTEXT, CONTEXT + rows))
            times.append((their_ms, our_ms))
        assert (found - expected).norm() <= 0.01 * expected.norm()
        their_ms, our_ms = np.percentile(times[WARM_UP:], 10, axis=0)
        print(
            f"{name:<15} {rows} rows: transformers {their_ms:6.2f} ms, ours {our_ms:6.2f} ms, {their_ms / our_ms:.2f}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in MODELS:
        compare(each)
