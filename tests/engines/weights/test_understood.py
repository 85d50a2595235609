"""What a checkpoint's weights are taken for, layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actors.engines.weights.understood import joined, understood

gguf = pytest.importorskip("gguf")
ROOT = Path(__file__).parents[3]
WRITTEN = ROOT / "tests" / "data" / "writers"
BLOCK = (
    "model.layers.0: mlp.gate_proj, mlp.up_proj, self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "ct-mixed",
            {
                "model.layers.0: mlp.down_proj: integers of 8 bits, a scale for each 32 inputs",
                f"{BLOCK}: integers of 4 bits, a scale for each 32 inputs",
                "model.embed_tokens: BF16",
            },
        ),
        (
            "bnb-nf4",
            {
                f"{BLOCK.replace('mlp.gate', 'mlp.down_proj, mlp.gate')}: nf4 of 4 bits",
                "model.embed_tokens: BF16",
            },
        ),
    ],
)
def test_a_checkpoint_of_several_kinds_is_told_layer_by_layer(name: str, expected: set[str]):
    assert set(understood(str(WRITTEN / name / "model"))) == expected


def test_equal_layers_are_joined():
    stored = {f"model.layers.{n}.mlp.up_proj.weight": "F16" if n == 4 else "Q8_0" for n in range(7)}
    assert [*joined(stored)] == ["model.layers.0-3,5-6: mlp.up_proj: Q8_0", "model.layers.4: mlp.up_proj: F16"]


def test_a_gguf_files_types_are_told_and_a_hub_ids_are_not_known(tmp_path: Path):
    file = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    file.add_tensor("token_embd.weight", np.zeros((4, 32), np.float16))
    file.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    for layer in range(2):
        file.add_tensor(
            f"blk.{layer}.attn_q.weight", np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0
        )
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    assert understood(str(tmp_path / "x.gguf")) == ["token_embd: F16", "blk.0-1: attn_q: Q8_0"]
    assert understood("somebody/a-model") == []
