"""One forward of the target, or several in a row: what is computed, and which stream an exception belongs to.

Where a round verifies no drafts there is nothing to decide between one forward and the next, and what a round takes
besides its forward is paid once for several (multi-step decoding).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from actors.models import Outcome, TargetModel, Window
from actors.verifier.rounds import Batch
from protocols.errors import RequestError

log = logging.getLogger("duoactor.verifier")
T = TypeVar("T")


class Computed(NamedTuple):
    """``outcomes``: of each of ``batch.everybody``; None if its prefill is not over, or what its part raised."""

    outcomes: list[Outcome | Exception | None]
    steps: int  # forwards that there were
    forward_us: float


def compute(
    model: TargetModel, batch: Batch, goes_on: Callable[[list[Outcome]], bool], timer: Callable[[], float]
) -> Computed:
    """Run a forward, and further ones as far as the batch allows. Raises nothing.

    When the forward raises, its parts are computed again one by one, to find the faulty part. ``goes_on``: whether
    nothing has to be decided after what the forwards brought; asked before each further one. Its time is not
    counted."""
    asked = zip(batch.streams, batch.windows, batch.ranks, strict=True)
    windows = [Window(stream.handle, window.tokens, window.parents, ranks) for stream, window, ranks in asked]
    begin, steps, asked_s = timer(), 1, 0.0
    if batch.piece is not None:
        found = _with_prompt(model, windows, batch.piece.handle, batch.piece_rows)
    else:
        found = _verify(model, windows)
        while steps < batch.steps and (brought := _unended(batch, found)):
            before = timer()
            free = goes_on(brought)
            asked_s += timer() - before
            if not (free and _went_on(model, windows, brought)):
                break
            steps += 1
    return Computed(found, steps, (timer() - begin - asked_s) * 1e6)


def _with_prompt(model: TargetModel, windows: list[Window], handle: int, rows: int) -> list[Outcome | Exception | None]:
    """A piece of a prompt, with a round if there is one."""
    try:
        if windows:
            outcomes, first = model.verify_beside(windows, handle, rows)
            return [*outcomes, first]
    except Exception:
        log.warning("a round beside a prompt failed; each is tried alone", exc_info=True)
    verified = _verify(model, windows) if windows else []
    return [*verified, _tried(partial(model.prefill, handle, rows or None))]


def _verify(model: TargetModel, windows: list[Window]) -> list[Outcome | Exception | None]:
    """A round. Where it fails, each stream gets a row of its own without drafts. That is allowed because a round that
    failed has committed nothing, see :meth:`actors.models.TargetModel.verify`."""
    try:
        return [*model.verify(windows)]
    except Exception as error:
        if len(windows) == 1 and not windows[0].tokens:
            return [error]
        trace = None if isinstance(error, RequestError) else error  # else its sentence says all
        what = "a round of %d requests failed (%s); each is tried alone and without drafts"
        log.warning(what, len(windows), error, exc_info=trace)
    alone = [_tried(partial(model.verify, [Window(window.handle)])) for window in windows]
    return [found if isinstance(found, Exception) else found[0] for found in alone]


def _unended(batch: Batch, outcomes: list[Outcome | Exception | None]) -> list[Outcome]:
    """What the forwards brought; nothing if one of the streams has ended or failed."""
    found = list[Outcome]()
    for stream, outcome in zip(batch.streams, outcomes, strict=True):
        if not isinstance(outcome, Outcome) or stream.output.ends_at(outcome.tokens[-1]):
            return []
        found.append(outcome)
    return found


def _went_on(model: TargetModel, windows: list[Window], outcomes: list[Outcome]) -> bool:
    """Add another token of every stream to its outcome. False: it failed, and the next round meets the fault again."""
    try:
        for window in windows:
            model.reserve(window.handle)
        further = model.verify(windows)
    except Exception as error:
        log.debug("a further forward without a decision before it failed: %s", error)
        return False
    for outcome, more in zip(outcomes, further, strict=True):
        outcome.tokens = [*outcome.tokens, *more.tokens]
        outcome.logprobs = [*outcome.logprobs, *more.logprobs]
        if outcome.ranked is not None and more.ranked is not None:
            outcome.ranked = outcome.ranked.then(more.ranked)
    return True


def _tried(part: Callable[[], T]) -> T | Exception:
    """The result of a part, or the exception that it raised."""
    try:
        return part()
    except Exception as error:
        return error
