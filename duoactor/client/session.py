"""The open calls of a client at one or several verifiers, as a state machine. No sockets, no clock.

Tokens are numbered: what comes twice is dropped, what is missing is requested again together with the tokens so far.
Noise is keyed by position, so the later text is the same (docs/how-it-works.md). So a stream survives its
verifier, and a verifier that is lost, full or about to leave is replaced by another.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duoactor.client.calls import Asking, News, Question, StreamState
from protocols.errors import ConnectionLost, DuoactorError, RequestError
from protocols.handshake import Lost, Why
from protocols.messages import (
    Cancel,
    Chunk,
    Done,
    Failed,
    FailureCode,
    Generate,
    Message,
    Refuse,
    RefuseCode,
    StatusReport,
    Tokenized,
    Welcome,
)

log = logging.getLogger("duoactor.client")

ONLY = ""  # the address of the only verifier, where it need not be told from others
BACKOFF_S = 0.5  # before the first repetition of a request that found no room, where the verifier did not say; doubles
# Rows of a batch cost less than rounds of their own: twice the streams are at most twice as slow, and a prompt that is
# in the verifier's cache already is worth more than that.
CALM = 2
OPENING = 1024  # characters or tokens of a prompt that tell one conversation from another
CONVERSATIONS = 4096  # that are remembered


# --- where calls go --------------------------------------------------------------------------------------------------


class Verifiers:
    """The verifiers that a client knows by address, and which of them a stream goes to.

    A verifier with another model or dtype than the first to answer is left out: a stream must be able
    to go on at any of them with the same text.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._welcomes: dict[str, Welcome | None] = dict.fromkeys(addresses)  # None: it is not there
        self._leaving: set[str] = set()  # they take nothing new
        self._model: Welcome | None = None  # what the first that answered serves
        self._conversations: OrderedDict[int, str] = OrderedDict()  # the address that served each, by its opening

    def welcomed(self, address: str, welcome: Welcome) -> None:
        if self._model is None or len(self._welcomes) == 1:
            self._model = welcome
        # Names and dtypes are enough to tell most apart; the same name may stand for models of other sizes, too.
        for told in (
            "{0.model_id} in {0.dtype}",
            "{0.model_id} in {0.dtype} (context {0.max_context}, vocabulary {0.vocab_size})",
        ):
            theirs, ours = told.format(welcome), told.format(self._model)
            if theirs != ours:
                log.warning(
                    "the verifier at %s serves %s and not %s, as the others do; it is not used", address, theirs, ours
                )
                return
        self._welcomes[address] = welcome
        self._leaving.discard(address)

    def lost(self, address: str) -> None:
        self._welcomes[address] = None

    def leaves(self, address: str) -> None:
        self._leaving.add(address)

    def incarnation(self, address: str | None) -> str:
        welcome = self._welcomes.get(address or ONLY)
        return welcome.incarnation if welcome is not None else ""

    def usable(self, but: Collection[str] = ()) -> list[str]:
        """The ones that take requests. An only one counts as there: its requests wait for it."""
        return [
            address
            for address, welcome in self._welcomes.items()
            if address not in self._leaving and address not in but and (welcome is not None or len(self._welcomes) == 1)
        ]

    def choose(self, request: Generate, streams: Mapping[str, int], but: Collection[str] = ()) -> str | None:
        """The address for a request; None while there is none. ``streams``: how many each serves for this client.

        The one with the fewest; a conversation goes back to the verifier that has it in its cache, unless clearly
        busier.
        """
        usable = self.usable(but)
        if len(usable) < 2:
            return usable[0] if usable else None
        chosen = min(usable, key=lambda address: streams.get(address, 0))
        opening = _opening(request)
        if opening is not None:
            before = self._conversations.pop(opening, chosen)
            if before in usable and streams.get(before, 0) <= CALM * (streams.get(chosen, 0) + 1):
                chosen = before
            self._conversations[opening] = chosen
            if len(self._conversations) > CONVERSATIONS:
                self._conversations.popitem(last=False)
        return chosen


def _opening(request: Generate) -> int | None:
    """A name for how a conversation begins; None for a prompt too short to be worth a cache."""
    text: str | tuple[int, ...] = request.prompt
    if request.messages:
        text = request.tools + "".join(f"{turn.role}\0{turn.content}\0" for turn in request.messages)
    return hash((request.cache_salt, text[:OPENING])) if len(text) >= OPENING else None


# --- all calls -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """Results of an event: news by caller, and a message to send."""

    news: tuple[tuple[str, News], ...] = ()
    send: Message | None = None


