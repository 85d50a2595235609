"""Retrieval and Lookahead on a small random Llama: large windows, and the text of plain decoding."""

import random

import pytest
import torch

from actors.datastore import Datastore, build
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.selfcheck import LARGE, ROWS
from actors.engines.targets.target import LARGEST, Target
from actors.target_timing import measure
from actors.verifier.sources.lookup import Library
from protocols.messages import Sampling
from tests.engines.tiny import VOCAB, info, make
from tests.world.pairs import every_pair
from tests.world.table import Table, asked


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def target_of(dtype=torch.float32, rows_agree=(*ROWS, *LARGE), slots=4096):
    model = make("llama").to(dtype)
    return Target(CompiledEngine(model, info(model), slots), rows_agree=rows_agree)


def generate(target, method, prompt, sampling, library=None):
    """The loop of the verifier without its messages."""
    table = Table(target, asked(prompt, method, sampling=sampling, ends=frozenset({1})), library)
    table.finish()
    target.close(table.stream.handle)
    return table.stream


SAMPLINGS = [
    Sampling(max_tokens=90, ignore_eos=True),
    Sampling(max_tokens=60, ignore_eos=True, temperature=0.9, seed=4),
    Sampling(max_tokens=60, ignore_eos=True, repetition_penalty=1.2, presence_penalty=0.3),
]


@pytest.mark.parametrize(
    ("method", "sampling", "rows_agree"),
    every_pair(["pld", "sam", "rest", "lookahead", "auto"], SAMPLINGS, [(*ROWS, *LARGE), (4, 8, 16, 32)]),
)
def test_the_text_is_that_of_plain_decoding(method, sampling, rows_agree, tmp_path):
    target = target_of(rows_agree=rows_agree)
    chance = random.Random(3)
    prompt = [chance.randrange(2, VOCAB) for _ in range(70)]
    plain = generate(target, "vanilla", prompt, sampling).text.committed
    noisy = [t if chance.random() < 0.9 else chance.randrange(VOCAB) for t in plain]
    build(tmp_path, [plain, noisy, noisy[30:]], VOCAB)
    stream = generate(target, method, prompt, sampling, Library(Datastore.open(tmp_path)))
    assert stream.text.committed == plain
    assert stream.tally.drafted > 0
    if method in ("rest", "auto"):
        assert stream.tally.accepted > 30


def test_lookahead_and_rest_have_the_rows_that_their_papers_give_them():
    target = target_of()
    assert target.max_window == LARGEST == 63
    stream = generate(target, "lookahead", [5, 6, 7, 8, 9] * 4, Sampling(max_tokens=120, ignore_eos=True))
    assert stream.wait.max_window == 55


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
    assert max(measure(target_of(slots=4096)).alone_us) == 64
    assert max(measure(target_of(slots=480)).alone_us) == 32
