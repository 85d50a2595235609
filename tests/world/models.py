"""Languages, and fake models of them: a target and a draft that agree as often as they are told, and take as long."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from actors.cost import Curve
from actors.models import RENDERING, Constraint, Expansion, Leaf, ModelInfo, Outcome, Vocabulary, Window, common_prefix
from actors.tree.accept import walk
from protocols.errors import PoolFull
from protocols.messages import ChatTurn, Rendering, Sampling, TokenLogprobs

VOCAB = 64
EOS = 1
INFO = ModelInfo("toy", VOCAB, 4096, frozenset({EOS}), "toy-tokenizer")
Guesses = tuple[tuple[int, ...], tuple[float, ...]]  # tokens, best first, and the draft's probabilities of them


class Broken(RuntimeError):
    """A forward failed, as it was asked to."""


class Language(Protocol):
    def next(self, context: Sequence[int], sampling: Sampling) -> int:
        """The target's token behind ``context``."""
        ...

    def guesses(self, context: Sequence[int], sampling: Sampling, skill: float) -> Guesses:
        """The draft's, whose first is right with probability ``skill`` as long as the context is the target's own."""
        ...


# --- languages -------------------------------------------------------------------------------------------------------


def draw(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True)
class ToyLanguage:
    """The next token is a function of the last three tokens, the position and, above temperature 0, the seed."""

    eos_rate: float = 0.0

    def next(self, context: Sequence[int], sampling: Sampling) -> int:
        noise = (sampling.seed, len(context), sampling.temperature) if sampling.temperature > 0 else ()
        if draw("eos", tuple(context[-3:]), noise) < self.eos_rate:
            return EOS
        return 2 + int(draw(tuple(context[-3:]), noise) * (VOCAB - 2))

    def guesses(self, context: Sequence[int], sampling: Sampling, skill: float) -> Guesses:
        truth = self.next(context, sampling)
        other, third = _others(truth, 5, 11)
        lucky = draw("skill", tuple(context[-4:]), len(context)) < skill
        return (truth, other, third) if lucky else (other, truth, third), (0.7, 0.2, 0.05)

    def continuation(self, prompt: Sequence[int], sampling: Sampling) -> list[int]:
        """What decoding one token at a time gives: the truth of every equality test."""
        out: list[int] = []
        while len(out) < sampling.max_tokens:
            out.append(self.next([*prompt, *out], sampling))
            if (out[-1] == EOS and not sampling.ignore_eos) or out[-1] in sampling.stop_token_ids:
                break
        return out


@dataclass(frozen=True)
class Texts:
    """Written texts: whatever is decoded with whatever drafts, the same positions have the same token and luck.

    A prompt's first token names its text. The temperature has texts of its own, in which less repeats itself."""

    length: int = 4000
    copied: tuple[float, float] = (0.2, 0.05)  # share of a text that repeats an earlier stretch: greedy, sampled
    boast: float = 0.0  # how much surer the draft is than right
    vocab: int = VOCAB

    def next(self, context: Sequence[int], sampling: Sampling) -> int:
        return self.text(context[0], sampling.temperature > 0).tokens[len(context)]

    def prompt(self, number: int, length: int, temperature: float) -> tuple[int, ...]:
        return self.text(2 + number, temperature > 0).tokens[:length]

    def guesses(self, context: Sequence[int], sampling: Sampling, skill: float) -> Guesses:
        text, at = self.text(context[0], sampling.temperature > 0), len(context)
        return text.guesses(at, text.tokens[:at] == tuple(context), skill, self.boast, self.vocab)

    def text(self, name: int, sampled: bool) -> Text:
        return _written(name, sampled, self.length, self.copied[sampled], self.vocab)


@dataclass(frozen=True)
class Text:
    tokens: tuple[int, ...]
    luck: tuple[float, ...]  # the draft's at each position
    sure: tuple[float, ...]

    def guesses(self, at: int, right: bool, skill: float, boast: float = 0.0, vocab: int = VOCAB) -> Guesses:
        """``right``: what stands before that position is this text."""
        likely = skill + 0.8 * min(skill, 1 - skill) * self.sure[at]
        second = 0.5 * (1 - likely) if skill else 0.0
        said = min(0.97, max(0.05, likely + boast))
        truth = self.tokens[at]
        wrong = _others(truth, 7, 14, 21, vocab=vocab)
        luck = self.luck[at] if right else 1.0
        if luck < likely:
            tokens = (truth, *wrong[:2])
        else:
            tokens = (wrong[0], truth, wrong[1]) if luck < likely + second else wrong
        return tokens, (said, 0.5 * (1 - said), 0.2 * (1 - said))


