"""Whose fault an exception is: a request's own, which ends it, or the verifier's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from actors.verifier.requests.admission import Admission
from actors.verifier.requests.request import Request
from actors.verifier.state import State
from protocols.errors import RequestError
from protocols.messages import FailureCode

log = logging.getLogger("duoactor.verifier")
T = TypeVar("T")
# A request that fails ends alone. When request after request does, with no forward that went well in between, it is
# not the requests (a device that was lost, say): then the verifier ends, and its supervisor starts it anew.
MAX_IN_A_ROW = 3


class Faults:
    def __init__(self, state: State, admission: Admission) -> None:
        self.state, self.admission = state, admission
        self._in_a_row = 0

    def spare(self, request: Request, step: Callable[[], T]) -> T | None:
        """One request's step. An exception in it ends that request, and no other."""
        try:
            return step()
        except Exception as error:
            self.of(request, error)
            return None

    def of(self, request: Request, error: Exception) -> None:
        """The request ends with that error. Raises it when it was one too many."""
        if request.state == "ended":
            return
        if isinstance(error, RequestError):  # what it asks for cannot be had, which nobody here can help
            self.admission.fail(request, FailureCode(error.code), str(error))
            return
        log.error("request %s failed", request.rid, exc_info=error)
        self.state.counters["failed_requests"] += 1
        detail = f"the verifier failed on this request ({type(error).__name__}: {error}); its log has the details"
        self.admission.fail(request, FailureCode.INTERNAL, detail)
        self._in_a_row += 1
        if self._in_a_row >= MAX_IN_A_ROW:
            raise error

    def went_well(self) -> None:
        self._in_a_row = 0
