"""Prompts of the target's own: samples at the user's place in its chat template (Magpie, arXiv 2406.08464).

A model without a template begins a text as it does by itself; its first tokens are the prompt.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator

from actors.engines.text.tokenizer import TokenizerCodec
from actors.models import ModelInfo, common_prefix
from actors.training.answers import GREEDY, TEMPERATURES, Job, TargetAnswer, TrainingPrompt
from protocols.errors import RequestError
from protocols.messages import ChatTurn

TASK = "own"  # the prompts' task
LONGEST = 128  # tokens of a question
BEGINNING = 32  # tokens of a prompt that no template ends
SHORTEST = 3  # tokens of either
PROBES = ("A", "7", "What")  # user texts that differ in their first and in their last token


def prompt_of(text: str, codec: TokenizerCodec, task: str = "") -> TrainingPrompt:
    try:
        return TrainingPrompt(tuple(codec.chat([ChatTurn("user", text)])), task)
    except RequestError:  # a model without a chat template
        return TrainingPrompt(tuple(codec.encode(text)), task)


class Questions:
    def __init__(self, codec: TokenizerCodec, info: ModelInfo, known: Iterable[TrainingPrompt]) -> None:
        """``known``: prompts that are not to be asked again."""
        self._codec, self._known = codec, {prompt.tokens for prompt in known}
        self._seeds = random.Random(len(self._known))
        self._waiting = deque[Job]()  # answers to the questions that were written
        self.ends = info.eos_token_ids  # ends of a question or an answer
        try:
            first, *others = (codec.chat([ChatTurn("user", text)]) for text in PROBES)
        except RequestError:
            self._closing = frozenset[int]()
            opening = codec.encode("") or sorted(self.ends)[:1] or [0]
        else:
            opening = first[: min(common_prefix(first, other) for other in others)]
            closed = min(common_prefix(first[::-1], other[::-1]) for other in others)
            # some templates end a user's turn with a token that is no end of a text
            self.ends |= set(first[len(first) - closed :][:1])
            self._closing = self.ends
        self.opening = TrainingPrompt(tuple(opening))

    def jobs(self) -> Iterator[Job]:
        """Without end: a question, or an answer to a question that :meth:`take` got."""
        longest = LONGEST if self._closing else BEGINNING
        while True:
            yield self._waiting.popleft() if self._waiting else self._question(longest)

    def _question(self, longest: int) -> Job:
        return Job(self.opening, 1.0, self._seeds.getrandbits(32), longest)

    def take(self, written: TargetAnswer) -> None:
        """A question that is complete and new is answered next, greedily and sampled."""
        tokens = written.tokens.tolist()
        if (self._closing and tokens.pop() not in self._closing) or len(tokens) < SHORTEST:
            return
        prompt = prompt_of(self._codec.decode(tokens).strip(), self._codec, TASK)
        if prompt.tokens in self._known:
            return
        self._known.add(prompt.tokens)
        sampled = TEMPERATURES[len(self._known) % len(TEMPERATURES)]
        self._waiting += [Job(prompt, GREEDY, 0), Job(prompt, sampled, 1)]
