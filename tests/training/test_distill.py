"""`duoactor distill` from end to end, with tiny random models of several families."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from tiny import VOCAB, make
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from actors.engines.build import build_draft, build_target
from actors.engines.checkpoints.loading import load_config
from actors.engines.drafts.replay import replay_draft
from actors.engines.training import head
from actors.engines.training.answers import Answer, Prompt, jobs, write_answers
from actors.engines.training.batches import batch_of
from actors.engines.training.distill import distill, kept_apart
from actors.engines.training.learner import Learner
from actors.engines.training.mixture import SHARES
from actors.engines.training.plan import Plan, Progress, Text
from actors.engines.training.shards import Shards
from actors.engines.training.start import Shape, first_draft
from actors.replay.logged import LoggedRequest
from duoactor.cli import main
from duoactor.distill.report import card
from protocols.errors import ConfigError


def words() -> PreTrainedTokenizerFast:
    """Tokens are the words w0, w1, …"""
    tokens = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w2"))
    tokens.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="w1")


def target_of(family: str, directory: Path) -> str:
    """A target's directory."""
    make(family).save_pretrained(directory)
    words().save_pretrained(directory)
    return str(directory)


def plan_of(tmp_path: Path, **changed: object) -> Plan:
    texts = tuple(Text("words", f"w{i} w{2 * i} w{3 * i}") for i in range(3, 15))
    fields: dict[str, object] = {"target": str(tmp_path / "target"), "out": str(tmp_path / "draft"), "texts": texts}
    return Plan(**(fields | {"shape": "64x1", "minutes": 0.01, "device": "cpu"} | changed))


def ignore(at: Progress) -> None:
    pass


@pytest.mark.parametrize(("family", "shape"), [("llama", "64x2"), ("qwen2", "64x1"), ("gpt2", "64x1")])
def test_a_draft_of_each_family_is_cut_from_its_target_and_loads_as_any_other(family: str, shape: str, tmp_path: Path):
    target_of(family, tmp_path / "target")
    result = distill(plan_of(tmp_path, shape=shape), ignore)
    out = tmp_path / "draft"
    assert json.loads((out / "config.json").read_text())["model_type"] == family
    assert build_draft(str(out), "cpu", "auto", 0, 1).info.vocab_size == VOCAB
    assert (result.shape, result.steps > 0) == (shape, True)


