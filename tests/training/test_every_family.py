"""The pipe of `duoactor distill` with tiny targets of families that differ: each answers, a draft is cut from it,
trained, written, and loaded as any other."""

import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from actors.engines.build import EngineOptions, build_draft
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Leaf
from actors.training.answers import TargetAnswer, TrainingPrompt, jobs, write_answers
from actors.training.batches import batch_of
from actors.training.draft_training import DraftTraining
from actors.training.shapes import narrower
from actors.training.start import DraftShape, first_draft
from protocols.messages import Sampling
from tests.engines.families import model_of
from tests.engines.tiny import VOCAB, engine_of
from tests.training.test_distill import words

CPU = torch.device("cpu")
CUT = (
    *("Llama", "Qwen3Moe", "GraniteMoeShared", "Glm4Moe", "DeepseekV2", "DeepseekV3", "Llama4", "Gemma3", "Cohere2"),
    *("GptOss", "GPT2", "GPTNeoX", "OPT", "Falcon", "Apertus"),
)
PROMPTS = [TrainingPrompt((i, 2 * i, 3 * i), "words") for i in range(3, 7)]


@pytest.mark.parametrize("name", CUT)
def test_a_draft_of_each_family_is_cut_trained_and_loaded(name: str, tmp_path: Path):
    torch.set_num_threads(1)
    model = model_of(name)
    draft = first_draft(model, DraftShape(64, 1))
    assert type(draft) is type(model)
    learner = DraftTraining(draft, CPU)
    before = copy.deepcopy(learner.averaged.state_dict())
    target = Target(engine_of(model), 8, ROWS)
    answers: list[TargetAnswer] = []
    wanted = (replace(job, longest=8) for job in islice(jobs(PROMPTS), 2 * len(PROMPTS)))
    write_answers(target, wanted, answers.append, lambda: True, target.info.eos_token_ids)
    assert len(answers) == 2 * len(PROMPTS)
    accepted = learner.step(batch_of(answers, CPU), 0.5)
    assert 0.0 <= accepted <= 1.0
    after = learner.averaged.state_dict()
    assert all(weight.isfinite().all() for weight in after.values())
    assert any(not torch.equal(before[key], weight) for key, weight in after.items())
    learner.averaged.save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    served = build_draft(str(tmp_path), EngineOptions(kv_tokens=512))
    handle = served.open([*PROMPTS[0].tokens], 3, Sampling(max_tokens=8))
    [expansion] = served.expand([Leaf(handle, PROMPTS[0].tokens[-1], (), is_root=True)])
    assert expansion.tokens and max(expansion.tokens) < VOCAB


@pytest.mark.parametrize("name", ["Qwen3_5", "Mamba2", "Gemma4"])
def test_the_draft_of_a_recurrent_target_is_a_llama_also_where_it_is_as_wide(name: str):
    model = model_of(name)
    width = model.config.get_text_config().hidden_size
    for shape in (DraftShape(width, 1), *narrower(model.config)):
        assert isinstance(first_draft(model, shape), LlamaForCausalLM)
