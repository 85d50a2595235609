"""One forward of the target: what is computed in it, and whose fault it is when it fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from actors.models import Outcome, TargetModel, Window
from actors.verifier.decoding.rounds import IDLE, Chosen, Load
from actors.verifier.requests.request import Request

log = logging.getLogger("duoactor.verifier")


@dataclass(slots=True)
class Job:
    """One flat forward: the windows of a round, ``rows`` in all; the next piece of a request's prompt, of at most
    ``piece_rows`` (0: as many as suit the model); or both. ``load``: when the round's windows were chosen. ``guesses``:
    see :meth:`actors.verifier.drafters.judging.Judge.guesses_pay`."""

    requests: list[Request]
    windows: list[Chosen]
    load: Load = IDLE
    rows: int = 0
    piece: Request | None = None
    piece_rows: int = 0
    started: float = 0.0
    guesses: bool | None = None
    idle: bool = False  # the verifier's own draft model was asked, and no step of it was worth its price
    drafting_us: float = 0.0  # that the verifier's own draft model took before it
    reading_us: float = 0.0  # of that, texts that it had not read
    prompt_us: float = 0.0  # of the forward, what the piece took

    @property
    def everybody(self) -> list[Request]:
        """Whose outcome it brings, in that order."""
        return [*self.requests, *([self.piece] if self.piece is not None else [])]


def compute(model: TargetModel, job: Job) -> list[Outcome | Exception | None]:
    """The outcome of each request of ``job.everybody`` (None: its prefill goes on), or the exception that it raised.
    Raises nothing itself."""
    windows = [Window(r.handle, w.tokens, w.parents) for r, w in zip(job.requests, job.windows, strict=True)]
    if job.piece is None:
        return _verify(model, windows)
    if not windows:
        return [_prefill(model, job.piece, job.piece_rows)]
    try:
        outcomes, first = model.verify_beside(windows, job.piece.handle, job.piece_rows)
    except Exception:
        log.warning("a round beside a prompt failed; each is tried alone", exc_info=True)
        return [*_verify(model, windows), _prefill(model, job.piece, job.piece_rows)]
    return [*outcomes, first]


def _prefill(model: TargetModel, request: Request, rows: int) -> Outcome | Exception | None:
    try:
        return model.prefill(request.handle, rows or None)
    except Exception as error:
        return error


def _verify(model: TargetModel, windows: list[Window]) -> list[Outcome | Exception | None]:
    try:
        return [*model.verify(windows)]
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