@lru_cache(maxsize=256)
def _written(name: int, sampled: bool, length: int, copied: float, vocab: int) -> Text:
    chance = random.Random(f"{name} {sampled}")
    tokens = [name]
    while len(tokens) < length:
        count = chance.randrange(8, 41)
        if chance.random() < copied and len(tokens) > 100:
            begin = chance.randrange(len(tokens) - count)
            tokens += tokens[begin : begin + count]
        else:
            tokens += [chance.randrange(2, vocab) for _ in range(count)]
    luck, sure = (tuple(chance.uniform(low, 1) for _ in range(length)) for low in (0, -1))
    return Text(tuple(tokens[:length]), luck, sure)


def _others(truth: int, *steps: int, vocab: int = VOCAB) -> tuple[int, ...]:
    return tuple(2 + (truth + step - 2) % (vocab - 2) for step in steps)


# --- what models take ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Microseconds that computing takes."""

    forward: float = 10_000.0  # the target's, one row
    row: float = 100.0  # each further one
    stream: float = 0.0  # ... and each stream beside the first, in addition
    prompt_row: float = 0.0  # each row of a prompt; 0: prompts take no time
    sight: float = 0.0  # each token that a prompt's row sees
    lent: float = 1.0  # factor on all of it, with the CPUs of drafters that rest
    code: float = 150.0  # rest of a round, outside the forward
    step: float = 500.0  # the draft's, one leaf
    leaf: float = 75.0  # each further one
    read: float = 0.0  # each token of a text that the draft has not seen
    jitter: float = 0.03
    curve: tuple[tuple[int, float], ...] = ()  # the target's, by rows; (): a straight line

    def rows(self, count: int) -> float:
        """One stream's forward."""
        return Curve(dict(self.curve))(count) if self.curve else self.forward + self.row * (count - 1)

    def steps(self, leaves: int) -> float:
        return self.step + self.leaf * (leaves - 1)


class Timer(Protocol):
    """Where models compute: a process, or a thread of one."""

    def compute(self, seconds: float) -> None: ...


class Watch:
    """What models have spent computing, in seconds; where that goes, and how much it scatters."""

    def __init__(self, where: Timer, seed: int = 0, jitter: float = 0.0) -> None:
        self.where, self.jitter, self.chance = where, jitter, random.Random(seed)
        self.spent_s = 0.0

    def __call__(self) -> float:
        return self.spent_s

    def spend(self, took_us: float, code_us: float = 0.0) -> None:
        """``code_us``: beside what is measured."""
        took_s = took_us * self.chance.uniform(1 - self.jitter, 1 + self.jitter) / 1e6
        self.spent_s += took_s
        self.where.compute(took_s + code_us / 1e6)


# --- models ----------------------------------------------------------------------------------------------------------


