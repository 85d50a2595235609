"""A GGUF file through the engine: the logits of its dequantised weights, and a row's bits, alone and in a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from actors.datastore import Datastore
from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.decoder.cpu.body import CompiledBody
from actors.engines.flat_batch import FlatBatch, Segment
from actors.engines.text.tokenize_corpus import build_for_model
from actors.engines.text.tokenizer import tokenizer_digest
from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_loading import open_gguf
from actors.engines.weights.loading import load_model, load_tokenizer
from duoactor.config import resolve_model
from protocols.messages import Sampling
from tests.engines.weights.test_gguf_models import CASES, tiny, written

pytest.importorskip("numba")
TOKENS = ["<unk>", "<s>", "</s>", *(chr(97 + i // 26) + chr(97 + i % 26) for i in range(93))]


def quantised(path: Path, source: Path, kinds: dict[str, str]) -> Path:
    """A copy with matrices in blocks, by the end of their names."""
    whole = GGUF(source)
    w = gguf.GGUFWriter(path, whole.architecture)
    for key, value in whole.metadata.items():
        if isinstance(value, np.ndarray):
            w.add_array(key, value.tolist())
        elif key != "general.architecture":
            kinds_of = gguf.GGUFValueType
            kind = {bool: kinds_of.BOOL, int: kinds_of.UINT32, float: kinds_of.FLOAT32, str: kinds_of.STRING}
            w.add_key_value(key, value, kind[type(value)])
    w.add_tokenizer_model("llama")
    w.add_token_list(TOKENS)
    w.add_token_scores([0.0] * len(TOKENS))
    w.add_token_types([2, 3, 3, *[1] * 93])
    for name, stored in whole.tensors.items():
        values = stored.values()
        kind = next((kind for end, kind in kinds.items() if name.endswith(end)), None)
        if kind is None or values.ndim < 2 or values.shape[-1] % 32:
            w.add_tensor(name, values)
        else:
            to = gguf.GGMLQuantizationType[kind]
            w.add_tensor(name, gguf.quantize(values, to), raw_dtype=to)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


MIXED = {
    "attn_q.weight": "Q4_0",
    "attn_k.weight": "Q5_0",
    "attn_v.weight": "Q8_0",
    "down.weight": "Q5_1",
    "weight": "Q4_1",
}


@pytest.fixture(scope="module", params=["llama", "gemma3", "untied llama", "qwen3"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return mixed(request.param, tmp_path_factory.mktemp("gguf"))


def mixed(case: str, directory: Path, **more_changes: Any) -> str:
    """A file of a tiny model whose matrices are in blocks of several kinds."""
    architecture, changes, more = CASES[case]
    model = tiny(architecture, {**changes, "intermediate_size": 96, **more_changes})
    whole = written(directory / "whole.gguf", architecture, model, more)
    return str(quantised(directory / "mixed.gguf", whole, MIXED))


def logits(engine: Any, tokens: list[int], position: int = 0) -> torch.Tensor:
    rows, span = len(tokens), position + len(tokens)
    visible = np.tril(np.ones((span, span), np.bool_))[position:]
    places = list(range(position, span))
    batch = FlatBatch(tokens, places, [300 + place for place in places], [Segment(rows, 300, span, visible)])
    return engine.forward(batch).clone()


def error_of(file: str) -> float:
    """Distance of the logits that the engine makes of the file's blocks."""
    target, _ = build_target(file, EngineOptions(kv_tokens=1024))
    assert isinstance(target.engine._body, CompiledBody)  # type: ignore[attr-defined]
    assert target.info.dtype.startswith("Q4_1")
    ids = list(range(5, 35))
    with torch.no_grad():
        expected = load_model(file, torch.device("cpu"), torch.float32)(torch.tensor([ids])).logits[0]
    return float((logits(target.engine, ids) - expected).norm() / expected.norm())


def test_a_file_is_not_held_beside_what_was_packed_of_it(file: str) -> None:
    name = str(Path(file).resolve())
    target, _ = build_target(file, EngineOptions(kv_tokens=1024))
    mapped = Path("/proc/self/smaps").read_text().split(name, 1)[1]  # the first mapping of the file, to its end
    assert int(mapped.split("Rss:", 1)[1].split()[0]) < Path(file).stat().st_size / 1024 / 2
    assert open_gguf(file).own()["model.norm.weight"].values().any()  # it is read again
    assert target.info.dtype.startswith("Q4_1")


