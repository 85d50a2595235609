"""Where an output ends, and what it says until then."""

import pytest

from actors.verifier.output import Output
from protocols.messages import FinishReason, Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyCodec, ToyLanguage

EOS = 1
PROMPT = [7]


def spell(text: str) -> list[int]:
    return ToyCodec().encode(text)


def output_of(generated=(), **sampling) -> Output:
    return Output(PROMPT, Sampling(**sampling), frozenset({EOS}), ToyCodec().decode, generated)


def play(output: Output, *commits: list[int]) -> tuple[str, list[int]]:
    """The text, and the number of tokens taken of each commit; text is asked for one commit later, as it is."""
    text, taken = "", []
    for tokens in commits:
        taken.append(output.take(tokens))
        pieces, last = output.spell(taken[-1])
        text += "".join(pieces)
        assert last == (output.finish is not None)
        if last:
            break
    return text, taken


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
ENDS = {  # sampling, commits, then text, tokens taken, finish, stop reason
    "goes on": ({}, ["abc", "de"], "abcde", [3, 2], None, None),
    "length": ({"max_tokens": 4}, ["abc", "def"], "abcd", [3, 1], LENGTH, None),
    "length at the end of a commit": ({"max_tokens": 3}, ["abc"], "abc", [3], LENGTH, None),
    "end token": ({}, ["ab", [*spell("c"), EOS, *spell("d")]], "abc", [2, 2], STOP, None),
    "end token at the limit": ({"max_tokens": 2}, [[*spell("a"), EOS]], "a", [2], STOP, None),
    "end token that is ignored says nothing": ({"ignore_eos": True}, [[EOS, *spell("a"), EOS]], "a", [3], None, None),
    "stop token": ({"stop_token_ids": spell("x")}, ["abxc"], "ab", [3], STOP, spell("x")[0]),
    "stop string": ({"stop": ("cd",)}, ["abcdef"], "ab", [4], STOP, "cd"),
    "stop string over two commits": ({"stop": ("cd",)}, ["abc", "def"], "ab", [3, 1], STOP, "cd"),
    "beginning of a stop string": ({"stop": ("cd",)}, ["abc", "xc"], "abcx", [3, 2], None, None),
    "beginning of a stop string at the end": ({"stop": ("cd",), "max_tokens": 3}, ["abcd"], "abc", [3], LENGTH, None),
    "beginning of a stop string before an end token": (
        {"stop": ("cd",)}, [[*spell("abc"), EOS, *spell("d")]], "abc", [4], STOP, None,
    ),
    "stop string at the limit": ({"stop": ("cd",), "max_tokens": 4}, ["abcd"], "ab", [4], STOP, "cd"),
    "stop string before min_tokens": ({"stop": ("cd",), "min_tokens": 4}, ["abcdef"], "abcdef", [6], None, None),
    "stop string that a token behind min_tokens completes": (
        {"stop": ("cd", "cdx"), "min_tokens": 4}, ["abcdefcd"], "abcdef", [8], STOP, "cd",
    ),
    "stop string that ends behind min_tokens": (
        {"stop": ("cd", "cdx"), "min_tokens": 4}, ["abcdx"], "ab", [5], STOP, "cdx",
    ),
    "the stop string that is complete first": ({"stop": ("bcde", "cd")}, ["abcde"], "ab", [4], STOP, "cd"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_an_output_ends_where_the_table_says(name):
    sampling, commits, text, taken, finish, reason = ENDS[name]
    output = output_of(**sampling)
    tokens = [spell(commit) if isinstance(commit, str) else commit for commit in commits]
    assert play(output, *tokens) == (text, taken)
    assert (output.finish, output.stop_reason) == (finish, reason)


def test_a_resumed_output_goes_on_inside_a_stop_string_and_counts_what_was_there():
    output = output_of(spell("abc"), stop=("cd",), max_tokens=5)
    assert play(output, spell("dx")) == ("", [1])
    assert output.finish is STOP
    output = output_of(spell("abc"), stop=("cd",), max_tokens=5)
    assert play(output, spell("xy")) == ("cxy", [2])
    assert output.finish is LENGTH


def test_text_that_decides_nothing_is_not_made_before_it_is_asked_for():
    asked = []

    def decode(ids):
        asked.append(ids)
        return ToyCodec().decode(ids)

    output = Output(PROMPT, Sampling(), frozenset({EOS}), decode, ())
    asked.clear()  # how the prompt ends
    assert output.take(spell("abc")) == 3 and not asked
    assert output.spell(3) == (["a", "b", "c"], False) and asked


@pytest.mark.parametrize("method", ["vanilla", "auto"])
def test_no_forward_begins_for_a_text_that_has_ended_with_a_stop_string(method):
    language = ToyLanguage()
    truth = language.continuation(PROMPT, Sampling(max_tokens=60))
    stop = ToyCodec().decode(truth[30:33])

    async def go():
        async with Cluster(language=language) as cluster:
            caller = await cluster.caller()
            chunks = await caller.generate(PROMPT, Sampling(max_tokens=60, stop=(stop,)), method)
            return chunks, cluster.target.rounds

    chunks, rounds = run(go())
    assert tokens_of(chunks) == truth[:33]
    assert chunks[-1].stats.rounds == rounds


@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [("�", "ab", STOP), ("b�", "a", STOP), ("b", "a", STOP), ("é", "ab�", LENGTH)],
)
def test_a_stop_string_in_the_rest_of_a_character_ends_the_output_in_name_too(stop: str, text: str, finish):
    """The text ended there, and yet the output said that its length ended it."""
    decoded = {10: b"a", 11: b"b\xc3", 12: b"\xa9"}
    output = Output(
        [10],
        Sampling(max_tokens=2, stop=(stop,)),
        frozenset({EOS}),
        lambda ids: b"".join(decoded[token] for token in ids).decode(errors="replace"),
        (),
    )
    assert play(output, [10, 11, 12]) == (text, [2])
    assert (output.finish, output.stop_reason) == (finish, stop if finish is STOP else None)
