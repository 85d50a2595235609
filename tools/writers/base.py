"""A tiny Llama to be quantised, and what is kept of a quantised one: the tool's own numbers and float32's tokens."""

from __future__ import annotations

import json
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

PROMPT = (3, 17, 5, 40, 22, 9, 60, 31)
TOKENS = 16
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
TYPE = "dtype" if version("transformers") >= "5" else "torch_dtype"
KEPT = ("*.safetensors", "config.json", "*quant*.json", "*.safetensors.index.json", "*.gguf", "qmodel.pt")

torch.set_num_threads(1)


def config(**changes: Any) -> Any:
    sizes = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
        TYPE: "bfloat16",
    }
    return AutoConfig.for_model(**{"model_type": "llama", **sizes, **changes})


def made(directory: Path, **changes: Any) -> Path:
    """The unquantised model in a directory."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config(**changes)).to(torch.bfloat16).save_pretrained(directory)
    words = {f"w{number}": number for number in range(64)}
    fast = Tokenizer(WordLevel(words, unk_token="w0"))
    fast.pre_tokenizer = Whitespace()
    whole = PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="w1", eos_token="w2", pad_token="w0", unk_token="w0"
    )
    whole.save_pretrained(directory)
    return directory


def loaded(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, **{TYPE: torch.bfloat16})


def calibration(count: int = 16, length: int = 48) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, 64, (count, length), generator=generator).tolist()


def summary(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each matrix's last row, and for each row the sum of its numbers times 1, 2, 3 …, which shows a change or an
    exchange of any of them."""
    kept = {}
    for name, weight in weights.items():
        if weight.ndim > 1:
            weight = weight.flatten(0, -2)
            kept[f"{name}.last"] = weight[-1].float().contiguous()
            kept[f"{name}.sums"] = (weight.double() @ torch.arange(1.0, 1 + weight.shape[1]).double()).float()
    return kept


def joined(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of experts as transformers keeps them: all in one tensor, gates before ups."""
    kept, apart = {}, dict[str, dict[str, list[Tensor]]]()
    for name, weight in ((name.replace(".block_sparse_moe.", ".mlp."), one) for name, one in weights.items()):
        if (expert := re.fullmatch(r"(.*\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)) is None:
            kept[name] = weight
        else:
            apart.setdefault(expert[1], {}).setdefault(expert[2], []).append(weight)
    for name, parts in apart.items():
        kept[f"{name}.down_proj"] = torch.stack(parts["down"])
        kept[f"{name}.gate_up_proj"] = torch.cat([torch.stack(parts["gate"]), torch.stack(parts["up"])], 1)
    return kept


def greedy(model_config: Any, weights: Mapping[str, Tensor]) -> list[int]:
    """transformers' tokens in float32 with these weights."""
    model_config.tie_word_embeddings = "lm_head.weight" not in weights
    model = AutoModelForCausalLM.from_config(model_config).float().eval()
    model.tie_weights()  # which GPTQModel 5 and 6 keep transformers from
    if not weights.keys() <= model.state_dict().keys():  # GPTQModel makes transformers keep experts apart
        weights = joined(weights)
    lacking = model.load_state_dict({name: one.float() for name, one in weights.items()}, strict=False)
    assert not lacking.unexpected_keys and set(lacking.missing_keys) <= {"lm_head.weight"}, lacking
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def keep(
    written: Path,
    into: Path,
    weights: Mapping[str, Tensor],
    said: Mapping[str, str],
    whole: bool = False,
    **changes: Any,
) -> None:
    """Keep a checkpoint that a tool wrote, with the numbers that the tool computes of it. ``said``: tool, version and
    call; ``changes``: of the model's sizes. Without numbers it is to be refused: by the config, which is kept alone, or
    by the tensors (``whole``)."""
    shutil.rmtree(into, ignore_errors=True)
    (into / "model").mkdir(parents=True)
    for pattern in KEPT if weights or whole else KEPT[1:]:
        for file in written.glob(pattern):
            shutil.copyfile(file, into / "model" / file.name)
    if weights:
        save_file(summary(joined(weights)), into / "numbers.safetensors")
    tokens = greedy(config(**changes), weights) if weights else []
    (into / "said.json").write_text(json.dumps({**said, "prompt": PROMPT, "tokens": tokens}) + "\n")


def main(cases: Mapping[str, Callable[[Path], None]]) -> None:
    """``python with_TOOL.py DIRECTORY [CASE …]``."""
    place, *names = sys.argv[1:]
    for name in names or cases:
        try:
            cases[name](Path(place) / name)
            print("wrote", name, flush=True)
        except Exception as error:  # the tool's: the other cases are tried all the same
            traceback.print_exc(limit=-4)
            print("FAILED", name, type(error).__name__, error, flush=True)
