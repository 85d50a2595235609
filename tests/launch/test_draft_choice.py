"""`duoactor up --target X` alone: which drafts it takes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from duoactor.config import choose_draft
from duoactor.launch.deployment import deploy
from duoactor.launch.wanted import ClashError, Wanted, read_wanted

PAIR = Path(__file__).parents[2] / "duoactor" / "pair"


def wanted(target: Path | str, **flags: object) -> Wanted:
    return read_wanted("", {"target": str(target), **flags})


def test_without_any_draft_the_verifier_retrieves_by_itself(tmp_path: Path):
    (tmp_path / "other").mkdir()
    found = wanted(tmp_path / "other")
    assert found.drafters == () and found.drafts.startswith("copied from earlier text")
    assert wanted("org/model-on-the-hub").drafters == ()


def test_drafters_that_are_asked_for_retrieve_where_there_is_no_draft(tmp_path: Path):
    found = read_wanted("", {"target": str(tmp_path)}, drafters=2)
    assert [drafter.draft for drafter in found.drafters] == ["sam", "sam"]


def test_a_draft_beside_the_target_is_taken(tmp_path: Path):
    target = tmp_path / "model"
    target.mkdir()
    for draft in (tmp_path / "model-draft", target / "draft"):
        shutil.copytree(PAIR / "draft", draft)
        assert [drafter.draft for drafter in wanted(target).drafters] == [str(draft)]
    file = tmp_path / "file.Q4_K_M.gguf"
    (tmp_path / "file.Q4_K_M-draft.gguf").write_bytes(b"GGUF")
    assert choose_draft(str(file))[0] == str(tmp_path / "file.Q4_K_M-draft.gguf")


def test_the_bundled_draft_is_for_targets_with_its_tokenizer(tmp_path: Path):
    assert [drafter.draft for drafter in wanted("bundled").drafters] == ["bundled"]
    inflated = shutil.copytree(PAIR / "target", tmp_path / "inflated")
    assert [drafter.draft for drafter in wanted(inflated).drafters] == ["bundled"]


def test_a_draft_that_is_named_needs_no_reason(tmp_path: Path):
    found = wanted(tmp_path, draft="pld")
    assert [drafter.draft for drafter in found.drafters] == ["pld"] and found.drafts == ""


HEAD = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}


def settled(found: Wanted, tmp_path: Path) -> tuple[str, int, str]:
    """What the verifier drafts with, how many drafters there are, and what `up` says."""
    bound = replace(found.verifier, bind=f"ipc://{tmp_path}/v")
    made = deploy(dataclasses.replace(found, verifier=bound), cpus=(0, 1))
    return made.verifier.inline_draft, len(made.drafters), made.drafts


def test_a_head_is_no_drafter_but_the_verifiers_own(tmp_path: Path):
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(HEAD))
    (head / "pytorch_model.bin").write_bytes(b"weights")
    assert settled(wanted("bundled", draft=str(head)), tmp_path) == (str(head), 0, f"by {head}")
    assert wanted("bundled", draft="auto") == wanted("bundled")


def test_a_target_with_a_layer_for_more_tokens_drafts_by_itself(tmp_path: Path):
    target = shutil.copytree(PAIR / "target", tmp_path / "own")
    save_file({"mtp.fc.weight": torch.zeros(2, 4)}, target / "mtp.safetensors")
    inline, drafters, said = settled(wanted(target), tmp_path)
    assert (inline, drafters) == ("auto", 0)
    assert said.startswith("by the target's own layer")


def cached(hub: Path, name: str, config: object, weights: int, tokenizer: Path | None = None) -> None:
    place = hub / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    snapshot = place / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "model.safetensors").write_bytes(b" " * weights)
    if tokenizer is not None:
        shutil.copy(tokenizer, snapshot / "tokenizer.json")


def test_a_published_draft_in_the_hubs_cache_is_taken_a_head_before_a_smaller_model(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    sizes = {"hidden_size": 64, "vocab_size": 99, "num_hidden_layers": 6}
    family = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    cached(tmp_path, "org/big-8b", family | sizes, 1000, tokenizer)
    assert choose_draft("org/big-8b")[0] == ""
    cached(tmp_path, "org/medium", family | sizes, 500, tokenizer)
    assert choose_draft("org/big-8b")[0] == ""
    cached(tmp_path, "org/small", family, 100, tokenizer)
    draft, said = choose_draft("org/big-8b")
    assert draft == "org/small" and "smaller model" in said
    named = {"speculators_config": {"verifier": {"name_or_path": "org/other"}}, "speculators_model_type": "eagle3"}
    cached(tmp_path, "a/eagle3-of-other", named | {"transformer_layer_config": sizes}, 10)
    cached(tmp_path, "a/eagle3-too-wide", HEAD | sizes | {"hidden_size": 128}, 10)
    assert choose_draft("org/big-8b")[0] == "org/small"
    cached(tmp_path, "a/eagle3-big-8b", HEAD | sizes | {"num_hidden_layers": 1}, 10)
    cached(tmp_path, "a/eagle3-unlike", HEAD | sizes | {"num_hidden_layers": 1}, 10)
    draft, said = choose_draft("org/big-8b")
    assert draft == "auto" and said.startswith("by a/eagle3-big-8b, a head")
    mine = {"speculators_config": {"verifier": {"name_or_path": "org/big-8B"}}, "speculators_model_type": "eagle3"}
    cached(tmp_path, "a/mine", mine, 10)
    assert choose_draft("org/big-8b")[1].startswith("by a/mine, ")


def test_gemma_4s_assistant_is_found_in_the_hubs_cache_and_beside_its_target(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    text, other = {"hidden_size": 64, "vocab_size": 99, "model_type": "gemma4_text"}, {"model_type": "llama"}
    assistant = {"model_type": "gemma4_assistant", "backbone_hidden_size": 64, "text_config": text | {"hidden_size": 8}}
    cached(tmp_path, "google/gemma-4-assistant", assistant, 10)
    cached(tmp_path, "google/gemma-4", {"model_type": "gemma4", "text_config": text}, 1000)
    cached(tmp_path, "google/gemma-4-wide", {"model_type": "gemma4", "text_config": text | {"hidden_size": 128}}, 1000)
    cached(tmp_path, "org/llama", text | other, 1000)
    names = ("google/gemma-4", "google/gemma-4-wide", "org/llama")
    assert [choose_draft(name)[0] for name in names] == ["auto", "", ""]
    target = tmp_path / "models" / "gemma-4.1b"
    (target.parent / "gemma-4.1b-assistant").mkdir(parents=True)
    (target.parent / "gemma-4.1b-assistant" / "config.json").write_text(json.dumps(assistant))
    assert choose_draft(str(target))[0] == f"{target}-assistant"


def test_no_draft_is_no_drafter_and_nothing_is_said_of_one():
    made = read_wanted("", {"target": "bundled", "draft": "none"})
    assert (made.drafters, made.drafts) == ((), "") and made == read_wanted("", {"target": "bundled"}, drafters=0)


def test_a_draft_without_a_drafter_is_refused_by_a_sentence():
    with pytest.raises(ClashError, match="--draft needs a drafter: leave --drafters 0 out"):
        read_wanted("", {"draft": "someone/head"}, drafters=0)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"target": "smollm2"}, ("smollm2",)),
        ({"target": "smollm2", "served_model_name": ("mine",)}, ("mine",)),
        ({"target": "bundled"}, ()),
    ],
)
def test_requests_call_the_small_model_as_the_user_did(flags, names):
    made = read_wanted("", flags, http="127.0.0.1:0")
    assert made.gateway is not None and made.gateway.served_model_name == names
