"""How often clients are told what was committed, where rounds are short."""

from __future__ import annotations

from actors.estimate import Estimate

# Seconds between two chunks of a stream, where few are served. No screen shows more than 60 a second, and each chunk
# costs its reader some 0.3 ms of CPU time (0.4 ms through the gateway), which a target on the same machine has to do
# without.
CHUNK_S = 1 / 60
# At most, where many are: as many pictures a second as films have, which look like motion. 32 streams of the bundled
# pair on two cores make 1.2 times the tokens with it.
MAX_CHUNK_S = 1 / 25
SHARE = 0.08  # of the time that may go into what ends a row of forwards
MEMORY = 48  # rounds


class Chunks:
    """Each chunk ends a row of forwards: windows are chosen, tokens committed, chunks written and sent, in time that is
    nearly proportional to the number of streams (some 0.1 ms each). Where that would be more than ``SHARE`` of all
    time, chunks are rarer."""

    def __init__(self) -> None:
        self._beside = Estimate(memory=MEMORY)  # microseconds of a round beside its forwards, for each stream

    def observe(self, streams: int, beside_us: float) -> None:
        """A round of so many streams, or a row of forwards, took so long beside the target's forwards."""
        self._beside.add(max(0.0, beside_us) / streams)

    def interval_s(self, streams: int) -> float:
        """Seconds between two chunks of each of so many streams."""
        return min(MAX_CHUNK_S, max(CHUNK_S, streams * self._beside.mean / 1e6 / SHARE))

    def forwards(self, streams: int, forward_us: float) -> int:
        """How many forwards fit between two chunks; at least one."""
        return max(1, int(self.interval_s(streams) * 1e6 / max(1.0, forward_us)))
