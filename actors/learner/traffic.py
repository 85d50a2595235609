"""Recently served texts: texts to learn from, and texts kept apart to judge by. In memory alone, and bounded."""

from __future__ import annotations

import struct
import zlib
from collections import deque

from actors.records import LoggedRequest
from protocols.messages import Finished

APART = 8  # one prompt in this many is kept apart
LEARNED = 500_000  # tokens of output held to learn from, some hours of one busy stream
JUDGED = 32_000  # tokens of output held to judge by: a difference of 0.01 in agreement is five of its standard errors
HELD = 4_000_000  # tokens of either, prompts included: 160 MB


class _Latest:
    """The latest texts, bounded by their tokens of output, and by all of their tokens."""

    def __init__(self, most: int, held: int) -> None:
        self.tokens = 0  # output tokens
        self.texts: deque[LoggedRequest] = deque()
        self._prompts = 0  # tokens of prompts
        self._most, self._held = most, held

    def add(self, text: LoggedRequest) -> None:
        self.texts.append(text)
        self._count(text, 1)
        while (self.tokens > self._most or self.tokens + self._prompts > self._held) and len(self.texts) > 1:
            self._count(self.texts.popleft(), -1)

    def _count(self, text: LoggedRequest, sign: int) -> None:
        self.tokens += sign * len(text.text)
        self._prompts += sign * len(text.prompt)


class Traffic:
    def __init__(self, learned: int = LEARNED, judged: int = JUDGED, held: int = HELD) -> None:
        self.learned, self.judged = _Latest(learned, held), _Latest(judged, held)
        self.heard = 0  # tokens of output, ever

    def add(self, message: Finished) -> None:
        """Add a text. Its prompt decides whether it is one to learn from or one to judge by."""
        prompt, text = message.tokens[: message.prompt_len], message.tokens[message.prompt_len :]
        if not prompt or not text:
            return
        apart = zlib.crc32(struct.pack(f"{len(prompt)}I", *prompt)) % APART == 0
        logged = LoggedRequest(prompt=prompt, text=text, sampling=message.sampling)
        (self.judged if apart else self.learned).add(logged)
        self.heard += len(text)
