"""`duoactor distill` from end to end, with tiny random models of several families."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.drafts.replay import replay_draft
from actors.engines.weights.loading import load_config
from actors.records import LoggedRequest
from actors.training import answers as writing
from actors.training import covered, draft_models
from actors.training import distill as training
from actors.training.answers import TargetAnswer, TrainingPrompt, jobs, write_answers
from actors.training.batches import batch_of
from actors.training.distill import MOST_APART, distill, kept_apart
from actors.training.draft_training import DraftTraining, trained_seconds
from actors.training.plan import Progress, Text, TrainingPlan, TrainingResult
from actors.training.shards import Shards
from actors.training.start import DraftShape, first_draft
from duoactor.cli import main
from duoactor.distill import card
from protocols.errors import ConfigError, ModelError
from tests.engines.tiny import COMMON, VOCAB, make, make_model


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(draft_models.DraftModels, "tokens", 512)


def words(letter: str = "w") -> PreTrainedTokenizerFast:
    """Tokens are the words w0, w1, …"""
    tokens = Tokenizer(WordLevel({f"{letter}{i}": i for i in range(VOCAB)}, unk_token=f"{letter}2"))
    tokens.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=f"{letter}1")


def target_of(family: str, directory: Path) -> str:
    """A target's directory."""
    make(family).save_pretrained(directory)
    words().save_pretrained(directory)
    return str(directory)


def plan_of(tmp_path: Path, **changed: object) -> TrainingPlan:
    texts = tuple(Text("words", f"w{i} w{2 * i} w{3 * i}") for i in range(3, 15))
    fields: dict[str, object] = {"target": str(tmp_path / "target"), "out": str(tmp_path / "draft"), "texts": texts}
    return TrainingPlan(**(fields | {"shape": "64x1", "minutes": 0.5, "device": "cpu"} | changed))


def ignore(at: Progress) -> None:
    pass


def ticking(step: int) -> Callable[[], float]:
    """A clock on which so many seconds pass each time that it is looked at."""
    seconds = count(step=step)
    return lambda: float(next(seconds))


def made(plan: TrainingPlan, step: int = 3) -> TrainingResult:
    return distill(plan, ignore, ticking(step))


@pytest.mark.parametrize(("family", "shape"), [("llama", "64x2"), ("qwen2", "64x1"), ("gpt2", "64x1")])
def test_a_draft_of_each_family_is_cut_from_its_target_and_loads_as_any_other(family: str, shape: str, tmp_path: Path):
    target_of(family, tmp_path / "target")
    result = made(plan_of(tmp_path, shape=shape))
    out = tmp_path / "draft"
    assert json.loads((out / "config.json").read_text())["model_type"] == family
    assert build_draft(str(out), EngineOptions()).info.vocab_size == VOCAB
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
    target, _ = build_target(target_of("llama", tmp_path / "target"), EngineOptions(dtype="float32"))
    prompts = [TrainingPrompt((i, 2 * i, 3 * i), "words") for i in range(3, 11)]
    answers: list[TargetAnswer] = []
    wanted = (replace(job, longest=16) for job in islice(jobs(prompts), 16))
    write_answers(target, wanted, answers.append, lambda: True, target.info.eos_token_ids)
    assert {len(answer.tokens) for answer in answers} <= set(range(1, 17)) and len(answers) == 16
    torch.manual_seed(0)
    device = torch.device("cpu")
    learner = DraftTraining(first_draft(make("llama"), DraftShape(64, 1)), device)

    def agreement() -> float:
        logits = batch.logits(learner.averaged)
        return float((logits.argmax(-1) == batch.answers)[batch.temperature == 0].float().mean())

    batch = batch_of(answers, device)
    before = agreement()
    for step in range(60):
        learner.step(batch, step / 60)
    assert agreement() > before + 0.2


def shards_of(tmp_path: Path) -> tuple[Shards, Shards]:
    return Shards(tmp_path / "draft" / "training" / "apart"), Shards(tmp_path / "draft" / "training" / "answers")


def interrupted(plan: TrainingPlan, phase: str, share: float, step: int = 3) -> None:
    def interrupt(at: Progress) -> None:
        if at.phase == phase and at.share is not None and at.share > share:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(plan, interrupt, ticking(step))


