"""A proof under way: every question is answered alone, then by every method among others, and compared."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from duoactor.client.async_client import AsyncClient
from duoactor.client.stream import AsyncStream
from duoactor.prove.questions import Chain, ProofQuestion, ProofQuestions
from protocols.errors import RequestError
from protocols.messages import Chunk, FailureCode, Method, TokenLogprobs

STREAMS = (16, 4, 1, 8, 2, 16, 12, 3)  # requests that run together, by rounds
PER_QUESTION = 4  # streams of a round: few streams compare fewer tokens a second, and so get fewer questions
ROUND = 5  # most times the questions' own time: slow targets meet several batch sizes too
LEFT = 0.1  # share of the answers that is left before their end
SHARED = "duoactor-prove"  # the salt of answers that may read the prefix cache


@dataclass(frozen=True, slots=True)
class Expected:
    """A question, and its answer decoded alone, plainly, without the prefix cache."""

    question: ProofQuestion
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # each token's, where the question has them


@dataclass(slots=True)
class Attempt:
    """One answer that is compared."""

    expected: Expected
    method: str
    cached: bool  # whether it may read the prefix cache
    leave_at: int = 0  # tokens after which it is left; 0: it is read to its end
    at: int = 0  # tokens that were compared

    def __str__(self) -> str:
        question = self.expected.question
        return (
            f"request {question.number} ({question.kind}, {len(question.prompt)} tokens, temperature "
            f"{question.sampling.temperature:g}) by {self.method}{', prefix cache on' if self.cached else ''}"
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that is not the target's own, or has other bits in its log-probabilities."""

    request: str
    position: int  # position in the answer
    expected: str
    got: str
    batch: tuple[str, ...]  # what else was being decoded, and how far it was


@dataclass(slots=True)
class Evidence:
    """Counts of a proof so far. ``tokens`` and the like are counts of tokens."""

    tokens: int = 0
    logprobs: int = 0  # tokens of which the bits of log-probabilities were compared as well
    answers: int = 0
    by_method: Counter[str] = field(default_factory=Counter)
    by_temperature: Counter[float] = field(default_factory=Counter)
    by_streams: Counter[int] = field(default_factory=Counter)
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0
    reused: int = 0  # prompt tokens from the prefix cache
    left: int = 0  # answers that were left before their end
    killed: int = 0  # drafters
    swapped: int = 0
    missing: dict[str, str] = field(default_factory=dict)  # methods that the target refuses, and why
    failed: list[str] = field(default_factory=list)  # requests that ended with an error
    difference: Difference | None = None