def test_sampling_that_a_file_asks_for_is_told_to_clients(tmp_path: Path) -> None:
    def asked(w: gguf.GGUFWriter, c: Any) -> None:
        w.add_float32("general.sampling.temp", 0.6)
        w.add_uint32("general.sampling.top_k", 20)
        w.add_float32("general.sampling.top_p", 0.95)
        w.add_string("general.sampling.sequence", "kpt")

    architecture, changes, _ = CASES["llama"]
    whole = written(tmp_path / "whole.gguf", architecture, tiny(architecture, changes), asked)
    target, _ = build_target(str(quantised(tmp_path / "asked.gguf", whole, {})), EngineOptions(kv_tokens=1024))
    assert target.info.sampling == Sampling(temperature=0.6, top_k=20, top_p=0.95)


def test_logits_are_those_of_the_dequantised_weights(file: str) -> None:
    assert 0 < error_of(file) < 0.05  # inputs are rounded to 8 bits


# A row whose inputs are rounded may choose other experts, and differ by far more than that: all of them are chosen here
OTHERS: dict[str, dict[str, Any]] = {
    "qwen35": {},
    "qwen3next": {"num_experts_per_tok": 4},
    "gemma4": {},
    "gemma4 with experts": {"top_k_experts": 6},
    "lfm2": {},
    "glm4moe": {},
    "llama4": {},
    "deepseek2 of V3": {},
    "granitehybrid": {},
    "granitehybrid with experts": {"num_experts_per_tok": 4},
    "mistral3": {},
    "arcee": {},
    "exaone4": {},
    "hunyuan-dense": {},
    "starcoder2": {},
    "command-r with norms of heads": {},
    "gemma": {"num_hidden_layers": 2},
    "dots1": {"num_experts_per_tok": 4},
    "minimax-m2": {"num_experts_per_tok": 4},
    "ernie4_5-moe": {"moe_k": 4},
    "hunyuan-moe": {"moe_topk": 4},
}


@pytest.mark.parametrize("case", OTHERS)
def test_layers_of_other_kinds_are_read_from_their_blocks(case: str, tmp_path: Path) -> None:
    assert 0 < error_of(mixed(case, tmp_path, **OTHERS[case])) < 0.08


def test_numbers_of_heads_are_taken_out_of_one_tensor(tmp_path: Path) -> None:
    architecture, changes, more = CASES["qwen3next"]
    model = tiny(architecture, changes)
    file = quantised(tmp_path / "f.gguf", written(tmp_path / "whole.gguf", architecture, model, more), {})
    target, _ = build_target(str(file), EngineOptions(dtype="float32", kv_tokens=1024))
    ids = list(range(5, 35))
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    found = logits(target.engine, ids)
    assert isinstance(target.engine._body, CompiledBody)  # type: ignore[attr-defined]
    assert (found - expected).norm() / expected.norm() < 1e-4


def test_a_token_has_the_same_bits_alone_and_in_a_window(file: str) -> None:
    target, _ = build_target(file, EngineOptions(kv_tokens=1024, threads=2))
    ids = list(range(5, 25))
    whole = logits(target.engine, ids)
    for position in (0, 7, 13):
        rows = logits(target.engine, ids[position : position + 5], position)
        assert torch.equal(rows, whole[position : position + 5])
        alone = logits(target.engine, ids[position : position + 1], position)
        assert torch.equal(alone[0], whole[position])


def test_a_file_can_be_a_draft(file: str) -> None:
    draft = build_draft(file, EngineOptions(kv_tokens=1024))
    target, _ = build_target(file, EngineOptions(kv_tokens=1024))
    assert draft.info.tokenizer_digest == target.info.tokenizer_digest
    ids = list(range(5, 35))
    found = logits(draft.engine, ids).float()  # type: ignore[attr-defined]
    assert float((found - logits(target.engine, ids)).norm() / found.norm()) < 0.02  # other types of keys and values


def test_a_datastore_is_built_by_the_tokenizer_of_the_file(tmp_path: Path) -> None:
    file, own = mixed("llama", tmp_path), Path(resolve_model("bundled", "target"), "tokenizer.json")
    (tmp_path / "tokenizer.json").symlink_to(own)
    (tmp_path / "text.txt").write_text("#")
    meta = build_for_model(tmp_path / "store", [tmp_path / "text.txt"], file)
    assert (meta.documents, meta.vocab_size) == (1, len(TOKENS))
    assert Datastore.open(tmp_path / "store", tokenizer_digest(load_tokenizer(file))).meta == meta
