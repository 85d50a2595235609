"""A toy language and its models: the actors' logic is tested without torch, exactly and fast."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.datastore import Datastore, build
from actors.models import RENDERING, Expansion, Leaf, ModelInfo, Outcome, Window, common_prefix
from actors.tree.accept import walk
from actors.verifier.sources.lookup import Library
from protocols.errors import PoolFull
from protocols.messages import ChatTurn, Rendering, Sampling, TokenLogprobs

VOCAB = 64
EOS = 1


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

    def continuation(self, prompt: Sequence[int], sampling: Sampling) -> list[int]:
        """What decoding one token at a time gives: the truth of every equality test."""
        out: list[int] = []
        while len(out) < sampling.max_tokens:
            out.append(self.next([*prompt, *out], sampling))
            if (out[-1] == EOS and not sampling.ignore_eos) or out[-1] in sampling.stop_token_ids:
                break
        return out


INFO = ModelInfo("toy", VOCAB, 4096, frozenset({EOS}), "toy-tokenizer")


def toy_sources(directory, language: ToyLanguage, prompt: Sequence[int]) -> Library:
    """A datastore of greedy continuations of ``prompt``."""
    text = [*prompt, *language.continuation(prompt, Sampling(max_tokens=400, ignore_eos=True))]
    build(directory, [text, text[100:300], text[7:50]], VOCAB, INFO.tokenizer_digest)
    return Library(Datastore.open(directory, INFO.tokenizer_digest))


@dataclass
class ToyTarget:
    language: ToyLanguage = field(default_factory=ToyLanguage)
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

    def __post_init__(self) -> None:
        self.known: list[tuple[str, list[int]]] = []  # salt and prompt
        self.reused: dict[int, int] = {}
        self.open_requests: dict[int, tuple[list[int], Sampling, int]] = {}
        self.next_handle = 0
        self.rounds = 0
        self.batches: list[list[int]] = []  # handles in each round

    @property
    def kv_slots(self) -> int:
        return self.slots

    @property
    def kv_used(self) -> int:
        return sum(room for _, _, room in self.open_requests.values())

    kv_cached = 0

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = 0,
        cache_salt="",
        constraint=None,
    ) -> int:
        known = len(prompt) + (len(generated) + self.ahead if self.ahead else sampling.max_tokens)
        room = min(known, len(prompt) + sampling.max_tokens)
        if self.kv_used + room > self.slots:
            raise PoolFull(f"{room} tokens do not fit into {self.slots} KV slots")
        self.next_handle += 1
        self.open_requests[self.next_handle] = ([*prompt, *generated], sampling, room)
        common = [common_prefix(known, prompt[:-1]) for salt, known in self.known if salt == cache_salt]
        self.reused[self.next_handle] = max(common, default=0) if self.caches else 0
        self.known.append((cache_salt, list(prompt)))
        return self.next_handle

    def reserve(self, handle: int) -> None:
        context, sampling, room = self.open_requests[handle]
        if not self.ahead or len(context) + self.ahead // 2 <= room:
            return
        if self.kv_used - room + len(context) + self.ahead > self.slots:
            raise PoolFull("no room to grow")
        self.open_requests[handle] = (context, sampling, len(context) + self.ahead)

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        if self.broken:
            raise RuntimeError("the toy target broke, as asked")
        outcome = self._round(Window(handle))
        outcome.reused = self.reused[handle]
        return outcome

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        self.rounds += 1
        self.batches.append([w.handle for w in windows])
        if self.broken or any(self.open_requests[w.handle][0][0] == self.poison for w in windows):
            raise RuntimeError("the toy target broke, as asked")
        return [self._round(w) for w in windows]

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        outcomes = self.verify(windows)
        return outcomes, self.prefill(handle, limit)

    def _round(self, window: Window) -> Outcome:
        context, sampling, _ = self.open_requests[window.handle]
        assert len(window.tokens) <= self.max_window
        paths: list[list[int]] = []
        for token, parent in zip(window.tokens, window.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        sampled = [self.language.next([*context, *path], sampling) for path in [[], *paths]]
        path, final = walk(window.tokens, window.parents, sampled)
        tokens = [*(window.tokens[i] for i in path), final]
        context.extend(tokens)
        logprobs = [TokenLogprobs(-0.5) for _ in tokens] if sampling.logprobs >= 0 else []
        return Outcome(path, tokens, logprobs, sampled)

    def close(self, handle: int) -> None:
        del self.open_requests[handle]


@dataclass
class ToyDraft:
    """Agrees with the language with probability ``skill``; otherwise the truth is its second guess, or missing."""

    language: ToyLanguage = field(default_factory=ToyLanguage)
    skill: float = 0.8
    scratch_slots: int = 64
    info: ModelInfo = INFO
    rooms: int = 64

    def __post_init__(self) -> None:
        self.contexts: dict[int, tuple[list[int], Sampling]] = {}
        self.paths: dict[tuple[int, int], list[int]] = {}
        self.next_handle = 0

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        if len(self.contexts) >= self.rooms:
            raise PoolFull("no room")
        self.next_handle += 1
        self.contexts[self.next_handle] = (list(prefix), sampling)
        return self.next_handle

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        self.close(handle)
        self.contexts[handle] = (list(prefix), sampling)

    def missing(self, handle: int) -> int:
        return 0

    def prefill(self, handle: int, limit: int) -> None:
        raise AssertionError("nothing is ever missing")

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        out = []
        for leaf in leaves:
            context, sampling = self.contexts[leaf.handle]
            if leaf.is_root:
                assert leaf.token == context[-1], "the root is the last committed token"
                path, slot = [], -1
            else:
                path = [*(self.paths[leaf.handle, leaf.path[-1]] if leaf.path else []), leaf.token]
                used = {s for h, s in self.paths if h == leaf.handle}
                slot = next(s for s in range(self.scratch_slots + 1) if s not in used)
                assert slot < self.scratch_slots, "the lease asked for more slots than there are"
                self.paths[leaf.handle, slot] = path
            text = [*context, *path]
            truth = self.language.next(text, sampling)
            luck = draw("skill", tuple(text[-4:]), len(text))
            other = 2 + (truth + 5) % (VOCAB - 2)
            third = 2 + (truth + 11) % (VOCAB - 2)
            tokens = (truth, other, third) if luck < self.skill else (other, truth, third)
            out.append(Expansion(slot, tokens, (0.7, 0.2, 0.05)))
        return out

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        context, _ = self.contexts[handle]
        root = len(context)
        context.extend(tokens)
        for slot in slots:
            if slot >= 0:
                del self.paths[handle, slot]
        taken = len(context) - root
        for key, path in list(self.paths.items()):
            if key[0] == handle:
                self.paths[key] = path[taken:] if path[:taken] == list(tokens) else [-1]

    def release(self, handle: int, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.paths[handle, slot]

    def close(self, handle: int) -> None:
        del self.contexts[handle]
        for key in [k for k in self.paths if k[0] == handle]:
            del self.paths[key]


class ToyCodec:
    """Token i is the character chr(63 + i)."""

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        return [max(0, ord(c) - 63) for c in text]

    def chat(self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING) -> list[int]:
        return self.encode("".join(turn.content for turn in turns))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(63 + i) for i in ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.decode([i]) for i in ids]

    def octets(self, ids: Sequence[int]) -> list[bytes]:
        return [b""] * len(ids)
