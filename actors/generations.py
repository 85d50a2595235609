"""The generations of a draft model's weights: the one in service, how a new one takes its place, and those before that
leases still use. Drafters have them, and a verifier with a draft model of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from actors.calibration import Calibration
from actors.mirrors import Mirrors
from actors.models import DraftModel, ModelInfo
from protocols.errors import ModelError
from protocols.limits import clipped
from protocols.messages import Load

log = logging.getLogger("duoactor.generations")
Loader = Callable[[str], Awaitable[DraftModel]]
OWN = Load(0, "")  # the weights that an actor was started with


@dataclass(slots=True)
class Generation:
    """A model with one set of weights, and what belongs to these weights alone: mirrors and calibrations."""

    model: DraftModel
    source: Load = OWN
    mirrors: Mirrors = field(init=False)
    # by whether the text is sampled
    calibrations: defaultdict[bool, Calibration] = field(default_factory=lambda: defaultdict(Calibration))

    def __post_init__(self) -> None:
        self.mirrors = Mirrors(self.model)


class Generations:
    """The weights that serve, and the earlier ones that leases began with, numbered in the order of loading."""

    def __init__(self, model: DraftModel, load: Loader | None) -> None:
        """``load`` gives the model in a directory, and for an empty name this one again; None: there are no others."""
        self.asked = OWN  # the last Load
        self.trouble = ""  # why that is not in service
        self.newest = 0
        self._load = load
        self.current = Generation(model)  # the weights that serve, which new leases get
        self._held = {0: self.current}
        self._loading: asyncio.Task[None] | None = None

    def __getitem__(self, number: int) -> Generation:
        return self._held[number]

    def load(self, message: Load) -> None:
        """Load new weights during the work. Until they serve, every lease gets the present ones. Weights that are
        still being loaded are given up for these."""
        if self._load is None:
            return
        self.asked, self.trouble = message, ""
        if message != self.current.source and (self._loading is None or self._loading.done()):
            self._loading = asyncio.create_task(self._follow(self._load))

    async def _follow(self, load: Loader) -> None:
        """Wait until the last Load serves, or cannot."""
        while (message := self.asked) != self.current.source:
            trouble = await self._renew(load, message)
            if message == self.asked:
                self.trouble = trouble
                return

    async def _renew(self, load: Loader, message: Load) -> str:
        """Why it cannot serve, if so."""
        try:
            model = await load(message.path)
            _check(model.info, self.current.model.info, message.path)
        except Exception as error:  # whatever is wrong with that directory, the model in service is not
            trouble = clipped(f"version {message.version} cannot serve: {error}")
            log.warning("%s; goes on with version %d", trouble, self.current.source.version)
            return trouble
        if message == self.asked:
            self.serve(model, message)
            log.info("version %d of the draft's weights serves from now on", message.version)
        return ""

    def serve(self, model: DraftModel, source: Load) -> None:
        """New leases get this model from now on."""
        self.newest += 1
        self.current = self._held[self.newest] = Generation(model, source)

    def retire(self, used: Iterable[int]) -> None:
        """Give up weights that neither serve nor are ``used`` by a lease."""
        kept = {self.newest, *used}
        self._held = {number: weights for number, weights in self._held.items() if number in kept}


def _check(model: ModelInfo, serving: ModelInfo, path: str) -> None:
    """Raise ModelError if a model cannot replace the serving one."""
    if model.tokenizer_digest != serving.tokenizer_digest or model.vocab_size != serving.vocab_size:
        raise ModelError(f"the model in {path} has another tokenizer; promote one that fits this drafter")
    if model.max_context < serving.max_context:
        raise ModelError(f"the model in {path} holds {model.max_context} tokens, this one {serving.max_context}")


def promoted(path: str) -> str:
    """``path``, if a learner of this user has written weights there. Raises ModelError: a learner's key must not have
    other directories read, or models downloaded."""
    place = Path(path)
    made = place.is_absolute() and place.is_dir() and (place.parent / "versions.json").is_file()
    if not made or place.stat().st_uid != os.getuid():
        raise ModelError(f"{path} holds no weights of a learner of this user; give --directory of the learner here")
    return path
