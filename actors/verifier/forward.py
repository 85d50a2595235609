"""One forward of the target: what is computed in it, and whose fault it is when it fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from actors.models import Outcome, TargetModel, Window
from actors.verifier.decoding.rounds import Chosen
from actors.verifier.requests.request import Request

log = logging.getLogger("duoactor.verifier")


@dataclass(slots=True)
class Job:
    """One flat forward: the share of each request, or one chunk of one request's prefill, ``rows`` of it at most (0: as
    many as suit the model)."""

    requests: list[Request]
    windows: list[Chosen]
    rows: int
    prefill: bool
    started: float = 0.0


def compute(model: TargetModel, job: Job) -> list[Outcome | Exception | None]:
    """Each request's outcome (None: its prefill goes on), or the exception that it raised. Raises nothing itself."""
    if job.prefill:
        try:
            return [model.prefill(job.requests[0].handle, job.rows or None)]
        except Exception as error:
            return [error]
    windows = [Window(r.handle, w.tokens, w.parents) for r, w in zip(job.requests, job.windows, strict=True)]
    try:
        return list(model.verify(windows))
    except Exception as error:
        if len(windows) == 1 and not windows[0].tokens:
            return [error]
        log.warning(
            "a round of %d requests failed; each is tried alone and without drafts", len(windows), exc_info=True
        )
    return [_alone(model, window) for window in windows]


def _alone(model: TargetModel, window: Window) -> Outcome | Exception:
    """A round that failed has committed nothing (see TargetModel.verify), so each part of it may be done again."""
    try:
        return model.verify([Window(window.handle)])[0]
    except Exception as error:
        return error
