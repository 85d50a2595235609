"""One forward of the target: what is computed in it, and whose fault it is when it fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from actors.models import Outcome, TargetModel, Window
from actors.verifier.request import Request
from actors.verifier.rounds import Chosen

log = logging.getLogger("duoactor.verifier")


@dataclass(slots=True)
class Job:
    """One flat forward: the share of each request, or one chunk of one request's prefill."""

    requests: list[Request]
    windows: list[Chosen]
    rows: int
    prefill: bool
    started: float = 0.0


def compute(model: TargetModel, job: Job) -> list[Outcome | Exception | None]:
    """Each request's outcome (None: its prefill goes on), or the exception that it raised. Raises nothing itself."""
    if job.prefill:
        try:
            return [model.prefill(job.requests[0].handle)]
        except Exception as error:
            return [error]
    windows = [Window(r.handle, w.tokens, w.parents) for r, w in zip(job.requests, job.windows, strict=True)]
    try:
        return list(model.verify(windows))
    except Exception as error:
        if len(windows) == 1:
            return [error]
        log.warning("a round of %d requests failed; each is tried alone", len(windows), exc_info=True)
    return [_alone(model, window) for window in windows]


def _alone(model: TargetModel, window: Window) -> Outcome | Exception:
    """A round that failed has committed nothing (see TargetModel.verify), so each part of it may be done again."""
    try:
        return model.verify([window])[0]
    except Exception as error:
        return error


class Faults:
    """A request that fails ends alone. When request after request does, with no forward that went well in between, it
    is not the requests (a device that was lost, say): then the verifier ends, and its supervisor starts it anew."""

    MAX_IN_A_ROW = 3

    def __init__(self) -> None:
        self._in_a_row = 0

    def went_well(self) -> None:
        self._in_a_row = 0

    def count(self, error: Exception) -> None:
        """Raises ``error`` if it was one too many."""
        self._in_a_row += 1
        if self._in_a_row >= self.MAX_IN_A_ROW:
            raise error


class Turns:
    """Whose forward is next, where several kinds of work are ready: each in turn, so that none keeps another out."""

    def __init__(self) -> None:
        self._last: list[str] = []  # the kind that was served longest ago first

    def next(self, ready: Sequence[str]) -> str:
        kind = min(ready, key=lambda kind: self._last.index(kind) if kind in self._last else -1)
        self._last = [*(other for other in self._last if other != kind), kind]
        return kind