@pytest.mark.parametrize(
    ("phase", "share", "before", "minutes", "step"), [("answers", 0.4, 6, 4, 1), ("training", 0.5, 3, 1, 3)]
)
def test_a_run_that_goes_on_after_an_interruption_divides_its_time_as_one_without(
    phase: str, share: float, before: int, minutes: int, step: int, tmp_path, monkeypatch
):
    monkeypatch.setattr(writing, "LONGEST", 8)
    target_of("llama", tmp_path / "target")
    interrupted(plan_of(tmp_path, minutes=before), phase, share, step)
    held, earlier = shards_of(tmp_path)
    spent, trained = held.seconds + earlier.seconds, trained_seconds(tmp_path / "draft" / "training" / "state.pt")
    assert earlier.answers and (trained > 0) == (phase == "training")
    result = made(plan_of(tmp_path, minutes=minutes, resume=True), step)
    held, answers = shards_of(tmp_path)
    answering = held.seconds + answers.seconds - spent
    together = 60 * minutes + spent + trained
    assert held.seconds + answers.seconds >= together / 3
    assert (len(answers.answers) > len(earlier.answers)) == (phase == "answers")
    assert [one.job for one in answers.answers[: len(earlier.answers)]] == [one.job for one in earlier.answers]
    assert result.seconds == pytest.approx(trained + max(60 * minutes - answering, 40 * minutes), abs=9)


def test_a_finished_draft_that_is_trained_on_gets_more_answers_as_well(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(writing, "LONGEST", 8)
    target_of("llama", tmp_path / "target")
    first, second = (made(plan_of(tmp_path, minutes=2 + 2 * again, resume=again), 1) for again in (False, True))
    assert second.material.answers > first.material.answers
    assert second.steps > first.steps and second.seconds > first.seconds


def test_a_run_is_resumed_as_what_it_was(tmp_path: Path):
    target_of("llama", tmp_path / "target")
    interrupted(plan_of(tmp_path), "training", 0)
    with pytest.raises(ConfigError, match="had another target, shape, start or prompts; give the same again"):
        made(plan_of(tmp_path, resume=True, shape="64x2"))


def test_a_training_that_cannot_work_is_refused_in_one_sentence_and_leaves_no_directory(tmp_path: Path):
    target_of("llama", tmp_path / "target")
    with pytest.raises(ConfigError, match="holds no training to resume"):
        made(plan_of(tmp_path, resume=True))
    with pytest.raises(ModelError):
        made(plan_of(tmp_path, target=str(tmp_path), shape="auto"))
    assert not (tmp_path / "draft").exists()


def test_a_draft_that_is_to_be_trained_further_has_its_own_shape_and_the_targets_tokenizer(tmp_path: Path):
    target_of("llama", tmp_path / "target")
    other = target_of("llama", tmp_path / "other")
    words("v").save_pretrained(other)
    with pytest.raises(ConfigError, match="other has a shape already; leave --shape out, or --init"):
        made(plan_of(tmp_path, init=other))
    with pytest.raises(ConfigError, match=r"the tokenizer of .*other is not that of .*target; give --init a draft of"):
        made(plan_of(tmp_path, init=other, shape="auto"))
    assert not (tmp_path / "draft").exists()


def test_a_narrower_draft_does_not_say_that_it_began_with_layers_of_its_target(tmp_path: Path):
    config = LlamaConfig(**{**COMMON, "hidden_size": 128})
    make_model(lambda: LlamaForCausalLM(config)).save_pretrained(tmp_path / "target")
    words().save_pretrained(tmp_path / "target")
    narrow, cut = plan_of(tmp_path, shape="64x1"), plan_of(tmp_path, shape="128x1", out=str(tmp_path / "cut"))
    assert "It began with the target's embedding and made" in card(narrow, made(narrow))
    assert "It began with layers of the target and made" in card(cut, made(cut))


@pytest.mark.parametrize(("load", "told"), [(9.0, True), (0.5, False)])
def test_on_a_busy_machine_the_command_says_that_it_measures_badly(
    load: float, told: bool, tmp_path, capsys, monkeypatch
):
    def stop(plan: TrainingPlan, *_: object) -> None:
        raise ConfigError("stopped")

    monkeypatch.setattr(training, "distill", stop)
    monkeypatch.setattr("duoactor.doctor.load_average", lambda: load)
    monkeypatch.setattr(import_module("duoactor.cli.distill"), "available_cpus", lambda: [0, 1])
    assert main(["distill", "--out", str(tmp_path / "draft")]) == 1
    said = "the machine is busy (load 9.0 on 2 CPUs): so are its times; measure again later, or choose the --shape"
    assert (said in capsys.readouterr().err) == told


def test_after_ctrl_c_the_command_says_how_to_go_on(tmp_path: Path, capsys, monkeypatch):
    def interrupt(plan: TrainingPlan, *_: object) -> None:
        Path(plan.out).mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "distill", interrupt)
    monkeypatch.setattr("duoactor.doctor.load_average", lambda: 0.0)
    assert main(["distill", "--out", str(tmp_path / "draft")]) == 130
    assert capsys.readouterr().err.strip() == "duoactor: interrupted; the same command with --resume goes on"


def test_a_shape_that_was_chosen_stays_when_another_would_be_now(tmp_path: Path, monkeypatch):
    target_of("llama", tmp_path / "target")
    monkeypatch.setattr(draft_models, "choose_shape", lambda *_: DraftShape(64, 1))
    assert made(plan_of(tmp_path, shape="auto")).shape == "64x1"
    monkeypatch.setattr(draft_models, "choose_shape", lambda *_: DraftShape(64, 2))
    assert made(plan_of(tmp_path, shape="auto", resume=True)).shape == "64x1"


