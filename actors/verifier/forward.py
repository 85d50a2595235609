"""One forward of the target, or several in a row: what is computed, and which request an exception belongs to.

Where a round verifies no drafts there is nothing to decide between one forward and the next, and what a round takes
beside its forward is paid once for several (multi-step decoding).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from actors.models import Outcome, TargetModel, Window
from actors.verifier.rounds import IDLE, Chosen, Load
from actors.verifier.streams import Request

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
    most_steps: int = 1  # forwards without drafts that fit between two chunks of a stream
    left_us: float = 0.0  # until the next chunk of a stream is due
    steps: int = 1  # forwards in a row at most, each of which brings every request a token; 1 where drafts are verified
    # whether a further token of a stream that is alone ends them, because something is to be verified behind it
    ends: Callable[[int], bool] | None = None
    ends_us: float = 0.0  # that asking for that took
    forwards: int = 1  # that there were
    started: float = 0.0  # seconds of the verifier's clock
    guesses: bool | None = None  # see :meth:`actors.verifier.judging.Judge.guesses_pay`
    idle: bool = False  # the verifier's own draft model was asked, and no step of it was worth its price
    # of the window that a stream that is alone would have without its draft model: nodes, and microseconds for them
    retrieval_alone: tuple[int, float] = (0, 0.0)
    drafting_us: float = 0.0  # that the verifier's own draft model took before the forward
    reading_us: float = 0.0  # of that, the time for texts that it had not read
    prompt_us: float = 0.0  # of the forward, the time that the piece of a prompt took

    @property
    def everybody(self) -> list[Request]:
        """The requests that it brings an outcome for, in the order of the outcomes."""
        return [*self.requests, *([self.piece] if self.piece is not None else [])]


def compute(
    model: TargetModel, job: Job, undisturbed: Callable[[], bool] = lambda: True
) -> list[Outcome | Exception | None]:
    """Run a forward, and further ones as far as the job allows. Raises nothing.

    For each request of ``job.everybody`` it returns the outcome, None if its prefill is not over, or the exception that
    its part raised. When the forward raises, its parts are computed again one by one, to find whose part it is.
    ``undisturbed``: whether there is nothing else to do yet; asked before each further forward."""
    windows = [Window(r.handle, w.tokens, w.parents) for r, w in zip(job.requests, job.windows, strict=True)]
    if job.piece is None:
        found = _verify(model, windows)
        while job.forwards < job.steps and undisturbed() and _went_on(model, job, windows, found):
            job.forwards += 1
        return found
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


def _went_on(model: TargetModel, job: Job, windows: list[Window], outcomes: list[Outcome | Exception | None]) -> bool:
    """Compute another token of every request, and add it to its outcome. False: one of them has ended, or it failed.
    Nothing was committed then, and the next round meets the fault again."""
    for request, outcome in zip(job.requests, outcomes, strict=True):
        if not isinstance(outcome, Outcome) or request.spec.output.ends_at(outcome.tokens[-1]):
            return False
        if job.ends is not None and job.ends(outcome.tokens[-1]):
            return False
    try:
        for window in windows:
            model.reserve(window.handle)
        further = model.verify(windows)
    except Exception as error:
        log.debug("a further forward without a decision before it failed: %s", error)
        return False
    for outcome, more in zip(outcomes, further, strict=True):
        assert isinstance(outcome, Outcome)
        outcome.tokens = [*outcome.tokens, *more.tokens]
        outcome.logprobs = [*outcome.logprobs, *more.logprobs]
    return True


def _decode_alone(model: TargetModel, window: Window) -> Outcome | Exception:
    """Allowed because a round that failed has committed nothing, see :meth:`actors.models.TargetModel.verify`."""
    try:
        return model.verify([Window(window.handle)])[0]
    except Exception as error:
        return error
