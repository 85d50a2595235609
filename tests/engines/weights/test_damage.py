"""A tensor with NaN or infinity is named with its file, whatever wrote it."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.weights.damage import check_undamaged
from protocols.errors import ModelError
from tests.engines.weights.test_gguf_models import _none, tiny, written
from tests.engines.weights.test_loading import PAIR, draft, edit  # noqa: F401  # a fixture

BAD = [math.nan, math.inf, -math.inf]
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("at", [0, 70, 99])
def test_one_number_of_any_type_is_found_wherever_it_is(
    bad: float, dtype: torch.dtype, at: int, tmp_path: Path
) -> None:
    first, second = torch.randn(10, 10).to(dtype), torch.randn(100)
    second[at] = bad
    save_file({"first": first, "none": torch.zeros(0), "ids": torch.arange(3)}, tmp_path / "model.safetensors")
    check_undamaged(str(tmp_path))
    save_file({"first": first, "second": second.to(dtype).view(10, 10)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"^second in {tmp_path}/model.safetensors holds NaN or infinity: .*again"):
        check_undamaged(str(tmp_path))


def test_files_of_torch_are_read_too_and_causal_masks_are_not(tmp_path: Path) -> None:
    mask = torch.full((2, 2), -math.inf)
    torch.save({"h.0.attn.masked_bias": mask}, tmp_path / "pytorch_model.bin")
    check_undamaged(str(tmp_path))
    torch.save({"h.0.attn.weight": mask}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"^h.0.attn.weight in .*pytorch_model.bin holds"):
        check_undamaged(str(tmp_path))


def test_a_tensor_of_a_gguf_file_is_named_as_in_the_file(tmp_path: Path) -> None:
    model = tiny("llama", {})
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = math.nan
    path = written(tmp_path / "tiny.gguf", "llama", model, _none)
    for packed in (False, True):
        with pytest.raises(ModelError, match=rf"^blk.1.ffn_up.weight in {path} holds"):
            check_undamaged(str(path), packed)


def test_a_damaged_target_and_a_row_of_a_draft_are_refused_with_the_tensor(draft: Path) -> None:  # noqa: F811
    from safetensors.torch import load_file

    weights = load_file(draft / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][273] = math.nan  # its other rows have right logits
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    edit(draft / "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelError, match=rf"^model.embed_tokens.weight in {draft}/model.safetensors holds NaN"):
        build_draft(str(draft), EngineOptions(kv_tokens=512))
    weights["model.norm.weight"][7] = math.inf
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"in {draft}/model.safetensors holds NaN or infinity"):
        build_target(str(draft), EngineOptions(kv_tokens=512))
