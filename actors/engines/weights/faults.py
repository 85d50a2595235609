"""Faults of a model directory that show in its files' names, sizes and first bytes.

No torch: ``duoactor up`` checks its models before it starts an actor, in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.engines.decoder.bounds import check_numbers
from actors.engines.weights.quantisation import OTHERS, Scheme, refused
from actors.engines.weights.quantisers import scheme_of
from actors.engines.weights.unneeded import LAYER
from actors.kept import kept_of_files
from protocols.errors import ModelError

POINTER = b"version https://git-lfs.github.com/spec"
LARGEST_HEADER = 100_000_000  # bytes, as safetensors allows
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
INDEX_END = ".safetensors.index.json"
NAMED = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")  # the first that is there is loaded
TOKENIZERS = ("tokenizer.json", "*.model", "*.tiktoken", "vocab*", "tekken.json", "tokenization_*.py")
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
TOOLS_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
UNREAD_FILES = {"quanto_qmap.json": "quanto", "qmodel.pt": "HQQ or SINQ"}  # files and the only tools that write each
OF_OTHERS = {  # files of models for other programs
    "*.onnx": "ONNX Runtime",
    "openvino_model.xml": "OpenVINO",
    "mlc-chat-config.json": "MLC",
    "shared_vocabulary.*": "CTranslate2",
    "*.pte": "ExecuTorch",
    "rank*.engine": "TensorRT-LLM",
    "consolidated*.pth": "Meta's own code",
    "tf_model*.h5": "TensorFlow",
    "flax_model*.msgpack": "Flax",
}
CODES = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2")  # numbers that a scale belongs to
PLAIN = {"BF16", "F16", "F32", "F64"}
WHOLE = ("I8", "U8", "I16", "U16", "I32", "U32")
UNREAD_ENDS = {  # ends of the names of codes, and the only tools that write them
    ".q_weight": "ExLlamaV2",
    ".trellis": "ExLlamaV3",
    ".W_q": "HQQ or SINQ",
    "._data": "quanto",
    "_qdata": "torchao",
}
CODED = (".weight", ".qweight", *UNREAD_ENDS)


def check_checkpoint(name: str, head: bool = False) -> None:
    """Raise ModelError for a model directory or GGUF file that cannot be whole. A hub id passes unchecked. ``head``:
    it is a draft head's."""
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        _check_gguf(path)
    if not path.is_dir():
        return
    _check_adapter(path)
    if not (path / "config.json").exists():
        gguf = sorted(path.glob("*.gguf"))
        instead = f": give {gguf[0]} itself" if gguf else ", so it is not a Hugging Face model directory"
        raise ModelError(f"{path} holds no config.json{instead}")
    for file in sorted(path.glob("*.json")) + sorted(path.glob("*.model")):
        _check_pointer(file)
    config = read_json(path / "config.json")
    check_numbers(str(path / "config.json"), config)
    scheme = quantisation_of_head(path) if head else quantisation_of(path)
    tensors = tensors_of(path)
    if scheme is None:
        _check_plain(path, tensors)
        if not head and not (named_weights(path) or any((path / one).exists() for one in NAMED)):
            file = next(files_of_weights(path))
            instead = f"give {file} itself" if file.suffix == ".gguf" else "download it again, or name its only file so"
            raise ModelError(f"model {path} has weights in {file.name}, and neither {SINGLE} nor {INDEX}: {instead}")
    names = set(tensors)
    _check_layers(path, config, names)
    embedded = any(name.endswith("embed_tokens.weight") for name in names)
    if _untied(config) and embedded and not any("lm_head" in name or name.startswith("head.") for name in names):
        raise ModelError(
            f"model {path} has no output head: its config.json says that lm_head.weight is not the embedding, and no "
            "file holds it; download it again, or set tie_word_embeddings to true if it is"
        )


