"""The leases that a drafter holds: how they are taken, kept up with and given back, and which it does not hold."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable

from actors.drafter.lease import Lease, Limits
from actors.generations import Generations
from actors.models import DraftModel
from actors.peer import Line
from actors.tree.calibration import Calibration
from protocols.errors import CannotDraft, PoolFull
from protocols.messages import Close, Decline, Open

log = logging.getLogger("duoactor.drafter")
MAX_DECLINED = 1000  # epochs remembered
# A request that makes the model fail loses its drafter. When one after the other does, with no step that went well
# between them, it is not the requests: the drafter ends, and its supervisor starts it anew.
MAX_FAILURES = 3


class Held:
    def __init__(self, generations: Generations, line: Line) -> None:
        self.leases: OrderedDict[str, Lease] = OrderedDict()  # the one that was served longest ago first
        self.generations, self.line = generations, line
        self.declined: OrderedDict[int, None] = OrderedDict()  # epochs of leases that this drafter does not hold
        self._failures = 0

    def model(self, lease: Lease) -> DraftModel:
        """That it began with."""
        return self.generations[lease.generation].model

    # --- taken -------------------------------------------------------------------------------------------------------

    def open(self, message: Open, leaving: bool) -> Lease | None:
        """A new lease, unless it is none or cannot be had. ``leaving``: nothing new is taken."""
        known = self.leases.get(message.rid)
        if known is not None and known.epoch == message.epoch:
            known.heard()
        if message.epoch in self.declined or (known is not None and known.epoch >= message.epoch):
            return None
        if known is not None:
            self.end(known)
        if leaving or not message.prefix:
            self._decline(message.rid, message.epoch, lasting=True)
            return None
        weights = self.generations.current
        try:
            handle = weights.mirrors.open(message.prefix, message.prompt_len, message.sampling, message.cache_salt)
        except (PoolFull, CannotDraft) as error:
            log.warning("request %s goes on without drafts: %s", message.rid, error)
            self._decline(message.rid, message.epoch, lasting=isinstance(error, CannotDraft))
            return None
        calibration = weights.calibrations.setdefault(message.sampling.temperature > 0, Calibration())
        info, welcome = weights.model.info, self.line.welcome
        vocab_size = welcome.vocab_size if welcome is not None else 0
        limits = Limits(weights.model.scratch_slots, info.max_context, vocab_size, info.eos_token_ids)
        lease = Lease(message, handle, limits, calibration, self.generations.newest)
        self.leases[message.rid] = lease
        return lease

    def served(self, leases: Iterable[Lease]) -> None:
        """A forward for them went well."""
        self._failures = 0
        for lease in leases:
            self.leases.move_to_end(lease.rid)

    # --- given back --------------------------------------------------------------------------------------------------

    def close(self, message: Close) -> None:
        lease = self.leases.get(message.rid)
        if lease is not None and lease.epoch <= message.epoch:
            self.end(lease)

    def end(self, lease: Lease) -> None:
        del self.leases[lease.rid]
        self.generations[lease.generation].mirrors.keep(lease.handle, lease.committed, lease.cache_salt)

    def void(self) -> None:
        """The verifier knows of none any more; another one counts its epochs from the beginning."""
        for lease in list(self.leases.values()):
            self.end(lease)
        self.declined.clear()

    def fail(self, lease: Lease, error: Exception) -> None:
        """The request goes on without drafts, and the other requests with them. Raises ``error`` when it was one too
        many."""
        del self.leases[lease.rid]
        self.generations[lease.generation].mirrors.close(lease.handle)
        self._decline(lease.rid, lease.epoch, lasting=not isinstance(error, PoolFull))
        if isinstance(error, (PoolFull, CannotDraft)):
            log.warning("request %s goes on without drafts: %s", lease.rid, error)
            return
        log.error("request %s goes on without drafts: the draft model failed", lease.rid, exc_info=error)
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise error

    def _decline(self, rid: str, epoch: int, lasting: bool) -> None:
        self.declined[epoch] = None
        self.line.send(Decline(rid, epoch, lasting))
        while len(self.declined) > MAX_DECLINED:
            self.declined.popitem(last=False)
