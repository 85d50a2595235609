"""One forward of the target: what is computed in it, and which request an exception belongs to."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from actors.models import Outcome, TargetModel, Window
from actors.verifier.decoding.rounds import IDLE, Chosen, Load
from actors.verifier.requests.request import Request

log = logging.getLogger("duoactor.verifier")


@dataclass(slots=True)
class Job:
    """One flat forward: a round (a window for each of ``requests``), a piece of a request's prompt, or both."""

    requests: list[Request]
    windows: list[Chosen]  # of ``requests``, in that order
    load: Load = IDLE  # when the windows were chosen
    rows: int = 0  # of all windows together, their roots included
    piece: Request | None = None  # whose prompt goes on
    piece_rows: int = 0  # tokens of it at most; 0: as many as suit the model
    started: float = 0.0  # seconds of the verifier's clock
    guesses: bool | None = None  # see :meth:`actors.verifier.drafters.judging.Judge.guesses_pay`
    idle: bool = False  # the verifier's own draft model was asked, and no step of it was worth its price
    drafting_us: float = 0.0  # that the verifier's own draft model took before the forward
    reading_us: float = 0.0  # of that, the time for texts that it had not read
    prompt_us: float = 0.0  # of the forward, the time that the piece of a prompt took

    @property
    def everybody(self) -> list[Request]:
        """The requests that it brings an outcome for, in the order of the outcomes."""
        return [*self.requests, *([self.piece] if self.piece is not None else [])]


def compute(model: TargetModel, job: Job) -> list[Outcome | Exception | None]:
    """Run a forward. Raises nothing.

    For each request of ``job.everybody`` it returns the outcome, None if its prefill is not over, or the exception that
    its part raised. When the forward raises, its parts are computed again one by one, to find whose part it is."""
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
    """A round. Where it fails, each request gets a row of its own without drafts."""
    try:
        return [*model.verify(windows)]
    except Exception as error:
        if len(windows) == 1 and not windows[0].tokens:
            return [error]
        log.warning(
            "a round of %d requests failed; each is tried alone and without drafts", len(windows), exc_info=True
        )
    return [_decode_alone(model, window) for window in windows]


def _decode_alone(model: TargetModel, window: Window) -> Outcome | Exception:
    """Allowed because a round that failed has committed nothing, see :meth:`actors.models.TargetModel.verify`."""
    try:
        return model.verify([Window(window.handle)])[0]
    except Exception as error:
        return error
