"""Decides what an exception ends: the request that it came up with, or the verifier."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from actors.models import MAX_FAILURES
from actors.verifier.admission import Admission
from actors.verifier.context import Context
from actors.verifier.streams import Stage, Stream
from protocols.errors import RequestError
from protocols.messages import FailureCode

log = logging.getLogger("duoactor.verifier")
T = TypeVar("T")
P = ParamSpec("P")


class Faults:
    """A request that fails ends alone. Several in a row, as of a lost device, end the verifier."""

    def __init__(self, context: Context, admission: Admission) -> None:
        self.state, self.admission = context.state, admission
        self._in_a_row = 0

    def guard(self, stream: Stream, step: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | None:
        """Run a step for one stream. An exception in it fails that request alone, and None is returned."""
        try:
            return step(*args, **named)
        except Exception as error:
            self.blame(stream, error)
            return None

    def blame(self, stream: Stream, error: Exception) -> None:
        """Fail a request because of ``error``. Raises ``error`` if it is the last of ``MAX_FAILURES``."""
        if stream.status is Stage.ENDED:
            return
        if isinstance(error, RequestError):  # the request cannot be served, which is no failure of the verifier
            self.admission.fail(stream, FailureCode(error.code), str(error))
            return
        log.error("request %s failed", stream.rid, exc_info=error)
        self.state.counters["failed_requests"] += 1
        detail = f"the verifier failed on this request ({type(error).__name__}: {error}); its log has the details"
        self.admission.fail(stream, FailureCode.INTERNAL, detail)
        self._in_a_row += 1
        if self._in_a_row >= MAX_FAILURES:
            raise error

    def went_well(self) -> None:
        """A request's part of a forward was computed without an exception."""
        self._in_a_row = 0
