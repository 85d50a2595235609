"""``duoactor prove`` against targets that are made up: honest ones, and ones that lie in one way each."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from duoactor.cli import main
from duoactor.client.request import Completion
from duoactor.launch.supervisor import Event
from duoactor.prove import run
from duoactor.prove.proof import SHARED, Evidence, Proof
from duoactor.prove.questions import ProofQuestions
from protocols.errors import RequestError
from protocols.messages import (
    Chunk,
    FailureCode,
    FinishReason,
    RequestStats,
    Role,
    Sampling,
    StatusReport,
    Tokenized,
    TokenLogprobs,
)
from tests.cli.fake_actors import fake_world
from tests.cli.fake_status import status_of

METHODS = ("vanilla", "tree", "pld")
TEXTS = [tuple(range(start, start + 9)) for start in (2, 40, 70)]


def token_at(prompt: tuple[int, ...], sampling: Sampling, position: int) -> int:
    seed = sampling.seed if sampling.temperature else 0
    return hashlib.sha256(repr((prompt, seed, position)).encode()).digest()[0]


class MadeUpTarget:
    """A client of a verifier whose token is a function of prompt, seed and position, but where ``lie`` changes it."""

    welcome = SimpleNamespace(max_context=2048)
    refuses = ""  # a method

    def __init__(self) -> None:
        self.open = 0
        self.salts: list[str] = []

    def lie(self, token: int, position: int, method: str, salt: str) -> int:
        return token

    def length(self, method: str, length: int) -> int:
        return length

    def logprob(self, method: str, value: float) -> float:
        return value

    async def stream(self, prompt: Any, *, sampling: Sampling, method: str, cache_salt: str) -> AsyncIterator[Chunk]:
        if method == self.refuses:
            raise RequestError(FailureCode.UNSUPPORTED, "there is no such drafter")
        self.open += 1
        try:
            last = self.length(method, sampling.max_tokens) - 1
            for at in range(last + 1):
                await asyncio.sleep(0)
                token = self.lie(token_at(prompt, sampling, at), at, method, cache_salt)
                found = TokenLogprobs(self.logprob(method, -token / 7))
                logprobs = (found,) if sampling.logprobs >= 0 else ()
                end = FinishReason.LENGTH if at == last else None
                stats = RequestStats(method, draft_tokens=3, accepted_tokens=1) if end else None
                yield Chunk("r", at, (token,), ("x",), (False,), end, logprobs, stats)
        finally:
            self.open -= 1

    async def generate(self, prompt: Any, **options: Any) -> Completion:
        self.salts.append(options["cache_salt"])
        chunks = [chunk async for chunk in self.stream(prompt, **options)]
        return Completion(
            "", tuple(chunk.token_ids[0] for chunk in chunks), FinishReason.LENGTH, RequestStats(),
            options["sampling"], tuple(one for chunk in chunks for one in chunk.logprobs),
        )  # fmt: skip

    async def tokenize(self, text: Any) -> Tokenized:
        if not isinstance(text, str):
            raise RequestError(FailureCode.UNSUPPORTED, "it has no chat template")
        return Tokenized("r", tuple(text.encode()[:20]), (), text)

    async def status(self) -> Any:
        return status_of({})


class LiesByOneMethod(MadeUpTarget):
    def lie(self, token: int, position: int, method: str, salt: str) -> int:
        return token + (method == "tree" and position == 11)


class LiesBesideOthers(MadeUpTarget):
    def lie(self, token: int, position: int, method: str, salt: str) -> int:
        return token + (self.open > 8)


class LiesFromItsCache(MadeUpTarget):
    def lie(self, token: int, position: int, method: str, salt: str) -> int:
        return token + (salt == SHARED and position == 3)


class EndsEarly(MadeUpTarget):
    def length(self, method: str, length: int) -> int:
        return length - (method == "pld")


class GoesOn(MadeUpTarget):
    def length(self, method: str, length: int) -> int:
        return length + (method == "pld")


class HasOtherBits(MadeUpTarget):
    def logprob(self, method: str, value: float) -> float:
        return math.nextafter(value, 0.0) if method == "tree" else value


def proved(target: MadeUpTarget, seed: int = 0, links: int = 12) -> Proof:
    proof = Proof(target, ProofQuestions(TEXTS, seed, 2048), METHODS, math.inf, links=links)  # type: ignore[arg-type]
    asyncio.run(proof.run())
    return proof


def test_an_honest_target_is_compared_by_every_method_and_nothing_differs():
    target = MadeUpTarget()
    evidence = proved(target).evidence
    assert evidence.difference is None and not evidence.failed
    assert set(evidence.by_method) == set(METHODS) and min(evidence.by_method.values()) > 300
    assert sorted(evidence.by_temperature) == [0.0, 0.7, 1.0] and set(evidence.by_streams) == {16, 8, 4, 2, 1}
    assert evidence.tokens == sum(evidence.by_method.values()) and 0 < evidence.logprobs < evidence.tokens
    assert len(set(target.salts)) == 12 and SHARED not in target.salts, "a text decoded alone finds no cached prefix"


@pytest.mark.parametrize(
    ("lying", "position"),
    [
        pytest.param(LiesByOneMethod, 11, id="by one method"),
        pytest.param(LiesBesideOthers, None, id="beside others"),
        pytest.param(LiesFromItsCache, 3, id="from its cache"),
        pytest.param(EndsEarly, None, id="ends early"),
        pytest.param(GoesOn, None, id="goes on"),
        pytest.param(HasOtherBits, 0, id="has other bits"),
    ],
)
def test_every_kind_of_lie_is_found_with_its_place(lying, position):
    found = proved(lying()).evidence.difference
    assert found is not None and found.expected != found.got
    assert position in (None, found.position)
    assert found.batch, "sixteen streams were open"


def test_texts_of_the_same_seed_have_the_same_chain_and_others_another():
    chain = str(proved(MadeUpTarget()).chain)
    assert chain.startswith("12:")
    assert str(proved(MadeUpTarget()).chain) == chain
    assert str(proved(MadeUpTarget(), seed=1).chain) != chain
    longer = proved(MadeUpTarget(), links=13).chain
    assert longer.texts == 13 and str(longer)[3:] != chain[3:]


def test_a_target_that_needs_its_time_for_one_text_is_compared_with_that_one(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("duoactor.prove.proof.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(MadeUpTarget):
        async def generate(self, prompt: Any, **options: Any) -> Completion:
            now[0] += 30.0
            return await super().generate(prompt, **options)

    proof = Proof(Slow(), ProofQuestions(TEXTS, 0, 2048), METHODS, 100.0)  # type: ignore[arg-type]
    proof.show = lambda text: now.__setitem__(0, now[0] + 1.0)
    asyncio.run(proof.run())
    assert proof.evidence.tokens > 0 and 0 < proof.chain.texts < 4


def test_a_method_that_the_target_refuses_is_named():
    target = MadeUpTarget()
    target.refuses = "pld"
    evidence = proved(target).evidence
    assert evidence.missing == {"pld": "there is no such drafter"} and evidence.difference is None


@pytest.fixture
def prove(monkeypatch):
    """The command, with a made-up target."""

    def run(target: MadeUpTarget, *arguments: str) -> int:
        client, environment = fake_world(monkeypatch)
        started: dict[str, int] = {}

        def note(report: Any, event: Event) -> None:
            if event.kind == "started":
                started[event.actor.name] = client.pids[event.actor.role] = event.pid

        async def status() -> StatusReport:
            found = status_of(client.pids)
            pids = [pid for name, pid in started.items() if name.startswith("drafter")]
            return replace(found, drafters=tuple(replace(found.drafters[0], pid=pid) for pid in pids))

        monkeypatch.setattr("duoactor.launch.progress.LaunchReport.__call__", note)
        environment.probe = lambda deployment: status
        target.status = status  # type: ignore[method-assign]

        @asynccontextmanager
        async def connect(address: str) -> AsyncIterator[MadeUpTarget]:
            yield target

        environment.connect_async = connect  # type: ignore[assignment]
        return main(["prove", *arguments], environment)

    return run


def test_the_command_prints_a_chain_that_another_run_can_check(prove, capsys):
    chain = str(proved_by_command(prove, capsys))
    assert prove(MadeUpTarget(), "--check", chain) == 0
    out = capsys.readouterr().out
    assert "0 differ from the same request decoded alone" in out and f"chain      {chain}" in out
    assert prove(MadeUpTarget(), "--check", f"2:{'0' * 32}") == 1
    assert "the chain is not the expected one" in capsys.readouterr().out


def test_the_command_to_compare_names_the_pair_as_it_was_given(prove, capsys):
    assert prove(MadeUpTarget(), "--draft", "pld", "--minutes", "0.01", "--dtype", "float32", "--seed", "7") == 0
    out = capsys.readouterr().out
    assert re.search(r"\n {11}duoactor prove --draft pld --dtype float32 --seed 7 --check \d+:[0-9a-f]{32}\n", out), out


def test_the_findings_fit_a_narrow_terminal(prove, monkeypatch, capsys):
    monkeypatch.setattr("duoactor.render.width", lambda terminal: 60)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert prove(MadeUpTarget(), "--minutes", "0.01") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith(" " * 11) for line in lines) > 6


def proved_by_command(prove, capsys) -> str:
    """The chain of two texts, as a run that expected another has found it."""
    assert prove(MadeUpTarget(), "--check", f"2:{'f' * 32}", "--json") == 1
    chain: str = json.loads(capsys.readouterr().out)["chain"]
    return chain


def test_the_command_ends_with_1_and_says_where_a_text_differs(prove, capsys):
    assert prove(LiesByOneMethod(), "--check", f"6:{'f' * 32}") == 1
    out = capsys.readouterr().out
    assert out.startswith("A text is not the target's own") and "by tree" in out and "at 11 of the answer" in out


def test_a_chain_that_is_none_is_refused(prove, capsys):
    assert prove(MadeUpTarget(), "--check", "soon") == 1
    assert "give it as `duoactor prove` printed it" in capsys.readouterr().err


async def test_drafters_change_places_and_the_supervisors_children_are_killed_in_turns(monkeypatch):
    monkeypatch.setattr(run, "SWAP_S", 0.001)
    monkeypatch.setattr(run, "SWAPS_PER_KILL", 2)
    killed, swapped, evidence = [], [], Evidence()
    monkeypatch.setattr("os.kill", lambda pid, how: killed.append((pid, how)))

    async def status() -> Any:
        drafters = (SimpleNamespace(actor_id="idle", leases=0), SimpleNamespace(actor_id="busy", leases=4))
        return SimpleNamespace(drafters=drafters)

    async def swap(old: str, new: str) -> str:
        swapped.append((old, new))
        return "moved 4"

    plans = [SimpleNamespace(role=role) for role in (Role.VERIFIER, Role.DRAFTER, Role.DRAFTER)]
    client = SimpleNamespace(status=status, swap=swap)
    supervisor = SimpleNamespace(actors=[*zip(plans, (7, 8, 9), strict=True)])
    task = asyncio.create_task(run.trouble(client, supervisor, evidence))
    while evidence.killed < 2:
        await asyncio.sleep(0.001)
    task.cancel()
    assert {pid for pid, _ in killed[:2]} == {8, 9} and set(swapped) == {("busy", "idle")}
    assert evidence.swapped == len(swapped) > 0