class Session:
    """The open calls by their ids, oldest first. The driver sends to each verifier what is ``due`` there, and says so
    with ``sent``."""

    def __init__(
        self,
        outlive_drain: bool,
        addresses: Sequence[str] = (ONLY,),
        max_retries: int = 0,
        clock: Callable[[], float] = lambda: 0.0,
        spread: Callable[[], float] = random.random,
    ) -> None:
        """``outlive_drain``: whether streams wait for the successor of a verifier that shuts down in order.
        ``max_retries``: of a request for which there is no room anywhere; ``spread``: numbers from 0 to 1 by which
        clients that were refused together do not come again together."""
        self.calls: dict[str, Asking | StreamState] = {}
        self.verifiers = Verifiers(addresses)
        self._outlive_drain, self._max_retries = outlive_drain, max_retries
        self._clock, self._spread = clock, spread

    def start(self, request: Generate) -> None:
        self.calls[request.rid] = StreamState(request, self._clock())

    def ask(self, question: Question, at: str | None = None) -> None:
        """``at``: the verifier that is asked; None: any."""
        self.calls[question.rid] = Asking(question, at)

    def place(self, rid: str) -> str | None:
        """The address of the verifier that serves a call, if one does."""
        call = self.calls.get(rid)
        return call.at if call is not None else None

    def drop(self, rid: str) -> Cancel | None:
        """Forget a call; the message that tells the verifier, if it works on it."""
        call = self.calls.pop(rid, None)
        return Cancel(rid) if isinstance(call, StreamState) and call.submitted else None

    def due(self, address: str = ONLY) -> Iterator[tuple[str, Message]]:
        """Every call that this verifier is to be asked and has not been, with the message that asks it."""
        now = self._clock()
        for rid, call in self.calls.items():
            if call.waits(now):
                if call.at is None:
                    call.at = self._choose(call)
                if call.at == address:
                    yield rid, call.message(now)

    def _choose(self, call: Asking | StreamState) -> str | None:
        if isinstance(call, Asking):
            return next(iter(self.verifiers.usable()), None)
        streams = Counter(one.at for one in self.calls.values() if isinstance(one, StreamState) and one.at)
        return self.verifiers.choose(call.request, streams, call.refused_by)

    def sent(self, rid: str) -> None:
        call = self.calls[rid]
        call.sent(self.verifiers.incarnation(call.at))

    def expire(self) -> Result:
        """Streams without a verifier end at their deadline here; the others' verifiers see to it."""
        now = self._clock()
        late = [
            rid
            for rid, call in self.calls.items()
            if isinstance(call, StreamState) and not call.submitted and call.deadline < now
        ]
        detail = "no verifier had room for the request before its deadline; allow more time"
        error = RequestError(FailureCode.DEADLINE_EXCEEDED, detail)
        return Result(tuple(news for rid in late for news in self.reject(rid, error).news))

    def receive(self, message: Message | Lost, address: str = ONLY) -> Result:
        """``address``: of the verifier that says it."""
        match message:
            case Lost():
                return self._lost(message.why, address)
            case Welcome():
                self.verifiers.welcomed(address, message)
                for call in self.calls.values():
                    call.welcomed(address, message.incarnation)
            case Refuse(code=RefuseCode.MALFORMED):
                return self._malformed(message, address)
            case Chunk():
                return self._chunk(message, address)
            case Failed():
                return self._failed(message, address)
            case Done() | StatusReport() | Tokenized():
                asking = self.calls.get(message.rid)
                if isinstance(asking, Asking) and asking.answered_by(message):
                    del self.calls[message.rid]
                    return Result(((message.rid, message),))
        return Result()

    def fail(self, error: DuoactorError) -> Result:
        """Every call ends with that error."""
        news = tuple((rid, error) for rid in self.calls)
        self.calls.clear()
        return Result(news)

    def reject(self, rid: str, error: DuoactorError) -> Result:
        """One call ends with that error."""
        del self.calls[rid]
        return Result(((rid, error),))

    def _lost(self, why: Why, address: str) -> Result:
        self.verifiers.lost(address)
        elsewhere = bool(self.verifiers.usable(but=(address,)))
        lost = [rid for rid, call in self.calls.items() if call.at == address]
        for rid in lost:
            self.calls[rid].lost(why is Why.DRAINING, elsewhere)
        if elsewhere or why is not Why.DRAINING or self._outlive_drain:
            return Result()
        news = tuple((rid, self._ended_by_drain(rid)) for rid in lost)
        for rid in lost:
            del self.calls[rid]
        return Result(news)

    def _ended_by_drain(self, rid: str) -> ConnectionLost:
        call = self.calls[rid]
        received = f"; {len(call.token_ids)} tokens were received" if isinstance(call, StreamState) else ""
        return ConnectionLost(f"the verifier was shut down{received}")

    def _chunk(self, chunk: Chunk, address: str) -> Result:
        state = self.calls.get(chunk.rid)
        if not isinstance(state, StreamState) or state.at not in (None, address):
            # It was cancelled, or went elsewhere: the Cancel was lost, or this chunk was on its way already.
            return Result(send=Cancel(chunk.rid) if chunk.finish_reason is None else None)
        news = state.accept(chunk)
        if state.finish_reason is not None:
            del self.calls[chunk.rid]
        return Result(((chunk.rid, news),)) if news is not None else Result()

    def _failed(self, failed: Failed, address: str) -> Result:
        call = self.calls.get(failed.rid)
        if call is None or call.at != address:
            return Result()
        error: DuoactorError = RequestError(failed.code, failed.detail, failed.retry_after_ms)
        if failed.code is FailureCode.DRAINING:
            self.verifiers.leaves(address)
            error = self._ended_by_drain(failed.rid)
            if self._outlive_drain or self.verifiers.usable():
                call.given_back()
                return Result()
        elif (
            failed.code is FailureCode.OVERLOADED
            and isinstance(call, StreamState)
            and self._again(call, failed, address)
        ):
            return Result()
        return self.reject(failed.rid, error)

    def _again(self, call: StreamState, failed: Failed, address: str) -> bool:
        """Whether a request that found no room is tried again: at once elsewhere, else later if the deadline allows."""
        call.refused_by.add(address)
        if not self.verifiers.usable(but=call.refused_by):
            wait_s = max(failed.retry_after_ms / 1000, BACKOFF_S * 2**call.retries) * (1 + self._spread() / 4)
            at = self._clock() + wait_s
            if call.retries >= self._max_retries or at > call.deadline:
                return False
            call.retries, call.retry_at = call.retries + 1, at
            call.refused_by.clear()
        call.given_back()
        return True

    def _malformed(self, refusal: Refuse, address: str) -> Result:
        """The verifier could not read a message, and cannot say which: the oldest that it has not answered."""
        for rid, call in self.calls.items():
            if call.at == address and call.submitted and not call.answered:
                return self.reject(rid, RequestError(FailureCode.BAD_REQUEST, refusal.detail))
        return Result()
