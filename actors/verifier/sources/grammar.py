"""The grammars of requests as a source of drafts, which drops what they refuse, and adds the tokens that they force.

llguidance's index of the vocabulary is made once, for all of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from actors.models import Codec, ModelInfo, Vocabulary
from actors.verifier.constraints.grammar import ROUND_US, Grammar, translated
from actors.verifier.results import Committed
from actors.verifier.sources.bits import GRAMMAR
from actors.verifier.sources.source import Allowance, Source
from actors.verifier.streams import Stream
from protocols.errors import RequestError
from protocols.extras import install
from protocols.messages import FailureCode, StructuredOutputs

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Bytes of a forced text that are tokenized for a mask or a branch: a window of 31 tokens holds some 120. llguidance
# asks for the whole text, which may have 262,144, and takes its first token.
FORCED_BYTES = 256


class Grammars(Source):
    """Makes a request's :class:`Grammar`. As a source it is the last one: it drops drafts that the grammar refuses, and
    adds the tokens that it forces."""

    name, bit, binds = "grammar", GRAMMAR, True

    def __init__(self, codec: Codec, info: ModelInfo, timer: Callable[[], float] = time.thread_time) -> None:
        """``timer`` measures masks, in seconds of CPU time: a core that is busy with other things costs no request."""
        self._codec, self._info, self._timer = codec, info, timer
        self._tokenizer: LLTokenizer | None = None
        self._indexing = threading.Lock()

    def warm_up(self) -> None:
        """Index the vocabulary on a thread of its own, if grammars can be used at all. 262,000 entries take 1.5 s, of
        which llguidance holds the interpreter's lock for 0.8 s."""

        def index() -> None:
            with contextlib.suppress(RequestError):
                self._index()

        threading.Thread(target=index, name="vocabulary", daemon=True).start()

    def grammar(self, wanted: StructuredOutputs, generated: Sequence[int] = ()) -> Grammar:
        """The grammar of a request behind its output so far, ``generated``. Raises RequestError if it cannot be used.

        A big schema takes a second, nearly all of it without the interpreter's lock. One thread at a time may call."""
        grammar = Grammar(self._index(), translated(wanted), self._timer)
        grammar.commit(generated)
        return grammar

    def grow(self, streams: Sequence[Stream], allowance: Allowance) -> None:
        for stream in streams:
            if stream.grammar is not None and (row_us := stream.grammar.row_us()) > ROUND_US:
                raise RequestError(
                    FailureCode.BAD_REQUEST,
                    f"structured_outputs take {row_us / 1000:.0f} ms a token, in which other requests wait, and may "
                    f"take {ROUND_US / 1000:.0f}: use fewer alternatives, or shorter repeats",
                )
            # Lookahead's rows are no drafts: it learns from what the target makes of all of them.
            if stream.grammar is not None and stream.strategy.window != "root" and stream.method != "lookahead":
                stream.grammar.fit(stream.tree)

    def learn(self, stream: Stream, committed: Committed) -> None:
        if stream.grammar is not None:
            stream.grammar.commit(committed.tokens)

    def _index(self) -> LLTokenizer:
        try:
            import llguidance
        except ImportError:
            detail = f"structured_outputs need llguidance where the verifier runs: {install('structured')}"
            raise RequestError(FailureCode.UNSUPPORTED, detail) from None
        with self._indexing:
            if self._tokenizer is None:
                ends = sorted(self._info.eos_token_ids)
                if not ends:
                    detail = "structured_outputs need a target model that has an end-of-sequence token"
                    raise RequestError(FailureCode.UNSUPPORTED, detail)
                # Not from a tokenizer.json, which llguidance would parse for another 2 s, and without slices of the
                # vocabulary: they take 0.9 s for 262,000 entries, and no mask is the sooner for them.
                known = _ByTokens(self._codec, self._codec.vocabulary(), ends[0])
                wrapped = llguidance.TokenizerWrapper(known)
                self._tokenizer = known.index = llguidance.LLTokenizer(wrapped, self._info.vocab_size, ends, slices=[])
        return self._tokenizer


class _ByTokens:
    """A codec as llguidance takes a tokenizer."""

    def __init__(self, codec: Codec, vocabulary: Vocabulary, end: int) -> None:
        self._codec = codec
        # llguidance marks special tokens by 0xFF, a byte that no text has: a token of this byte is a special one to it
        marks = [ident for ident, token in enumerate(vocabulary.tokens) if token == b"\xff"]
        self.tokens = [token if token != b"\xff" else b"" for token in vocabulary.tokens]
        self.special_token_ids = [*vocabulary.special, *marks]
        self._special = frozenset(self.special_token_ids)
        self.eos_token_id, self.bos_token_id = end, None
        self.index: LLTokenizer | None = None  # made of this object

    def __call__(self, text: bytes) -> list[int]:
        """The tokenizer's own ids of a text, unless they spell another one: it takes the name of a special token for
        that token, and may normalise. Then the longest tokens that spell the text, from left to right."""
        spelt = text[:FORCED_BYTES].decode(errors="ignore")  # no half of a letter
        ids = self._codec.encode_inside(spelt)
        right = self._special.isdisjoint(ids) and b"".join(self.tokens[token] for token in ids) == spelt.encode()
        return ids if right or self.index is None else self.index.greedy_tokenize(spelt)