def test_a_target_without_prompts_asks_itself_and_is_judged_by_others(tmp_path: Path, monkeypatch):
    """The tiny target has no chat template: its own prompts are beginnings of texts."""
    monkeypatch.setattr(writing, "LONGEST", 8)
    target_of("llama", tmp_path / "target")
    tests = tuple(Text("words", f"w{i} w5") for i in range(3, 9))
    result = made(plan_of(tmp_path, texts=(), tests=tests, minutes=3), 1)
    held, shards = shards_of(tmp_path)
    prompts = {one.job.prompt for one in shards.answers}
    assert result.material.prompts == len(prompts) == result.material.own + 1 > 4  # with the empty one
    assert {one.job.temperature for one in shards.answers} == {0.0, 0.6, 1.0}
    assert {one.job.prompt.task for one in held.answers} == {"words"} and result.after
    assert not prompts & {one.job.prompt for one in held.answers}
    again = made(plan_of(tmp_path, texts=(), tests=tests, minutes=3, resume=True), 1)
    assert again.material.own > result.material.own


def test_of_every_task_some_prompts_are_kept_apart():
    assert kept_apart(["a"] * 3 + ["b"] + ["c"] * 17) == {2, 11, 19}


def test_of_many_prompts_no_more_are_kept_apart_than_tell_how_good_a_draft_is():
    assert MOST_APART - 1 <= len(kept_apart(["a"] * 100_000)) <= MOST_APART
    apart = kept_apart(["a"] * 5000 + ["b"] * 20)
    assert len(apart) <= MOST_APART and {i >= 5000 for i in apart} == {True, False}


def test_a_draft_that_is_trained_on_keeps_some_of_what_it_was(tmp_path: Path):
    target_of("llama", tmp_path / "target")
    first = made(plan_of(tmp_path, out=str(tmp_path / "first")))
    again = made(plan_of(tmp_path, shape="auto", init=str(tmp_path / "first")))
    assert (first.shape, again.shape) == ("64x1", "64x1")
    assert "It began with a draft and made" in card(plan_of(tmp_path), again)
    assert "halfway back to those of that draft" in card(plan_of(tmp_path), again)


@pytest.fixture
def small_heads(monkeypatch):
    """As if a vocabulary of 160 tokens were a large one."""
    monkeypatch.setattr(covered, "LEAST", 40)
    monkeypatch.setattr(covered, "MOST", 40)


@pytest.mark.parametrize(("family", "shape"), [("llama-tied", "64x2"), ("qwen2", "auto")])
def test_of_a_large_vocabulary_the_head_covers_what_the_target_says_most(family, shape, tmp_path: Path, small_heads):
    target_of(family, tmp_path / "target")
    plan = plan_of(tmp_path, shape=shape)
    result = made(plan)
    out = tmp_path / "draft"
    assert result.head == 40 and 0 < result.covered <= 1 and result.steps > 0
    assert f"covers the 40 tokens that the target says most: {result.covered:.1%}" in card(plan, result)
    assert load_config(str(out)).draft_vocab_size == 40
    draft = build_draft(str(out), EngineOptions())
    assert draft.info.vocab_size == VOCAB
    covered = set(draft.engine.draft_vocabulary.ids.tolist())
    shards = Shards(out / "training" / "answers")
    said = [token for one in shards.answers for token in one.tokens.tolist()]
    assert sum(token in covered for token in said) / len(said) > 0.5
    one = shards.answers[0]
    [ranks] = replay_draft(draft, [LoggedRequest(prompt=(5, 6), text=tuple(one.tokens.tolist()))])
    assert not any(rank for rank, token in zip(ranks, one.tokens.tolist(), strict=True) if token not in covered)
    before = result.steps
    assert made(plan_of(tmp_path, shape=shape, resume=True)).steps > before
    again = made(plan_of(tmp_path, shape="auto", out=str(tmp_path / "again"), init=str(out)))
    assert again.head == 40
    assert build_draft(str(tmp_path / "again"), EngineOptions()).engine.draft_vocabulary.ids.tolist() == sorted(covered)


def test_a_draft_with_a_whole_head_keeps_it(tmp_path: Path, monkeypatch):
    target_of("llama", tmp_path / "target")
    made(plan_of(tmp_path, out=str(tmp_path / "first")))
    monkeypatch.setattr(covered, "LEAST", 40)
    monkeypatch.setattr(covered, "MOST", 40)
    again = made(plan_of(tmp_path, shape="auto", init=str(tmp_path / "first")))
    assert again.head == 0 and "output layer covers" not in card(plan_of(tmp_path), again)
