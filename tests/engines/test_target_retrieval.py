"""Retrieval and Lookahead on a small random Llama: large windows, and the text of plain decoding."""

import random

import pytest
import torch

from actors.cost import CostModel
from actors.engines.generic.engine import TransformersEngine
from actors.engines.targets.selfcheck import LARGE, ROWS
from actors.engines.targets.target import LARGEST, Target
from actors.methods import strategy_for
from actors.models import Window
from actors.proposers.datastore import Datastore, build
from actors.verifier.output import Output
from actors.verifier.sources.retrieval import Sources
from actors.verifier.speculation import Speculation
from actors.verifier.timing import measure_target
from actors.verifier.windows import Windows
from protocols.messages import Plan, Sampling
from tests.engines.tiny import VOCAB, info, make

COST = CostModel({1: 1000.0, 8: 1200.0, 16: 1500.0})


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def target_of(dtype=torch.float32, rows_agree=(*ROWS, *LARGE), slots=4096):
    model = make("llama").to(dtype)
    return Target(TransformersEngine(model, info(model), slots), rows_agree=rows_agree)


def generate(target, method, prompt, sampling, sources=None):
    """The loop of the verifier without its messages."""
    output = Output(prompt, sampling, frozenset({1}), str, ())
    spec = Speculation(
        "r", prompt, sampling, Plan(method), VOCAB, output,
        Windows(strategy_for(method), sampling, sources or Sources(), target.max_window),
    )  # fmt: skip
    handle = target.open(prompt, sampling, (), spec.windows.max_window)
    while (outcome := target.prefill(handle)) is None:
        pass
    committed = spec.first(outcome)
    while committed.finish is None:
        chosen = spec.choose(COST)
        [outcome] = target.verify([Window(handle, chosen.tokens, chosen.parents)])
        assert len(outcome.sampled) == len(chosen.nodes) + 1
        committed = spec.commit(chosen, outcome)
    target.close(handle)
    return spec


SAMPLINGS = [
    Sampling(max_tokens=90, ignore_eos=True),
    Sampling(max_tokens=60, ignore_eos=True, temperature=0.9, seed=4),
    Sampling(max_tokens=60, ignore_eos=True, repetition_penalty=1.2, presence_penalty=0.3),
]


@pytest.mark.parametrize("rows_agree", [(*ROWS, *LARGE), (4, 8, 16, 32)])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", ["pld", "sam", "rest", "lookahead", "auto"])
def test_the_text_is_that_of_plain_decoding(method, sampling, rows_agree, tmp_path):
    target = target_of(rows_agree=rows_agree)
    chance = random.Random(3)
    prompt = [chance.randrange(2, VOCAB) for _ in range(70)]
    plain = generate(target, "vanilla", prompt, sampling).committed
    noisy = [t if chance.random() < 0.9 else chance.randrange(VOCAB) for t in plain]
    build(tmp_path, [plain, noisy, noisy[30:]], VOCAB)
    spec = generate(target, method, prompt, sampling, Sources(Datastore.open(tmp_path)))
    assert spec.committed == plain
    assert spec.counters.drafted > 0
    if method in ("rest", "auto"):
        assert spec.counters.accepted > 30


def test_lookahead_and_rest_have_the_rows_that_their_papers_give_them():
    target = target_of()
    assert target.max_window == LARGEST == 63
    spec = generate(target, "lookahead", [5, 6, 7, 8, 9] * 4, Sampling(max_tokens=120, ignore_eos=True))
    assert spec.windows.max_window == 55


def test_only_requests_with_large_windows_take_room_for_them():
    target = target_of()
    before = target.kv_used
    usual = target.open([3] * 10, Sampling(max_tokens=54))
    assert target.kv_used - before == -(-(64 + 31) // 64) * 64
    target.close(usual)
    large = target.open([3] * 10, Sampling(max_tokens=54), (), 63)
    assert target.kv_used - before == -(-(64 + 63) // 64) * 64
    target.close(large)


def test_a_pool_too_small_for_the_largest_windows_is_measured_without_them():
    assert max(measure_target(target_of(slots=4096))) == 64
    assert max(measure_target(target_of(slots=480))) == 32
