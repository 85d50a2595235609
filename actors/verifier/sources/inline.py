"""Drafting between two forwards, with a draft model that the verifier runs itself on the CPUs that verify.

Where target and draft share a machine's CPUs and the draft is small, a drafter in a process of its own takes a core
from the target, and telling it of a round takes longer than its draft steps. Here nothing is sent and nobody is waited
for: before a round the trees of its requests grow, one batched draft step after another, each for as long as it
promises more tokens than its time brings otherwise (its price, as in actors/verifier/rate.py).

Weights that a learner promotes are loaded beside the rounds and take their place between two of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

from actors.calibration import USUAL, Calibration, TextCalibration
from actors.cost import CostModel
from actors.draft_timing import Probe
from actors.estimate import Estimate
from actors.generations import Generations, Loader
from actors.models import DraftModel, Leaf
from actors.verifier.sources.inline_tree import MAX_LEAVES, Chain, InlineTree
from actors.verifier.speculation import Speculation
from actors.verifier.streams import Request
from protocols.errors import CannotDraft, PoolFull
from protocols.messages import Load

log = logging.getLogger("duoactor.verifier")
MAX_STEPS = 16  # of one round
READ = 256  # tokens of a text that are read before a round, at most; a longer one is read over several rounds
UNREAD = 8  # tokens that are read in a draft step; the price of more is looked at
SHORT_ANSWER = 64  # tokens
MAX_FAILURES = 3  # in a row: then it is the model, not the text
_worth: Callable[[tuple[float, InlineTree, Chain]], float] = itemgetter(0)


class InlineDraft:
    def __init__(
        self,
        model: DraftModel,
        step_us: Mapping[int, float],
        vocab_size: int,
        eos: frozenset[int],
        timer: Callable[[], float] = time.perf_counter,
        load: Loader | None = None,
    ) -> None:
        """``step_us``: the measured time of a draft step by its leaves. ``vocab_size`` and ``eos``: the target's.
        ``load`` gives the model with the weights in a directory, and this one again for an empty name; None: there are
        no others."""
        self.generations, self.timer = Generations(model, load), timer
        self._generation = 0  # of the latest round
        self.model_id = model.info.model_id  # whatever the directory is called where other weights of it lie
        self.steps = CostModel(step_us)
        self.beside_us = Estimate()  # of a node, beside the model: leaves are chosen, candidates join trees
        self.read_us = Estimate(self.steps(UNREAD) / UNREAD, weight=READ, memory=8 * READ)  # of a token of a text
        self.probe = Probe(self.steps, timer)
        self.vocab_size, self.eos = vocab_size, eos | model.info.eos_token_ids
        self._unable: set[str] = set()  # requests that it has no room for, or that its model cannot mirror
        self._failures = 0
        self.idle = False  # no step was worth its price when it was last asked: that is looked at while texts rest
        self.reading_us = 0.0  # when it was last asked

    @property
    def model(self) -> DraftModel:
        return self.generations.current.model

    def load(self, message: Load) -> None:
        """Beside the rounds. Weights that were loaded before and that no round has drafted with are given up."""
        self.generations.retire(())
        self.generations.load(message)

    def promise(self, cost: CostModel, streams: int = 1) -> float:
        """Speed-up to be expected before anything is known of the texts: chains alone are counted."""
        best, expected = 1.0, 1.0
        for drafts in range(1, MAX_STEPS + 1):
            expected += USUAL**drafts
            round_us = cost.plain(streams, streams * drafts) + drafts * self.steps(streams)
            best = max(best, expected * cost.plain(streams) / round_us)
        return best

    # --- before a round ----------------------------------------------------------------------------------------------

    def grow(
        self,
        requests: Sequence[Request],
        cost: CostModel,
        rate: float,
        now_us: Callable[[], float],
        row: float,
        saves: Callable[[Request], float],
        room_us: float = math.inf,
        reads: bool = True,
    ) -> None:
        """``requests`` share the next forward, their trees hold what was retrieved, and no drafter works for them.
        ``rate``: tokens per microsecond that they reach together. ``now_us``: since the verifier's start. ``row``:
        tokens that the round's time for a row would bring otherwise. ``saves``: the part of a text's time that drafts
        are expected to save. ``room_us``: how long reading and drafting may take. ``reads``: whether texts are read
        that were not. Sets ``idle`` and ``reading_us``."""
        until = self.timer() + room_us / 1e6
        self._renew()
        self.idle, self.reading_us = True, 0.0
        trees: dict[InlineTree, Speculation] = {}
        for request in requests:
            if (tree := self._read(request, rate, saves, reads, until)) is not None:
                trees[tree] = request.spec
        further = rate * (self.steps.row(1) + self.beside_us.mean)
        for tree in trees:
            tree.begin(row, further)
        for _ in range(MAX_STEPS):
            begin = self.timer()
            batch = self._worthwhile(trees, rate, row)
            nodes = sum([len(chain) for _, chain in batch])
            if not batch or self.steps(nodes) > self._left_us(until):
                break
            spent_us = self._expand(batch, trees, now_us)
            if spent_us is None:
                break
            self.idle = False
            self.beside_us.add(((self.timer() - begin) * 1e6 - spent_us) / nodes, weight=nodes)

    def measure(self, now: float) -> None:
        """Between two rounds. Where nothing was drafted for a while, a busy machine may have made it look too dear, and
        nothing would ever be drafted, or read, that shows what it takes. ``now``: seconds since the verifier's
        start."""
        if self._failures >= MAX_FAILURES:
            return
        try:
            read_us = self.probe.run(self.model, now, self.read_us.mean)
        except Exception as error:
            self._fail((), error)
            return
        if read_us is not None:
            self.read_us.add(read_us, weight=READ)

    def reads(self, request: Request, rate: float, saves: Callable[[Request], float]) -> bool:
        """Whether it can draft for the request: it has read its text, or that is worth the time. Arguments as in
        :meth:`grow`. Sets ``idle`` where it cannot."""
        self._renew()
        tree, missing = request.spec.inline, len(request.spec.committed)
        able = self._able(request)
        if able and tree is not None and tree.model is self.model:
            missing = self.model.missing(tree.handle)
        reads = able and (missing <= UNREAD or self._repays(request, missing, rate, saves))
        self.idle = self.idle or not reads
        return reads

    def _able(self, request: Request) -> bool:
        """Whether the model can mirror the request's text, as far as is known."""
        tree = request.spec.inline
        lost = tree is not None and tree.lost and tree.model is self.model
        return not (lost or request.rid in self._unable or self._failures >= MAX_FAILURES)

    def _renew(self) -> None:
        """Weights that took the latest ones' place have not failed yet."""
        if self._generation != self.generations.newest:
            self._generation, self._failures = self.generations.newest, 0
            self.generations.retire(())

    def _left_us(self, until: float) -> float:
        return max(0.0, until - self.timer()) * 1e6

    def _read(
        self, request: Request, rate: float, saves: Callable[[Request], float], reads: bool, until: float
    ) -> InlineTree | None:
        """Of a request whose text the model has seen. It reads what it has not where that is worth its time. ``until``,
        by the timer, the round's reading and drafting is over."""
        tree, missing = request.spec.inline, len(request.spec.committed)
        if tree is not None and tree.model is not self.model:
            tree.leave()  # what the weights before have computed is of no use to those that took their place
            tree = request.spec.inline = None
        if tree is not None:
            tree.catch_up()
        if not self._able(request):
            return None
        if tree is not None and (missing := self.model.missing(tree.handle)) <= UNREAD:
            return tree
        if not (reads and self._repays(request, missing, rate, saves)):
            return None
        if tree is None:
            tree = request.spec.inline = self._open(request)
        if tree is None or (missing := self.model.missing(tree.handle)) == 0:  # an earlier turn of a chat was read
            return tree
        tokens, begin = int(min(missing, READ, self._left_us(until) / self.read_us.mean)), self.timer()
        if tokens == 0:
            return None
        try:
            self.model.prefill(tree.handle, tokens)
        except Exception as error:
            self._fail([tree], error)
            return None
        spent_us = (self.timer() - begin) * 1e6
        self.read_us.add(spent_us / tokens, weight=tokens)
        self.reading_us += spent_us
        request.spec.waited(spent_us)
        return tree if missing <= tokens else None

    def _repays(self, request: Request, missing: int, rate: float, saves: Callable[[Request], float]) -> bool:
        """Whether to read so many tokens saves more time than it takes: a text is expected to go on for as long as it
        has, or for a short answer's length."""
        spec = request.spec
        written = len(spec.committed) - spec.prompt_len
        left = min(spec.sampling.max_tokens - written, max(SHORT_ANSWER, written))
        price = rate * missing * self.read_us.mean
        return price < left and price < left * saves(request)

    def _fail(self, trees: Iterable[InlineTree], error: Exception) -> None:
        """A draft model that fails costs its drafts, and nothing else."""
        log.error("requests go on without drafts: the draft model failed", exc_info=error)
        self._failures += 1
        for tree in trees:
            tree.lost = True

    def _open(self, request: Request) -> InlineTree | None:
        spec, sampling, weights = request.spec, request.spec.sampling, self.generations.current
        try:
            handle = weights.mirrors.open(spec.committed, spec.prompt_len, sampling, request.message.cache_salt)
        except (PoolFull, CannotDraft):
            self._unable.add(request.rid)
            return None
        stop = (frozenset() if sampling.ignore_eos else self.eos) | set(sampling.stop_token_ids)
        end = min(spec.prompt_len + sampling.max_tokens, self.model.info.max_context)
        calibration = TextCalibration(weights.calibrations.setdefault(sampling.temperature > 0, Calibration()))
        return InlineTree(request.rid, spec.tree, weights.model, handle, stop, end, calibration, spec.windows.opinions)

    def _worthwhile(self, trees: Iterable[InlineTree], rate: float, row: float) -> list[tuple[InlineTree, Chain]]:
        """The leaves of the next step: as many of the most promising as bring most beyond the price of the step, and of
        a ``row`` of the forward for each. None, where that is nothing."""
        found = [(promise - row, tree, chain) for tree in trees for promise, chain in tree.promises()]
        found.sort(key=_worth, reverse=True)
        best, most, gain, nodes = 0, 0.0, 0.0, 0
        for count, (worth, _, chain) in enumerate(found, 1):
            gain += worth
            nodes += len(chain)
            if nodes > MAX_LEAVES:
                break
            left = gain - rate * (self.steps(nodes) + nodes * self.beside_us.mean)
            if left > most:
                best, most = count, left
        return [(tree, chain) for _, tree, chain in found[:best]]

    def _expand(
        self,
        batch: list[tuple[InlineTree, Chain]],
        requests: Mapping[InlineTree, Speculation],
        now_us: Callable[[], float],
    ) -> float | None:
        """One draft step. Returns what the model took, in microseconds; None if it failed."""
        leaves: list[Leaf] = []
        missing = 0
        for tree, chain in batch:
            leaves += tree.leaves(chain, len(leaves))
            if chain[0].parent is None:  # a root computes what its text misses as well
                missing += self.model.missing(tree.handle)
        began_us, begin = now_us(), self.timer()
        try:
            expansions = self.model.expand(leaves)
        except Exception as error:
            self._fail((tree for tree, _ in batch), error)
            return None
        spent_us = (self.timer() - begin) * 1e6
        self._failures = 0
        self.steps.observe(len(leaves) + missing, spent_us)
        self.probe.spare(began_us / 1e6)
        first = 0
        for tree, chain in batch:
            tree.expanded(chain, expansions[first : first + len(chain)], self.vocab_size)
            first += len(chain)
        for tree in {tree for tree, _ in batch}:
            requests[tree].drafted(began_us, spent_us)
        return spent_us

    # --- ends --------------------------------------------------------------------------------------------------------

    def close(self, request: Request) -> None:
        """The request is over. What was read of its text may serve the next turn."""
        self._unable.discard(request.rid)
        tree, request.spec.inline = request.spec.inline, None
        if tree is None or tree.model is not self.model:
            return
        mirrors = self.generations.current.mirrors
        if tree.lost:
            mirrors.close(tree.handle)
        else:
            mirrors.keep(tree.handle, request.spec.committed, request.message.cache_salt)
