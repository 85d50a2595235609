"""Sends what was committed: tokens to clients, rounds to watchers, while the next forward runs."""

from __future__ import annotations

from collections.abc import Callable

from actors.verifier.admission import Admission
from actors.verifier.context import Context
from actors.verifier.faults import Faults
from actors.verifier.price import Price
from actors.verifier.results import Committed
from actors.verifier.streams import Stage, Stream
from protocols.messages import RoundStats, RoundTrace

# Seconds between two chunks of a stream, where few are served: no screen shows more than 60 a second, and each chunk
# costs its reader some 0.3 ms of CPU time.
CHUNK_S = 1 / 60
MAX_CHUNK_S = 1 / 25  # longest with many streams: as many pictures a second as films have
SHARE = 0.08  # share of the time that may go into what ends a row of forwards


def chunk_s(price: Price, streams: int) -> float:
    """Seconds between two chunks of a stream, by the number of streams."""
    return min(MAX_CHUNK_S, max(CHUNK_S, price.beside(streams) / 1e6 / SHARE))


def chunk_forwards(price: Price, streams: int) -> int:
    """The number of forwards without drafts between two chunks; at least one."""
    return max(1, int(chunk_s(price, streams) * 1e6 / price.forward(streams)))


class Outbox:
    def __init__(
        self, context: Context, admission: Admission, faults: Faults, gone: Callable[[bytes, str], None]
    ) -> None:
        """``gone``: called with a peer that cannot be reached."""
        self.context, self.admission, self.faults, self.gone = context, admission, faults, gone
        self._unsent: list[Stream] = []  # streams with tokens that their clients lack
        self._unheard: list[RoundStats] = []  # rounds that are published with the next chunk
        self._flushed_at = 0.0  # seconds

    def add(self, stream: Stream, committed: Committed, trace: RoundTrace | None, stats: RoundStats | None) -> None:
        """Tokens of a stream were committed, by a round with ``stats`` or by its prompt's forward."""
        if stats is not None:
            self._unheard.append(stats)
        if not stream.delivery.unsent:
            self._unsent.append(stream)
        stream.delivery.unsent.append((committed, trace))

    def flush(self, wait: bool = True) -> None:
        """Turn committed tokens into text and send it. With ``wait``, tokens may be held back for a later chunk where
        rounds are short. The first token, the last tokens, and rounds with a trace are always sent at once."""
        now = self.context.clock()
        # assuming that the next round is as long as the last
        next_at, self._flushed_at = now + (now - self._flushed_at), now
        unsent, self._unsent, sent = self._unsent, [], not wait
        interval_s = chunk_s(self.context.price, self.context.state.requests.decoding) if unsent else 0.0
        for stream in unsent:
            if stream.status is Stage.ENDED:
                continue
            late = next_at - stream.delivery.sent_at  # the next chance to send
            due = late > interval_s or stream.delivery.trace is not None
            if wait and not due and stream.status is not Stage.FINISHING:
                self._unsent.append(stream)
                continue
            chunk = self.faults.guard(stream, stream.chunk, now)
            if chunk is None:
                continue
            sent = True
            self.context.state.totals.sent(chunk)
            if chunk.finish_reason is not None:
                self.admission.end(stream)
            if not self.context.send(stream.client, chunk):
                # Its queue is full: it does not read. When it does again, a Refuse has it say Hello, and it resumes.
                self.gone(stream.client, "unreachable")
        if sent:  # together: each message by itself would wake its readers, who share the target's cores, every round
            for stats in self._unheard:
                self.context.publish(stats)
            self._unheard.clear()
