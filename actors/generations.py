"""The draft model in service, how one with other weights takes its place, and those before while they are used.

Of drafters, and of a verifier that drafts itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from actors.mirrors import Mirrors
from actors.models import DraftModel, ModelInfo
from actors.tree.calibration import Calibration
from protocols.errors import ModelError
from protocols.limits import clipped
from protocols.messages import Load

log = logging.getLogger("duoactor.generations")
Loader = Callable[[str], Awaitable[DraftModel]]
OWN = Load(0, "")  # the weights that an actor was started with


@dataclass(slots=True)
class Weights:
    """One model. Its mirrors, and how often its candidates are right, are no other's."""

    model: DraftModel
    source: Load = OWN
    mirrors: Mirrors = field(init=False)
    calibrations: dict[bool, Calibration] = field(default_factory=dict)  # by whether the text is sampled

    def __post_init__(self) -> None:
        self.mirrors = Mirrors(self.model)


class Generations:
    """The weights that serve, and those before that leases began with, by number in the order of loading."""

    def __init__(self, model: DraftModel, load: Loader | None) -> None:
        """``load`` gives the model in a directory, and for an empty name this one again; None: there are no others."""
        self.trouble = ""  # why what it was last told to load is not in service
        self.newest = 0
        self._load = load
        self._held = {0: Weights(model)}
        self._loading: asyncio.Task[None] | None = None

    def __getitem__(self, number: int) -> Weights:
        return self._held[number]

    @property
    def current(self) -> Weights:
        """Those that serve: a drafter's new leases."""
        return self._held[self.newest]

    def load(self, message: Load) -> None:
        """Beside the work: leases go on, and those that open meanwhile get the weights that serve now."""
        if self._load is None or (self._loading is not None and not self._loading.done()):
            return  # the verifier says it again
        self.trouble = ""
        if message != self.current.source:
            self._loading = asyncio.create_task(self._renew(self._load, message))

    async def _renew(self, load: Loader, message: Load) -> None:
        try:
            model = await load(message.path)
            _check(model.info, self.current.model.info, message.path)
        except Exception as error:  # whatever is wrong with that directory, the model in service is not
            self.trouble = clipped(f"version {message.version} cannot serve: {error}")
            log.warning("%s; goes on with version %d", self.trouble, self.current.source.version)
            return
        self.newest += 1
        self._held[self.newest] = Weights(model, message)
        log.info("version %d of the draft's weights serves from now on", message.version)

    def retire(self, used: Iterable[int]) -> None:
        """Weights that no lease uses any more are given up."""
        kept = {self.newest, *used}
        self._held = {number: weights for number, weights in self._held.items() if number in kept}


def _check(model: ModelInfo, serving: ModelInfo, path: str) -> None:
    """ModelError if a model cannot stand for that which serves."""
    if model.tokenizer_digest != serving.tokenizer_digest or model.vocab_size != serving.vocab_size:
        raise ModelError(f"the model in {path} has another tokenizer; promote one that fits this drafter")
    if model.max_context < serving.max_context:
        raise ModelError(f"the model in {path} holds {model.max_context} tokens, this one {serving.max_context}")
