"""A tensor with NaN or infinity is named with its file, whatever wrote it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.heads.build import tensors
from actors.engines.weights.formats import KINDS, BlockKind
from actors.engines.weights.gguf import GGUF
from actors.engines.weights.loading import checkpoint_of
from protocols.errors import ModelError
from tests.engines.weights.test_gguf_models import _none, tiny, written
from tests.engines.weights.test_gguf_serving import mixed
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
    checkpoint_of(str(tmp_path)).check_undamaged(2)
    save_file({"first": first, "second": second.to(dtype).view(10, 10)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"^second in {tmp_path}/model.safetensors holds NaN or infinity: .*again"):
        checkpoint_of(str(tmp_path)).check_undamaged(2)


def test_files_of_torch_are_read_too_and_causal_masks_are_not(tmp_path: Path) -> None:
    mask = torch.full((2, 2), -math.inf)
    torch.save({"h.0.attn.masked_bias": mask}, tmp_path / "pytorch_model.bin")
    checkpoint_of(str(tmp_path)).check_undamaged(2)
    torch.save({"h.0.attn.weight": mask}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"^h.0.attn.weight in .*pytorch_model.bin holds"):
        checkpoint_of(str(tmp_path)).check_undamaged(2)


def test_a_tensor_of_a_gguf_file_is_named_as_in_the_file(tmp_path: Path) -> None:
    model = tiny("llama", {})
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = math.nan
    path = written(tmp_path / "tiny.gguf", "llama", model, _none)
    with pytest.raises(ModelError, match=rf"^blk.1.ffn_up.weight in {path} holds"):
        checkpoint_of(str(path)).check_undamaged(2)


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.name != "MXFP4"], ids=lambda kind: kind.name)
def test_of_blocks_those_are_found_whose_numbers_are_none(kind: BlockKind) -> None:
    random = np.random.default_rng(0)
    for _ in range(500):
        block = random.integers(0, 256, kind.bytes, np.uint8)
        with np.errstate(all="ignore"):
            assert kind.is_finite(block) is bool(np.isfinite(kind.dequantise(block[None])).all())
    assert not kind.is_finite(np.full(2 * kind.bytes, 255, np.uint8))


def test_blocks_without_floats_are_all_numbers() -> None:
    [kind] = (kind for kind in KINDS.values() if kind.name == "MXFP4")
    assert kind.is_finite(np.full(2 * kind.bytes, 255, np.uint8))


def test_a_block_of_a_token_of_a_draft_is_looked_at_before_the_token_comes(tmp_path: Path) -> None:
    path = Path(mixed("untied llama", tmp_path))
    build_draft(str(path), EngineOptions(kv_tokens=512))
    whole, stored = bytearray(path.read_bytes()), GGUF(path).tensors["token_embd.weight"]
    at = whole.index(stored.rows[-1].tobytes())
    whole[at : at + 2] = b"\x00\x7e"  # NaN in float16
    (bad := tmp_path / "bad.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match=rf"^token_embd.weight in {bad} holds NaN or infinity"):
        build_draft(str(bad), EngineOptions(kv_tokens=512))


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


BITS = torch.arange(256, dtype=torch.uint8)
BY_CODES = [getattr(torch, f"float8_{one}") for one in ("e4m3fn", "e5m2", "e8m0fnu", "e4m3fnuz", "e5m2fnuz")]


@pytest.mark.parametrize("dtype", BY_CODES)
def test_of_the_codes_of_8_bits_those_are_found_that_torch_calls_no_number(dtype: torch.dtype, tmp_path: Path) -> None:
    finite = BITS.view(dtype).float().isfinite()
    assert not finite.all()
    torch.save({"all": BITS[finite].view(dtype)}, tmp_path / "pytorch_model.bin")
    checkpoint_of(str(tmp_path)).check_undamaged(2)
    for code in BITS[~finite]:
        whole = torch.cat([torch.zeros((1 << 20) + 5, dtype=torch.uint8), code[None]])  # in the second piece
        torch.save({"one": whole.view(dtype)}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ModelError, match=r"^one in .* holds NaN or infinity"):
            checkpoint_of(str(tmp_path)).check_undamaged(2)


def test_floats_of_4_bits_are_all_numbers(tmp_path: Path) -> None:
    torch.save({"one": BITS.view(torch.float4_e2m1fn_x2)}, tmp_path / "pytorch_model.bin")
    checkpoint_of(str(tmp_path)).check_undamaged(2)


class Arguments:
    """Those of a training, which transformers saves beside a model."""


def test_files_that_are_no_weights_of_the_model_are_not_read(draft: Path) -> None:  # noqa: F811
    torch.save(Arguments(), draft / "training_args.bin")
    (draft / "openvino_model.bin").write_bytes(bytes(range(256)))
    torch.save({"one": torch.tensor([math.nan])}, draft / "pytorch_model.bin")  # the loader takes safetensors
    save_file({"one": torch.tensor([math.nan])}, draft / "other.safetensors")
    checkpoint_of(str(draft)).check_undamaged(2)
    build_draft(str(draft), EngineOptions(kv_tokens=512))


@pytest.mark.parametrize("zipped", [False, True])
def test_torchs_old_files_are_read_and_those_of_an_index(zipped: bool, tmp_path: Path) -> None:
    index = {"weight_map": {"first": "pytorch_model-1.bin", "second": "pytorch_model-2.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for name, file, bad in (("first", 1, 0.0), ("second", 2, math.nan)):
        weights = {name: torch.tensor([1, bad]), "step": 7}
        path = tmp_path / f"pytorch_model-{file}.bin"
        torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    torch.save(Arguments(), tmp_path / "training_args.bin")
    with pytest.raises(ModelError, match=r"^second in .*pytorch_model-2.bin holds"):
        checkpoint_of(str(tmp_path)).check_undamaged(2)


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK"])
def test_a_file_of_torch_that_cannot_be_read_is_left_to_whoever_loads_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    checkpoint_of(str(tmp_path)).check_undamaged(2)
    torch.save([torch.tensor([math.nan])], tmp_path / "pytorch_model.bin")
    checkpoint_of(str(tmp_path)).check_undamaged(2)


LEFT_OUT = (
    "model.layers.0.mlp.experts.3.up_proj.input_scale",
    "model.layers.0.self_attn.k_proj.k_scale",
    "model.visual.blocks.0.attn.qkv.weight",
    "transformer.h.0.attn.masked_bias",
)


MORE = ("mtp.layers.0.mlp.up_proj.weight", "model.layers.2.eh_proj.weight")


@pytest.mark.parametrize("name", [*LEFT_OUT, *MORE, "lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_what_is_never_computed_with_may_be_infinite(name: str, tmp_path: Path) -> None:
    save_file({name: torch.tensor([math.inf])}, tmp_path / "model.safetensors")
    for check, fine in (  # a model, and a draft head
        (lambda: checkpoint_of(str(tmp_path)).check_undamaged(2), (*LEFT_OUT, *MORE)),
        (lambda: tensors(str(tmp_path)), LEFT_OUT),
    ):
        if name in fine:
            check()
        else:
            with pytest.raises(ModelError, match=rf"^{name} in .* holds NaN or infinity"):
                check()


def test_another_version_of_a_draft_is_read_too(draft: Path) -> None:  # noqa: F811
    from safetensors.torch import load_file

    first = build_draft(str(draft), EngineOptions(kv_tokens=512))
    weights = load_file(draft / "model.safetensors")
    weights["model.embed_tokens.weight"][273] = math.nan
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"^model.embed_tokens.weight in .* holds NaN or infinity"):
        build_draft(str(draft), EngineOptions(kv_tokens=512), first.info)
