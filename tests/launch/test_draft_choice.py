"""`duoactor up --target X` alone: which drafts it takes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from duoactor.config import choose_draft
from duoactor.launch.deployment import deploy
from duoactor.launch.wanted import Wanted, read_wanted

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
