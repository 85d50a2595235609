"""``min_tokens`` and ``bad_words``: what a request keeps out of its output, the same by every method."""

import asyncio

import numpy as np
import pytest

from actors.verifier.constraints.withheld import Withheld
from protocols.messages import Dictation, Method, Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import EOS, INFO, ToyCodec, ToyLanguage
from tests.world.structured import codec, target

PROMPT = (470,)
TOY = [7, 11]
SAMPLED = Sampling(max_tokens=60, temperature=1.0, seed=4)


def toy(sampling: Sampling, method: str, skill: float = 0.8, **options) -> list[int]:
    async def go():
        async with Cluster(language=ToyLanguage(eos_rate=0.2)) as cluster:
            cluster.start_drafter(skill=skill)
            await asyncio.sleep(0.01)
            caller = await cluster.caller()
            chunks = await caller.generate(TOY, sampling, method, **options)
            return [token for chunk in chunks for token in chunk.token_ids]

    return run(go())


async def told(sampling: Sampling, method: str = "auto", **options) -> list[int]:
    async with Cluster(target=target(), codec=codec()) as cluster:
        caller = await cluster.caller()
        return tokens_of(await caller.generate(PROMPT, sampling, method, **options))


def allowed(row: np.ndarray, vocab: int) -> set[int]:
    return {token for token in range(vocab) if row[token // 32] >> token % 32 & 1}


@pytest.mark.parametrize("method", [method for method in Method if method is not Method.REST])
def test_no_end_comes_before_min_tokens_and_the_text_is_the_same_by_every_method(method):
    sampling = Sampling(max_tokens=40, min_tokens=25, stop_token_ids=(30, 31))
    free, least = toy(Sampling(max_tokens=40, stop_token_ids=(30, 31)), method), toy(sampling, method)
    assert len(free) < 25 <= len(least)
    assert not {EOS, 30, 31} & set(least[:25])
    assert least == toy(sampling, "vanilla") == toy(sampling, method, skill=0.1)


def test_a_resumed_output_counts_what_it_had():
    sampling = Sampling(max_tokens=40, min_tokens=25)
    whole = toy(sampling, "auto")
    assert toy(sampling, "auto", generated=tuple(whole[:12])) == whole[12:]


@pytest.mark.parametrize("method", ["vanilla", "auto", "pld", "lookahead"])
@pytest.mark.parametrize("sampling", [Sampling(max_tokens=60), SAMPLED])
async def test_a_bad_word_is_never_in_the_output_and_the_rest_is_the_same_by_every_method(method, sampling):
    free = await told(sampling, method)
    pieces = codec().pieces(free)
    words = tuple(dict.fromkeys(piece for piece in pieces if piece.strip().isalnum()))[:3]
    pair = codec().decode(free[20:22])
    kept = await told(
        Sampling(max_tokens=60, temperature=sampling.temperature, seed=4, bad_words=(*words, pair)), method
    )
    assert words and kept != free and len(kept) == 60
    assert not {word.strip() for word in words} & {piece.strip() for piece in codec().pieces(kept)}
    assert kept == await told(
        Sampling(max_tokens=60, temperature=sampling.temperature, seed=4, bad_words=(*words, pair)), "vanilla"
    )


def test_a_words_last_token_is_withheld_where_the_others_stand_in_output_or_draft():
    spelt, vocab = ToyCodec().encode, INFO.vocab_size
    one, two, three = spelt("a")[0], *spelt("bc")
    withheld = Withheld(Sampling(bad_words=("abc", "c")), frozenset({EOS}), ToyCodec(), vocab, spelt("za"))
    rows = withheld.masks([two, one, two], [-1, 0, 1])
    everything = set(range(vocab))
    assert [everything - allowed(row, vocab) for row in rows] == [{three}] * 4
    withheld = Withheld(Sampling(bad_words=("abc",)), frozenset({EOS}), ToyCodec(), vocab, spelt("za"))
    assert [everything - allowed(row, vocab) for row in withheld.masks([two, two], [-1, 0])] == [set(), {three}, set()]
    withheld.commit([two])
    assert [everything - allowed(row, vocab) for row in withheld.masks()] == [{three}]


async def test_a_dictated_token_stands_whatever_is_withheld():
    ids = tuple(codec().encode_inside(" the end"))
    sampling = Sampling(max_tokens=20, min_tokens=20, bad_words=("the", "end"))
    assert (await told(sampling, dictation=Dictation(5, ids)))[5 : 5 + len(ids)] == list(ids)
