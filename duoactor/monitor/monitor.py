"""Telemetry and status reports in, a picture out. No sockets, no clock of its own: every call is told the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from duoactor.monitor.picture import Actor, Picture, Stream, Strip
from duoactor.monitor.spans import Span, shared, union, within
from protocols.messages import ActorDown, DraftStats, Message, RequestStatus, RoundStats, StatusReport

LATELY_S = 3.0  # that rates and shares are of: long enough for a slow target's rounds, short enough to follow a swap
STRIP_ROUNDS = 12  # of the strip: as many as can be told apart on 60 columns
KEPT_ROUNDS = 4096  # what a fast target does lately; of a flood the oldest are forgotten


class Monitor:
    """Times are seconds on one clock of the caller's."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._report: StatusReport | None = None
        self._answered_at: float | None = None
        self._problem = ""
        self._silent_since: float | None = None
        self._since: float | None = None  # of the rounds that are kept: earlier ones were not heard
        self._rounds: deque[tuple[float, RoundStats]] = deque(maxlen=KEPT_ROUNDS)
        self._drafters: dict[str, tuple[float, DraftStats]] = {}

    # --- what is heard -----------------------------------------------------------------------------------------------

    def hear(self, message: Message, now: float) -> None:
        """A message of the telemetry."""
        match message:
            case RoundStats():
                if self._rounds and message.started_us < self._rounds[-1][1].started_us - LATELY_S * 1e6:
                    self._rounds.clear()  # another verifier's clock
                self._rounds.append((now, message))
            case DraftStats():
                self._drafters[message.actor_id] = (now, message)
            case ActorDown():
                self._drafters.pop(message.actor_id, None)

    def answered(self, report: StatusReport, now: float) -> None:
        """The verifier has told how things stand."""
        if self._report is None or self._report.pid != report.pid or self._silent_since is not None:
            self._since = now
        self._report, self._answered_at = report, now
        self._silent_since, self._problem = None, ""

    def failed(self, problem: str, now: float) -> None:
        """It did not answer, or nobody is there."""
        self._problem = problem
        if self._silent_since is None:
            self._silent_since = now if self._answered_at is None else self._answered_at

    # --- what is seen ------------------------------------------------------------------------------------------------

    def picture(self, now: float) -> Picture:
        while self._rounds and self._rounds[0][0] < now - LATELY_S:
            self._rounds.popleft()
        report = self._report
        silent = None if self._silent_since is None else now - self._silent_since
        if report is None:
            return Picture(address=self.address, silent_s=silent or 0.0, problem=self._problem)
        rounds = [one for _, one in self._rounds]
        heard: dict[str, list[tuple[float, RoundStats]]] = {}
        for at, one in self._rounds:
            heard.setdefault(one.rid, []).append((at, one))
        seconds = min(LATELY_S, max(0.2, now - (now if self._since is None else self._since)))
        return Picture(
            address=self.address,
            silent_s=silent,
            problem=self._problem,
            model_id=report.model_id,
            device=report.device,
            dtype=report.dtype,
            method=report.method,
            uptime_ms=report.uptime_ms,
            kv_used=report.kv_used,
            kv_slots=report.kv_slots,
            tokens_per_second=sum(one.committed for one in rounds) / seconds,
            speedup=_speedup(report, rounds),
            actors=self._actors(report, rounds, seconds, now),
            streams=tuple(_stream(one, heard.get(one.rid, []), now) for one in report.requests),
            strip=_strip(rounds),
        )

    def _actors(
        self, report: StatusReport, rounds: Sequence[RoundStats], seconds: float, now: float
    ) -> tuple[Actor, ...]:
        forwards = {one.started_us: one.forward_us for one in rounds}  # streams of one round share it
        verifier = Actor(
            role="verifier",
            actor_id="verifier",
            host=report.host,
            pid=report.pid,
            model_id=report.model_id,
            state="decoding" if forwards else "busy" if report.requests else "idle",
            step_us=sum(forwards.values()) / len(forwards) if forwards else None,
            busy=min(1.0, sum(forwards.values()) / 1e6 / seconds),
        )
        drafters = []
        for one in report.drafters:
            at, told = self._drafters.get(one.actor_id, (0.0, None))
            verified = [(r.window, r.accepted) for r in rounds if r.drafter == one.actor_id]
            drafters.append(
                Actor(
                    role="drafter",
                    actor_id=one.actor_id,
                    host=one.host,
                    pid=one.pid,
                    model_id=one.model_id,
                    state=one.state,
                    leases=one.leases,
                    step_us=one.step_us,
                    busy=told.busy if told is not None and now - at <= LATELY_S else None,
                    acceptance=_share(verified),
                )
            )
        controller = (
            [
                Actor(
                    role="controller",
                    actor_id=report.controller,
                    host=report.controller_host,
                    pid=report.controller_pid,
                )
            ]
            if report.controller
            else []
        )
        return (verifier, *drafters, *controller)


