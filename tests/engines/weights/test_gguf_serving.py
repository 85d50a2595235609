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
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.flat_batch import FlatBatch, Segment
from actors.engines.text.tokenize_corpus import build_for_model
from actors.engines.text.tokenizer import tokenizer_digest
from actors.engines.weights.gguf_loading import open_gguf
from actors.engines.weights.loading import load_model, load_tokenizer
from duoactor.config import resolve_model
from protocols.messages import Sampling
from tests.engines.weights.gguf_files import FILES, MIXED, TOKENS, quantised, unpacked
from tests.engines.weights.rounded import both
from tests.engines.weights.test_gguf_models import CASES, tiny, written

pytest.importorskip("numba")


@pytest.fixture(scope="module", params=["llama", "gemma3", "untied llama", "qwen3"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return mixed(request.param, tmp_path_factory.mktemp("gguf"))


def mixed(case: str, directory: Path, **more_changes: Any) -> str:
    """A file of a tiny model, the converter's or written here, whose matrices are in blocks of several kinds."""
    source = Path(unpacked(case, directory)) if case in FILES else whole(case, directory, **more_changes)
    return str(quantised(directory / "mixed.gguf", source, MIXED))


def whole(case: str, directory: Path, **more_changes: Any) -> Path:
    architecture, changes, more = CASES[case]
    model = tiny(architecture, {**changes, "intermediate_size": 96, **more_changes})
    return written(directory / "whole.gguf", architecture, model, more)


def logits(engine: Any, tokens: list[int], position: int = 0) -> torch.Tensor:
    rows, span = len(tokens), position + len(tokens)
    visible = np.tril(np.ones((span, span), np.bool_))[position:]
    places = list(range(position, span))
    batch = FlatBatch(tokens, places, [300 + place for place in places], [Segment(rows, 300, span, visible)])
    return engine.forward(batch).clone()


def error_of(file: str) -> float:
    """Distance of the logits that the engine makes of the file's blocks."""
    target, _ = build_target(file, EngineOptions(kv_tokens=1024))
    assert isinstance(target.engine, CompiledEngine)
    assert "Q4_1" in target.info.dtype
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


# transformers reads no such file again, or turns short texts by other factors
NOT_COMPARED = {"Gemma4Unified", "Phi_3_beyond_it"}
TEXTS = [[3 + (11 * text + 7 * at) % 60 for at in range(4)] for text in range(8)]


@pytest.mark.parametrize(
    "name", [*(name for name in FILES if name not in NOT_COMPARED), "command-r with norms of heads"]
)
def test_blocks_of_every_architecture_give_what_transformers_does_of_rounded_inputs(name: str, tmp_path: Path) -> None:
    """A number between two roundings goes either way, and what follows it in a text differs then: so most texts are
    equal, and not all. A lost row, another expert or another group of inputs would move them all."""
    source = Path(unpacked(name, tmp_path)) if name in FILES else whole(name, tmp_path)
    ours, rounded, exact = both(str(quantised(tmp_path / "mixed.gguf", source, MIXED)), TEXTS)
    apart = (ours - rounded).abs().amax((1, 2)) / exact.abs().max()
    assert float((rounded - exact).norm()) > 0
    assert int((apart < 1e-4).sum()) >= len(TEXTS) / 2, apart


@pytest.mark.parametrize("name", ["Qwen3Next", "Glm4MoeLite"])
def test_most_of_what_rounding_moves_in_a_mixture_is_its_choice_of_experts(name: str, tmp_path: Path) -> None:
    file = str(quantised(tmp_path / "mixed.gguf", Path(unpacked(name, tmp_path)), MIXED))
    text = [[token for text in TEXTS for token in text]]
    errors = [
        float((rounded - exact).norm() / exact.norm())
        for _, rounded, exact in (both(file, text, forced) for forced in (False, True))
    ]
    assert errors[0] > 2 * errors[1], errors


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
