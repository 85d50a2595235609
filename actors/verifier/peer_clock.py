"""Another process's clock in terms of one's own, from messages that say when they were sent."""

from __future__ import annotations

from dataclasses import dataclass

DRIFT = 1e-4  # by which two quartz clocks may part: some 100 parts per million


@dataclass(slots=True)
class PeerClock:
    """Microseconds. No message arrives before it was sent, so the least difference between arrival and sending is the
    clocks' own, but for the quickest delivery (0.1 ms between processes of one machine). Messages that waited behind a
    forward differ more, and say nothing."""

    offset: float | None = None
    heard_at: float = 0.0

    def heard(self, sent_us: float, now_us: float) -> None:
        difference = now_us - sent_us
        if self.offset is None or difference <= self.offset + DRIFT * (now_us - self.heard_at):
            self.offset, self.heard_at = difference, now_us

    def own(self, peer_us: float) -> float:
        """A time on the peer's clock as ours shows it. Something was heard before."""
        assert self.offset is not None
        return peer_us + self.offset