def _share(verified: Iterable[tuple[int, int]]) -> float | None:
    windows, accepted = (sum(each) for each in zip(*verified, strict=True)) if verified else (0, 0)
    return accepted / windows if windows else None


def _stream(request: RequestStatus, heard: Sequence[tuple[float, RoundStats]], now: float) -> Stream:
    rounds = [one for _, one in heard]
    rate = gamma = sequences = None
    if rounds and request.state == "decode":
        # a stream that began or paused lately is not slow: its own rounds' time counts, and the silence since
        spent = sum(one.wall_us for one in rounds) / 1e6 + max(0.0, now - heard[-1][0] - rounds[-1].wall_us / 1e6)
        rate = sum(one.committed for one in rounds) / max(spent, 1e-6)
        commanded = [one.gamma for one in rounds if one.gamma is not None]
        gamma = sum(commanded) / len(commanded) if commanded else None
        several = [one.sequences for one in rounds if one.sequences]
        sequences = sum(several) / len(several) if several else None
    return Stream(
        rid=request.rid,
        method=request.method,
        state=request.state,
        tokens=request.tokens,
        drafter=request.drafter,
        tokens_per_second=rate,
        acceptance=_share([(one.window, one.accepted) for one in rounds]),
        gamma=gamma,
        sequences=sequences,
    )


def _speedup(report: StatusReport, rounds: Sequence[RoundStats]) -> float | None:
    """Of the methods and drafters that had rounds lately, by their tokens."""
    known = {(one.method, one.drafter): one.speedup for one in report.totals if one.speedup > 0}
    weighed = [(known[key], one.committed) for one in rounds if (key := (one.method, one.drafter)) in known]
    tokens = sum(count for _, count in weighed)
    return sum(speedup * count for speedup, count in weighed) / tokens if tokens else None


def _strip(rounds: Sequence[RoundStats]) -> Strip | None:
    """It ends with the last round but one: what drafters did during the last they tell later."""
    told = {one.started_us + one.forward_us: one.rounds for one in rounds}  # streams of one round share it
    ends = sorted(told)
    if len(ends) < 4:
        return None
    ends = ends[-STRIP_ROUNDS - 2 : -1]
    begin, end = ends[0], ends[-1]
    verify = [(one.started_us, one.started_us + one.forward_us) for one in rounds]
    wait = [(one.waited_from_us, one.waited_from_us + one.wait_us) for one in rounds if one.wait_us > 0]
    draft: dict[str, list[Span]] = {}
    for one in rounds:
        spans = [(float(start), float(start + length)) for start, length in one.draft_forwards]
        draft.setdefault(one.drafter, []).extend(spans)
    lanes = {name: tuple(union(within(spans, begin, end))) for name, spans in draft.items() if name}
    verifying = union(within(verify, begin, end))
    return Strip(
        begin=begin,
        end=end,
        rounds=sum(told[end] for end in ends[1:]),
        verify=tuple(verifying),
        wait=tuple(union(within(wait, begin, end))),
        draft=lanes,
        draft_us=sum(b - a for spans in lanes.values() for a, b in spans),
        overlap_us=sum(shared(spans, verifying) for spans in lanes.values()),
    )
