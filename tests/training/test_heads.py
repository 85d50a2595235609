"""`duoactor distill --kind head`: a head that drafts, once it is served, as it did while it learned."""

import json
import re

import numpy as np
import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.heads.build import build_head
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Leaf
from actors.training.answers import Job, TrainingPrompt, write_answers
from actors.training.distill import distill
from actors.training.draft_heads import head_batch, taps_of
from actors.training.head_student import first_head, save_head
from actors.training.plan import EXPECTED, Progress, Text, TrainingPlan
from duoactor.cli import main
from protocols.errors import ConfigError
from protocols.messages import Sampling
from tests.engines.mirrored_texts import some_prompt
from tests.engines.tiny import VOCAB, info, make
from tests.training.test_distill import ignore, target_of

GREEDY = Sampling(max_tokens=64)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def served(model):
    return Target(CompiledEngine(model, info(model), 2048), rows_agree=ROWS)


def text_of(target, prompt, count, **options):
    handle = target.open(prompt, GREEDY, **options)
    while (outcome := target.prefill(handle)) is None:
        pass
    text = [*prompt, *outcome.tokens]
    from actors.models import Window

    while len(text) < len(prompt) + count:
        text += target.verify([Window(handle)])[0].tokens
    return handle, text


def answers_with_states(target, jobs):
    answers = []
    write_answers(target, iter(jobs), answers.append, lambda: True, frozenset(), target.keep_states(taps_of(3)))
    return answers


def test_a_served_head_proposes_what_it_did_in_training(tmp_path):
    ids = np.sort(np.random.default_rng(0).permutation(VOCAB)[:50])
    head = first_head(make("llama"), ids).eval()
    target, prompt = served(make("llama")), some_prompt(30)
    [answer] = answers_with_states(target, [Job(TrainingPrompt(tuple(prompt)), 0.0, 0, longest=9)])
    batch = head_batch([answer], CPU)
    with torch.inference_mode():
        steps = head(batch.tokens, batch.states, batch.kept, batch.mask)
    save_head(head, tmp_path / "head", "target")
    draft = build_head(str(tmp_path / "head"), target, "target")
    other, text = text_of(target, prompt, 8, cache_salt="another")
    assert text[:36] == answer.text[:36]
    mirror = draft.open(text[:36], 30, GREEDY)
    draft.follow(mirror, other)
    [top] = draft.expand([Leaf(mirror, text[35], (), is_root=True)])
    [first] = draft.expand([Leaf(mirror, text[36], ())])
    [second] = draft.expand([Leaf(mirror, text[37], (first.slot,))])
    for found, logits in ((top, steps[0][6]), (first, steps[1][7]), (second, steps[2][8])):
        best, places = logits.softmax(-1).topk(8)
        assert found.probs == pytest.approx(best.tolist(), abs=0.02)  # the directory holds bfloat16
        assert found.tokens[0] == int(ids[places[0]])


def test_answers_that_begin_alike_all_have_the_states_of_their_whole_texts():
    prompts = [TrainingPrompt((*some_prompt(80), 5 + n)) for n in range(2)]
    answers = answers_with_states(served(make("llama")), [Job(one, 0.0, n, 8) for one in prompts for n in range(2)])
    assert len(answers) == 4
    model = make("llama")
    for answer in answers:
        with torch.inference_mode():
            states = model(torch.tensor([answer.text[:-1]]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer][0] for layer in taps_of(3)], 1)
        torch.testing.assert_close(torch.from_numpy(answer.states).float(), expected, rtol=2e-2, atol=2e-2)


def test_a_head_is_distilled_resumed_and_served(tmp_path, capsys):
    target = target_of("llama", tmp_path / "target")
    texts = tuple(Text("words", f"w{i} w{2 * i} w{3 * i}") for i in range(3, 15))
    plan = TrainingPlan(target=target, out=str(tmp_path / "head"), texts=texts, kind="head", minutes=0.05, device="cpu")
    said: list[Progress] = []
    result = distill(plan, said.append)
    assert result.steps > 0
    assert len(result.depths) == 3
    [(first, sentence)] = [(at, one.text) for at, one in enumerate(said) if one.phase == EXPECTED]
    assert re.match(r"about [\d,]+ steps fit into this time\. After [\d,]+ the head", sentence)
    assert not any(one.phase.startswith(("answers", "training")) for one in said[:first])
    again = distill(TrainingPlan(**{**_fields(plan), "resume": True}), ignore)
    assert again.steps > result.steps
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    draft = build_head(str(tmp_path / "head"), served(make("llama")), target)
    assert draft.info.vocab_size == VOCAB


def test_a_checkpoint_of_another_head_or_version_is_refused_with_a_sentence(tmp_path):
    target = target_of("llama", tmp_path / "target")
    texts = tuple(Text("words", f"w{i} w{2 * i} w{3 * i}") for i in range(3, 15))
    plan = TrainingPlan(target=target, out=str(tmp_path / "head"), texts=texts, kind="head", minutes=0.02, device="cpu")
    distill(plan, ignore)
    resumed = TrainingPlan(**{**_fields(plan), "resume": True})
    checkpoint = tmp_path / "head" / "training" / "state.pt"
    state = torch.load(checkpoint)
    state["model"]["fc.weight"] = torch.zeros(3, 3)
    torch.save(state, checkpoint)
    for damage in (lambda: None, lambda: checkpoint.write_bytes(b"garbage")):
        damage()
        with pytest.raises(ConfigError, match=r"state\.pt is no checkpoint of this training.*name another --out"):
            distill(resumed, ignore)
    (checkpoint.parent / "plan.json").write_text('{"target": 3}')
    with pytest.raises(ConfigError, match="of another version of duoactor, or damaged"):
        distill(resumed, ignore)


def _fields(plan):
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


def test_a_head_takes_no_shape(capsys):
    assert main(["distill", "--kind", "head", "--shape", "64x1", "--out", "x"]) == 2
    assert "leave --shape" in capsys.readouterr().err
