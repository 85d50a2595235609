"""Room in the KV pool, and the streams that have it.

A stream takes what its text needs now and grows. When the pool is full, the stream that ranks last is preempted, as in
vLLM: it gives its room back, waits, and has its text computed again later. Noise is keyed by position, so the rest of
its text is the same."""

from __future__ import annotations

from collections.abc import Sequence

from actors.verifier.context import Context
from actors.verifier.faults import Faults
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.sources.boundary import Sources
from actors.verifier.streams import Stage, Stream
from protocols.errors import PoolFull, RequestError
from protocols.messages import FailureCode

GIVE_BACK_S = 30.0  # seconds between two times that memory is given back: at most a minute after it was last used


class Room:
    def __init__(self, context: Context, sources: Sources, leases: Leases, learning: Learning, faults: Faults) -> None:
        self.context, self.state, self.target = context, context.state, context.target
        self.sources, self.leases, self.learning, self.faults = sources, leases, learning, faults
        # How many streams had come when the first in the queue found no room, if none was given back since
        self._full_at = -1
        self._give_back_at = 0.0  # seconds

    def give_back(self) -> None:
        """Now and then, give the system the memory that serves nobody."""
        now = self.context.clock()
        if now >= self._give_back_at:
            self._give_back_at = now + GIVE_BACK_S
            self.target.give_back()

    def free(self) -> bool:
        """Give back the room of streams that have ended. Returns whether there were any."""
        ended = self.state.requests.take_ended()
        for stream in ended:
            self._full_at = -1
            if stream.handle >= 0:
                self.target.close(stream.handle)
            for source in self.sources:
                self.sources.ask(source, None, source.end, stream)
            self.context.library.remember(stream.news, stream.scope)
            self.learning.ended(stream)
        return bool(ended)

    def let_in(self) -> None:
        """Open queued streams at the target, in their order. One that does not fit waits, and so do those behind it: a
        running stream is never preempted for a waiting one."""
        streams = self.state.requests
        if self._full_at == streams.added or not (queued := streams.of(Stage.QUEUED)):
            return
        suspects = any(s.suspect for s in streams if s.status is not Stage.QUEUED)
        for stream in self.state.in_order(queued):
            if stream.suspect and suspects:
                continue
            text = stream.text
            prompt, written = text.committed[: text.prompt_len], text.committed[text.prompt_len :]
            try:
                most = stream.wait.max_window
                handle = self.target.open(prompt, text.sampling, written, most, stream.scope, stream.grammar)
            except PoolFull as error:
                if any(s.handle >= 0 for s in streams):
                    self._full_at = streams.added
                    return
                self.faults.blame(stream, RequestError(FailureCode.CONTEXT_LENGTH, str(error)))
                continue
            except Exception as error:
                self.faults.blame(stream, error)
                continue
            stream.opened(handle)
            suspects |= stream.suspect
            self.leases.lend(stream)

    def hold(self, streams: Sequence[Stream]) -> list[Stream]:
        """Reserve room for a round of ``streams``, preempting the last if need be. Returns those that have it."""
        for stream in streams:
            while stream.status is Stage.DECODE:
                try:
                    self.target.reserve(stream.handle)
                    break
                except PoolFull:
                    running = (*self.state.requests.of(Stage.PREFILL), *self.state.requests.of(Stage.DECODE))
                    self._preempt(self.state.in_order(running)[-1])
        return [stream for stream in streams if stream.status is Stage.DECODE]

    def _preempt(self, stream: Stream) -> None:
        self.leases.recall(stream)
        self.target.close(stream.handle)
        stream.preempted()
        self._full_at = -1
        self.state.counters["preempted"] += 1
