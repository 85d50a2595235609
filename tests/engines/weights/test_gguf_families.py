"""GGUF files of every family by llama.cpp's own converter (tests/data/gguf_families) give transformers' logits."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from actors.engines.build import _engine, _How
from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.weights.gguf_loading import GGUFFile
from actors.engines.weights.gguf_models import ARCHITECTURES, GGUFCheckpoint
from actors.engines.weights.loading import load_config, load_for_engine, load_model
from actors.models import ModelInfo
from protocols.errors import ModelError
from tests.engines.weights.gguf_files import FILES, unpacked
from tests.engines.weights.test_gguf_models import CASES
from tools.writers.gguf_families import IDS, INTO


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_converter_computes_what_the_original_does(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    file = unpacked(name, tmp_path)
    assert spec_of(GGUFFile(file).known_config()) == spec_of(load_config(file))
    model = load_for_engine(file, torch.device("cpu"), torch.float32)
    info = ModelInfo(name, 64, 512, frozenset({1}), "tiny-tokenizer")
    engine = _engine(model, info, 512, _How(exact=True))
    assert type(engine) is CompiledEngine
    batch, places = FlatBatch(), list(range(len(IDS)))
    batch.add(0, IDS, places, places, causal(0, len(IDS)))
    expected = torch.from_numpy(np.load(INTO / f"{name}.npy"))
    found = engine.forward(batch)[-len(expected) :, : expected.shape[1]]
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))


def test_transformers_model_of_a_file_with_constants_computes_what_the_original_does(tmp_path: Path) -> None:
    """Apertus: a file has no weights for two constants of its activation, which transformers keeps among them."""
    model = load_model(unpacked("Apertus", tmp_path), torch.device("cpu"), torch.float32)
    expected = torch.from_numpy(np.load(INTO / "Apertus.npy"))
    found = model(torch.tensor([IDS])).logits[0, -len(expected) :, : expected.shape[1]]
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *((name, "expert_gating_func", 1) for name in ("Afmoe", "Dots1", "ExaoneMoe", "HYV3", "Laguna", "Lfm2Moe")),
        *((name, "expert_gating_func", 1) for name in ("MiniMaxM2", "Nemotron-H_with_experts")),
        *((name, "expert_gating_func", 2) for name in ("GptOss", "Mistral4", "Mixtral", "Qwen3Moe")),
        *((name, "expert_gating_func", 3) for name in ("Cohere2Moe", "DeepseekV3")),
        *((name, "expert_weights_norm", False) for name in ("Afmoe", "Laguna", "Qwen3Moe")),
    ],
)
def test_experts_chosen_in_another_way_are_refused(name: str, key: str, value: int, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(unpacked(name, tmp_path))
    file = checkpoint.file
    file.metadata[f"{file.architecture}.{key}"] = value
    with (
        patch("actors.engines.weights.gguf_models.GGUF", lambda path: file),
        pytest.raises(ModelError, match=rf"{key} = {value}, which duoactor does not compute for this architecture"),
    ):
        GGUFCheckpoint(file.path)


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}


@pytest.mark.parametrize(
    ("name", "said", "read"),
    [
        ("DeepseekV3", YARN | {"yarn_log_multiplier": 0.1}, {"mscale": 1.0, "mscale_all_dim": 1.0}),
        ("Ministral3", {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}, {"beta_fast": 16.0, "beta_slow": 2.0}),
    ],
)
def test_what_a_file_says_of_yarn_is_read(name: str, said: dict, read: dict, tmp_path: Path) -> None:
    file = GGUFCheckpoint(unpacked(name, tmp_path)).file
    file.metadata |= {f"{file.architecture}.rope.scaling.{key}": value for key, value in said.items()}
    with patch("actors.engines.weights.gguf_models.GGUF", lambda path: file):
        rope = GGUFCheckpoint(file.path).config["rope_parameters"]
    assert rope["rope_type"] == "yarn" and rope["factor"] == 4.0 and read.items() <= rope.items()


def test_a_minicpm_without_multipliers_has_those_of_its_time(tmp_path: Path) -> None:
    file = GGUFCheckpoint(unpacked("MiniCPM", tmp_path)).file
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        del file.metadata[f"minicpm.{key}"]
    with patch("actors.engines.weights.gguf_models.GGUF", lambda path: file):
        config = GGUFCheckpoint(file.path).config
    assert (config["embedding_multiplier"], config["residual_multiplier"]) == (12.0, 0.7)
    assert config["logits_scaling"] == 32 / 256  # a published model has 2304 / 256


@pytest.mark.parametrize("one_for_all", [False, True])
@pytest.mark.parametrize("name", ["GraniteMoeHybrid", "Lfm2", "Nemotron-H_with_experts", "Jamba"])
def test_layers_whose_attention_is_not_said_are_refused(name: str, one_for_all: bool, tmp_path: Path) -> None:
    """The converter knows ``layer_types`` of Granite as published, and writes no heads where transformers 5 saved."""
    file = GGUFCheckpoint(unpacked(name, tmp_path)).file
    key = f"{file.architecture}.attention.head_count_kv"
    layer = int(np.flatnonzero(file.metadata[key])[0])
    file.metadata[key] = 0 if one_for_all else np.zeros_like(file.metadata[key])
    said = rf"{name}\.gguf has {key} = 0 for layer {layer} and a tensor blk\.{layer}\.attn_k\.weight; convert .* anew"
    with (
        patch("actors.engines.weights.gguf_models.GGUF", lambda path: file),
        pytest.raises(ModelError, match=said),
    ):
        GGUFCheckpoint(file.path)


def test_every_architecture_is_tried(tmp_path: Path) -> None:
    found = {GGUFCheckpoint(unpacked(name, tmp_path)).file.architecture for name in FILES}
    assert found | {architecture for architecture, *_ in CASES.values()} == ARCHITECTURES.keys()
