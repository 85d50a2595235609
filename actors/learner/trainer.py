"""What the learner asks of a model in training. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from actors.records import LoggedRequest


class Trainer(Protocol):
    """Called on one thread; each call takes about a second at most, ``begin`` and ``save`` aside."""

    def begin(self, directory: str) -> None:
        """Learn on from these weights; empty: from those of the draft itself."""
        ...

    def learn(self, texts: Sequence[LoggedRequest]) -> int:
        """One step on some of the texts; how many tokens it has seen."""
        ...

    def save(self, directory: Path) -> None:
        """Write the weights as a draft model's directory."""
        ...

    def hits(self, directory: str, text: LoggedRequest) -> int:
        """Tokens of a text that were the first choice of the draft in that directory, by exact replay with the engine
        that serves; empty: of the draft itself."""
        ...
