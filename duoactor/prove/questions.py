"""The requests of a proof: a function of the seed, the target's tokenizer and its answers alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from duoactor.bench.suites import by_turns, load_suite
from duoactor.client.async_client import AsyncClient
from protocols.errors import RequestError
from protocols.messages import ChatTurn, FailureCode, Sampling

KINDS = ("short", "turn", "long", "short", "begun", "short")  # kinds of questions, in turns
LONGEST = 1200  # tokens of a prompt: several pieces of any engine
MOST_TOKENS = (32, 128, 384)  # lengths of an answer: a prompt takes as long as tens of tokens
KEPT = 12  # earlier questions that prompts may continue
# greedy; what Qwen and Gemma recommend; the model's own distribution
TEMPERATURES = (Sampling(), Sampling(temperature=0.7, top_p=0.95, top_k=20), Sampling(temperature=1.0))


@dataclass(frozen=True, slots=True)
class ProofQuestion:
    number: int
    kind: str
    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(slots=True)
class Chain:
    """A hash of every text so far and of what was asked: equal chains are equal texts."""

    texts: int = 0
    digest: bytes = b""

    def add(self, question: ProofQuestion, answer: Sequence[int]) -> None:
        said = question.sampling
        asked = (question.prompt, said.temperature, said.top_p, said.top_k, said.repetition_penalty, said.seed)
        self.digest = hashlib.sha256(self.digest + repr((asked, tuple(answer))).encode()).digest()
        self.texts += 1

    def __str__(self) -> str:
        return f"{self.texts}:{self.digest.hex()[:32]}"


@dataclass(slots=True)
class ProofQuestions:
    """``texts``: tokens of prompts. ``context``: the target's."""

    texts: Sequence[tuple[int, ...]]
    seed: int
    context: int
    asked: int = 0
    _earlier: list[tuple[ProofQuestion, tuple[int, ...]]] = field(default_factory=list)

    def next(self, count: int) -> Iterator[ProofQuestion]:
        """The next questions, each made when the answer to the one before it is known."""
        for _ in range(count):
            chance = random.Random(f"{self.seed} {self.asked}")
            turn, place = divmod(self.asked, len(KINDS))
            kind, base = KINDS[place], TEMPERATURES[(place + turn) % len(TEMPERATURES)]
            most = min(chance.choice(MOST_TOKENS), max(1, self.context // 4))
            sampling = Sampling(
                temperature=base.temperature,
                top_p=base.top_p,
                top_k=base.top_k,
                # a request with a penalty is sampled by other code, and so is the whole batch around it
                repetition_penalty=1.1 if chance.random() < 0.1 else 1.0,
                max_tokens=most,
                # their bits show a difference long before a token does; without them compiled code samples
                logprobs=2 if chance.random() < 0.5 else -1,
                seed=chance.getrandbits(32),
                ignore_eos=chance.random() < 0.75,
            )
            room = max(1, min(LONGEST, self.context // 2, self.context - most - 64))
            yield ProofQuestion(self.asked, kind, self._prompt(kind, chance)[:room], sampling)
            self.asked += 1

    def _prompt(self, kind: str, chance: random.Random) -> tuple[int, ...]:
        text = chance.choice(self.texts)
        if kind == "long":
            length = chance.randrange(65, LONGEST)
            while len(text) < length:
                text += chance.choice(self.texts)
            return text[:length]
        if kind == "short" or not self._earlier:
            return text
        earlier, answer = chance.choice(self._earlier)
        if kind == "turn":  # the next turn of a conversation; a part of the answer may be in the prefix cache
            return (*earlier.prompt, *answer, *text[:64])
        return (*earlier.prompt[: chance.randrange(1, len(earlier.prompt) + 1)], *text)

    def answered(self, question: ProofQuestion, answer: Sequence[int]) -> None:
        self._earlier = [*self._earlier, (question, tuple(answer))][-KEPT:]


async def prompts_of(client: AsyncClient) -> list[tuple[int, ...]]:
    """The built-in suite in the target's tokens; as conversations where it has a chat template."""
    found: list[tuple[int, ...]] = []
    template = True
    for prompt in by_turns(load_suite()):
        text = prompt.turns[0]
        if template:
            try:
                found.append((await client.tokenize([ChatTurn("user", text)])).token_ids)
                continue
            except RequestError as error:
                if error.code != FailureCode.UNSUPPORTED:
                    raise
                template = False
        found.append((await client.tokenize(text)).token_ids)
    return [ids for ids in found if ids]
