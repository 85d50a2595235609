import random

import pytest
import torch

from actors.engines.targets.selfcheck import ROWS, check_finite
from actors.engines.targets.target import Target
from actors.models import ROOT, Window
from actors.tree.accept import depths_of
from protocols.errors import ModelError, PoolFull, RequestError
from protocols.messages import Sampling
from tests.engines.tiny import VOCAB, engine_of, make
from tests.world.pairs import every_pair


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Spy:
    """An engine that keeps the last logits, which it also hands over where it could choose tokens by itself."""

    def __init__(self, engine):
        self.engine = engine
        self.logits = None
        self.rows = 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def pick(self, *_):
        return None

    def forward(self, batch, *args):
        self.rows = len(batch.tokens)
        self.logits = self.engine.forward(batch, *args)
        return self.logits


def target_of(dtype=torch.float32, slots=4096, rows_agree=ROWS, family="llama"):
    model = make(family).to(dtype)
    return Target(Spy(engine_of(model, slots)), rows_agree=rows_agree)


def begin(target, prompt, sampling, generated=()):
    handle = target.open(prompt, sampling, generated)
    while (outcome := target.prefill(handle)) is None:
        pass
    return handle, outcome.tokens


def plain(target, prompt, sampling, count):
    """Tokens of one-token decoding, and the logits that gave each but the first."""
    handle, tokens = begin(target, prompt, sampling)
    logits = []
    while len(tokens) < count:
        tokens += target.verify([Window(handle)])[0].tokens
        logits.append(target.engine.logits[0].clone())
    target.close(handle)
    return tokens, logits


def some_prompt(length, seed=0):
    chance = random.Random(seed)
    return [chance.randrange(2, VOCAB) for _ in range(length)]


def chain(chance, truth):
    """A chain that follows the truth for a while."""
    tokens = [t if chance.random() < 0.85 else chance.randrange(VOCAB) for t in truth]
    return tokens, list(range(-1, len(tokens) - 1))


def tree(chance, truth, first=True):
    """The truth with wrong siblings everywhere, and children below those; ``first``: the truth is listed first."""
    tokens, parents, at = [], [], ROOT
    for true in truth:
        wrong = [(true + chance.randrange(1, VOCAB)) % VOCAB for _ in range(chance.randrange(3))]
        listed = [true, *wrong] if first else [*wrong, true]
        below = at
        for token in listed:
            tokens.append(token)
            parents.append(below)
            if token == true:
                at = len(tokens) - 1
            elif chance.random() < 0.5:
                tokens.append(chance.randrange(VOCAB))
                parents.append(len(tokens) - 2)
    return tokens[:31], parents[:31]


def speculate(target, prompt, sampling, truth, window, seed=0, on_round=None):
    """Decode as far as ``truth``, with windows made from it."""
    chance = random.Random(seed)
    handle, tokens = begin(target, prompt, sampling)
    longest = 0
    while len(tokens) < len(truth):
        size = min(chance.randrange(1, 9), len(truth) - len(tokens))
        drafts, parents = window(chance, truth[len(tokens) : len(tokens) + size])
        [outcome] = target.verify([Window(handle, drafts, parents)])
        assert [drafts[node] for node in outcome.path] == outcome.tokens[:-1]
        if on_round:
            on_round(len(tokens), outcome, target.engine.logits)
        longest = max(longest, len(outcome.path))
        tokens += outcome.tokens
    target.close(handle)
    assert longest > 2
    return tokens


SAMPLINGS = [
    Sampling(max_tokens=64),
    Sampling(max_tokens=64, temperature=0.8, seed=3),
    Sampling(max_tokens=64, temperature=1.2, top_k=30, top_p=0.9, min_p=0.01, seed=2**63),
    Sampling(max_tokens=64, repetition_penalty=1.3, frequency_penalty=0.4),
    Sampling(max_tokens=64, temperature=0.7, presence_penalty=0.6, repetition_penalty=1.1, seed=-5),
    Sampling(max_tokens=64, logit_bias=((7, 3.0), (9, -100.0))),
]


