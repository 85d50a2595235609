"""Model directories of many families, and changes of one value each in their JSON files and in tensors' headers."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.engines.families import model_of
from tests.engines.tiny import VOCAB
from tests.fuzz.model_files import Corpus

FAMILIES = (
    *("Llama", "Qwen2", "Qwen3", "Qwen3Moe", "Mixtral", "Gemma2", "Gemma3", "Gemma4", "Phi3", "GptOss"),
    *("DeepseekV3", "Glm4Moe", "Cohere2", "Lfm2", "Qwen3_5", "GPT2", "OPT", "Bamba"),
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARDS = ("../x.safetensors", "../../etc/passwd", "/dev/zero", WEIGHTS, "a/b.safetensors", "x", 5, None)
_ODD: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 15, 33, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 64, 10**30),
    *(0.0, 0.5, -2.5, 1e-300, 1e308, float("nan"), float("inf"), "", "text", "../x", "/etc/passwd", None, True, False),
    *([], {}, [1, "x", None], {"a": {"b": []}}),
)


def change(path: Path, chance: random.Random) -> list[str]:
    """One to three changes in the files of a directory."""
    return [_changed(path, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]


def _changed(path: Path, chance: random.Random) -> str:
    files = [file.name for file in sorted(path.glob("*.json"))]
    name = chance.choice([*["config.json"] * 6, *files, *files, *[WEIGHTS] * 4, INDEX])
    file = path / name
    if name == WEIGHTS:
        shards = sorted(path.glob("*.safetensors"))
        return _tensors_changed(chance.choice(shards), chance)
    if name == INDEX and not file.exists():
        shard = chance.choice(_SHARDS)
        file.write_text(json.dumps({"weight_map": {"model.embed_tokens.weight": shard, "lm_head.weight": WEIGHTS}}))
        return f"an index that names {shard!r}"
    if chance.random() < 0.05:
        return _bytes_changed(file, chance)
    try:
        whole = json.loads(file.read_text())
    except ValueError:
        return "nothing"
    told = _json_changed(whole, chance)
    file.write_text(json.dumps(whole))
    return f"{name}: {told}"


def _bytes_changed(file: Path, chance: random.Random) -> str:
    data = bytearray(file.read_bytes())
    if not data:
        return "nothing"
    at = chance.randrange(len(data))
    if chance.random() < 0.5:
        del data[at:]
    else:
        data[at] = chance.randrange(256)
    file.write_bytes(data)
    return f"{file.name}: byte {at}"


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from _places(one, (*path, key))


def _json_changed(whole: Any, chance: random.Random) -> str:
    places = [*_places(whole)]
    if not places:
        return "nothing"
    depth = chance.choice([len(place) for place in places])  # long lists lie deep
    *path, key = chance.choice([place for place in places if len(place) == depth])
    inside = whole
    for part in path:
        inside = inside[part]
    where = ".".join(map(str, (*path, key)))
    if chance.random() < 0.12:
        del inside[key]
        return f"without {where}"
    old = inside[key]
    near = (
        [old + 1, old - 1, 2 * old, old // 2, -old]
        if isinstance(old, int | float) and old == old and abs(old) < 1e30
        else []
    )
    inside[key] = chance.choice((*_ODD, *near, *near, *near))
    return f"{where} is {str(inside[key])[:60]}"


def _tensors_changed(file: Path, chance: random.Random) -> str:
    data = file.read_bytes()
    if len(data) < 9 or chance.random() < 0.15:
        return _bytes_changed(file, chance)
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError:
        return "nothing"
    if chance.random() < 0.3:
        body = bytearray(data[8 + size :])
        for _ in range(chance.choice((1, 8, 200))):
            at = chance.randrange(len(body) - 4) // 4 * 4
            body[at : at + 4] = struct.pack("<f", chance.choice((float("nan"), float("inf"), 3e38, -float("inf"))))
        file.write_bytes(data[: 8 + size] + body)
        return "weights that are no numbers"
    told = _shapes_swapped(header, chance) if chance.random() < 0.3 else _json_changed(header, chance)
    new = json.dumps(header).encode()
    length = (
        chance.choice((len(new), len(new), len(new), len(new) + 1, 0, 1 << 62)) if chance.random() < 0.1 else len(new)
    )
    file.write_bytes(length.to_bytes(8, "little") + new + data[8 + size :])
    return f"{file.name}: {told}"


def _shapes_swapped(header: dict[str, Any], chance: random.Random) -> str:
    """Shapes of as many numbers, so that the file itself is whole; or two tensors under each other's names."""
    names = sorted(name for name, one in header.items() if isinstance(one, dict) and "shape" in one)
    if not names:
        return "nothing"
    name, other = chance.choice(names), chance.choice(names)
    if chance.random() < 0.5:
        header[name], header[other] = header[other], header[name]
        return f"{name} and {other} exchanged"
    shape = header[name]["shape"]
    header[name]["shape"] = chance.choice(
        (shape[::-1], [1, *shape], [*shape, 1], [2 * shape[0], *shape[1:]], shape[1:])
    )
    return f"{name} is {header[name]['shape']}"


def saved(directory: Path, family: str, sharded: bool) -> Path:
    """A tiny model with a tokenizer, in one file or with an index."""
    model_of(family).save_pretrained(directory, max_shard_size="100KB" if sharded else "1GB")
    vocabulary = {chr(33 + number) if number < 94 else f"ab{number}": number for number in range(VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="!"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token='"', bos_token="!").save_pretrained(directory)
    for file in directory.glob("*.safetensors"):  # as files of other writers, without metadata
        save_file(load_file(file), file)
    return directory


def corpus(directory: Path, families: tuple[str, ...] = FAMILIES) -> Corpus:
    """Each a second time as a later start reads it."""
    seeds = {family: saved(directory / family, family, number % 3 == 0) for number, family in enumerate(families)}
    return Corpus(seeds, change, starts=2)
