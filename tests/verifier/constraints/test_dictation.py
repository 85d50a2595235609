"""Output tokens that a request dictates: to score a text, and to end a thought at its budget."""

import pytest

from actors.tree.tree import TokenTree
from actors.verifier.constraints.dictated import Dictated
from protocols.messages import Dictation, Failed, FailureCode, FinishReason, Generate, Sampling, StructuredOutputs
from tests.world.caller import tokens_of
from tests.world.cluster import Cluster
from tests.world.structured import codec, target

PROMPT = (470,)
EOS = 1
TEXT = (300, 17, EOS, 2044, 300, 17, 8191, 5, 6, 7, *range(40, 90), EOS, 9)


def cluster() -> Cluster:
    return Cluster(target=target(), codec=codec())


def text_of(chunks) -> str:
    return "".join(piece for chunk in chunks for piece in chunk.pieces)


async def asked(sampling: Sampling, method: str = "auto", **options):
    async with cluster() as served:
        caller = await served.caller()
        return await caller.generate(PROMPT, sampling, method, **options)


SLOW = ("vanilla", "lookahead")  # nothing is forced into their windows: Lookahead's rows are no drafts


@pytest.mark.parametrize("method", ["auto", "pld", *SLOW])
async def test_a_texts_log_probabilities_are_those_behind_prompts_that_end_there(method):
    sampling = Sampling(max_tokens=len(TEXT) + 2, logprobs=2, stop=("a",), stop_token_ids=(17,))
    chunks = await asked(sampling, method, dictation=Dictation(tokens=TEXT))
    tokens, found = tokens_of(chunks), [one for chunk in chunks for one in chunk.logprobs]
    assert tuple(tokens[: len(TEXT)]) == TEXT
    assert chunks[-1].stats.rounds < len(TEXT) / 4 or method in SLOW
    async with cluster() as served:
        caller = await served.caller()
        for at in (0, 1, 3, 20, len(TEXT) - 1):
            prompt, one = (*PROMPT, *TEXT[:at]), Dictation(tokens=TEXT[at : at + 1])
            (last,) = await caller.generate(prompt, Sampling(max_tokens=1, logprobs=2), dictation=one)
            assert last.logprobs[0].top_ids == found[at].top_ids
            assert last.logprobs[0].chosen == pytest.approx(found[at].chosen, abs=1e-4)


async def test_what_follows_a_dictated_text_is_the_targets_own():
    free = await asked(Sampling(max_tokens=20))
    begun = tuple(tokens_of(free)[:8])
    dictated = await asked(Sampling(max_tokens=20), dictation=Dictation(tokens=begun))
    assert tokens_of(dictated) == tokens_of(free)
    assert dictated[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("at", [1, 5, 16])
@pytest.mark.parametrize("structure", [None, StructuredOutputs(grammar=r"start: /(.|\n)*/")])
async def test_a_thought_that_grows_too_long_is_ended_at_its_budget(at, structure):
    end = "</think>"
    free = await asked(Sampling(max_tokens=30), structured_outputs=structure)
    ended = await asked(Sampling(max_tokens=30), structured_outputs=structure, dictation=Dictation(at, text=end))
    ids = codec().encode(end, special_tokens=False)
    assert tokens_of(ended)[: at + len(ids)] == [*tokens_of(free)[:at], *ids]
    assert len(tokens_of(ended)) == 30


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_lookahead_learns_nothing_of_a_dictated_text_that_changes_what_follows(temperature):
    """Its rows are the target's tokens behind guesses: those that were dictated are among them."""
    sampling = Sampling(max_tokens=60, seed=7, temperature=temperature, ignore_eos=True)
    dictation = Dictation(10, text="</think>")
    plain, guessed = [await asked(sampling, method, dictation=dictation) for method in SLOW]
    assert tokens_of(guessed) == tokens_of(plain)
    assert guessed[-1].stats.method == "lookahead"


async def test_a_thought_that_has_ended_or_never_began_is_left_alone():
    sampling = Sampling(max_tokens=30, seed=3, temperature=1.0)
    free = await asked(sampling)
    text = text_of(free)
    word = text[3:6]  # the output has it early
    assert word not in text[:3]
    for dictation in (Dictation(25, text=word), Dictation(5, text="</think>", behind="<think>")):
        assert tokens_of(await asked(sampling, dictation=dictation)) == tokens_of(free)


async def test_a_dictated_text_that_does_not_fit_is_refused():
    async with cluster() as served:
        caller = await served.caller()
        for rid, tokens in (("long", (5,) * 600), ("unknown", (99999,))):
            caller.send(Generate(rid, PROMPT, dictation=Dictation(tokens=tokens)))
        failed, unknown = [await caller.until(lambda message: isinstance(message, Failed)) for _ in range(2)]
    assert (failed.code, unknown.code) == (FailureCode.CONTEXT_LENGTH, FailureCode.BAD_REQUEST)
    assert failed.detail.startswith("prompt is too long: 601 tokens > 511 maximum")


def test_a_long_thought_is_decoded_once_for_all_rows_of_a_window():
    class Counted:
        decoded = 0

        def encode(self, text, special_tokens):
            return codec().encode(text, special_tokens=special_tokens)

        def decode(self, ids, skip):
            Counted.decoded += 1
            return codec().decode(ids, skip)

    thought, end = [300] * 50, Dictation(50, text="</think>")
    dictated, path = Dictated(end, Counted(), 8192, None, thought[:48]), [300, 300, *codec().encode("</think>", False)]
    rows = dictated.masks(path, range(-1, len(path) - 1))
    assert [row.nonzero()[0].tolist() for row in rows[2:-1]] == [[token >> 5] for token in path[2:]]
    dictated.fit(TokenTree(60, 300))
    dictated.commit(path[:3])
    dictated.masks(path[3:], range(-1, len(path) - 4))
    assert Counted.decoded == 2, "before and behind a commit that reaches the place"