WINDOWS = [chain, tree, lambda c, t: tree(c, t, first=False)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_any_window_commits_what_plain_decoding_commits(sampling):
    target = target_of()
    prompt = some_prompt(100)
    truth, _ = plain(target, prompt, sampling, 48)
    for seed, window in enumerate(WINDOWS):
        tokens = speculate(target, prompt, sampling, truth, window, seed)
        assert tokens[: len(truth)] == truth
    assert target.kv_used == 0  # the padding rows' own are no request's


@pytest.mark.parametrize(
    ("length", "window", "dtype", "family"),
    every_pair([5, 120, 230, 300], WINDOWS, [torch.float32, torch.bfloat16], ["llama", "gemma2"]),
)
def test_every_path_has_the_logits_of_plain_decoding_bit_for_bit(length, window, dtype, family):
    target = target_of(dtype, family=family)
    prompt = some_prompt(length)
    truth, logits = plain(target, prompt, SAMPLINGS[0], 40)
    compared = []

    def compare(at, outcome, found):
        for depth, row in enumerate([0, *(node + 1 for node in outcome.path)]):
            if at - 1 + depth < len(logits):
                assert torch.equal(found[row], logits[at - 1 + depth])
                compared.append(row)

    assert speculate(target, prompt, SAMPLINGS[0], truth, window, 1, compare)[:40] == truth
    assert len(compared) > 30


@pytest.mark.parametrize(("sampling", "dtype"), [*zip(SAMPLINGS, [torch.float32, torch.bfloat16] * 3, strict=True)])
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(sampling, dtype):
    target = target_of(dtype)
    prompt = some_prompt(290)  # two chunks
    truth, logits = plain(target, prompt, sampling, 60)
    for have in (1, 2, 33, 50):
        handle, tokens = begin(target, prompt, sampling, truth[:have])
        assert tokens == truth[have : have + 1]
        assert torch.equal(target.engine.logits[-1], logits[have - 1])
        more = target.verify([Window(handle, truth[have + 1 : have + 4], [-1, 0, 1])])[0]
        assert tokens + more.tokens == truth[have : have + 5]
        target.close(handle)


def test_requests_in_one_batch_commit_what_each_commits_alone():
    target = target_of(slots=8192)
    prompts = [some_prompt(length, seed=length) for length in (7, 60, 130)]
    settings = [SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[3]]
    truths = [plain(target, p, s, 30)[0] for p, s in zip(prompts, settings, strict=True)]
    chance = random.Random(4)
    open_ = [begin(target, p, s) for p, s in zip(prompts, settings, strict=True)]
    while any(len(tokens) < 20 for _, tokens in open_):
        windows = []
        for (handle, tokens), truth in zip(open_, truths, strict=True):
            drafts, parents = tree(chance, truth[len(tokens) : len(tokens) + 3])
            windows.append(Window(handle, drafts, parents))
        for (_, tokens), outcome in zip(open_, target.verify(windows), strict=True):
            tokens += outcome.tokens
    for (_, tokens), truth in zip(open_, truths, strict=True):
        assert tokens[:30] == truth[: len(tokens)]


def test_rounds_are_padded_to_row_counts_that_agree():
    target = target_of(rows_agree=(4, 8, 16))
    assert target.max_window == 15
    handle, [token] = begin(target, some_prompt(9), SAMPLINGS[1])
    for nodes, rows in ((0, 4), (3, 4), (4, 8), (15, 16)):
        target.verify([Window(handle, [token] * nodes, list(range(-1, nodes - 1)))])
        assert target.engine.rows == rows
    free = target_of(rows_agree=ROWS)
    assert free.max_window == max(ROWS) - 1
    assert plain(free, some_prompt(9), SAMPLINGS[1], 20)[0] == plain(target, some_prompt(9), SAMPLINGS[1], 20)[0]
    assert free.engine.rows == 1


def test_logprobs_belong_to_the_committed_tokens():
    target = target_of()
    sampling = Sampling(max_tokens=20, logprobs=4)
    truth, logits = plain(target, some_prompt(20), sampling, 8)
    handle, _ = begin(target, some_prompt(20), sampling)
    [outcome] = target.verify([Window(handle, [0, truth[1], truth[2], 0], [-1, -1, 1, 1])])
    assert outcome.tokens == truth[1:4]
    for found, token, raw in zip(outcome.logprobs, outcome.tokens, logits, strict=False):
        reference = raw.log_softmax(-1)
        assert found.chosen == pytest.approx(reference[token].item(), abs=1e-4)
        assert found.top_ids == tuple(reference.topk(4).indices.tolist())


def test_a_full_pool_is_told_from_a_request_that_never_fits():
    target = target_of(slots=704)
    first = target.open(some_prompt(100), Sampling(max_tokens=100))
    with pytest.raises(PoolFull):
        target.open(some_prompt(300), Sampling(max_tokens=100))
    with pytest.raises(RequestError, match="kv_tokens") as refused:
        target.open(some_prompt(300), Sampling(max_tokens=1200))
    assert refused.value.code == "context_length"
    target.close(first)
    target.close(first)  # closing twice does no harm
    target.close(target.open(some_prompt(300), Sampling(max_tokens=100)))
    assert target.kv_used == 0


def test_sliding_windows_follow_the_text_not_the_slots():
    target = target_of(family="mistral-sliding")
    truth, _ = plain(target, some_prompt(40), SAMPLINGS[0], 30)
    assert speculate(target, some_prompt(40), SAMPLINGS[0], truth, lambda c, t: tree(c, t, False))[:30] == truth


def test_a_parent_must_come_before_its_child():
    with pytest.raises(AssertionError):
        depths_of([-1, 2, 0])


def broken(model, value, where):
    """A model with one weight that is no number: of all positions, or of one token's embedding."""
    with torch.no_grad():
        if where == "layer":
            model.model.layers[0].mlp.down_proj.weight[0, 0] = value
        else:
            model.model.embed_tokens.weight[where] = value
    return model


class Poisoned(Spy):
    """An engine whose logits are ``value`` from a token of the batch on."""

    def __init__(self, engine, token, value):
        super().__init__(engine)
        self.token, self.value = token, value

    def forward(self, batch, select=None):
        logits = super().forward(batch, select)
        rows = range(len(batch.tokens)) if select is None else select
        for at, row in enumerate(rows):
            if batch.tokens[row] == self.token:
                logits[at] = self.value
        return logits


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [Sampling(max_tokens=9), Sampling(max_tokens=9, temperature=1.0, top_p=0.9)])
def test_logits_that_are_not_finite_are_an_error_of_their_request(value, sampling):
    token, other = 33, 34
    target = Target(Poisoned(engine_of(make("llama"), 4096), token, value), rows_agree=ROWS)
    handle = target.open([5, 6, token], sampling)
    with pytest.raises(RequestError, match="are not finite"):
        target.prefill(handle)
    handle, _ = begin(target, [5, 6, other], sampling)
    [outcome] = target.verify([Window(handle, [token, other], [ROOT, ROOT])])
    if token not in outcome.tokens[:-1]:
        assert outcome.tokens, "a row beside the path may be anything"
    with_it, _ = begin(target, [5, 6, other], sampling)
    target._requests[with_it].output[-1] = token  # the next round's root
    with pytest.raises(RequestError, match="are not finite") as failed:
        target.verify([Window(with_it)])
    assert failed.value.code == "internal"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_target_with_a_weight_that_is_no_number_is_refused_at_the_start(value):
    engine = engine_of(broken(make("llama"), value, "layer"), 4096)
    with pytest.raises(ModelError, match=r"not finite .* download the model again, or choose another --dtype"):
        check_finite(engine)
    check_finite(engine_of(make("llama"), 4096))


@pytest.mark.parametrize(("slots", "requests"), [(1024, "1,024 tokens, 1 request"), (4096, "4,096 tokens, 7 requests")])
def test_the_room_of_the_kv_cache_is_told_in_tokens_requests_and_memory(slots, requests):
    engine = engine_of(make("llama"), slots)
    size = slots * engine.pool.slot_bytes / 1e9
    said = f"{requests} of full length, up to {size:.3g} GB"
    assert Target(engine, rows_agree=ROWS).capacity() == said
    later = " while requests need it, 0.0005 GB for later prompts; --kv-tokens sets both"
    assert Target(engine, rows_agree=ROWS, kept=5e5).capacity() == said + later
