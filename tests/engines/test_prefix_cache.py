"""Texts and bits are those of a cold prefill, whatever a prompt takes over from earlier ones."""

import random

import pytest
import torch

from actors.engines.cache.kv_cache import SHARED
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.test_target import Spy, some_prompt, tree
from tests.engines.tiny import VOCAB, info, make, torch_engine


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def target_of(family="llama", dtype=torch.float32, slots=8192, engine=CompiledEngine, rows_agree=None):
    """``rows_agree``: None: what this machine finds."""
    model = make(family).to(dtype)
    return Target(Spy(engine(model, info(model), slots)), rows_agree=rows_agree)


def begin(target, prompt, sampling, salt="", generated=(), limit=None):
    """The handle, the outcome of the prefill, the logits behind the prompt, and how many rows were computed."""
    handle, rows = target.open(prompt, sampling, generated, cache_salt=salt), 0
    while True:
        outcome = target.prefill(handle, limit)
        rows += target.engine.rows
        if outcome is not None:
            return handle, outcome, target.engine.logits.clone(), rows


@pytest.mark.parametrize("rows_agree", [None, (8,)], ids=["as this machine computes", "bits depend on rows"])
@pytest.mark.parametrize("engine", [torch_engine, CompiledEngine])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_warm_prefill_gives_the_bits_of_a_cold_one(engine, dtype, rows_agree):
    target = target_of(dtype=dtype, engine=engine, rows_agree=rows_agree)
    chunk = target.chunk
    first, then = some_prompt(chunk + chunk // 2), some_prompt(90, seed=1)
    sampling = Sampling(max_tokens=20)
    handle, outcome, _, _ = begin(target, first, sampling)
    answer = list(outcome.tokens)
    while len(answer) < 12:
        answer += target.verify([Window(handle)])[0].tokens
    copying = begin(target, [*first, *then], sampling)  # while the first is still open
    target.close(handle)
    target.close(copying[0])
    turn = [*first, *answer, *then]
    warm = begin(target, turn, sampling)
    cold = begin(target, turn, sampling, salt="another")
    assert warm[1].reused >= copying[1].reused >= chunk > cold[1].reused == 0
    assert warm[3] == cold[3] - warm[1].reused == len(turn) - warm[1].reused
    assert torch.equal(warm[2], cold[2])
    for _ in range(5):
        pair = target.verify([Window(warm[0])]), target.verify([Window(cold[0])])
        assert pair[0][0].tokens == pair[1][0].tokens


def test_where_bits_depend_on_rows_only_whole_chunks_of_prompts_are_shared():
    target = target_of(rows_agree=(8,))
    first, sampling = some_prompt(target.chunk + 20), Sampling(max_tokens=300)
    handle, outcome, _, _ = begin(target, first, sampling)
    answer = list(outcome.tokens)
    while len(answer) < 2 * target.chunk:
        answer += target.verify([Window(handle)])[0].tokens
    target.close(handle)
    assert begin(target, [*first, *answer], sampling)[1].reused == target.chunk


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_next_turn_of_a_chat_begins_behind_the_last_answer(dtype):
    """Drafts were accepted on the way, branches too."""
    pytest.importorskip("numba")
    target, chance = target_of(dtype=dtype, engine=CompiledEngine), random.Random(5)
    first, sampling = some_prompt(50), Sampling(max_tokens=60)
    plain, outcome, _, _ = begin(target, first, sampling, salt="plain")
    answer = list(outcome.tokens)
    while len(answer) < 40:
        answer += target.verify([Window(plain)])[0].tokens
    handle, outcome, _, _ = begin(target, first, sampling)
    text = list(outcome.tokens)
    while len(text) < 40:
        right = answer[len(text) : min(len(text) + 3, 39)]
        drafts = [token for one in right for token in (one, chance.randrange(VOCAB))]
        parents = [-1 if draft < 2 else draft // 2 * 2 - 2 for draft in range(len(drafts))]
        text += target.verify([Window(handle, drafts, parents)])[0].tokens
    assert text[:40] == answer[:40]
    target.close(handle)
    turn = [*first, *text, *some_prompt(30, seed=1)]
    warm, cold = (begin(target, turn, sampling, salt=salt) for salt in ("", "another"))
    assert warm[1].reused == (len(first) + len(text) - 1) // SHARED * SHARED
    assert torch.equal(warm[2], cold[2])


@pytest.mark.parametrize("agreeing", [None, (8,)], ids=["as this machine computes", "bits depend on rows"])
def test_a_prompt_has_the_same_bits_however_short_the_pieces_are_that_others_leave_time_for(agreeing):
    model = make("llama").to(torch.float32)
    target = Target(Spy(CompiledEngine(model, info(model), 8192)), rows_agree=agreeing)
    prompt, sampling = some_prompt(300), Sampling(max_tokens=20)
    whole = begin(target, prompt, sampling, salt="whole")
    for limit in (1, 5, 40):
        cut = begin(target, prompt, sampling, salt=f"cut at {limit}", limit=limit)
        assert torch.equal(cut[2], whole[2])


@pytest.mark.parametrize("rows_agree", [None, (8,)], ids=["as this machine computes", "bits depend on rows"])
def test_a_resumed_stream_reuses_its_prompt(rows_agree):
    """Its answer is computed again, or was kept as well."""
    target = target_of(engine=CompiledEngine, rows_agree=rows_agree)
    prompt, sampling = some_prompt(target.chunk + 20), Sampling(max_tokens=40, temperature=0.8, seed=5)
    handle, outcome, _, _ = begin(target, prompt, sampling)
    answer = list(outcome.tokens)
    while len(answer) < 40:
        answer += target.verify([Window(handle)])[0].tokens
    target.close(handle)
    handle, outcome, _, rows = begin(target, prompt, sampling, generated=answer[:25])
    assert target.chunk <= outcome.reused <= len(prompt) and rows < len(prompt)
    assert outcome.tokens[0] == answer[25]


def test_32_streams_that_join_leave_and_are_cancelled_have_the_texts_of_a_cold_cache():
    """Chats of several turns that share system prompts, in a pool too small for all; every other one speculates."""
    target, chance = target_of(slots=12_000), random.Random(3)
    systems = [some_prompt(target.chunk + 10, seed=n) for n in range(2)]
    reused = 0

    def turns(number):
        """What a stream does: prompts with how much of the answer it waits for before it is cancelled or ends."""
        history = list(systems[number % 2])
        for turn in range(2):
            history += some_prompt(20 + number, seed=100 * number + turn)
            sampling = Sampling(max_tokens=12, temperature=0.9 * (number % 3 > 0), seed=number)
            answer = []
            yield list(history), sampling, answer, chance.choice([4, 12, 12])
            history += answer

    def step(cold):
        nonlocal reused
        waiting, running, texts = [turns(number) for number in range(32)], [], []
        while waiting or running:
            if waiting and len(running) < 6:
                stream = waiting.pop(0)
                if (one := next(stream, None)) is None:
                    continue
                prompt, sampling, answer, wanted = one
                handle, outcome, _, _ = begin(target, prompt, sampling, salt=str(len(texts)) if cold else "")
                reused += outcome.reused
                answer += outcome.tokens
                texts.append((tuple(prompt), answer))
                running.append((stream, handle, answer, wanted))
                continue
            windows = []
            for number, (_, handle, answer, _) in enumerate(running):
                left = 12 - len(answer)
                drafts, parents = tree(chance, [chance.randrange(VOCAB) for _ in range(min(3, left))])
                windows.append(Window(handle, drafts, parents) if number % 2 and left > 1 else Window(handle))
            for (_, _, answer, _), outcome in zip(running, target.verify(windows), strict=True):
                answer += outcome.tokens
            for one in [one for one in running if len(one[2]) >= one[3]]:
                running.remove(one)
                target.close(one[1])
                del one[2][one[3] :]
                waiting.append(one[0])
        return dict(texts)

    chance.seed(3)
    warm = step(cold=False)
    assert reused > 32 * target.chunk
    was, _ = reused, chance.seed(3)
    cold = step(cold=True)
    assert reused == was
    assert len(warm) == 64
    for prompt, answer in warm.items():
        if prompt in cold:
            shorter = min(len(answer), len(cold[prompt]))
            assert answer[:shorter] == cold[prompt][:shorter]
    assert len(set(warm) & set(cold)) >= 32
