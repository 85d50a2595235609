"""A verifier whose target has a head: fewer rounds, and the target's own text."""

import asyncio
import itertools
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.heads.draft import HeadDraft
from actors.engines.heads.engine import HeadEngine
from actors.engines.heads.kinds import QWEN
from actors.engines.heads.mtp import Mtp
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.settings import VerifierSettings
from actors.verifier.compute import InlineCompute
from actors.verifier.sources.head import HeadSource, OnThread
from actors.verifier.start import _inline_draft, head_of
from protocols.errors import ModelError
from protocols.messages import Done, Failed, Generate, Sampling, Status, StatusReport, Swap
from tests.engines.heads.published import EAGLE3, HIDDEN, eagle3_weights, fused
from tests.engines.tiny import VOCAB, info, make
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.inline_drafts import FORWARD_S, STEP_US

PROMPT = tuple(range(5, 25))


def model_of_tokens():
    """A model in which the next token depends on the last alone."""
    torch.set_num_threads(1)
    model = make("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.mul_(3)
    return model


def weights_for(model, doubt):
    """A layer for more tokens that is right; ``doubt``: by how much what it also reads disturbs it."""
    state = model.state_dict()
    layer = {name.removeprefix("model.layers.0."): w for name, w in state.items() if name.startswith("model.layers.0.")}
    weights = {f"mtp.layers.0.{name}": tensor.clone() for name, tensor in layer.items()}
    one = torch.ones(HIDDEN)
    both = torch.cat([torch.eye(HIDDEN), doubt * torch.eye(HIDDEN).roll(7, 0)], 1)
    return weights | {
        "mtp.fc.weight": both,
        "mtp.pre_fc_norm_embedding.weight": one,
        "mtp.pre_fc_norm_hidden.weight": one.clone(),
        "mtp.norm.weight": state["model.norm.weight"].clone(),
    }


def with_head(doubt=0.0, **fields):
    """Another one, ``better``, doubts nothing."""
    model = model_of_tokens()
    known, weights = info(model), {each: weights_for(model, each) for each in (0.0, doubt)}
    target = Target(CompiledEngine(model, known, 4096), rows_agree=ROWS)
    trunk = target.engine.trunk()

    def head_of(doubt):
        head = Mtp(model.config, weights[doubt], trunk, QWEN)
        return HeadDraft(HeadEngine(head, trunk, known, 4096), States(head.taps))

    async def load(name, old):
        await asyncio.sleep(FORWARD_S)
        if name not in ("first", "better"):
            raise ModelError(f"{name} does not draft for target tiny")
        draft = head_of(doubt if name == "first" else 0.0)
        target.taps.exchange(old.states, draft.states)
        return draft, STEP_US

    draft = head_of(doubt)
    target.taps.exchange(None, draft.states)
    ticks = itertools.count()  # one passes during each step
    timer = lambda: next(ticks) * STEP_US[1] / 1e6  # noqa: E731
    source = HeadSource(draft, STEP_US, VOCAB, known.eos_token_ids, timer)
    source.exchanges("first", load)
    return Cluster(target=target, inline=source, forward_s=FORWARD_S, **fields), source


def sampled(temperature, seed, tokens=90):
    return Sampling(max_tokens=tokens, temperature=temperature, seed=seed, ignore_eos=True)


async def texts(system, asked, method):
    callers = [await system.caller() for _ in asked]
    answers = [caller.generate(prompt, one, method) for caller, (prompt, one) in zip(callers, asked, strict=True)]
    return await asyncio.gather(*answers)


@pytest.mark.parametrize("doubt", [0.0, 0.7])
def test_texts_are_those_of_plain_decoding_alone_and_together(doubt):
    asked = [(PROMPT, sampled(t, seed)) for seed, t in enumerate((0.0, 0.7, 1.0, 1.0))]
    asked.append((tuple(range(9, 150)), sampled(1.0, 7, 40)))

    async def story():
        system, source = with_head(doubt)
        async with system:
            alike = []
            plain = [(await texts(system, [each], "vanilla"))[0] for each in asked]
            for each, expected in zip(asked, plain, strict=True):
                [alone] = await texts(system, [each], "auto")
                assert tokens_of(alone) == tokens_of(expected)
                alike.append(alone[-1].stats.rounds)
            together = await texts(system, asked, "auto")
            caller = await system.caller()
            caller.send(Status("s"))
            report = await caller.until(lambda message: isinstance(message, StatusReport))
            return plain, together, source, report, alike

    plain, together, source, report, alike = run(story())
    assert [tokens_of(one) for one in together] == [tokens_of(one) for one in plain]
    first, second = (depth.mean for depth in source.depths)
    if not doubt:
        assert first > 0.95 and second > 0.95
        assert max(alike) < 60
        assert report.counters["accepted_from_head"] > 50
    else:
        assert 0.02 < first < 0.95
    assert report.inline.model_id == "tiny"
    assert len(report.inline.agreement) == 2


def test_the_next_turn_of_a_chat_and_a_resumed_stream_have_their_texts():
    async def story():
        system, _ = with_head()
        async with system:
            first = [(PROMPT, sampled(1.0, 3, 60))]
            answer, plain = [tokens_of((await texts(system, first, method))[0]) for method in ("auto", "vanilla")]
            assert answer == plain
            turn = (*PROMPT, *answer, 7, 8, 9)
            found = [
                tokens_of((await texts(system, [(turn, sampled(1.0, 5, 60))], method))[0])
                for method in ("auto", "vanilla", "auto")
            ]
            assert found[0] == found[1] == found[2]
            caller = await system.caller()
            whole = await caller.generate(PROMPT, sampled(1.0, 3, 60), "auto", generated=tuple(answer[:23]))
            assert [token for chunk in whole for token in chunk.token_ids] == answer[23:]

    run(story())


def test_another_head_takes_over_in_mid_stream_and_the_one_before_comes_back():
    asked = sampled(1.0, 3, 470)

    async def story():
        system, source = with_head(doubt=0.9)
        async with system:
            [plain] = await texts(system, [(PROMPT, asked)], "vanilla")
            caller, operator = await system.caller(), await system.caller()
            caller.send(Generate("r", PROMPT, sampling=asked, method="auto"))
            agreed, said = [], []
            for new in ("other", "better", "", ""):
                operator.send(Swap("s", "head", new))
                answer = await operator.until(lambda message: isinstance(message, Done | Failed))
                said.append((type(answer), answer.detail))
                agreed.append([depth.known for depth in source.depths])
                await asyncio.sleep(9 * FORWARD_S)
                agreed.append(source.depths[0].mean)
            assert system.verifier.state.requests.decoding, agreed
            text = tokens_of((await caller.collect("r"))["r"])
            assert text == tokens_of(plain)
            return said, agreed

    said, agreed = run(story())
    assert [kind for kind, _ in said] == [Failed, Done, Done, Failed]
    assert "does not draft for target tiny" in said[0][1] and "name one" in said[3][1]
    _, first, new, better, former, again, *_ = agreed
    assert not any((*new, *former))
    assert first < 0.9 and better > 0.95 and again < 0.9


@pytest.mark.parametrize("part", ["norm.weight", "fc.weight", "lm_head.weight", "midlayer.self_attn.q_proj.weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_swap_to_a_head_with_one_weight_that_is_no_number_is_refused_and_named(part, value, tmp_path):
    model, weights = make("llama"), eagle3_weights()
    model.save_pretrained(tmp_path / "target")
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        save_file(weights, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps(EAGLE3))
        weights[part].view(-1)[5] = value
    target = fused(model)
    settings = VerifierSettings(target=str(tmp_path / "target"), inline_draft=str(tmp_path / "good"))

    async def story():
        source = head_of(settings, target, None, InlineCompute())
        serving, readers = source.model, [*target.taps._readers]
        with pytest.raises(ModelError, match=rf"^{part} in .*bad/model.safetensors holds NaN or infinity"):
            await source.swap(str(tmp_path / "bad"))
        assert source.model is serving and target.taps._readers == readers
        return await source.swap(str(tmp_path / "good"))

    assert "drafts with good from now on" in asyncio.run(story())


def test_a_head_works_beside_a_drafter_in_one_tree():
    from tests.world.models import ToyDraft, ToyLanguage

    async def story():
        system, _ = with_head()
        async with system:
            toy = {"tokenizer_digest": "tiny-tokenizer", "vocab_size": VOCAB}
            system.start_drafter("drafter", model=ToyDraft(ToyLanguage()), **toy)
            plain = await texts(system, [(PROMPT, sampled(1.0, 3))], "vanilla")
            both = await texts(system, [(PROMPT, sampled(1.0, 3))], "auto")
            assert tokens_of(both[0]) == tokens_of(plain[0])
            assert both[0][-1].stats.rounds < 60

    run(story())


def test_where_openmp_has_its_team_a_head_computes_on_the_targets_thread():
    class Model:
        scratch_slots = 3

        def expand(self, leaves):
            return threading.current_thread().name, leaves

        def close(self, handle):
            return threading.current_thread().name

    with ThreadPoolExecutor(1, "compute") as pool:
        model = OnThread(Model(), pool)
        assert model.expand([1]) == ("compute_0", [1])
        assert model.close(1) == threading.current_thread().name
        assert model.scratch_slots == 3


@pytest.mark.parametrize("named", [False, True])
def test_a_head_that_cannot_run_is_named(named, tmp_path, monkeypatch, caplog):
    model = make("llama")
    model.save_pretrained(tmp_path / "target")
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text(json.dumps(EAGLE3))
    head = str(tmp_path / "head")
    monkeypatch.setattr("actors.engines.heads.build.cached_head", lambda target: head)
    settings = VerifierSettings(target=str(tmp_path / "target"), inline_draft=head if named else "auto")
    target = fused(model)
    with pytest.raises(ModelError, match=r"^no drafts with .*it has no layers"):
        head_of(settings, target, None)
    assert _inline_draft(settings, target) is None
    assert not caplog.text


@pytest.mark.parametrize("content", [b"", b"PK no weights"])
def test_a_head_whose_file_cannot_be_read_is_named(content, tmp_path):
    """The sentence was that it has no layers, and to choose the head of this target."""
    (tmp_path / "config.json").write_text(json.dumps(EAGLE3))
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    settings = VerifierSettings(target="target", inline_draft=str(tmp_path))
    with pytest.raises(ModelError, match=r"^no drafts with .* cannot draft: .*pytorch_model.bin holds no weights that"):
        head_of(settings, fused(make("llama")), None)


def test_a_head_whose_weights_are_no_numbers_is_named(tmp_path):
    model = make("llama")
    model.save_pretrained(tmp_path / "target")
    directory = tmp_path / "head"
    directory.mkdir()
    broken = eagle3_weights() | {"norm.weight": torch.full((HIDDEN,), math.nan)}
    save_file(broken, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(EAGLE3))
    settings = VerifierSettings(target=str(tmp_path / "target"), inline_draft=str(directory))
    target = fused(model)
    with pytest.raises(ModelError, match=r"^no drafts with .*: norm.weight in .*head/model.safetensors holds NaN"):
        head_of(settings, target, None)
    assert not target.taps._readers
