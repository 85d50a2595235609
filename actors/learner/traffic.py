"""What was served lately: texts to learn from, and texts kept apart to judge by. In memory alone, and bounded."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from actors.records import LoggedRequest
from protocols.messages import Finished

APART = 8  # one prompt in this many is kept apart
# Tokens held to learn from, some hours of one busy stream: 20 MB, and 48 more with 16 alternatives of each.
LEARNED = 500_000
JUDGED = 32_000  # tokens of output held to judge by: a difference of 0.01 in agreement is five of its standard errors


ID_BYTES, LOGPROB_BYTES = 4, 2  # of an alternative, as ``Finished`` has it


class Heard(LoggedRequest, frozen=True, kw_only=True):
    """A text to learn from, with what the target held likeliest at each place of it, as ``Finished`` has it."""

    top_ids: bytes = b""
    top_logprobs: bytes = b""

    @property
    def alternatives(self) -> int:
        """How many of each token are told; 0 also where what is told is none."""
        count = len(self.top_ids) // (ID_BYTES * len(self.text))
        whole = count * len(self.text)
        return count if (len(self.top_ids), len(self.top_logprobs)) == (ID_BYTES * whole, LOGPROB_BYTES * whole) else 0


Text = TypeVar("Text", bound=LoggedRequest)


class _Latest(Generic[Text]):
    """The latest texts, up to a number of tokens."""

    def __init__(self, most: int) -> None:
        self.tokens = 0
        self.texts: deque[Text] = deque()
        self._most = most

    def add(self, text: Text) -> None:
        self.texts.append(text)
        self.tokens += len(text.text)
        while self.tokens > self._most and len(self.texts) > 1:
            self.tokens -= len(self.texts.popleft().text)


class Traffic:
    def __init__(self, learned: int = LEARNED, judged: int = JUDGED) -> None:
        self.learned, self.judged = _Latest[Heard](learned), _Latest[LoggedRequest](judged)
        self.heard = 0  # tokens of output, ever

    def add(self, message: Finished) -> None:
        """By its prompt a text is one to learn from or one to judge by, also when it comes again."""
        prompt, text = message.tokens[: message.prompt_len], message.tokens[message.prompt_len :]
        if not prompt or not text:
            return
        apart = zlib.crc32(struct.pack(f"{len(prompt)}I", *prompt)) % APART == 0
        if apart:
            self.judged.add(LoggedRequest(prompt=prompt, text=text, sampling=message.sampling))
        else:
            best, logprobs = message.top_ids, message.top_logprobs
            heard = Heard(prompt=prompt, text=text, sampling=message.sampling, top_ids=best, top_logprobs=logprobs)
            self.learned.add(heard)
        self.heard += len(text)

    def to_judge(self) -> Iterator[LoggedRequest]:
        return iter(list(self.judged.texts))
