"""What a request leaves behind belongs to the key that asked: no source of drafts and no time tells another of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from actors.verifier.owners import Owner
from actors.verifier.sources.head import HeadSource
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.errors import RequestError
from protocols.messages import Chunk, Failed, Generate, Origin, Sampling
from protocols.security import Holder, KeyRole
from protocols.validation import MIN_SECRET, SHARED_SALT, validate
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.datastores import toy_sources
from tests.world.inline_drafts import inline
from tests.world.models import EOS, VOCAB, ToyDraft, ToyLanguage, ToyTarget
from tests.world.pupil import Pupil

LANGUAGE = ToyLanguage()
PROMPT = tuple(5 + i % 40 for i in range(64))
ANSWER = Sampling(max_tokens=60, ignore_eos=True)
SECRET = SHARED_SALT + MIN_SECRET * "x"
FORWARD_S = 0.001


class ToyHead(ToyDraft):
    def follow(self, handle: int, source: int) -> None:
        """It reads no states."""


def head(model: ToyHead) -> HeadSource:
    return HeadSource(model, {1: 100.0, 8: 150.0}, VOCAB, frozenset({EOS}))


def keyed(*hosts: str, **settings) -> Cluster:
    """A verifier to which each host comes with a client's key of its own."""
    target = ToyTarget(LANGUAGE, caches=True, chunk=8)  # a prompt takes eight forwards
    fields = {"sources": Library(memory=Memory(10_000)), "target": target, "forward_s": FORWARD_S}
    made = Cluster(language=LANGUAGE, **{**fields, **settings})
    for name in hosts:
        made.network.holders[name] = Holder(name.encode().ljust(40, b"-"), frozenset({KeyRole.CLIENT}))
    return made


def asked(*askers: tuple[str, dict[str, str]], trace: bool = False, **settings) -> list[list[Chunk]]:
    """The same request of several callers, one after the other."""

    async def main() -> list[list[Chunk]]:
        async with keyed("alice", "bob", **settings) as cluster:
            callers = {name: await cluster.caller(name) for name in dict.fromkeys(name for name, _ in askers)}
            return [await callers[name].generate(PROMPT, ANSWER, trace=trace, **how) for name, how in askers]

    return run(main())


def cached(chunks: Sequence[Chunk]) -> int:
    return chunks[0].cached_tokens


def first_ms(chunks: Sequence[Chunk]) -> float:
    return chunks[-1].stats.time_to_first_token_ms


def only_memory() -> Library:
    library = Library(memory=Memory(10_000))
    library.sources = [source for source in library.sources if source.name == "memory"]
    return library


def proposed(chunks: Sequence[Chunk], origin: Origin) -> list[tuple[int, int]]:
    """(output tokens so far, draft) of every draft of that origin that a trace shows."""
    return [
        (chunk.offset, token)
        for chunk in chunks
        if chunk.trace is not None
        for token, found in zip(chunk.trace.tokens, chunk.trace.origins, strict=True)
        if found is origin
    ]


@pytest.mark.parametrize("trace", [False, True])
def test_a_stranger_sees_an_answered_prompt_as_one_that_nobody_asked(trace):
    owner, again, stranger = asked(("alice", {}), ("alice", {}), ("bob", {}), trace=trace, sources=only_memory())
    (unseen,) = asked(("bob", {}), trace=trace, sources=only_memory())
    assert cached(again) == len(PROMPT) - 1 and again[-1].stats.rounds < owner[-1].stats.rounds / 2
    assert cached(stranger) == cached(unseen) == 0
    assert stranger[-1].stats.rounds == unseen[-1].stats.rounds
    assert first_ms(stranger) == pytest.approx(first_ms(unseen), abs=0.01)
    assert first_ms(again) < 0.5 * first_ms(unseen)
    assert proposed(stranger, Origin.RETRIEVED) == proposed(unseen, Origin.RETRIEVED) == []
    assert bool(proposed(again, Origin.RETRIEVED)) == trace
    assert tokens_of(owner) == tokens_of(stranger)


def test_a_short_question_word_by_word_brings_nothing_of_anothers_answer():
    async def main(first: str, then: str):
        async with keyed("alice", "bob", sources=only_memory()) as cluster:
            callers = {name: await cluster.caller(name) for name in ("alice", "bob")}
            if first:
                await callers[first].generate(PROMPT, ANSWER)
            few = Sampling(max_tokens=2, ignore_eos=True)
            found = [await callers[then].generate(PROMPT[:length], few, trace=True) for length in range(3, 64)]
            return [draft for chunks in found for draft in proposed(chunks, Origin.RETRIEVED)]

    assert run(main("alice", "bob")) == run(main("", "bob")) != run(main("bob", "bob"))


