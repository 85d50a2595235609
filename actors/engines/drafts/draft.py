"""The drafter's model on top of an engine: it mirrors committed texts and expands the leaves of trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from torch import Tensor

from actors.engines.cache.pool import RegionAllocator
from actors.engines.drafts.mirror import Mirror
from actors.engines.drafts.ranking import Candidates, Row, choices_of, rank
from actors.engines.engine import DraftEngine
from actors.engines.flat_batch import SPAN, FlatBatch, align
from actors.engines.sampling.sampler import SamplerState
from actors.models import Expansion, Leaf, ModelInfo, common_prefix
from protocols.errors import CannotDraft, PoolFull
from protocols.messages import Sampling

CHUNK = 256  # most committed tokens that are computed in one forward
SCRATCH = 2 * SPAN  # expanded tree nodes of one request


@dataclass(slots=True)
class LeafBatch(FlatBatch):
    """A forward that expands leaves."""

    wanted: list[int] = field(default_factory=list)  # rows of the batch with candidates
    rows: list[Row] = field(default_factory=list)  # facts to rank each row by
    taken: list[tuple[Mirror, int]] = field(default_factory=list)  # scratch slots, to be given back if it fails
    roots: list[Mirror] = field(default_factory=list)  # mirrors that it computes as a whole
    owners: list[Mirror] = field(default_factory=list)  # each segment's, where layers are recurrent


class Draft:
    """A :class:`actors.models.DraftModel`. One compute thread owns it."""

    kind: type[Mirror] = Mirror
    first_row = 0  # the first token that it computes

    scratch_slots = SCRATCH

    def __init__(self, engine: DraftEngine, candidates: int = 8) -> None:
        """``candidates``: how many children an expansion names."""
        self.engine = engine
        self._covered = engine.draft_vocabulary
        columns = engine.info.vocab_size if self._covered is None else len(self._covered)
        self.candidates = min(candidates, columns)
        self._allocator = RegionAllocator(engine.pool.slots)
        self._mirrors: dict[int, Mirror] = {}
        self._next_handle = 0

    @staticmethod
    def full_request(max_context: int) -> int:
        """Slots of a request that fills the whole context."""
        return SCRATCH + align(max_context)

    @property
    def taps(self) -> tuple[int, ...]:
        return ()

    @property
    def info(self) -> ModelInfo:
        return self.engine.info

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        """See :class:`actors.models.DraftModel`. Reserves room for ``prompt_len + max_tokens`` tokens, or for the
        draft's own context if that is shorter."""
        self._check(prefix, len(prefix))
        sampler = self._sampler(prefix, prompt_len, sampling)
        room = self._room(prefix, prompt_len, sampling)
        base = self._allocator.alloc(SCRATCH + room)
        self._next_handle += 1
        self._mirrors[self._next_handle] = self.kind(base, SCRATCH, room, sampler, prefix)
        return self._next_handle

    def _sampler(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> SamplerState:
        """The sampler of a text. Biases of tokens that the draft does not know are left out."""
        known = tuple((token, bias) for token, bias in sampling.logit_bias if token < self.info.vocab_size)
        if len(known) < len(sampling.logit_bias):
            sampling = replace(sampling, logit_bias=known)
        return SamplerState(sampling, prefix[:prompt_len], prefix[prompt_len:])

    def _room(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        room = min(max(len(prefix) + 1, prompt_len + sampling.max_tokens), self.info.max_context)
        return align(room)

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        """See :class:`actors.models.DraftModel`. A mirror that needs more room than it has grows in place, or moves."""
        old = self._mirrors[handle]
        self._check(prefix, len(prefix))
        sampler = self._sampler(prefix, prompt_len, sampling)
        base, room = old.base, max(old.room, self._room(prefix, prompt_len, sampling))
        computed = min(old.computed, common_prefix(old.tokens, prefix))
        if room > old.room and not self._allocator.resize(base, SCRATCH + room):
            base = self._allocator.alloc(SCRATCH + room)
            self.engine.pool.duplicate(old.home, base + SCRATCH, computed)
            self._allocator.free(old.base)
        self._mirrors[handle] = mirror = self.kind(base, SCRATCH, room, sampler, prefix)
        mirror.computed = computed

    def missing(self, handle: int) -> int:
        mirror = self._mirrors[handle]
        return max(0, mirror.length - 1 - mirror.computed)

    def close(self, handle: int) -> None:
        mirror = self._mirrors.pop(handle, None)
        if mirror is not None:
            self._allocator.free(mirror.base)

    def release(self, handle: int, slots: Sequence[int]) -> None:
        """See :class:`actors.models.DraftModel`. Slots that are free already, as those of committed tokens, are
        ignored."""
        mirror = self._mirrors[handle]
        for slot in slots:
            mirror.give_back(slot)

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        m = self._mirrors[handle]
        self._check(tokens, m.length + len(tokens))
        if m.length + len(tokens) > m.room:
            raise PoolFull("the committed text has outgrown the slots reserved for it; open the request again")
        home = m.home
        source: list[int] = []
        target: list[int] = []
        for position, slot in enumerate(slots, m.length):
            if slot < 0:
                continue
            if m.computed == position:  # after a gap it has no use: the next expansion of the root computes the rest
                source.append(m.base + slot)
                target.append(home + position)
                m.computed += 1
            m.give_back(slot)
        if source:
            self.engine.pool.copy(source, target)
        m.tokens.extend(tokens)
        m.length += len(tokens)
        m.sampler.append(tokens)

    def _check(self, tokens: Sequence[int], length: int) -> None:
        """Raise CannotDraft if the model has no embedding for one of ``tokens``, or no ``length`` positions."""
        info = self.info
        if length > info.max_context:
            raise CannotDraft(
                f"the text has {length} tokens and the context of draft model {info.model_id} holds {info.max_context}"
            )
        for token in (max(tokens, default=0), min(tokens, default=0)):
            if not 0 <= token < info.vocab_size:
                raise CannotDraft(
                    f"the text holds token {token} and draft model {info.model_id} knows {info.vocab_size} tokens"
                )

    def prefill(self, handle: int, limit: int) -> None:
        """See :class:`actors.models.DraftModel`. One forward computes ``CHUNK`` tokens at most."""
        m = self._mirrors[handle]
        goal = min(m.computed + limit, m.length)
        while m.computed < goal:
            start, end = m.computed, min(m.computed + CHUNK, goal)
            m.add_text(batch := FlatBatch(), start, end)
            self.engine.forward(batch, [end - start - 1])
            m.text_computed(end)

    # --- expansion ---------------------------------------------------------------------------------------------------

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        groups: dict[int, list[int]] = {}
        for index, leaf in enumerate(leaves):
            if leaf.is_root or self._mirrors[leaf.handle].length + 1 + len(leaf.path) <= self.info.max_context:
                groups.setdefault(leaf.handle, []).append(index)
        expansions = [Expansion(-1, (), ())] * len(leaves)  # leaves beyond the context get none
        if not groups:
            return expansions
        batch = LeafBatch()
        try:
            for handle, members in groups.items():
                if leaves[members[0]].is_root:
                    self._add_root(batch, handle, members[0])
                    members = members[1:]
                else:
                    self.prefill(handle, self.missing(handle) + 1)
                if members:
                    self._add_nodes(batch, handle, members, leaves)
            select = None if len(batch.wanted) == len(batch.tokens) else batch.wanted
            candidates = self._candidates(batch, select)
        except BaseException:
            for mirror, slot in batch.taken:
                mirror.give_back(slot)
            raise
        for mirror in batch.roots:
            mirror.computed = mirror.length
        for row, (ids, probs) in zip(batch.rows, candidates, strict=True):
            expansions[row.index] = Expansion(row.slot, tuple(ids), tuple(probs))
        return expansions

    def _candidates(self, batch: LeafBatch, select: list[int] | None) -> list[Candidates]:
        """The candidates of each wanted row, best first, with the draft's confidence in each."""
        if not any(row.sampler.penalised for row in batch.rows):
            picks = self.engine.pick(batch, select, choices_of(batch.rows), self.candidates)
            if picks is not None:
                return list(zip(picks.ids.tolist(), picks.probabilities.tolist(), strict=True))
        return self._ranked(self.engine.forward(batch, select), batch.rows)

    def _ranked(self, logits: Tensor, rows: Sequence[Row]) -> list[Candidates]:
        return rank(logits[:, : self.info.vocab_size], rows, self.candidates, self._covered)

    def _add_root(self, batch: LeafBatch, handle: int, index: int) -> None:
        """Add the committed tokens that are not computed, up to the root; all but the last ``CHUNK`` are computed
        before. ``index``: of the root among the leaves."""
        m = self._mirrors[handle]
        self.prefill(handle, self.missing(handle) + 1 - CHUNK)
        m.add_text(batch, min(m.computed, m.length - 1), m.length)
        batch.wanted.append(len(batch.tokens) - 1)
        batch.rows.append(Row(index, -1, m.sampler, m.length, []))
        batch.roots.append(m)

    def _add_nodes(self, batch: LeafBatch, handle: int, members: Sequence[int], leaves: Sequence[Leaf]) -> None:
        """Add leaves of one request, each in a new scratch slot. ``members``: their indices among all ``leaves``."""
        m = self._mirrors[handle]
        taken: list[int] = []
        paths: dict[int, tuple[int, ...]] = {}  # slots of the ancestors of a member and its own
        for index in members:
            leaf = leaves[index]
            slot = m.take(leaf.token)
            taken.append(slot)
            batch.taken.append((m, slot))
            paths[index] = (*leaf.path, slot)
        batch.wanted += range(len(batch.tokens), len(batch.tokens) + len(taken))
        positions = [m.length + len(paths[index]) - 1 for index in members]
        base, visible = m.view([*paths.values()])
        slots = [m.base + slot for slot in taken]
        batch.add(base, [leaves[index].token for index in members], positions, slots, visible)
        for index, slot, position in zip(members, taken, positions, strict=True):
            path = [m.held[above] for above in paths[index]] if m.sampler.penalised else []
            batch.rows.append(Row(index, slot, m.sampler, position + 1, path))

    # --- replay ------------------------------------------------------------------------------------------------------

    def along(self, prompt: Sequence[int], text: Sequence[int], sampling: Sampling) -> Iterator[list[Candidates]]:
        """What expanding the root would have named before each token of ``text``; ``CHUNK`` positions share a forward.

        Yields the candidates and confidences of each position, from the first on. It ends at the first position before
        which there is a text that this model cannot mirror.
        """
        before = self.mirrored([*prompt, *text[:-1]])
        if len(before) < len(prompt):
            return
        handle = self.open(before, len(prompt), sampling)
        try:
            yield from self.read_along(handle, len(prompt), sampling)
        finally:
            self.close(handle)

    def read_along(self, handle: int, prompt_len: int, sampling: Sampling) -> Iterator[list[Candidates]]:
        """:meth:`along` a text that is mirrored, but not computed."""
        m = self._mirrors[handle]
        sampler = self._sampler(m.tokens[:prompt_len], prompt_len, sampling)
        for start in range(self.first_row, m.length, CHUNK):
            end = min(start + CHUNK, m.length)
            wanted = range(max(start, prompt_len - 1), end)
            logits = self._read(m, start, end, [place - start for place in wanted] or [end - start - 1])
            if wanted:
                paths = [m.tokens[prompt_len : place + 1] if sampler.penalised else [] for place in wanted]
                rows = [Row(0, -1, sampler, place + 1, path) for place, path in zip(wanted, paths, strict=True)]
                yield self._ranked(logits, rows)

    def _read(self, m: Mirror, start: int, end: int, select: Sequence[int]) -> Tensor:
        """Compute these tokens; the logits of the rows ``select`` among them."""
        m.add_text(batch := FlatBatch(), start, end)
        logits = self.engine.forward(batch, select)
        m.text_computed(end)
        return logits

    def mirrored(self, text: list[int]) -> list[int]:
        """The longest beginning of a text that this model can mirror and draft after."""
        unknown = (place for place, token in enumerate(text) if not 0 <= token < self.info.vocab_size)
        return text[: min(next(unknown, len(text)), self.info.max_context - 1)]
