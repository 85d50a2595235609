"""What the learner is told, and which weights it has the drafters serve with. No stream waits for any of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from actors.verifier.drafters.registry import DrafterPeer
from actors.verifier.requests.request import Request
from actors.verifier.state import State
from protocols.errors import RequestError
from protocols.messages import FailureCode, Finished, Load, Message, Promote, Undo

MAX_TOKENS = 16_384  # of a text that is told
MAX_WAITING = 262_144  # tokens of texts, some 10 MB: those of minutes in which streams leave a learner no CPU
BEAT_TOKENS = 16_384  # told with one heartbeat, after which it ends: half a millisecond to encode


class Learning:
    def __init__(self, state: State, send: Callable[[bytes, Message], bool]) -> None:
        self.state, self.send = state, send
        self._waiting: deque[Finished] = deque()
        self._waiting_tokens = 0
        self._wanted = False  # there was a learner: where streams leave it no CPU it seems to be gone until they end

    # --- texts -------------------------------------------------------------------------------------------------------

    def ended(self, request: Request) -> None:
        """A request is over. What a grammar chose says nothing of the target, and what a client claims to have had of
        its output counts as prompt."""
        message, spec = request.message, request.spec
        start = spec.prompt_len + len(message.generated)
        self._wanted |= self.state.learner is not None
        if not self._wanted or message.structured_outputs is not None:
            return
        if message.cache_salt and not self.state.settings.learn_salted:
            return
        if start < len(spec.committed) <= MAX_TOKENS:
            self._waiting.append(Finished(tuple(spec.committed), start, spec.sampling))
            self._waiting_tokens += len(spec.committed)
            while self._waiting_tokens > MAX_WAITING:
                self._next()

    def tell(self) -> None:
        """With every heartbeat. What the learner's connection does not take is lost."""
        inline, promoted = self.state.inline, self.state.promoted
        if promoted is not None and inline is not None and not inline.generations.trouble:
            self._draft_with(promoted)  # which was not loaded if another version was being loaded
        learner = self.state.learner
        if learner is None:
            return
        told = 0
        while self._waiting and told < BEAT_TOKENS:
            text = self._next()
            told += len(text.tokens)
            self.send(learner.peer, text)

    def _next(self) -> Finished:
        text = self._waiting.popleft()
        self._waiting_tokens -= len(text.tokens)
        return text

    # --- weights -----------------------------------------------------------------------------------------------------

    def promote(self, message: Promote) -> None:
        self.state.promoted = message
        for drafter in self.state.drafters.by_peer.values():
            if drafter.loads(message.model_id):
                drafter.serves(drafter.version, "")  # what kept it from an earlier one need not keep it from this
                self.send(drafter.peer, Load(message.version, message.path))
        self._draft_with(message)

    def _draft_with(self, message: Promote) -> None:
        """Where the verifier itself drafts with that model, it does so with these weights as soon as they are here."""
        inline = self.state.inline
        if inline is not None and inline.model_id == message.model_id:
            inline.generations.load(Load(message.version, message.path))

    def reported(self, drafter: DrafterPeer) -> None:
        """A drafter said which weights it serves with. It is told which are in force until it does, or says why not."""
        promoted = self.state.promoted
        if promoted is None or not drafter.loads(promoted.model_id) or drafter.trouble:
            return
        if drafter.version != promoted.version:
            self.send(drafter.peer, Load(promoted.version, promoted.path))

    def undo(self, message: Undo) -> str:
        """Hands it to the learner; says in a sentence what comes of it. RequestError if nothing can."""
        learner, promoted = self.state.learner, self.state.promoted
        if promoted is None or not promoted.version:
            detail = "nothing is promoted: the drafters serve with the weights that they were started with"
            raise RequestError(FailureCode.NOT_FOUND, detail)
        if learner is None or not self.send(learner.peer, message):
            raise RequestError(FailureCode.NOT_FOUND, "no learner is connected; start one with `duoactor learner`")
        return f"{learner.actor_id} goes back from version {promoted.version}; `duoactor drafters` shows when"
