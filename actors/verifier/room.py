"""Which requests have room in the KV pool.

A request takes what its text needs now and grows. When the pool is full, the request that ranks last is preempted, as
in vLLM: it gives its room back, waits, and has its text computed again later. Noise is keyed by position, so the rest
of its text is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.models import TargetModel
from actors.verifier.admission import Admission
from actors.verifier.faults import Faults
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.state import State
from actors.verifier.streams import Request
from protocols.errors import PoolFull, RequestError
from protocols.messages import FailureCode, Message


class Room:
    def __init__(
        self,
        state: State,
        model: TargetModel,
        leases: Leases,
        learning: Learning,
        admission: Admission,
        faults: Faults,
        send: Callable[[bytes, Message], bool],
        clock: Callable[[], float],
    ) -> None:
        self.state, self.model, self.leases, self.admission, self.faults = state, model, leases, admission, faults
        self.learning, self.send, self.clock = learning, send, clock

    def free(self) -> None:
        """Give back the room of requests that have ended."""
        for request in self.state.requests.take_ended():
            if request.handle >= 0:
                self.model.close(request.handle)
            if self.state.inline is not None:
                self.state.inline.close(request)
            self.state.sources.remember(request.news, request.message.cache_salt)
            self.learning.ended(request)

    def let_in(self) -> None:
        """Open queued requests at the target: the lowest ``priority`` first, then first come, first served. One that
        does not fit waits, and so do those behind it: a running request is never preempted for a waiting one."""
        requests = self.state.requests
        if not (queued := requests.of("queued")):
            return
        suspects = any(r.suspect for r in requests if r.state != "queued")
        for request in sorted(queued, key=_rank):
            if request.suspect and suspects:
                continue
            spec, message = request.spec, request.message
            prompt, written = spec.committed[: spec.prompt_len], spec.committed[spec.prompt_len :]
            try:
                handle = self.model.open(
                    prompt,
                    spec.sampling,
                    written,
                    spec.windows.max_window,
                    message.cache_salt,
                    spec.windows.grammar,
                    self.learning.begins(request),
                )
            except RequestError as error:
                self.admission.fail(request, FailureCode(error.code), str(error))
                continue
            except PoolFull as error:
                if any(r.handle >= 0 for r in requests):
                    return
                self.admission.fail(request, FailureCode.CONTEXT_LENGTH, str(error))
                continue
            except Exception as error:
                self.faults.blame(request, error)
                continue
            request.opened(handle)
            if request.suspect:
                suspects = True
                self.send(request.client, request.begun())
            self.leases.lend(request, self.clock())

    def hold(self, requests: Sequence[Request]) -> list[Request]:
        """Reserve room for the next round of ``requests``, preempting others or some of them if there is not enough.
        Returns those that have it."""
        for request in requests:
            while request.state == "decode" and not self._reserved(request):
                running = (*self.state.requests.of("prefill"), *self.state.requests.of("decode"))
                self._preempt(max(running, key=_rank))
        return [request for request in requests if request.state == "decode"]

    def _reserved(self, request: Request) -> bool:
        try:
            self.model.reserve(request.handle)
        except PoolFull:
            return False
        return True

    def _preempt(self, request: Request) -> None:
        self.leases.recall(request, self.clock())
        self.model.close(request.handle)
        request.preempted()
        self.state.counters["preempted"] += 1


def _rank(request: Request) -> tuple[int, float]:
    """The order of service: the last by this is served last and preempted first."""
    return request.message.priority, request.arrived