def test_a_client_that_left_before_its_text_was_remembered_still_owns_it():
    async def main():
        async with keyed("alice", "bob") as cluster:
            alice, bob = await cluster.caller("alice"), await cluster.caller("bob")
            alice.send(Generate("r", PROMPT, sampling=Sampling(max_tokens=10_000, ignore_eos=True)))
            while not any(isinstance(message, Chunk) and message.offset > 80 for message in alice.seen):
                await alice.next()
            await cluster_forgets(cluster, alice)
            return await bob.generate(PROMPT, ANSWER)

    (unseen,) = asked(("bob", {}))
    stranger = run(main())
    assert (cached(stranger), stranger[-1].stats.rounds) == (0, unseen[-1].stats.rounds)


async def cluster_forgets(cluster: Cluster, caller: Caller) -> None:
    """The caller leaves in the middle of its answer."""
    (peer,) = [one.peer for one in cluster.verifier.state.clients.values() if one.actor_id == caller.name]
    cluster.verifier.peers.gone(peer, "left, as asked")


@pytest.mark.parametrize("how", ["drafter", "inline", "head"])
def test_a_draft_models_mirror_of_a_text_is_of_use_to_its_owner_only(how):
    model = ToyHead(LANGUAGE, reads=True)

    async def main(who: str):
        drafts = {"inline": inline(model)} if how == "inline" else {"inline": head(model)} if how == "head" else {}
        async with keyed("alice", "bob", **drafts) as cluster:
            if how == "drafter":
                cluster.start_drafter("d1", model=model)
                await cluster.connected("d1")
            callers = {name: await cluster.caller(name) for name in ("alice", who)}
            await callers["alice"].generate(PROMPT, ANSWER)
            before = model.tokens_read
            await callers[who].generate(PROMPT, ANSWER)
            return model.tokens_read - before

    assert run(main("alice")) < len(PROMPT) <= run(main("bob"))


def test_a_drafter_is_told_neither_key_nor_salt_and_the_same_label_only_for_one_owner():
    scopes = [Owner(key, salt).scope() for key in (b"", b"a" * 40, b"b" * 40) for salt in ("", "a", SECRET)]
    assert scopes[0] == ""
    assert len(set(scopes)) == len(scopes) - 2  # the shared salt is one scope for all
    assert not any(part in scope for scope in scopes for part in ("aaaa", "share", "xxxx"))


def test_anothers_salt_is_of_no_use_unless_both_asked_to_share_by_a_secret():
    for salt, found in (("user-42", 0), (SECRET, len(PROMPT) - 1)):
        _, stranger = asked(("alice", {"cache_salt": salt}), ("bob", {"cache_salt": salt}))
        assert cached(stranger) == found


def test_a_secret_to_share_by_that_could_be_guessed_is_refused_in_a_sentence():
    with pytest.raises(RequestError, match="openssl rand -hex 16"):
        validate(Generate("r", (1,), cache_salt=SHARED_SALT + "team"))

    async def main():
        async with keyed("alice") as cluster:
            alice = await cluster.caller("alice")
            alice.send(Generate("r", PROMPT, cache_salt=SHARED_SALT + (MIN_SECRET - 1) * "x"))
            return await alice.until(lambda message: isinstance(message, Failed))

    assert f"at least {MIN_SECRET} characters" in run(main()).detail


def test_the_operator_may_have_all_keys_share():
    _, stranger, parted = asked(("alice", {}), ("bob", {}), ("bob", {"cache_salt": "mine"}), share_texts=True)
    assert (cached(stranger), cached(parted)) == (len(PROMPT) - 1, 0)


def test_a_datastore_is_the_operators_and_proposes_to_everybody(tmp_path):
    sources = toy_sources(tmp_path, LANGUAGE, PROMPT)
    alice, bob = asked(("alice", {}), ("bob", {}), sources=sources)
    assert max(alice[-1].stats.rounds, bob[-1].stats.rounds) < len(tokens_of(bob)) / 2


@pytest.mark.parametrize(
    ("settings", "heard"), [({}, 0), ({"learn_salted": True}, 1), ({"share_texts": True}, 1)], ids=str
)
def test_a_learner_hears_a_keys_texts_only_if_the_operator_says_so(settings, heard):
    async def main():
        async with keyed("alice", **settings) as cluster:
            pupil, alice = Pupil(cluster.network), await cluster.caller("alice")
            await pupil.hello()
            await alice.generate(PROMPT, ANSWER)
            return await pupil.heard()

    assert len(run(main())) == heard