@dataclass
class ToyTarget:
    """See :class:`actors.models.TargetModel`."""

    language: Language = field(default_factory=ToyLanguage)
    slots: int = 1 << 14
    max_window: int = 63
    info: ModelInfo = INFO
    rows_agree: tuple[int, ...] = (1, 2, 4, 8, 16)
    branches: bool = True
    mixes_prompts: bool = False
    broken: bool = False  # every forward fails
    poison: int = -1  # forwards fail for texts that begin with this token
    caches: bool = False  # prompts are found again, token by token
    ahead: int = 0  # slots beside its text that a request takes; 0: it takes all that its text may become
    chunk: int = 0  # tokens of a prompt in a forward, at most; 0: all
    costs: Costs | None = None  # None: nothing takes time
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.known: list[tuple[str, list[int]]] = []  # salt and prompt
        self.reused: dict[int, int] = {}
        self.open_requests: dict[int, tuple[list[int], Sampling, int]] = {}
        self.unread: dict[int, int] = {}  # tokens of prompts that no forward has seen
        self.constraints: dict[int, Constraint] = {}
        self.next_handle = 0
        self.rounds = 0
        self.batches: list[list[int]] = []  # handles in each round
        self.lent = False

    @property
    def kv_slots(self) -> int:
        return self.slots

    @property
    def kv_used(self) -> int:
        return sum(room for _, _, room in self.open_requests.values())

    kv_cached = 0
    given_back = 0  # times that it was asked to

    def give_back(self) -> None:
        self.given_back += 1

    @property
    def has_spare_cpus(self) -> bool:
        return self.costs is not None and self.costs.lent < 1

    def use_spare_cpus(self, used: bool) -> None:
        self.lent = used

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = 0,
        cache_salt: str = "",
        constraint: Constraint | None = None,
    ) -> int:
        known = len(prompt) + (len(generated) + self.ahead if self.ahead else sampling.max_tokens)
        room = min(known, len(prompt) + sampling.max_tokens)
        if self.kv_used + room > self.slots:
            raise PoolFull(f"{room} tokens do not fit into {self.slots} KV slots")
        self.next_handle += 1
        self.open_requests[self.next_handle] = ([*prompt, *generated], sampling, room)
        common = [common_prefix(known, prompt[:-1]) for salt, known in self.known if salt == cache_salt]
        self.reused[self.next_handle] = max(common, default=0) if self.caches else 0
        self.unread[self.next_handle] = len(prompt) + len(generated) - self.reused[self.next_handle]
        if self.caches:
            self.known.append((cache_salt, list(prompt)))
        if constraint is not None:
            self.constraints[self.next_handle] = constraint
        return self.next_handle

    def reserve(self, handle: int) -> None:
        context, sampling, room = self.open_requests[handle]
        if not self.ahead or len(context) + self.ahead // 2 <= room:
            return
        if self.kv_used - room + len(context) + self.ahead > self.slots:
            raise PoolFull("no room to grow")
        self.open_requests[handle] = (context, sampling, len(context) + self.ahead)

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        rows = self._piece(handle, limit)
        if self.costs is not None:
            self._spend([], self._reading_us(handle, rows))
        return self._read(handle, rows)

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        return self._verify(windows, 0.0)

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        rows = self._piece(handle, limit)
        return self._verify(windows, self._reading_us(handle, rows)), self._read(handle, rows)

    def close(self, handle: int) -> None:
        del self.open_requests[handle], self.unread[handle]
        self.constraints.pop(handle, None)

    def _verify(self, windows: Sequence[Window], reading_us: float) -> list[Outcome]:
        self.rounds += 1
        self.batches.append([w.handle for w in windows])
        if self.costs is not None:
            self._spend(windows, reading_us)
        if self.broken or any(self.open_requests[w.handle][0][0] == self.poison for w in windows):
            raise Broken("the toy target broke, as asked")
        return [self._walked(w) for w in windows]

    def _piece(self, handle: int, limit: int | None) -> int:
        """How many rows of a prompt the next forward has."""
        return min(self.unread[handle], limit or self.chunk, self.chunk) if self.chunk else self.unread[handle]

    def _read(self, handle: int, rows: int) -> Outcome | None:
        if self.broken:
            raise Broken("the toy target broke, as asked")
        self.unread[handle] -= rows
        if self.unread[handle] > 0:
            return None
        outcome = self._walked(Window(handle))
        outcome.reused = self.reused[handle]
        return outcome

    def _reading_us(self, handle: int, rows: int) -> float:
        """The time of a piece of a prompt, beside its forward."""
        costs, seen = self.costs or Costs(), len(self.open_requests[handle][0]) - self.unread[handle]
        return rows * (costs.prompt_row + costs.sight * (seen + rows / 2))

    def _spend(self, windows: Sequence[Window], reading_us: float) -> None:
        costs, streams, rows = self.costs, len(windows), sum(1 + len(window.tokens) for window in windows)
        assert costs is not None and self.watch is not None
        took = costs.rows(rows) + costs.stream * (streams - 1) if streams else costs.forward * bool(costs.prompt_row)
        self.watch.spend((took + reading_us) * (costs.lent if self.lent else 1.0), costs.code)

    def _walked(self, window: Window) -> Outcome:
        context, sampling, _ = self.open_requests[window.handle]
        assert len(window.tokens) <= self.max_window
        paths: list[list[int]] = []
        for token, parent in zip(window.tokens, window.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        sampled = [self.language.next([*context, *path], sampling) for path in [[], *paths]]
        if (constraint := self.constraints.get(window.handle)) is not None:
            rows = constraint.masks(window.tokens, window.parents).tolist()
            sampled = [_allowed(row, token, self.info) for row, token in zip(rows, sampled, strict=True)]
        path, final = walk(window.tokens, window.parents, sampled)
        tokens = [*(window.tokens[i] for i in path), final]
        context.extend(tokens)
        logprobs = [TokenLogprobs(-0.5) for _ in tokens] if sampling.logprobs >= 0 else []
        return Outcome(path, tokens, logprobs, sampled)


def _allowed(mask: Sequence[int], token: int, info: ModelInfo) -> int:
    """The first token from ``token`` on that a constraint allows; ``token`` where it allows none."""
    around = ((token + step) % info.vocab_size for step in range(info.vocab_size))
    return next((one for one in around if mask[one // 32] >> one % 32 & 1), token)


@dataclass
class ToyDraft:
    """See :class:`actors.models.DraftModel`."""

    taps: ClassVar[tuple[int, ...]] = ()
    language: Language = field(default_factory=ToyLanguage)
    skill: float = 0.8
    scratch_slots: int = 64
    info: ModelInfo = INFO
    rooms: int = 64
    costs: Costs | None = None  # None: nothing takes time
    watch: Watch | None = None
    reads: bool = False  # texts have to be read, as they do where that takes time

    def __post_init__(self) -> None:
        self.reads |= self.costs is not None
        self.tokens_read = 0
        self.contexts: dict[int, tuple[list[int], Sampling]] = {}
        self.paths: dict[int, dict[int, list[int]]] = {}  # handle -> slot -> tokens below the root
        self.seen: dict[int, int] = {}  # tokens computed
        self.next_handle = 0

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        if len(self.contexts) >= self.rooms:
            raise PoolFull("no room")
        self.next_handle += 1
        self.contexts[self.next_handle] = (list(prefix), sampling)
        self.paths[self.next_handle], self.seen[self.next_handle] = {}, 0
        return self.next_handle

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        self.seen[handle] = min(self.seen[handle], common_prefix(self.contexts[handle][0], prefix))
        self.contexts[handle], self.paths[handle] = (list(prefix), sampling), {}

    def missing(self, handle: int) -> int:
        return max(0, len(self.contexts[handle][0]) - 1 - self.seen[handle]) if self.reads else 0

    def prefill(self, handle: int, limit: int) -> None:
        self._spend(0, self._read(handle, limit))

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        roots = [leaf.handle for leaf in leaves if leaf.is_root]
        self._spend(len(leaves), sum(self._read(handle, self.missing(handle)) for handle in roots))
        out: list[Expansion] = []
        for leaf in leaves:
            context, sampling = self.contexts[leaf.handle]
            if leaf.is_root:
                assert leaf.token == context[-1], "the root is the last committed token"
                self.seen[leaf.handle] = len(context)
                path, slot = [], -1
            else:
                paths, above = self.paths[leaf.handle], leaf.path
                path = [*(paths[above[-1]] if above else []), leaf.token]
                slot = next(s for s in range(self.scratch_slots + 1) if s not in paths)
                assert slot < self.scratch_slots, "the lease asked for more slots than there are"
                paths[slot] = path
            out.append(Expansion(slot, *self.language.guesses([*context, *path], sampling, self.skill)))
        return out

    def _read(self, handle: int, limit: int) -> int:
        """Returns how many tokens were unread."""
        tokens = min(limit, self.missing(handle))
        self.seen[handle] += tokens
        self.tokens_read += tokens
        return tokens

    def _spend(self, leaves: int, read: int) -> None:
        if self.costs is not None and self.watch is not None:
            self.watch.spend((self.costs.steps(leaves) if leaves else 0.0) + read * self.costs.read)

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        context, paths = self.contexts[handle][0], self.paths[handle]
        for position, slot in enumerate(slots, len(context)):
            self.seen[handle] += slot >= 0 and self.seen[handle] == position
            if slot >= 0:
                del paths[slot]
        context.extend(tokens)
        for slot, path in paths.items():
            paths[slot] = path[len(tokens) :] if path[: len(tokens)] == list(tokens) else [-1]

    def release(self, handle: int, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.paths[handle][slot]

    def close(self, handle: int) -> None:
        del self.contexts[handle], self.paths[handle], self.seen[handle]


class ToyCodec:
    """Token i is the character chr(63 + i)."""

    def encode(self, text: str, special_tokens: bool = True, context: int = 0) -> list[int]:
        return [max(0, ord(c) - 63) for c in text]

    def chat(
        self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING, context: int = 0
    ) -> list[int]:
        return self.encode("".join(turn.content for turn in turns))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(63 + i) for i in ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.decode([i]) for i in ids]

    def octets(self, ids: Sequence[int]) -> list[bytes]:
        return [b""] * len(ids)

    def config(self) -> dict[str, Any]:
        return {"tokenizer_class": "Toy", "eos_token": chr(63 + EOS)}

    def vocabulary(self) -> Vocabulary:
        return Vocabulary([chr(63 + i).encode() for i in range(VOCAB)], [EOS])

    def encode_inside(self, text: str) -> list[int]:
        return [ord(letter) - 63 for letter in text]
