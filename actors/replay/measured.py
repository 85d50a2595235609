"""What rounds take here beyond what the models' calibrations say, measured in a replay of a few requests.

A calibration computes in a loop: weights and code stay in the caches. Between two forwards of a stream the verifier's
own code runs and, for ``auto`` on a CPU, a draft model, and each finds less of its own there. So both models compute
beside that replay what they would, and code, forwards and steps are timed as they follow each other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from actors.replay.clock import Metered

R = TypeVar("R")
FEW = 8  # samples: the median of fewer may be an accident


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Microseconds, and factors on calibrated times."""

    code: float = 0.0  # of a round without drafts, in the verifier's own code
    code_drafts: float = 0.0  # of one that verifies drafts: proposers were asked, a tree was grown, walked and pruned
    forward: float = 1.0  # of a forward
    forward_drafted: float = 1.0  # of one that steps of the verifier's own draft model came before
    step: float = 1.0  # of such a step
    read: float = 0.0  # for each token of a text that this model reads


CALIBRATED = RoundTimes()  # nothing is known beyond the calibrations


class Beside(Protocol):
    """A target that computes beside a replay what the one that knows its texts does not."""

    def begin(self, tokens: int) -> None:
        """Another text, with a prompt of so many tokens: long ones make forwards longer."""

    def __call__(self, rows: int) -> None: ...

    def use_spare_cpus(self, used: bool) -> None: ...


class Measuring:
    """``timer`` gives seconds."""

    def __init__(self, process: Metered, beside: Beside, timer: Callable[[], float] = time.perf_counter) -> None:
        self._process, self.beside, self._timer = process, beside, timer
        self._since: float | None = None  # what the verifier's code had taken when the latest round's forward began
        self._drafts = False  # whether that round verifies some
        self._code: dict[bool, list[float]] = {False: [], True: []}  # microseconds of a round, by that
        self._forwards: dict[bool, list[float]] = {False: [], True: []}  # over the calibrated time, by ``drafted``
        self._steps: list[float] = []  # likewise
        self._read: list[float] = []  # microseconds for a token

    def prompt(self, tokens: int) -> None:
        """A request begins. What it takes beside its rounds is none of theirs."""
        self._since = None
        self.beside.begin(tokens)

    def forward(self, rows: int, calibrated_us: float, drafted: bool) -> None:
        """The next round has so many rows. ``drafted``: steps of the verifier's own draft model came before it."""
        own = self._process.own_s
        if self._since is not None:
            self._code[self._drafts].append((own - self._since) * 1e6)
        self._since, self._drafts = own, rows > 1
        begin = self._timer()
        self.beside(rows)
        self._forwards[drafted].append((self._timer() - begin) * 1e6 / calibrated_us)

    def step(self, work: Callable[[], R], calibrated_us: float) -> R:
        begin = self._timer()
        result = work()
        self._steps.append((self._timer() - begin) * 1e6 / calibrated_us)
        return result

    def reading(self, work: Callable[[], int]) -> int:
        """``work`` returns how many tokens it has read."""
        begin = self._timer()
        tokens = work()
        if tokens:
            self._read.append((self._timer() - begin) * 1e6 / tokens)
        return tokens

    def found(self, forward: float | None = None) -> RoundTimes:
        """``forward``: known already. A drafter that this process runs as well makes forwards slower than one in a
        process of its own would."""
        plain, drafting = self._code.values()
        usual = _mean([*plain, *drafting], 0.0, few=1)
        if forward is None:
            forward = _usual(self._forwards[False], 1.0)
        return RoundTimes(
            _mean(plain, usual),
            _mean(drafting, usual),
            forward,
            _usual(self._forwards[True], forward),
            _usual(self._steps, 1.0),
            _usual(self._read, 0.0, few=1),
        )


def _usual(samples: Sequence[float], otherwise: float, few: int = FEW) -> float:
    return statistics.median(samples) if len(samples) >= few else otherwise


def _mean(samples: Sequence[float], otherwise: float, few: int = FEW) -> float:
    """Of what all rounds add up to."""
    return statistics.fmean(samples) if len(samples) >= few else otherwise
