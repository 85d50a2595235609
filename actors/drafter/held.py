"""The leases that a drafter holds: how they begin and end; and the latest that it has declined."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import cast

from actors.drafter.lease import Lease, Limits
from actors.generations import Generations
from actors.models import MAX_FAILURES, DraftModel, StateReader
from actors.peer import Line
from protocols.errors import CannotDraft, ModelError, PoolFull
from protocols.limits import MAX_REQUESTS
from protocols.messages import Close, Decline, Open
from protocols.validation import problems

log = logging.getLogger("duoactor.drafter")


class Held:
    def __init__(self, generations: Generations, line: Line) -> None:
        self.leases: OrderedDict[str, Lease] = OrderedDict()  # leases by request id, the longest unserved first
        self.generations, self.line = generations, line
        self.declined: OrderedDict[int, None] = OrderedDict()  # epochs, the oldest first
        self._failures = 0  # failures in a row

    def model(self, lease: Lease) -> DraftModel:
        """The model that holds the lease's mirror: the model at its opening."""
        return self.generations[lease.generation].model

    # --- take --------------------------------------------------------------------------------------------------------

    def open(self, message: Open, leaving: bool) -> Lease | None:
        """Take a lease. None: it is known already or outdated, or it was declined. ``leaving``: decline new ones."""
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
        if (problem := next(problems(message.sampling), None)) is not None:
            self._refuse(message, problem, lasting=True)
            return None
        weights = self.generations.current
        try:
            handle = weights.mirrors.open(message.prefix, message.prompt_len, message.sampling, message.cache_salt)
        except Exception as error:  # whatever is wrong with that text, the others are served
            self._refuse(message, str(error) or type(error).__name__, lasting=not isinstance(error, PoolFull))
            return None
        if weights.model.taps:
            cast(StateReader, weights.model).listen(handle)
        calibration = weights.calibrations[message.sampling.temperature > 0]
        info, welcome = weights.model.info, self.line.welcome
        vocab_size = welcome.vocab_size if welcome is not None else 0
        limits = Limits(weights.model.scratch_slots, info.max_context, vocab_size, info.eos_token_ids)
        lease = Lease(message, handle, limits, calibration, self.generations.newest)
        self.leases[message.rid] = lease
        return lease

    def _refuse(self, message: Open, why: str, lasting: bool) -> None:
        log.warning("request %s goes on without drafts: %s", message.rid, why)
        self._decline(message.rid, message.epoch, lasting)

    def served(self, leases: Iterable[Lease]) -> None:
        """A forward for these leases was successful."""
        for lease in leases:
            self._failures = 0
            self.leases.move_to_end(lease.rid)

    # --- give back ---------------------------------------------------------------------------------------------------

    def close(self, message: Close) -> None:
        """The verifier ends a lease."""
        lease = self.leases.get(message.rid)
        if lease is not None and lease.epoch <= message.epoch:
            self.end(lease)

    def end(self, lease: Lease) -> None:
        """The lease is over. Its mirror is kept for a later lease with a text that begins alike."""
        del self.leases[lease.rid]
        self.generations[lease.generation].mirrors.keep(lease.handle, lease.committed, lease.opened.cache_salt)

    def void(self) -> None:
        """All leases are over, because the verifier has forgotten this drafter. A new verifier counts epochs anew."""
        for lease in list(self.leases.values()):
            self.end(lease)
        self.declined.clear()

    def fail(self, lease: Lease, error: Exception) -> None:
        """The draft model has failed on a lease: decline it, so that its request goes on without drafts. Raises
        ``error`` if it is the last of ``MAX_FAILURES``."""
        del self.leases[lease.rid]
        self.generations[lease.generation].mirrors.close(lease.handle)
        self._decline(lease.rid, lease.epoch, lasting=not isinstance(error, PoolFull))
        if isinstance(error, (PoolFull, CannotDraft)):
            log.warning("request %s goes on without drafts: %s", lease.rid, error)
            return
        known = isinstance(error, ModelError)  # a sentence that says all
        log.error(
            "request %s goes on without drafts: %s",
            *(lease.rid, error if known else "the draft model failed"),
            exc_info=None if known else error,
        )
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise error

    def _decline(self, rid: str, epoch: int, lasting: bool) -> None:
        self.declined[epoch] = None
        self.line.send(Decline(rid, epoch, lasting))
        while len(self.declined) > MAX_REQUESTS:
            self.declined.popitem(last=False)
