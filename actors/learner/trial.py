"""Whether a candidate agrees with the target more often than the incumbent, text by text. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from actors.estimate import SURE

FEWEST = 16  # texts: with fewer the standard error itself is not known


@dataclass(slots=True)
class ReplayTrial:
    """Tokens of a text are no independent draws, texts are: the error is that of a ratio of sums over texts.

    ``number``: of this trial among all that the learner has made. Many candidates are judged on the same texts. Of n
    that are no better, the best seems ahead by about sqrt(2 ln n) errors. A bound of three errors promoted one in 24
    minutes of questions: it seemed better by 0.015, and on later texts it was worse by 0.002. So the bound is
    Bonferroni's: a wrong promotion is as rare among n candidates as it would be for one."""

    number: int
    _rows: list[tuple[int, int, int]] = field(default_factory=list)  # the candidate's hits, the incumbent's, tokens

    def add(self, candidate: int, incumbent: int, tokens: int) -> None:
        """Count a text's tokens that were each draft's first choice."""
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
        return self.texts >= FEWEST and self.gain > math.sqrt(SURE**2 + 2 * math.log(self.number)) * self.error

    @property
    def worse(self) -> bool:
        return self.texts >= FEWEST and self.gain < -SURE * self.error
