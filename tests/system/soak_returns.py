"""Whether a drafter that returns is of use at once: see ``soak.py``."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.messages import Method, StatusReport

BACK_S = 180.0  # for whatever was killed to come back: a verifier takes over a minute where the CPUs are overloaded
LOOK_S = 0.05  # between two looks at the verifier
PROMISED_S = 2.0
# Streams of these are lent to a drafter whenever there is one; `auto` may find that none pays.
LENT = (Method.PEARL, Method.SPS, Method.DUODECODING, Method.DUODECODING_LOCKSTEP, Method.TREE)


class Return:
    """Time of one drafter, from when the verifier knows it to the first draft of its that is accepted.

    Its delay is the time in which it could have been of use: it had a stream that drafts, or some such stream had no
    drafter at all. While others had them all it was not needed. What is done to it or to its verifier before (killed,
    drained, stopped) is no delay of its return either, and ends the measurement or is left out.
    """

    def __init__(self, before: set[int]) -> None:
        """``before``: processes of the drafters until now."""
        self.before = before
        self.pid = 0  # process that returned
        self.delay_s = 0.0
        self.elapsed_s = 0.0
        self.used = False
        self.ended = False  # again, before it was of use
        self._verifier = 0  # process that knew it first
        self._seen_at = 0.0

    @property
    def over(self) -> bool:
        return self.used or self.ended

    def see(self, status: StatusReport, now: float, stopped: bool) -> None:
        """``stopped``: some actor was, meanwhile."""
        if not self.pid:
            self.pid = next((one.pid for one in status.drafters if one.pid not in self.before), 0)
            self._verifier, self._seen_at = status.verifier.pid, now
        own = next((one for one in status.drafters if one.pid == self.pid and one.state != "draining"), None)
        if own is None or status.verifier.pid != self._verifier:
            self.ended = bool(self.pid)
            return
        passed, self._seen_at = now - self._seen_at, now
        self.elapsed_s += passed
        needed = any(
            one.drafter in ("", own.actor_id) for one in status.requests if one.state == "decode" and one.method in LENT
        )
        self.delay_s += passed * (needed and not stopped)
        self.used = own.accepted > 0


def summary(returns: Sequence[Return]) -> dict[str, object]:
    """For the report; the delays of those that were of use, and of those that ended when they were late already."""
    late = [one for one in returns if one.used or one.delay_s > PROMISED_S]
    return {
        "delay_s": sorted(round(one.delay_s, 2) for one in late),
        "elapsed_s": sorted(round(one.elapsed_s, 2) for one in late),
        "ended again before": sum(one.ended for one in returns),
        "not needed": sum(bool(one.pid) and not one.over for one in returns),
        "never came back": sum(not one.pid for one in returns),
    }
