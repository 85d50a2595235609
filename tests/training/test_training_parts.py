"""The parts of a training: losses, shapes, the start, answers on disk, the prediction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from actors.engines.weights.draft_vocabulary import DraftVocabulary, draft_vocabulary, with_part_head
from actors.models import ModelInfo
from actors.training.answers import TOP, Job, TargetAnswer, TrainingPrompt, jobs
from actors.training.batches import batch_of, groups
from actors.training.covered import LEAST, MOST, coverage, head_tokens, kept_most_frequent, most_frequent
from actors.training.draft_training import halfway
from actors.training.losses import blend, divergences
from actors.training.muon import Muon, orthogonal
from actors.training.plan import AnswerRanks, LearnedFrom, TrainingResult
from actors.training.shapes import CUT_STEPS, STEPS, choose_shape, narrower, round_us, stopwatch
from actors.training.shards import PER_SHARD, Shards
from actors.training.start import DraftShape, chosen_layers, draft_config, first_draft
from duoactor.distill import rows, verdict
from protocols.errors import ConfigError
from tests.engines.tiny import make
from tests.test_target_timing import Tiled

VOCABULARY = 12


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_with_all_tokens_kept_the_divergences_are_the_textbook_ones(temperature: float):
    ours, theirs = logits_of(0), logits_of(1)
    logprobs, ids = theirs.log_softmax(-1).sort(descending=True)
    kl, tv = divergences(ours, ids, logprobs, torch.full((5,), temperature))
    p, q = theirs.softmax(-1), ours.softmax(-1)
    torch.testing.assert_close(kl, (p * (p / q).log()).sum(1), atol=1e-4, rtol=0)
    p, q = (theirs / temperature).softmax(-1), (ours / temperature).softmax(-1)
    torch.testing.assert_close(tv, 0.5 * (p - q).abs().sum(1), atol=1e-4, rtol=0)


def test_a_draft_that_is_its_target_has_nothing_to_learn():
    logits = logits_of(2)
    logprobs, ids = logits.log_softmax(-1).topk(4)
    kl, tv = divergences(logits, ids, logprobs, torch.tensor([1.0] * 5))
    torch.testing.assert_close(torch.cat([kl, tv]), torch.zeros(10), atol=1e-5, rtol=0)


def test_the_places_that_a_draft_fits_least_are_left_out():
    kl, tv = torch.tensor([1.0] * 9 + [100.0]), torch.zeros(10)
    assert blend(kl, tv, acceptance=0.0, left_out=0.1).item() == pytest.approx(1.0)
    assert blend(kl, tv, acceptance=0.0).item() == pytest.approx(10.9)


def test_a_draft_as_wide_as_its_target_begins_with_the_targets_own_layers():
    target = make("llama")
    draft = first_draft(target, DraftShape(64, 2))
    ours, theirs = draft.state_dict(), target.state_dict()
    assert torch.equal(ours["model.layers.1.mlp.up_proj.weight"], theirs["model.layers.2.mlp.up_proj.weight"])
    assert torch.equal(ours["model.embed_tokens.weight"], theirs["model.embed_tokens.weight"])
    assert [chosen_layers(8, n) for n in (1, 2, 4)] == [[0], [0, 7], [0, 2, 5, 7]]


def test_a_shape_that_cannot_be_made_is_refused_in_one_sentence():
    config = make("llama").config
    for text, reason in (
        ("wide", "is not a width and a number"),
        ("0x1", "is not a width"),
        ("96x1", "cannot be made"),
    ):
        with pytest.raises(ConfigError, match=reason):
            draft_config(config, DraftShape.parse(text))
    with pytest.raises(ConfigError, match="more layers than the target's 3"):
        draft_config(config, DraftShape(64, 4))


class Tokenizer:
    def save_pretrained(self, directory: str) -> None:
        pass


def test_one_layer_is_cut_if_its_steps_fit_else_the_largest_narrower_shape_is_taken():
    config = make("llama").config
    config.hidden_size, config.num_hidden_layers = 256, 8
    config.head_dim = 64
    shapes = narrower(config)
    assert shapes[-1] == DraftShape(64, 1) and DraftShape(128, 4) in shapes and DraftShape(256, 1) not in shapes

    def chosen(round_us: float, *step_us: float) -> DraftShape:
        times = iter(step_us)
        return choose_shape(config, Tokenizer(), round_us, lambda directory: next(times), lambda text: None)

    assert chosen(100 * CUT_STEPS, 100) == DraftShape(256, 1)
    assert chosen(100 * STEPS, 500, 300, 99) == shapes[1]
    assert chosen(1.0, *range(100, 99 - len(shapes), -1)) == shapes[-1]  # the cheapest, where none fits


@pytest.mark.parametrize(("context", "took_us"), [(4096, 30_000.0), (16, 10_000.0)])
def test_a_round_of_a_usual_window_is_measured_as_far_as_the_context_allows(context, took_us):
    """The kernel takes 10 ms for each six rows."""
    target = Tiled(info=ModelInfo("tiled", 100, context, frozenset(), ""))
    assert round_us(target, lambda: target.now) == pytest.approx(took_us)


def test_models_that_compute_with_one_thread_are_measured_in_its_own_time():
    assert stopwatch(torch.device("cpu"), 1) is time.thread_time
    assert stopwatch(torch.device("cpu"), 3) is stopwatch(torch.device("cuda"), 1) is time.perf_counter


def answer(job: Job, length: int, width: int = 0) -> TargetAnswer:
    table = np.arange(length * TOP).reshape(length, TOP)
    states = np.random.default_rng(length).normal(size=(len(job.prompt.tokens) + length - 1, width)).astype(np.float16)
    tokens, ids, logprobs = np.arange(length, dtype=np.int32), table.astype(np.int32), (-table / 8).astype(np.float16)
    return TargetAnswer(job, tokens, ids, logprobs, states if width else None)


def prompts_of(count: int) -> list[TrainingPrompt]:
    return [TrainingPrompt((5, number), "words") for number in range(count)]


@pytest.mark.parametrize("width", [0, 6])
def test_answers_come_back_from_disk_and_a_half_written_file_is_not_one(width: int, tmp_path: Path):
    shards = Shards(tmp_path)
    for index, job in enumerate(islice(jobs(prompts_of(3)), PER_SHARD + 2)):
        shards.add(answer(job, 1 + index % 3, width), seconds=index / 2)
    stored = Shards(tmp_path)
    assert (len(stored.answers), stored.seconds) == (PER_SHARD, (PER_SHARD - 1) / 2)  # the last two are pending
    shards.flush()
    (tmp_path / "answers-000002.part").write_bytes(b"PK half")
    again = Shards(tmp_path)
    assert (again.done, again.tokens, again.seconds) == (shards.done, shards.tokens, shards.seconds)
    for one, other in zip(again.answers, shards.answers, strict=True):
        assert one.job == other.job and one.job.prompt.task == "words"
        assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.logprobs, other.logprobs)
        assert (one.states is None) == (not width) and np.array_equal(one.states, other.states)


def test_batches_of_texts_of_all_lengths_have_few_sizes():
    """What a library compiles for each size made a training grow until it was killed."""
    random, answers = np.random.default_rng(0), list[TargetAnswer]()
    for _ in range(400):
        prompt = TrainingPrompt(tuple(range(1, 1 + int(random.integers(2, 200)))))
        answers.append(answer(Job(prompt, 0.0, 0), int(random.integers(8, 257))))
    found = [batch_of(members, torch.device("cpu")) for members in groups(answers, 8192)]
    assert len(found) > 20
    assert len({(one.tokens.shape, one.kept) for one in found}) < 15
    assert {len(one.answers) % 64 for one in found} == {0}
    for one in found:
        assert len(one.answers) == int(one.mask.sum()) == len(one.ids) == len(one.temperature)


def test_each_prompt_is_answered_greedily_once_and_sampled_again_and_again():
    first = list(islice(jobs(prompts_of(2)), 8))
    assert [(job.prompt.tokens[1], job.temperature) for job in first] == [
        (0, 0.0), (0, 1.0), (1, 0.0), (1, 0.6), (0, 0.6), (1, 1.0), (0, 1.0), (1, 0.6),
    ]  # fmt: skip
    assert len(set(islice(jobs(prompts_of(2)), 100))) == 100


def test_of_more_prompts_than_there_is_time_for_half_of_the_answers_are_sampled():
    first = [job.temperature for job in islice(jobs(prompts_of(1000)), 100)]
    assert (first.count(0.0), first.count(1.0), first.count(0.6)) == (50, 25, 25)


def result_of(init: str, before: Sequence[int], after: Sequence[int]) -> TrainingResult:
    texts = (
        [AnswerRanks(temperature=0.0, task="a", ranks=tuple(ranks)) for ranks in read] for read in ((before,), (after,))
    )
    return TrainingResult(
        shape="64x1", parameters=0, start=init or "layers of the target",
        material=LearnedFrom(prompts=2, own=0, answers=1, tokens=1, kept_apart=1), head=0, covered=1.0, steps=1,
        seconds=1.0, round_us=10_000.0, step_us=100.0, before=next(texts), after=next(texts),
    )  # fmt: skip


def test_the_verdict_says_plainly_when_a_draft_does_not_help():
    good, bad = [1] * 40 + [2] * 8, [0] * 48
    assert "`duoactor doctor` measures the speed-up" in verdict(result_of("", bad, good))
    assert verdict(result_of("", bad, bad)).startswith("It does not help: ")
    assert verdict(result_of("a draft", good, [1, 0] * 24)).startswith("It did not get better: ")
    [everything, task] = rows(result_of("", bad, good))
    assert (everything.after, task.before) == ((40 / 48, 1.0, 1.0), (0.0, 0.0, 0.0))


# --- the optimiser ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_bfloat16", [False, True])
@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (32, 32)])
def test_an_update_turns_a_matrix_and_stretches_no_direction(shape: tuple[int, int], has_bfloat16: bool, monkeypatch):
    monkeypatch.setattr("actors.training.muon.cpu_has_bfloat16", lambda: has_bfloat16)
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonal(matrix)
    stretch = torch.linalg.svdvals(found)
    assert found.dtype == torch.float32 and 0.3 < float(stretch.min()) <= float(stretch.max()) < 1.3
    assert float((u @ v * found).sum() / ((u @ v).norm() * found.norm())) > 0.95


def test_a_step_is_that_of_torchs_own_muon_where_that_computes_in_the_same_type(monkeypatch):
    monkeypatch.setattr("actors.training.muon.cpu_has_bfloat16", lambda: True)
    begin = torch.randn((24, 16), generator=torch.Generator().manual_seed(1))
    ours, theirs = torch.nn.Parameter(begin.clone()), torch.nn.Parameter(begin.clone())
    optimizers = (
        Muon([ours], lr=0.01),
        torch.optim.Muon([theirs], lr=0.01, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
    )
    for step in range(3):
        gradient = torch.randn((24, 16), generator=torch.Generator().manual_seed(step))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert not torch.equal(ours, begin)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


# --- a head over part of the vocabulary -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_the_head_lacks_is_lost_and_nothing_to_learn(temperature: float):
    theirs, ours, known = logits_of(1), logits_of(0)[:, :8], torch.arange(8)  # the head lacks the last four tokens
    logprobs, ids = theirs.log_softmax(-1).sort(descending=True)
    columns = torch.cat([known, torch.full((VOCABULARY - 8,), -1)])
    ours.requires_grad_(True)
    kl, tv = divergences(ours, columns[ids], logprobs, torch.full((5,), temperature))
    p, q = theirs.softmax(-1)[:, :8], ours.softmax(-1)
    share = p.sum(1)
    sayable = p / share[:, None]
    torch.testing.assert_close(kl, share * (sayable * (sayable / q).log()).sum(1), atol=1e-4, rtol=0)
    p, q = (theirs / temperature).softmax(-1)[:, :8], (ours / temperature).softmax(-1)
    torch.testing.assert_close(tv, 1 - torch.minimum(p, q).sum(1), atol=1e-4, rtol=0)
    blend(kl, tv, 0.5).backward()
    assert ours.grad is not None and ours.grad.isfinite().all()


def test_a_head_of_a_large_vocabulary_takes_no_longer_than_the_layers():
    def head(vocabulary: int, width: int, layers: int) -> int:
        inner = width * 8 // 3
        return head_tokens(
            LlamaConfig(vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, intermediate_size=inner)
        )

    assert head(151_936, 768, 2) == 18_432 == 2 * 12 * 768
    assert head(128_256, 128, 2) == LEAST and head(128_256, 4096, 4) == MOST
    assert head(32_000, 768, 2) == 32_000 and head(16_384, 128, 2) == 16_384 and head(8192, 128, 2) == 8192


def test_the_head_covers_what_the_target_says_or_might_have_said():
    said = np.array([9, 9, 4], dtype=np.int32)
    ids = np.array([[9, 5], [9, 8], [4, 5]], dtype=np.int32)
    job = Job(TrainingPrompt((7, 7, 7)), 1.0, 0)
    one = TargetAnswer(job, said, ids, np.log([[0.5, 0.5], [0.99, 0.01], [0.5, 0.5]]).astype(np.float16))
    assert most_frequent([one], 3, 12).tolist() == [4, 7, 9]
    assert most_frequent([one], 5, 12).tolist() == [4, 5, 7, 8, 9]
    assert most_frequent([one], 7, 12).tolist() == [0, 1, 4, 5, 7, 8, 9]
    assert coverage([one], None) == 1.0
    assert coverage([one], DraftVocabulary(np.array([3, 9]), 12)) == pytest.approx(2 / 3)


def test_the_head_of_a_training_stays_what_it_was_when_answers_are_added(tmp_path: Path):
    one, more = answer(Job(prompts_of(1)[0], 0.0, 0), 3), answer(Job(TrainingPrompt((3000,) * 9), 0.0, 0), 3)
    first = kept_most_frequent(tmp_path / "head.npy", [one], 20, 4000)
    again = kept_most_frequent(tmp_path / "head.npy", [one, more], 20, 4000)
    assert first.tolist() == again.tolist() != most_frequent([one, more], 20, 4000).tolist()


def test_weights_that_are_mixed_keep_the_map():
    model = with_part_head(make("llama"), np.arange(10, 60))
    begun = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    halfway(model, begun)
    assert draft_vocabulary(model).ids.tolist() == [*range(10, 60)]
    assert torch.allclose(model.lm_head.weight, begun["lm_head.weight"] + 0.5)