def test_the_command_writes_a_card_and_never_over_a_directory(tmp_path: Path, capsys):
    target = target_of("llama", tmp_path / "target")
    (tmp_path / "words.txt").write_text("\n".join(f"w{i} w{2 * i} w{3 * i}" for i in range(3, 15)))
    out = str(tmp_path / "draft")
    arguments = ["--target", target, "--out", out, "--prompts", str(tmp_path / "words.txt"), "--device", "cpu"]
    assert main(["distill", *arguments, "--shape", "64x1", "--minutes", "0.01", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    card = Path(out, "README.md").read_text()
    assert card.startswith("# A draft for target\n") and result["verdict"] in card
    assert {(row["temperature"], row["task"]) for row in result["agreement"]} >= {(0.0, "all"), (1.0, "words")}
    for row in result["agreement"]:
        assert f"{row['before'][0]:.3f} → {row['after'][0]:.3f}" in card
    assert main(["distill", *arguments]) == 1
    assert "exists already; add --resume to go on with its training" in capsys.readouterr().err


def test_what_is_learned_raises_the_agreement(tmp_path: Path):
    target, _ = build_target(target_of("llama", tmp_path / "target"), "cpu", "float32", 0, 1)
    prompts = [Prompt((i, 2 * i, 3 * i), "words") for i in range(3, 11)]
    answers: list[Answer] = []
    write_answers(target, prompts, islice(jobs(8), 16), answers.append, lambda: True, longest=16)
    assert {len(answer.tokens) for answer in answers} <= set(range(1, 17)) and len(answers) == 16
    torch.manual_seed(0)
    device = torch.device("cpu")
    learner = Learner(first_draft(make("llama"), Shape(64, 1)), device)

    def agreement() -> float:
        logits = batch.logits(learner.averaged)
        return float((logits.argmax(-1) == batch.answers)[batch.temperature == 0].float().mean())

    batch = batch_of(prompts, answers, device)
    before = agreement()
    for step in range(60):
        learner.step(batch, step / 60)
    assert agreement() > before + 0.2


def test_an_interrupted_training_goes_on_with_the_answers_it_has(tmp_path: Path):
    target_of("llama", tmp_path / "target")

    def interrupt(at: Progress) -> None:
        if at.phase == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(plan_of(tmp_path), interrupt)
    kept = Shards(tmp_path / "draft" / "training" / "answers").tokens
    assert kept > 0
    first = distill(plan_of(tmp_path, resume=True), ignore)
    assert first.tokens == kept
    second = distill(plan_of(tmp_path, resume=True), ignore)
    assert (second.tokens, second.steps > first.steps, second.seconds > first.seconds) == (kept, True, True)
    with pytest.raises(ConfigError, match="had another target, shape, start or prompts; give the same again"):
        distill(plan_of(tmp_path, resume=True, shape="64x2"), ignore)


def test_a_training_that_cannot_work_is_refused_in_one_sentence(tmp_path: Path):
    target_of("llama", tmp_path / "target")
    with pytest.raises(ConfigError, match="1 prompts are too few to learn from some and to test on others"):
        distill(plan_of(tmp_path, texts=(Text("words", "w3"),)), ignore)
    assert not (tmp_path / "draft").exists()
    with pytest.raises(ConfigError, match="holds no training to resume"):
        distill(plan_of(tmp_path, out=str(tmp_path / "elsewhere"), resume=True), ignore)


def test_of_every_task_some_prompts_are_kept_apart():
    assert kept_apart(["a"] * 3 + ["b"] + ["c"] * 17) == {2, 11, 19}


def test_a_draft_that_is_trained_on_keeps_some_of_what_it_was(tmp_path: Path):
    target_of("llama", tmp_path / "target")
    first = distill(plan_of(tmp_path, out=str(tmp_path / "first")), ignore)
    again = distill(plan_of(tmp_path, shape="auto", init=str(tmp_path / "first")), ignore)
    assert (first.share, again.shape) == (1.0, "64x1") and again.share in SHARES
    assert "began with" in card(plan_of(tmp_path), again, False) and "Its weights are" in card(
        plan_of(tmp_path), again, False
    )


@pytest.fixture
def small_heads(monkeypatch):
    """As if a vocabulary of 160 tokens were a large one."""
    monkeypatch.setattr(head, "LEAST", 40)
    monkeypatch.setattr(head, "MOST", 40)


@pytest.mark.parametrize(("family", "shape"), [("llama-tied", "64x2"), ("qwen2", "auto"), ("gpt2", "64x1")])
def test_of_a_large_vocabulary_the_head_covers_what_the_target_says_most(family, shape, tmp_path: Path, small_heads):
    target_of(family, tmp_path / "target")
    plan = plan_of(tmp_path, shape=shape)
    result = distill(plan, ignore)
    out = tmp_path / "draft"
    assert (result.vocabulary, result.head) == (VOCAB, 40) and 0 < result.covered <= 1 and result.steps > 0
    assert f"covers the 40 of 160 tokens that the target says most: {result.covered:.1%}" in card(plan, result, False)
    assert load_config(str(out)).draft_vocab_size == 40
    draft = build_draft(str(out), "cpu", "auto", 0, 1)
    assert draft.info.vocab_size == VOCAB
    covered = set(draft.engine.draft_vocabulary.ids.tolist())
    shards = Shards(out / "training" / "answers")
    said = [token for one in shards.answers for token in one.tokens.tolist()]
    assert sum(token in covered for token in said) / len(said) > 0.5
    one = shards.answers[0]
    [ranks] = replay_draft(draft, [LoggedRequest(prompt=(5, 6), text=tuple(one.tokens.tolist()))])
    assert not any(rank for rank, token in zip(ranks, one.tokens.tolist(), strict=True) if token not in covered)
    before = result.steps
    assert distill(plan_of(tmp_path, shape=shape, resume=True), ignore).steps > before
    again = distill(plan_of(tmp_path, out=str(tmp_path / "again"), init=str(out)), ignore)
    assert again.head == 40
    assert build_draft(str(tmp_path / "again"), "cpu", "auto", 0, 1).engine.draft_vocabulary.ids.tolist() == sorted(
        covered
    )


def test_a_draft_with_a_whole_head_keeps_it(tmp_path: Path, monkeypatch):
    target_of("llama", tmp_path / "target")
    distill(plan_of(tmp_path, out=str(tmp_path / "first")), ignore)
    monkeypatch.setattr(head, "LEAST", 40)
    monkeypatch.setattr(head, "MOST", 40)
    again = distill(plan_of(tmp_path, init=str(tmp_path / "first")), ignore)
    assert again.head == VOCAB and "output layer covers" not in card(plan_of(tmp_path), again, False)
