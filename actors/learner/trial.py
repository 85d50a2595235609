"""Whether a candidate agrees with the target more often than the incumbent, text by text. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Standard errors between a difference and zero. A candidate is judged again and again as it learns, so that one test in
# 740 to err, as it is for 3, is one false promotion in hundreds.
SURE = 3.0
FEWEST = 16  # texts: with fewer the standard error itself is not known


@dataclass(slots=True)
class Trial:
    """Tokens of a text are no independent draws, texts are: the error is that of a ratio of sums over texts."""

    _rows: list[tuple[int, int, int]] = field(default_factory=list)  # the candidate's hits, the incumbent's, tokens

    def add(self, candidate: int, incumbent: int, tokens: int) -> None:
        """How many of a text's tokens were each one's first choice."""
        self._rows.append((candidate, incumbent, tokens))

    @property
    def texts(self) -> int:
        return len(self._rows)

    @property
    def agreement(self) -> tuple[float, float]:
        """The candidate's and the incumbent's."""
        tokens = max(1, sum(n for _, _, n in self._rows))
        return sum(a for a, _, _ in self._rows) / tokens, sum(b for _, b, _ in self._rows) / tokens

    @property
    def gain(self) -> float:
        candidate, incumbent = self.agreement
        return candidate - incumbent

    @property
    def error(self) -> float:
        """The standard error of ``gain``."""
        tokens, gain = sum(n for _, _, n in self._rows), self.gain
        return math.sqrt(sum((a - b - gain * n) ** 2 for a, b, n in self._rows)) / max(1, tokens)

    @property
    def better(self) -> bool:
        return self.texts >= FEWEST and self.gain > SURE * self.error

    @property
    def worse(self) -> bool:
        return self.texts >= FEWEST and self.gain < -SURE * self.error
