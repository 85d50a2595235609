import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from actors.engines import build
from actors.engines.weights import dtypes
from actors.engines.weights.dtypes import draft_dtype, target_dtype
from protocols.errors import ConfigError

PAIR = Path(__file__).parents[3] / "duoactor" / "pair"
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SMALL, MEDIUM, LARGE = ({"hidden_size": width, "intermediate_size": 4 * width} for width in (128, 512, 4096))


def config(shape: dict[str, int], published: torch.dtype = torch.float32) -> LlamaConfig:
    return LlamaConfig(vocab_size=8192, num_hidden_layers=4, dtype=published, **shape)


@pytest.fixture
def machine(monkeypatch):
    """Says whether the CPU has bfloat16, and whether compiled layers multiply it."""

    def has(hardware: bool, compiled: bool) -> None:
        monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: hardware)
        monkeypatch.setattr(dtypes, "multiplies_bfloat16", lambda config: compiled)
        monkeypatch.setattr(
            dtypes, "compiled_spec", lambda config, device: True if compiled and device.type == "cpu" else None
        )

    return has


@pytest.mark.parametrize(
    ("device", "hardware", "compiled", "shape", "published", "expected"),
    [
        (CUDA, False, False, SMALL, torch.float32, torch.bfloat16),
        (CPU, True, False, LARGE, torch.float32, torch.bfloat16),
        (CPU, True, True, MEDIUM, torch.float32, torch.float32),
        (CPU, False, False, LARGE, torch.bfloat16, torch.float32),
        (CPU, True, True, SMALL, torch.bfloat16, torch.bfloat16),
        (CPU, True, False, SMALL, torch.bfloat16, torch.float32),
    ],
)
def test_a_target_is_computed_in_bfloat16_only_where_it_is_fast(
    machine, device, hardware, compiled, shape, published, expected
):
    machine(hardware, compiled)
    assert target_dtype("auto", device, config(shape, published)) == (expected, False)
    assert target_dtype("float16", device, config(shape, published)) == (torch.float16, False)


@pytest.mark.parametrize(("published", "kept"), [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)])
def test_a_target_is_int8_only_where_asked_for_and_keeps_all_but_its_matrices_as_it_would_be(machine, published, kept):
    machine(True, True)
    assert target_dtype("int8", CPU, config(SMALL, published)) == (kept, True)


@pytest.mark.parametrize(
    ("device", "compiled", "shape", "expected"),
    [
        (CUDA, False, MEDIUM, (torch.bfloat16, False)),
        (CPU, True, MEDIUM, (torch.float32, True)),
        (CPU, True, SMALL, (torch.bfloat16, False)),
        (CPU, False, SMALL, (torch.float32, False)),
    ],
)
def test_a_draft_is_int8_on_a_cpu_unless_it_is_too_small_to_gain(machine, device, compiled, shape, expected):
    machine(compiled, compiled)
    assert draft_dtype("auto", device, config(shape)) == expected
    assert draft_dtype("float32", device, config(shape)) == (torch.float32, False)
    if compiled:
        assert draft_dtype("int8", CPU, config(shape)) == (torch.float32, True)
    else:
        with pytest.raises(ConfigError, match=r"an int8 draft needs .*duoactor\[jit\]; choose --draft-dtype bfloat16"):
            draft_dtype("int8", device, config(shape))


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="dtype 'int3' is not known"):
        target_dtype("int3", CPU, config(SMALL))
    with pytest.raises(ConfigError, match="an int8 target needs a CPU"):
        target_dtype("int8", CUDA, config(SMALL))
    with pytest.raises(ConfigError, match="an int8 draft needs a CPU"):
        draft_dtype("int8", CUDA, config(SMALL))


def test_an_int8_target_without_compiled_layers_is_refused(machine):
    machine(True, False)
    with pytest.raises(ConfigError, match=r"duoactor\[jit\]"):
        target_dtype("int8", CPU, config(SMALL))


@pytest.mark.parametrize("published", ["bfloat16", "float32"])
def test_what_a_checkpoint_was_published_in_is_read_from_its_configuration(machine, tmp_path, published):
    machine(True, True)
    model = shutil.copytree(PAIR / "target", tmp_path / "target")
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(facts | {"dtype": published}))
    assert build.build_target(str(model), build.EngineOptions(kv_tokens=512))[0].info.dtype == published
    assert (
        build.build_target(str(model), build.EngineOptions(dtype="float32", kv_tokens=512))[0].info.dtype == "float32"
    )


def test_an_int8_target_says_so_and_gives_every_row_its_own_bits():
    target, _ = build.build_target(str(PAIR / "target"), build.EngineOptions(dtype="int8", kv_tokens=512))
    assert target.info.dtype == "int8"
    assert target.branches
