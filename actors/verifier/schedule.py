"""Which forward is next: a prompt's chunk, or a round of those that are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from actors.models import TargetModel
from actors.verifier.admission import Admission
from actors.verifier.committer import Committer
from actors.verifier.faults import Faults
from actors.verifier.forward import Job
from actors.verifier.leases import Leases
from actors.verifier.request import Request
from actors.verifier.rounds import Chosen
from actors.verifier.state import State
from protocols.errors import PoolFull, RequestError
from protocols.messages import FailureCode, Message

MAX_ROWS = 512  # of one forward: their logits alone take 300 MB with a vocabulary of 152,000


class Turns:
    """Whose forward is next, where several kinds of work are ready: each in turn, so that none keeps another out."""

    def __init__(self) -> None:
        self._last: list[str] = []  # the kind that was served longest ago first

    def next(self, ready: Sequence[str]) -> str:
        kind = min(ready, key=lambda kind: self._last.index(kind) if kind in self._last else -1)
        self._last = [*(other for other in self._last if other != kind), kind]
        return kind


class Schedule:
    def __init__(
        self,
        state: State,
        model: TargetModel,
        leases: Leases,
        admission: Admission,
        committer: Committer,
        faults: Faults,
        send: Callable[[bytes, Message], bool],
        clock: Callable[[], float],
    ) -> None:
        self.state, self.model, self.leases, self.admission = state, model, leases, admission
        self.committer, self.faults = committer, faults
        self.send, self.clock = send, clock
        self._turns = Turns()

    def next(self) -> Job | None:
        """Clean up, let requests in, and choose the next forward; None: there is nothing to compute."""
        for request in self.state.requests.take_ended():
            if request.handle >= 0:
                self.model.close(request.handle)
            self.state.sources.remember(request.news, request.message.cache_salt)
        self._open()
        now_us = self.clock() * 1e6
        decoding = self.state.requests.of("decode")
        ready = [r for r in decoding if self.faults.spare(r, partial(r.spec.ready, now_us))]
        kinds = {
            "prefill": self.state.requests.of("prefill"),
            "decode": [r for r in ready if not r.suspect],
            "alone": [r for r in ready if r.suspect],
        }
        some = [kind for kind, requests in kinds.items() if requests]
        if not some:
            return None
        kind = self._turns.next(some)
        if kind == "prefill":
            return Job(kinds[kind][:1], [], 0, prefill=True)
        return self._round(kinds[kind][:1] if kind == "alone" else kinds[kind])

    def _open(self) -> None:
        """First come, first served: a request that does not fit waits, and so do those behind it."""
        requests = self.state.requests
        suspects = any(r.suspect for r in requests if r.state != "queued")
        for request in requests.of("queued"):
            if request.suspect and suspects:
                continue
            spec = request.spec
            prompt = spec.committed[: spec.prompt_len]
            try:
                handle = self.model.open(
                    prompt,
                    spec.sampling,
                    request.message.generated,
                    spec.max_window,
                    request.message.cache_salt,
                    spec.grammar,
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
                self.faults.of(request, error)
                continue
            request.opened(handle)
            if request.suspect:
                suspects = True
                self.send(request.client, request.begun())
            self.leases.lend(request, self.clock())

    def _round(self, requests: list[Request]) -> Job | None:
        """A row for each request, the one that waited longest first, and what is left of the rows for their drafts."""
        job = Job([], [], 0, prefill=False)
        if len(requests) > MAX_ROWS:
            requests = sorted(requests, key=lambda r: r.last_at)[:MAX_ROWS]
        now = self.clock()
        for place, request in enumerate(requests, 1):
            room = MAX_ROWS - job.rows - 1 - (len(requests) - place)
            chosen = self.faults.spare(request, partial(self._window, request, job.rows, room, now))
            if chosen is not None:
                job.requests.append(request)
                job.windows.append(chosen)
                job.rows += 1 + len(chosen.nodes)
        return job if job.requests else None

    def _window(self, request: Request, rows: int, room: int, now: float) -> Chosen:
        if request.spec.owes_verdict:
            self.committer.tell_drafter(request)  # both sides begin their step now
        if room <= 0:
            return Chosen([], [], [])
        cap = self.state.limits(request, now).window
        return request.spec.choose(self.state.cost, rows, room if cap is None else min(cap, room))
