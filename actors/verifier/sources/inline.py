"""Drafting between two forwards, with a draft model that the verifier runs itself on the CPUs that verify.

Where target and draft share a machine's CPUs and the draft is small, a drafter in a process of its own takes a core
from the target, and a message to it takes longer than its draft steps. Here nothing is sent and no round waits:
before a round the trees of its streams grow, one batched draft step after another, each for as long as it should gain
more tokens than its time is worth.

Weights that a learner promotes are loaded beside the rounds and take their place between two of them.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

from actors.calibration import USUAL_MEMORY, TextCalibration
from actors.cost import CostModel
from actors.draft_timing import WIDTHS
from actors.estimate import Estimate
from actors.generations import Generations, Loader
from actors.models import MAX_FAILURES, DraftModel, Leaf
from actors.tree.tree import Node
from actors.tree.window import best_cut
from actors.verifier.results import Committed
from actors.verifier.sources.bits import INLINE
from actors.verifier.sources.inline_tree import InlineTree
from actors.verifier.sources.source import SLICE, Allowance, Source
from actors.verifier.streams import Stream
from protocols.errors import CannotDraft, ModelError, PoolFull
from protocols.limits import MAX_SEQUENCES, clipped
from protocols.messages import InlineStatus, Load

log = logging.getLogger("duoactor.verifier")
UNREAD = max(WIDTHS)  # tokens that are read in a draft step; the price of more is looked at
SHORT_ANSWER = 64  # tokens


class InlineDraft(Source):
    name, bit, exclusive, together = "inline", INLINE, True, True
    tree_of = InlineTree

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
        self.model_id = model.info.model_id  # whatever the directory is called where other weights of it lie
        self.measured(step_us)
        self._vocab_size, self._eos = vocab_size, eos | model.info.eos_token_ids
        # the weights in service: streams that they know, those that they have no room for or cannot mirror, and
        # their failures in a row
        self._weights = self.generations.current
        self._trees, self._unable, self._failures = dict[Stream, InlineTree](), set[Stream](), 0

    def measured(self, step_us: Mapping[int, float]) -> None:
        """Take the measured step times of a new model."""
        self.steps = CostModel(step_us)
        self._usual_read_us = self.steps(UNREAD) / UNREAD
        self.read_us = Estimate(self._usual_read_us, weight=SLICE, memory=8 * SLICE)  # time to read a token of a text
        self.depths = tuple(Estimate(memory=USUAL_MEMORY) for _ in range(2))  # its agreement at the first two tokens

    @property
    def model(self) -> DraftModel:
        return self.generations.current.model

    def status(self) -> InlineStatus:
        generations = self.generations
        agreement = tuple(depth.mean for depth in self.depths if depth.known)
        return InlineStatus(self.model_id, generations.current.source.version, generations.trouble, agreement)

    def load(self, message: Load) -> None:
        """Load weights while rounds go on, and give up earlier ones that no round has drafted with."""
        self.generations.retire(())
        self.generations.load(message)

    # --- before a round ----------------------------------------------------------------------------------------------

    def grow(self, streams: Sequence[Stream], allowance: Allowance) -> None:
        """``streams`` share the next forward, their trees hold what was retrieved, and no drafter works for them."""
        began = self.timer()
        until = began + allowance.room_us / 1e6
        self._renew()
        trees = [tree for stream in streams if (tree := self._read(stream, allowance, until)) is not None]
        for tree in trees:
            tree.begin(allowance.least)
        for step in itertools.count():
            begin = self.timer()
            batch = self._worthwhile(trees, allowance)
            if not batch or self.steps(len(batch)) > (until - self.timer()) * 1e6:
                if step == 0:
                    self.steps.drift()
                break
            if not self._expand(batch, allowance.now_us + (begin - began) * 1e6):
                break

    def judged_as(self, stream: Stream) -> str:
        return "" if stream.suspect else self.name

    def able(self, stream: Stream, allowance: Allowance) -> bool:
        """Whether it can draft for the stream: it has read its text, or that repays."""
        self._renew()
        if self._failures >= MAX_FAILURES or stream in self._unable:
            return False
        tree = self._trees.get(stream)
        missing = len(stream.text) if tree is None else tree.missing
        return missing <= UNREAD or self._repays(stream, missing, allowance)

    def _renew(self) -> None:
        """Forget what is known of the weights before, if others have taken their place."""
        if self._weights is not self.generations.current:
            for tree in self._trees.values():
                tree.leave()
            self._weights, self._trees, self._unable, self._failures = self.generations.current, {}, set(), 0
            self.generations.retire(())

    def _read(self, stream: Stream, allowance: Allowance, until: float) -> InlineTree | None:
        """The tree of a stream, once the model has read its text. ``until``: when the round's drafting is over."""
        tree, model = self._trees.get(stream), self.model
        if tree is not None:
            self._opened(tree)  # a stream that was preempted has another request at the target
            if not tree.catch_up():
                self._lose([tree])
        if self._failures >= MAX_FAILURES or stream in self._unable:
            return None
        if tree is None and (not allowance.reads or (tree := self._open(stream)) is None):
            return None
        tree.missing = model.missing(tree.handle)
        if tree.missing <= UNREAD:
            return tree
        if not allowance.reads:
            return None
        begin = self.timer()
        tokens = int(min(tree.missing, SLICE, (until - begin) * 1e6 / self.read_us.mean))
        if tokens <= 0:
            return None
        try:
            model.prefill(tree.handle, tokens)
        except Exception as error:
            self._fail([tree], error)
            return None
        spent_us = (self.timer() - begin) * 1e6
        self.read_us.add_time(spent_us / tokens, weight=tokens)
        stream.times.spent_us["reading"] += spent_us
        tree.missing -= tokens
        return None if tree.missing else tree

    def _repays(self, stream: Stream, missing: int, allowance: Allowance) -> bool:
        """Whether reading the ``missing`` tokens saves more time than it takes: a text is expected to go on for as long
        as it has, or for a short answer's length."""
        gain = allowance.gain(stream, self.name)
        left = min(stream.text.left, max(SHORT_ANSWER, stream.text.written))
        saved = left * min(1.0, max(0.0, 1.0 - 1.0 / max(gain, 1e-3)))
        if allowance.rate * missing * self.read_us.mean < saved:
            return True
        self.read_us.add(self._usual_read_us)  # as CostModel.drift
        return False

    def _fail(self, trees: Iterable[InlineTree], error: Exception) -> None:
        """A draft model that fails costs its drafts, and nothing else."""
        if isinstance(error, ModelError):  # what it computes makes no sense, and will not
            self._failures = MAX_FAILURES
            self.generations.trouble = clipped(f"{self.model_id} drafts no more: {error}")
            log.error("texts go on without drafts between forwards: %s", self.generations.trouble)
        else:
            self._failures += 1
            log.error("requests go on without drafts: the draft model failed", exc_info=error)
        self._lose(trees)

    def _lose(self, trees: Iterable[InlineTree]) -> None:
        """The model cannot mirror their texts any more."""
        for tree in trees:
            self._unable.add(tree.stream)
            self._weights.mirrors.close(self._trees.pop(tree.stream).handle)

    def _open(self, stream: Stream) -> InlineTree | None:
        text, sampling, weights = stream.text, stream.text.sampling, self._weights
        try:
            handle = weights.mirrors.open(text.committed, text.prompt_len, sampling, stream.scope)
        except (PoolFull, CannotDraft):
            self._unable.add(stream)
            return None
        end = min(text.prompt_len + sampling.max_tokens, self.model.info.max_context)
        chances = TextCalibration(weights.calibrations[text.sampled])
        tree = self._trees[stream] = self.tree_of(stream, weights.model, handle, sampling.ends(self._eos), end, chances)
        self._opened(tree)
        return tree

    def _opened(self, tree: InlineTree) -> None:
        """For models that have to know the stream; before each round."""

    def _worthwhile(self, trees: Iterable[InlineTree], allowance: Allowance) -> list[tuple[InlineTree, Node]]:
        """The next step's leaves: those with a child worth a row, if all these children together repay the step."""
        found, held = [one for tree in trees for one in tree.promises()], list[float]()
        # together they bring no more than they promise
        if not found or sum([promise for promise, _, _ in found]) <= allowance.rate * self.steps(1):
            return []
        if len(found) > 1:
            found.sort(key=itemgetter(0), reverse=True)
            del found[MAX_SEQUENCES:]
        for tree in trees:
            held += tree.chances
        chances = sorted([*held, *[promise for promise, _, _ in found]], reverse=True)
        count, value = best_cut(chances, allowance.rows, allowance.row_rate)
        batch = [(tree, node) for promise, tree, node in found if promise >= chances[count - 1]] if count else []
        if not batch:
            return []
        held.sort(reverse=True)
        without = best_cut(held, allowance.rows, allowance.row_rate)[1]
        return batch if value - without > allowance.rate * self.steps(len(batch)) else []

    def _expand(self, batch: list[tuple[InlineTree, Node]], began_us: float) -> bool:
        """One draft step. Returns whether the model has not failed."""
        begin, model = self.timer(), self.model
        leaves = [Leaf.of(tree.handle, tree.tree, node) for tree, node in batch]
        # a root computes what its text misses as well
        missing = sum([model.missing(tree.handle) for tree, node in batch if node.parent is None])
        grown = {tree for tree, _ in batch}
        try:
            expansions = [expansion.within(self._vocab_size) for expansion in model.expand(leaves)]
        except Exception as error:
            self._fail(grown, error)
            return False
        self._failures = 0
        for (tree, node), expansion in zip(batch, expansions, strict=True):
            tree.expanded(node, expansion)
        spent_us = (self.timer() - begin) * 1e6
        self.steps.observe(len(leaves) + missing, spent_us)
        for tree in grown:
            tree.stream.times.spent_us[self.name] += spent_us / len(grown)
            tree.stream.loan.report([(round(began_us), round(spent_us))])
        return True

    # --- after a round -----------------------------------------------------------------------------------------------

    def learn(self, stream: Stream, committed: Committed) -> None:
        if (tree := self._trees.get(stream)) is not None:
            ranks = tree.committed(committed.root, committed.held, committed.tokens)
            for agreement, rank in zip(self.depths, ranks, strict=False):
                agreement.add(float(rank == 1))

    def end(self, stream: Stream) -> None:
        """Keep the computed text for the next turn."""
        self._renew()
        self._unable.discard(stream)
        if (tree := self._trees.pop(stream, None)) is not None:
            self._weights.mirrors.keep(tree.handle, stream.text.committed, stream.scope)