class Proof:
    """``until``: when it ends, by ``time.monotonic``. ``links``: texts after which it ends; 0: by time alone."""

    def __init__(
        self,
        client: AsyncClient,
        questions: ProofQuestions,
        methods: Sequence[str],
        until: float,
        show: Callable[[str], None] = lambda text: None,
        links: int = 0,
    ) -> None:
        self.client, self.questions, self.methods, self.links = client, questions, methods, links
        self.until, self.show = until, show
        self.evidence = Evidence()
        self.chain = Chain()
        self._running: list[Attempt] = []
        self._round_until = until

    @property
    def over(self) -> bool:
        if self.links:
            return self.chain.texts >= self.links
        return time.monotonic() >= self.until

    async def run(self) -> None:
        """Rounds until the end, or until a text differs."""
        for number in itertools.count():
            if self.over or self.evidence.difference is not None:
                return
            streams, began = STREAMS[number % len(STREAMS)], time.monotonic()
            expected = await self._alone(max(1, streams // PER_QUESTION))
            self._round_until = began + ROUND * (time.monotonic() - began)
            waiting = iter(self._attempts(expected, random.Random(number)))
            await asyncio.gather(*(self._stream(waiting, streams) for _ in range(streams)))

    async def _alone(self, count: int) -> list[Expected]:
        """The next questions, each decoded plainly with nothing else in the batch and nothing in a cache."""
        found: list[Expected] = []
        began = time.monotonic()
        enough = began + (self.until - began) / ROUND  # texts of a slow target are to be compared, too
        for question in self.questions.next(count):
            if self.over or (found and not self.links and time.monotonic() >= enough):
                break
            self._tell("alone")
            try:
                answer = await self.client.generate(
                    question.prompt, sampling=question.sampling, method=Method.VANILLA, cache_salt=uuid.uuid4().hex
                )
            except RequestError as error:
                if error.code != FailureCode.CONTEXT_LENGTH:
                    raise
                continue
            found.append(Expected(question, answer.token_ids, answer.logprobs))
            self.questions.answered(question, answer.token_ids)
            self.chain.add(question, answer.token_ids)
        return found

    def _attempts(self, expected: Sequence[Expected], chance: random.Random) -> list[Attempt]:
        """Every method on every question, with the prefix cache and without, in any order."""
        found = []
        for one, method, cached in itertools.product(expected, self.methods, (True, False)):
            leave_at = chance.randrange(1, 2 + len(one.tokens)) if chance.random() < LEFT else 0
            found.append(Attempt(one, method, cached, leave_at))
        chance.shuffle(found)
        return found

    async def _stream(self, waiting: Iterator[Attempt], streams: int) -> None:
        """One answer after the other."""
        for attempt in waiting:
            if attempt.method in self.evidence.missing:
                continue
            late = time.monotonic() >= min(self.until, self._round_until)
            if self.evidence.difference is not None or (late and not self.links):
                return
            self._running.append(attempt)
            try:
                await self._answer(attempt)
            finally:
                self._running.remove(attempt)
                self.evidence.by_streams[streams] += attempt.at
            self._tell(f"{streams} streams" if streams > 1 else "1 stream")

    async def _answer(self, attempt: Attempt) -> None:
        """Read and compare; the place of the first difference is noted while the others still run."""
        evidence, question = self.evidence, attempt.expected.question
        evidence.answers += 1
        found: tuple[str, str] | None = None
        try:
            async for chunk in self._asked(attempt):
                evidence.reused += chunk.cached_tokens
                if chunk.stats is not None:
                    evidence.drafted += chunk.stats.draft_tokens
                    evidence.accepted += chunk.stats.accepted_tokens
                found = _compare(attempt, chunk)
                if found or evidence.difference or (attempt.leave_at and attempt.at >= attempt.leave_at):
                    evidence.left += chunk.finish_reason is None and not found
                    break
        except RequestError as error:
            if error.code == FailureCode.UNSUPPORTED:
                evidence.missing[attempt.method] = str(error)
            else:
                evidence.failed.append(f"{attempt}: {error}")
        evidence.tokens += attempt.at
        evidence.logprobs += attempt.at if question.sampling.logprobs >= 0 else 0
        evidence.by_method[attempt.method] += attempt.at
        evidence.by_temperature[question.sampling.temperature] += attempt.at
        if found and evidence.difference is None:
            batch = tuple(f"{one}, at token {one.at}" for one in self._running if one is not attempt)
            evidence.difference = Difference(str(attempt), attempt.at, *found, batch)

    def _asked(self, attempt: Attempt) -> AsyncStream:
        question = attempt.expected.question
        salt = SHARED if attempt.cached else uuid.uuid4().hex
        return self.client.stream(question.prompt, sampling=question.sampling, method=attempt.method, cache_salt=salt)

    def _tell(self, doing: str) -> None:
        left = f"{self.links - self.chain.texts} texts" if self.links else f"{self.until - time.monotonic():.0f} s"
        self.show(f"{self.evidence.tokens:,} tokens compared, none differs; {doing}; {left} left")


def _compare(attempt: Attempt, chunk: Chunk) -> tuple[str, str] | None:
    """Go on with the comparison. Returns what was expected and what came where they differ."""
    tokens, logprobs = attempt.expected.tokens, attempt.expected.logprobs
    for place, token in enumerate(chunk.token_ids):
        at = attempt.at
        if at >= len(tokens) or token != tokens[at]:
            return f"token {tokens[at]}" if at < len(tokens) else "the end", f"token {token}"
        if logprobs and logprobs[at] != chunk.logprobs[place]:
            return f"token {token} with {_told(logprobs[at])}", _told(chunk.logprobs[place])
        attempt.at += 1
    if chunk.finish_reason is not None and attempt.at < len(tokens):
        return f"token {tokens[attempt.at]}", "the end"
    return None


def _told(found: TokenLogprobs) -> str:
    likeliest = ", ".join(f"{id}: {one!r}" for id, one in zip(found.top_ids, found.top_logprobs, strict=True))
    return f"log-probability {found.chosen!r} ({likeliest})"
