"""Make tests/data/tokenizers anew: the ids of the packaged llama.cpp, by pattern, kind of vocabulary and flags.

    python -m venv /tmp/v && /tmp/v/bin/pip install llama-cpp-py-sync gguf numpy tokenizers
    /tmp/v/bin/python tools/tokenizers/with_llama_cpp.py

It says what is other than that which is kept. Names of patterns are those strings of the library that it takes for one.
The vocabulary of patterns is trained on the texts as they are, across all words, so that nothing but the pattern keeps
its tokens from joining them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
from llama_cpp_py_sync import _version
from llama_cpp_py_sync._cffi_bindings import _find_library, ffi, get_lib

KEPT = Path(__file__).parents[2] / "tests/data/tokenizers"
WIDTHS = (2, 3, 4, 6, 9)  # characters of the pieces that the vocabulary is trained on
END, WHOLE = "<|endoftext|>", ["qzx", "\u0120qzx"]  # whole: tokens that no merges make
STRING = re.compile(rb"(?<=\0)[a-z][a-z0-9._-]{1,31}(?=\0)")
LIBRARY = get_lib()


@ffi.callback("void(enum ggml_log_level, const char *, void *)")
def silent(level: int, text: Any, data: Any) -> None:
    """Write no log."""


def write(path: Path, entries: Mapping[str, Any], architecture: str = "llama", name: str = "") -> None:
    """A GGUF file of a vocabulary alone."""
    file = gguf.GGUFWriter(path, architecture)
    file.add_name(name)
    for key, value in entries.items():
        add = {bool: file.add_bool, int: file.add_uint32, str: file.add_string, list: file.add_array}[type(value)]
        add(f"tokenizer.ggml.{key}", value)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def opened(path: Path) -> Any:
    LIBRARY.llama_log_set(silent, ffi.NULL)
    how = LIBRARY.llama_model_default_params()
    how.vocab_only = True
    return LIBRARY.llama_model_load_from_file(str(path).encode(), how)


def asked(path: Path, texts: list[str]) -> dict[str, Any] | None:
    """What llama.cpp makes of a file; None: it refuses it. In a process of its own, which it may end."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        with os.fdopen(reading) as file:
            told = file.read()
        os.waitpid(child, 0)
        return json.loads(told) if told else None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if (model := opened(path)) != ffi.NULL:
        words = LIBRARY.llama_model_get_vocab(model)
        found = {
            "ids": [ids(words, text, False) for text in texts],
            "around": [ids(words, text, True) for text in texts],
            "ends": [i for i in range(LIBRARY.llama_vocab_n_tokens(words)) if LIBRARY.llama_vocab_is_eog(words, i)],
        }
        with os.fdopen(writing, "w") as file:
            json.dump(found, file)
    os._exit(0)


def ids(words: Any, text: str, special: bool) -> list[int]:
    octets = text.encode()
    room = len(octets) + 16
    found = ffi.new("llama_token[]", room)
    return list(found[0 : LIBRARY.llama_tokenize(words, octets, len(octets), found, room, special, True)])


def trained(texts: list[str]) -> list[str]:
    """Merges of a byte-level BPE."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1600, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    parts = [part for text in texts if WHOLE[0] not in text for part in text.split(END)]
    pieces = [part[at : at + width] for part in parts for width in WIDTHS for at in range(len(part))]
    made.train_from_iterator([*parts, *pieces], trainer)
    return [" ".join(pair) for pair in json.loads(made.to_str())["model"]["merges"]]


def byte_level(merges: list[str]) -> dict[str, Any]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *dict.fromkeys(merge.replace(" ", "") for merge in merges), *WHOLE, END]
    last = len(tokens) - 1
    kinds, ends = [1] * last + [3], {"bos_token_id": last, "eos_token_id": last}
    return {"model": "gpt2", "tokens": tokens, "token_type": kinds, "merges": merges, **ends}


def known(path: Path, tried: set[str]) -> Iterator[str]:
    """The names that llama.cpp takes for a pattern."""
    small = {"model": "gpt2", "tokens": ["a", "b", "\u010a", "ab"], "token_type": [1] * 4, "merges": ["a b"]}
    for name in sorted(tried | {string.decode() for string in STRING.findall(Path(_find_library()).read_bytes())}):
        write(path, small | {"pre": name, "bos_token_id": 0, "eos_token_id": 0})
        if (model := opened(path)) != ffi.NULL:
            LIBRARY.llama_model_free(model)
            yield name


def patterns(path: Path, kept: dict[str, Any]) -> dict[str, Any]:
    texts = kept["texts"]
    merges = trained(texts)
    whole, every = byte_level(merges), [list[list[int]]() for _ in texts]
    found: list[list[int]] = []
    names: dict[str, int | None] = {}
    begins = []
    for name in known(path, set(kept["names"])):
        write(path, whole | {"pre": name})
        told = asked(path, texts)
        names[name] = None
        if told is None:  # a pattern of vocabularies over other things than bytes
            continue
        for one, some in zip(told["ids"], every, strict=True):
            if one not in some:
                some.append(one)
        chosen = [some.index(one) for one, some in zip(told["ids"], every, strict=True)]
        if chosen not in found:
            found.append(chosen)
        names[name] = found.index(chosen)
        if told["around"] != told["ids"]:
            begins.append(name)
    return {"texts": texts, "merges": merges, "names": names, "begins": begins, "patterns": found, "ids": every}


def kinds(path: Path, kept: dict[str, Any]) -> dict[str, Any]:
    for case in kept["cases"].values():
        entries = kept["vocabularies"][case["of"]] | case["entries"]
        write(path, entries, case.get("architecture", "llama"), case.get("name", ""))
        case.pop("told", None)
        if told := asked(path, kept["texts"]):
            case["told"] = told
    return kept


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for file, make in (("patterns.json", patterns), ("kinds.json", kinds)):
            kept = json.loads((KEPT / file).read_text())
            before = json.dumps(kept)
            made = make(Path(folder) / "x.gguf", kept)
            made["version"] = f"llama.cpp {_version.__llama_cpp_tag__}"
            if json.dumps(made) != before:
                print(f"{file} is other than before")
            (KEPT / file).write_text(json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