def quantisation_of(path: Path) -> Scheme | None:
    """What ``config.json``, or else a file of the tool, says of quantised weights; None: nothing. Raises ModelError."""
    config = read_json(path / "config.json")
    for part in (config, _part_of(config, "text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(found := part.get(key), dict) and ("quant_method" in found or "quant_algo" in found):
                return scheme_of(str(path / "config.json"), found)
    if isinstance(config.get("quantization"), dict):
        raise refused(str(path / "config.json"), "weights as mlx-lm packs them", OTHERS)
    if config.get("quantization_config") is not None:
        return scheme_of(str(path / "config.json"), _section(path / "config.json", config, "quantization_config"))
    for name, tool in UNREAD_FILES.items():
        if (path / name).is_file():
            raise refused(str(path / name), tool, OTHERS)
    for name, method in TOOLS_FILES.items():
        if (file := path / name).is_file():
            found = read_json(file)
            if name == "hf_quant_config.json":
                found = _section(file, found, "quantization")
            return scheme_of(str(file), {"quant_method": method, **found})
    return None


def quantisation_of_head(path: Path) -> Scheme | None:
    """:func:`quantisation_of` a draft head's weights. Exports copy the target's config, of tools that are not read too:
    where all of a head's tensors are plain numbers, it says nothing of them."""
    kinds = {entry.get("dtype") for name, entry in tensors_of(path).items() if not name.endswith(("d2t", "t2d"))}
    return quantisation_of(path) if kinds - PLAIN and (path / "config.json").is_file() else None


def _section(file: Path, config: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(part := config.get(name), dict):
        raise ModelError(f"{name} in {file} does not say how the weights were quantised; download it again")
    return part


def _check_plain(path: Path, tensors: dict[str, Any]) -> None:
    """Raise ModelError where weights are codes, and no config says what numbers they stand for."""
    for name, entry in tensors.items():
        kind = entry.get("dtype")
        if kind in WHOLE and (tool := next((one for end, one in UNREAD_ENDS.items() if name.endswith(end)), "")):
            raise refused(str(path), f"{name} in {kind}, a name that only {tool} gives", OTHERS)
        if kind in CODES or (kind in WHOLE and name.endswith(CODED)):
            raise ModelError(
                f"{name} in {path} is in {kind}, and no quantization_config says what that stands for; download the "
                "model again, with all of its files"
            )


def _untied(config: dict[str, Any]) -> bool:
    """Whether the head is certainly not the embedding. Of a model with eyes transformers asks the outer configuration,
    whose default depends on the family."""
    text = _part_of(config, "text_config")
    return config.get("tie_word_embeddings") is False and text.get("tie_word_embeddings") is not True


def _check_layers(path: Path, config: dict[str, Any], names: set[str]) -> None:
    """Raise ModelError where a configuration has layers of which no file holds a weight: they would be made at random,
    in memory for all of them."""
    said = _part_of(config, "text_config").get("num_hidden_layers")
    held = 1 + max((int(found[1]) for name in names if (found := LAYER.search(name))), default=-1)
    if isinstance(said, int) and held and said > held:
        raise ModelError(f"{path / 'config.json'} says {said} layers, and the weights are of {held}: download it again")


def _part_of(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of a configuration, or the whole where it has no such part."""
    return part if isinstance(part := config.get(name), dict) else config


def check_tokenizer(name: str) -> None:
    """Raise ModelError for a model directory without a file of a tokenizer."""
    path = Path(name)
    if path.is_dir() and not any(file for pattern in TOKENIZERS for file in path.glob(pattern)):
        raise ModelError(f"{path} has no tokenizer that can be loaded; add tokenizer.json to it")


def _check_adapter(path: Path) -> None:
    if (path / "adapter_config.json").exists():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path") or "its base model"
        found, after = "is a LoRA adapter and no model", ""
        if (path / "config.json").exists() and any((path / one).exists() for one in NAMED):
            found = "holds a LoRA adapter beside its model, and answers would be without it"
            after = ", or remove adapter_config.json if the model has it in its weights"
        raise ModelError(
            f"{path} {found}: merge it into {base} with peft's merge_and_unload, save the result and give that "
            f"directory{after}"
        )


def files_of_weights(path: Path) -> Iterator[Path]:
    """Every file of weights. Raises ModelError if one is missing."""
    named = named_weights(path)
    found = named or next((path / one for one in NAMED if (path / one).exists()), None)
    if found is not None and found.suffix == ".json":
        files = shards_of(found)
        lacking = [file.name for file in files if not file.exists()]
        if lacking:
            raise ModelError(
                f"model {path} lacks {len(lacking)} of its {len(files)} files of weights, {lacking[0]} first: "
                "download it again"
            )
        yield from files
    elif found is not None:
        index = path / f"{found.name}.index.json"  # transformers leaves it if it saves a model in one file
        if named is None and index.exists() and any(file.exists() and file != found for file in shards_of(index)):
            raise ModelError(
                f"{path} holds two models, {found.name} and the files that {index.name} names; remove one of them"
            )
        yield found
    else:
        others = [file for pattern in WEIGHTS for file in sorted(path.glob(pattern))]
        for pattern, program in OF_OTHERS.items() if all(file.suffix == ".bin" for file in others) else ():
            for file in sorted(path.glob(pattern)):
                raise ModelError(
                    f"{file} is a model for {program}, which duoactor does not read; give that model's safetensors or "
                    "a GGUF file of it"
                )
        if not others:
            raise ModelError(f"model {path} holds no weights, such as model.safetensors: download it again")
        yield from others


def named_weights(path: Path) -> Path | None:
    """The file or index of weights that ``transformers_weights`` in a configuration names; None: none is named, so that
    the usual one counts. Raises ModelError for what transformers does not take."""
    config = path / "config.json"
    name = read_json(config).get("transformers_weights") if config.is_file() else None
    if name is None:
        return None
    if not isinstance(name, str) or name != Path(name).name or not name.endswith((".safetensors", INDEX_END)):
        raise ModelError(
            f"transformers_weights in {config} is {name!r}, which names no safetensors beside it; download it again"
        )
    if not (path / name).is_file():
        raise ModelError(
            f"model {path} lacks {name}, which transformers_weights in its config.json names: download it again"
        )
    return path / name


def shards_of(index: Path) -> list[Path]:
    """The files that an index names, which lie beside it. Raises ModelError for one that lies elsewhere."""
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ModelError(f"weight_map in {index} does not say which file each tensor is in; download it again")
    names = sorted(set(found.values()))
    for name in names:
        if name != Path(name).name or "\0" in name or not name.endswith((".safetensors", ".bin")):
            raise ModelError(f"{index} names {name!r}, which is no file of weights beside it; download it again")
    return [index.with_name(name) for name in names]


def tensor_names(directory: str) -> set[str]:
    """The names of all tensors in a directory's safetensors files; empty where there are none that are whole."""
    path = Path(directory)
    try:
        return {name for file in path.glob("*.safetensors") for name in _tensors(file)}
    except (ModelError, OSError):
        return set()


def tensors_of(path: Path) -> dict[str, Any]:
    """The entries of all safetensors headers of a directory. Raises ModelError unless the files are whole."""
    found: dict[str, Any] = {}
    for file in files_of_weights(path):
        header = {name: entry for name, entry in _tensors(file).items() if name != "__metadata__"}
        if twice := sorted(found.keys() & header.keys()):
            raise ModelError(f"{twice[0]} is in {file} and in another file of that model; download it again")
        found |= header
    return found


def _tensors(file: Path) -> dict[str, Any]:
    """The header of a safetensors file; empty for files of other kinds. Raises ModelError unless the file is whole."""
    _check_pointer(file)
    if file.suffix != ".safetensors":
        return {}
    size, other = file.stat().st_size, ModelError(f"{file} is no safetensors file: download it again")
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        if size >= 8 and length > LARGEST_HEADER:
            raise other
        raw = source.read(length)
    whole = 9 + length
    if size >= whole - 1:
        try:
            tensors = json.loads(raw)
            ends = (entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__")
            whole = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise other from None
        if size >= whole:
            return dict(tensors)
    raise ModelError(f"{file} is cut short, {size:,} bytes of at least {whole:,}: download it again")


@dataclass(frozen=True, slots=True)
class _Whole:
    """A GGUF file that was read: its metadata are those of a known architecture, and its tensors lie inside it."""


def _check_gguf(file: Path) -> None:
    _check_pointer(file)

    def read() -> _Whole:
        from actors.engines.weights.gguf_models import GGUFCheckpoint  # imports numpy

        GGUFCheckpoint(file)
        return _Whole()

    kept_of_files(_Whole, [file], read)


def _check_pointer(file: Path) -> None:
    with file.open("rb") as source:
        if source.read(len(POINTER)) == POINTER:
            raise ModelError(f"{file} is a Git LFS pointer, not the file itself: run `git lfs pull` in {file.parent}")


def read_json(file: Path) -> dict[str, Any]:
    """What a file of a model says. Raises ModelError for one that is no JSON object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise ModelError(f"{file} cannot be read as JSON: download it again")
    return content
