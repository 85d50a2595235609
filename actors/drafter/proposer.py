"""A proposer with the interface of a draft model, so that a drafter process can retrieve its drafts.

It needs no torch and no weights; prompt lookup and longest matches need no tokenizer either, because they copy ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.datastore import Datastore, Retrieval
from actors.models import Expansion, Leaf, ModelInfo, common_prefix
from actors.own_text import LongestMatch, PromptLookup
from actors.proposals import ROOT, Proposal, Proposer, ProposerSession
from protocols.errors import ConfigError
from protocols.limits import MAX_INT
from protocols.messages import Sampling

AHEAD = 64  # tokens along one path: a drafter also drafts below earlier drafts
NOWHERE = -2  # index of a node that the proposal does not have


def build_proposer_draft(name: str) -> ProposerDraft:
    """The drafter by its name: ``pld``, ``sam`` or ``rest:DIR`` with a datastore. Raises ConfigError or ModelError."""
    kind, _, directory = name.partition(":")
    if kind == "rest" and directory:
        store = Datastore.open(directory)
        model_id = f"rest:{Path(directory).name}"
        info = ModelInfo(model_id, store.meta.vocab_size, MAX_INT, frozenset(), store.meta.tokenizer_digest)
        return ProposerDraft(Retrieval(store, tokens=24), info)
    if name == "pld":
        return ProposerDraft(PromptLookup(tokens=AHEAD), of_any_tokenizer(name))
    if name == "sam":
        return ProposerDraft(LongestMatch(tokens=AHEAD), of_any_tokenizer(name))
    raise ConfigError(f"{name!r} does not name a proposer; use pld, sam or rest:DIR")


def of_any_tokenizer(name: str) -> ModelInfo:
    """The facts of a drafter without a vocabulary of its own, which fits any target."""
    return ModelInfo(name, 0, MAX_INT, frozenset(), "")


@dataclass(slots=True)
class _Mirror:
    """One request."""

    session: ProposerSession
    text: list[int]  # committed
    read: int = 0  # tokens of it that the session has seen
    paths: dict[int, tuple[int, ...]] = field(default_factory=dict)  # tokens from below the root to a node, by slot
    below: dict[int, list[int]] = field(default_factory=dict)  # a node's children, best first, by its index
    proposal: Proposal | None = None  # continuation of the present text; None: not asked yet


class ProposerDraft:
    """A :class:`actors.models.DraftModel`. A leaf that is not in the proposal has no children."""

    taps: tuple[int, ...] = ()

    def __init__(self, proposer: Proposer, info: ModelInfo, scratch_slots: int = 256) -> None:
        self.proposer, self.info, self.scratch_slots = proposer, info, scratch_slots
        self._mirrors: dict[int, _Mirror] = {}
        self._next_handle = 0

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        self._next_handle += 1
        self._mirrors[self._next_handle] = _Mirror(self.proposer.open(()), list(prefix))
        return self._next_handle

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        """A session cannot forget: another text than a continuation is read from the beginning."""
        old = self._mirrors[handle]
        if common_prefix(old.text, prefix) >= old.read:
            self._mirrors[handle] = _Mirror(old.session, list(prefix), old.read)
        else:
            self._mirrors[handle] = _Mirror(self.proposer.open(()), list(prefix))

    def missing(self, handle: int) -> int:
        mirror = self._mirrors[handle]
        return max(0, len(mirror.text) - 1 - mirror.read)

    def prefill(self, handle: int, limit: int) -> None:
        mirror = self._mirrors[handle]
        self._read(mirror, mirror.read + limit)

    def _read(self, mirror: _Mirror, end: int) -> None:
        mirror.session.extend(mirror.text[mirror.read : end])
        mirror.read = max(mirror.read, min(end, len(mirror.text)))

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        return [self._expand(self._mirrors[leaf.handle], leaf) for leaf in leaves]

    def _expand(self, mirror: _Mirror, leaf: Leaf) -> Expansion:
        slot = ROOT
        path: tuple[int, ...] = ()
        if not leaf.is_root:
            path = (*(mirror.paths[leaf.path[-1]] if leaf.path else ()), leaf.token)
            slot = next(s for s in range(self.scratch_slots) if s not in mirror.paths)
            mirror.paths[slot] = path
        if mirror.proposal is None:
            self._read(mirror, len(mirror.text))
            self._ask(mirror)
        assert mirror.proposal is not None
        tokens, scores = mirror.proposal.tokens, mirror.proposal.scores
        children = mirror.below.get(ROOT, [])
        for token in path:
            row = next((row for row in children if tokens[row] == token), NOWHERE)
            children = mirror.below.get(row, [])
        return Expansion(slot, tuple(tokens[row] for row in children), tuple(scores[row] for row in children))

    def _ask(self, mirror: _Mirror) -> None:
        proposal = mirror.proposal = mirror.session.propose(AHEAD)
        mirror.below = {}
        for row, parent in enumerate(proposal.parents):
            mirror.below.setdefault(parent, []).append(row)
        for rows in mirror.below.values():
            rows.sort(key=lambda row: -proposal.scores[row])

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        mirror = self._mirrors[handle]
        mirror.text.extend(tokens)
        mirror.proposal = None
        self.release(handle, slots)
        taken, count = tuple(tokens), len(tokens)
        for slot, path in mirror.paths.items():
            mirror.paths[slot] = path[count:] if path[:count] == taken else (NOWHERE,)  # about to be released

    def release(self, handle: int, slots: Sequence[int]) -> None:
        paths = self._mirrors[handle].paths
        for slot in slots:
            paths.pop(slot, None)

    def close(self, handle: int) -> None:
        self._mirrors.pop(handle, None)
