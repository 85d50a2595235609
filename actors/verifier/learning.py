"""Messages to the learner, and the weights that it promotes. No stream waits for any of it."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from actors.verifier.context import Context
from actors.verifier.drafters import DrafterPeer
from actors.verifier.owners import EVERYBODY
from actors.verifier.streams import Stream
from protocols.errors import RequestError
from protocols.messages import FailureCode, Finished, Load, Promote, Undo

MAX_TOKENS = 16_384  # tokens of one text, or sent with one heartbeat, which then ends: half a millisecond to encode
MAX_WAITING = 262_144  # tokens of texts, some 10 MB: those of minutes in which streams leave a learner no CPU


class Learning:
    def __init__(self, context: Context) -> None:
        self.context, self.state, self.send = context, context.state, context.send
        self._waiting: deque[Finished] = deque()
        self._waiting_tokens = 0
        self._wanted = False  # there was a learner: where streams leave it no CPU it seems to be gone until they end
        self._handed = ("", "")  # the last undo that the learner was handed, and what was said of it

    def ended(self, stream: Stream) -> None:
        """A request is over."""
        self._wanted = self._wanted or self.state.learner is not None
        text, message = stream.text, stream.message
        may_serve_others = stream.scope == EVERYBODY or self.context.settings.learn_salted
        free = message.structured_outputs is None and message.dictation is None  # else it tells little of the target
        if self._wanted and may_serve_others and free and text.given < len(text) <= MAX_TOKENS:
            self._waiting.append(Finished(tuple(text.committed), text.given, text.sampling))
            self._waiting_tokens += len(text)
            while self._waiting_tokens > MAX_WAITING:
                self._next()

    def tell(self) -> None:
        """With every heartbeat. What the learner's connection does not take is lost."""
        learner = self.state.learner
        if learner is None:
            return
        self._wanted = True
        told = 0
        while self._waiting and told < MAX_TOKENS:
            text = self._next()
            told += len(text.tokens)
            self.send(learner.peer, text)

    def _next(self) -> Finished:
        text = self._waiting.popleft()
        self._waiting_tokens -= len(text.tokens)
        return text

    def promote(self, peer: bytes, message: Promote) -> None:
        self.state.promoted = message
        for drafter in self.state.drafters.by_peer.values():
            if drafter.loads(message.model_id):
                drafter.said = replace(drafter.said, trouble="")  # an earlier one's need not be this one's
                self.send(drafter.peer, Load(message.version, message.path))
        inline = self.context.equipment.inline  # the verifier's own draft model
        if inline is not None and inline.model_id == message.model_id:
            inline.load(Load(message.version, message.path))

    def reported(self, drafter: DrafterPeer) -> None:
        """A drafter said which weights it serves with. It is sent those in force until it does, or says why not."""
        promoted = self.state.promoted
        if promoted is None or not drafter.loads(promoted.model_id):
            return
        # The message may be about an earlier version: the Load was lost, or it was not connected then.
        said = drafter.said
        of_another = said.path is not None and said.path != promoted.path
        if of_another or (said.version != promoted.version and not said.trouble):
            self.send(drafter.peer, Load(promoted.version, promoted.path))

    def undo(self, message: Undo) -> str:
        """Hands it to the learner; says in a sentence what comes of it. RequestError if nothing can."""
        learner, promoted = self.state.learner, self.state.promoted
        asked, said = self._handed
        if message.rid != asked:  # else its answer was lost, and the version may be gone that it was asked to leave
            if promoted is None or not promoted.version:
                detail = "nothing is promoted: the drafters serve with the weights that they were started with"
                raise RequestError(FailureCode.NOT_FOUND, detail)
            if message.version not in (0, promoted.version):
                detail = f"version {promoted.version} is in force now, not {message.version}: name it if it is to go"
                raise RequestError(FailureCode.NOT_FOUND, detail)
            said = f"the learner is asked to leave version {promoted.version}; `duoactor drafters` shows when it has"
        if learner is None or not self.send(learner.peer, message):
            raise RequestError(FailureCode.NOT_FOUND, "no learner is connected; start one with `duoactor learner`")
        self._handed = (message.rid, said)
        return said
