"""A bias that one layer lacks is missed, in its own tower alone; of GGUF files: test_gguf_models.py."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.engines.weights.biases import check_biases
from actors.engines.weights.loading import load_for_engine
from protocols.errors import ModelError
from tests.engines.weights.test_quantised import CASES, CPU, written

TOWERS = {  # a vision tower with biases, an audio tower of whose projections one has none, and other layers
    "model.visual.blocks.{}.self_attn.q_proj": ("weight", "bias"),
    "audio_tower.layers.{}.self_attn.v_proj": ("weight", "bias"),
    "audio_tower.layers.{}.self_attn.k_proj": ("weight",),
    "other.blocks.{}.self_attn.q_proj": ("weight", "bias"),
    "model.layers.{}.self_attn.k_proj": ("weight", "bias"),
    "model.layers.{}.self_attn.q_proj": ("weight",),
}


def test_biases_of_one_tower_are_not_missed_in_another() -> None:
    names = {f"{part.format(layer)}.{end}" for part, ends in TOWERS.items() for layer in range(3) for end in ends}
    check_biases("it", names | {"vision_tower.blocks.0.conv.0.bias", "vision_tower.blocks.1.conv.0.weight"})
    for part in ("other.blocks.2.self_attn.q_proj", "model.layers.0.self_attn.k_proj"):
        with pytest.raises(ModelError, match=f"it has no tensor {part}.bias, which its other layers"):
            check_biases("it", names - {f"{part}.bias"})


@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.down_proj"])
def test_a_bias_that_one_layer_lacks_is_missed(part: str, tmp_path: Path) -> None:
    written(tmp_path, *CASES["FP8"])
    tensors = load_file(tmp_path / "model.safetensors")
    layers = sorted(name for name in tensors if name.endswith(f"{part}.weight"))
    biases = {name.removesuffix("weight") + "bias": torch.zeros(tensors[name].shape[0]) for name in layers}
    for left in (biases, dict(list(biases.items())[1:])):
        save_file({**tensors, **left}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        if left == biases:
            load_for_engine(str(tmp_path), CPU, torch.float32)
    with pytest.raises(
        ModelError, match=rf"has no tensor model.layers.0.{part}.bias, which its other layers have; download"
    ):
        load_for_engine(str(tmp_path), CPU, torch.float32)
