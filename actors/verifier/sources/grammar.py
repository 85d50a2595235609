"""Structured outputs (a JSON schema, a regex or a grammar) as masks of allowed tokens, by llguidance.

A mask depends on the grammar and the output so far and on nothing else, so the text is the same with drafts as without.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from actors.estimate import Estimate
from actors.models import DEFAULT_NODES, ROOT, Codec, ModelInfo, Vocabulary
from actors.tree.tree import FORCED, Node, TokenTree
from actors.tree.window import best_nodes
from actors.verifier.results import Committed
from actors.verifier.sources.binding import Binding
from actors.verifier.sources.bits import GRAMMAR
from actors.verifier.sources.schemas import read_grammar, read_schema
from actors.verifier.sources.source import Allowance, Source
from protocols.errors import RequestError
from protocols.extras import install
from protocols.messages import FailureCode, StructuredOutputs

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

    from actors.verifier.streams import Stream

T = TypeVar("T")
# CPU time that one request's grammar may take of a round, in which other streams wait: for all masks of a window, for
# checks of drafts, and for one mask on average. A mask takes 0.01 to 0.2 ms, seldom 20.
ROUND_US = 50_000.0
# Bytes of a forced text that are tokenized for a mask or a branch: a window of 31 tokens holds some 120. llguidance
# asks for the whole text, which may have 262,144, and takes its first token.
FORCED_BYTES = 256
# What one grammar may take, in llguidance's units. With its default limits a regex such as a{1000000} computes for two
# seconds and holds 250,000 lexer states of 2 kB. With these it is refused after 0.3 s, and a schema of 2,000 properties
# with patterns still compiles.
FUEL = 400_000  # expressions of the lexer
STEP_FUEL = 100_000  # fuel for one mask: some 10 ms
DEAD_END = "NoExtensionBias"  # llguidance, where a grammar goes on and no token does
DEEP = "it is nested too deeply"
LEXER_STATES = 20_000
STACK_BYTES = 1 << 29  # address space: a chain of 20,000 rules, more than fit into a request, takes 100 MB
MAX_RULES = 1000  # rules of one grammar: reporting an error in a chain of 3,000 terminals takes llguidance a minute
RULE = re.compile(r"^[ \t]*[?!]?\w[^:\n]*:", re.MULTILINE)


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
        grammar = Grammar(self._index(), _translated(wanted), self._timer)
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


class Grammar(Binding):
    """One request's grammar, at its committed output.

    One thread at a time uses it: the event loop's or the target's."""

    def __init__(self, tokenizer: LLTokenizer, text: str, timer: Callable[[], float] = time.thread_time) -> None:
        super().__init__(tokenizer.vocab_size)
        self._tokenizer, self._text, self._timer = tokenizer, text, timer
        self._ends = frozenset(tokenizer.eos_tokens)
        self._matcher = self._compiled()
        self._unused = self._matcher.deep_copy()  # compiling it again could take a second of the event loop's
        self._mask_us = Estimate(100.0, weight=8)
        self._without_drafts = False  # because a draft has led the matcher into a state that it could not compute
        self._rows((), ())  # fails early for most grammars that are too complex; it takes 10 ms and is not measured

    # --- masks -------------------------------------------------------------------------------------------------------

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        began = self._timer()
        rows = self._rows(tokens, parents)
        self._mask_us.add((self._timer() - began) * 1e6 / len(rows))
        return rows

    def _rows(self, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.int32]:
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        matcher = self._matcher
        rows = allocate_token_bitmask(1 + len(tokens), self._tokenizer.vocab_size)
        fill_next_token_bitmask(matcher, rows, 0)
        if matcher.is_error():
            raise self._broken()
        paths: list[list[int] | None] = []  # tokens from the root to each node; None: refused, or the end
        here: list[int] = []
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            above: list[int] | None = [] if parent == ROOT else paths[parent]
            allowed = above is not None and rows[parent + 1, token >> 5] >> (token & 31) & 1
            path = [*above, token] if above is not None and allowed and token not in self._ends else None
            paths.append(path)
            if path is not None:
                self._move(here, path)
                here = path
                fill_next_token_bitmask(matcher, rows, node + 1)
                if matcher.is_error():
                    broken = self._broken()
                    self._restart()
                    raise broken
        matcher.rollback(len(here))
        return rows

    def _move(self, here: Sequence[int], there: Sequence[int]) -> None:
        """Move the matcher from one path below the root to another."""
        shared = 0
        while shared < min(len(here), len(there)) and here[shared] == there[shared]:
            shared += 1
        if shared < len(here):
            self._matcher.rollback(len(here) - shared)
        self._matcher.try_consume_tokens(list(there[shared:]))

    def row_us(self) -> float:
        """Microseconds of the mask of one row, as measured lately."""
        return self._mask_us.mean

    def most_nodes(self) -> int:
        """Largest window, with masks that take ``ROUND_US`` at most."""
        return 0 if self._without_drafts else int(ROUND_US / max(1.0, self._mask_us.mean))

    # --- drafts ------------------------------------------------------------------------------------------------------

    def fit(self, tree: TokenTree) -> None:
        """Remove likely drafts that the grammar refuses from the tree, and add the tokens that it forces. Each node is
        checked once, for ``ROUND_US`` in all; the next round checks the others."""
        if self._without_drafts:
            return
        wanted: set[Node] = set()  # nodes to check, and their ancestors
        for step in (tree.root, *(node for node, _ in best_nodes(tree, DEFAULT_NODES))):
            node: Node | None = None if step.fits else step
            while node is not None and node not in wanted:
                wanted.add(node)
                node = node.parent
        if wanted:
            self._visit(tree, tree.root, wanted, self._timer() + ROUND_US / 1e6)
            if self._matcher.is_error():
                self._restart()

    def _visit(self, tree: TokenTree, node: Node, wanted: set[Node], until: float) -> None:
        """Check the ``wanted`` nodes below ``node``, where the matcher stands before and after, unless it breaks."""
        matcher = self._matcher
        if not node.fits:
            wanted |= self._plant(tree, node)
        for child in [*node.children]:
            if child not in wanted or self._timer() > until:
                continue
            if child.token in self._ends and matcher.is_accepting():
                continue
            if child.token in self._ends or matcher.try_consume_tokens([child.token]) == 0:
                tree.drop(child)
                continue
            self._visit(tree, child, wanted, until)
            if matcher.is_error():
                return
            matcher.rollback(1)

    def _plant(self, tree: TokenTree, node: Node) -> set[Node]:
        """Add the tokens that must follow ``node``, as deep as a window is. Returns the new nodes not checked yet."""
        room = DEFAULT_NODES - (node.position - tree.root.position)
        if room <= 0:
            return set()
        node.fits = True
        if self._matcher.is_stopped():
            chance = -math.log(len(self._ends))  # the grammar does not prefer any of several end tokens
            tree.keep_only(node, self._ends)
            for end in self._ends:
                tree.add(node, end, chance, FORCED, GRAMMAR).fits = True
            return set()
        planted: set[Node] = set()
        for token in self._matcher.compute_ff_tokens()[:room]:
            tree.keep_only(node, {token})
            node.fits = True
            node = tree.add(node, token, 0.0, FORCED, GRAMMAR)
            planted.add(node)
        return planted

    # --- the output --------------------------------------------------------------------------------------------------

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` were added to the output. Raises RequestError if the grammar does not allow them."""
        text = list(itertools.takewhile(lambda token: token not in self._ends, tokens))
        self._output.extend(text)
        if self._matcher.try_consume_tokens(text) < len(text):
            if self._matcher.is_error():
                raise self._broken()
            detail = f"structured_outputs do not allow what the output has before its token {len(self._output)}"
            raise RequestError(FailureCode.BAD_REQUEST, detail)

    def _compiled(self) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=FUEL, step_lexer_fuel=STEP_FUEL, max_lexer_states=LEXER_STATES, verbose_errors=False
        )
        matcher = _deeply(partial(LLMatcher, self._tokenizer, self._text, log_level=0, limits=limits))
        if matcher.is_error():
            raise RequestError(FailureCode.BAD_REQUEST, f"structured_outputs cannot be used: {_reason(matcher)}")
        return matcher

    def _restart(self) -> None:
        """A draft has broken the matcher for good: begin anew at the committed output, and take no more drafts."""
        self._without_drafts = True
        self._matcher = self._unused.deep_copy()
        self._matcher.try_consume_tokens(self._output)

    def _broken(self) -> RequestError:
        return RequestError(
            FailureCode.BAD_REQUEST,
            f"structured_outputs cannot be followed behind {len(self._output)} tokens: {_reason(self._matcher)}",
        )


@functools.cache
def _deep_thread() -> ThreadPoolExecutor:
    """One thread with a large stack, started once: the size is the whole process's for that moment."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
    before = threading.stack_size(STACK_BYTES)
    try:
        pool.submit(int).result()
    finally:
        threading.stack_size(before)
    return pool


def _deeply(job: Callable[[], T]) -> T:
    """Run a job on a thread with a large stack. llguidance recurses from rule to rule: a chain of 3,000 rules, or of
    references in a schema, overflows the 8 MB of a usual thread and kills the process."""
    return _deep_thread().submit(job).result()


def _translated(wanted: StructuredOutputs) -> str:
    """The grammar in llguidance's own form. Raises RequestError if it is malformed."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    try:
        if wanted.json_schema is not None:
            return LLMatcher.grammar_from_json_schema(read_schema(json.loads(wanted.json_schema)))
        if wanted.regex is not None:
            return LLMatcher.grammar_from_regex(wanted.regex)
        assert wanted.grammar is not None  # as validated
        lark = read_grammar(any_to_lark(wanted.grammar))
        if len(RULE.findall(lark)) > MAX_RULES:
            raise ValueError(f"the grammar has more than {MAX_RULES} rules")
        return LLMatcher.grammar_from_lark(lark)
    except RecursionError:
        raise RequestError(FailureCode.BAD_REQUEST, f"structured_outputs cannot be used: {DEEP}") from None
    except (ValueError, GbnfToLarkError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise RequestError(FailureCode.BAD_REQUEST, f"structured_outputs cannot be used: {first}") from None


def _reason(matcher: LLMatcher) -> str:
    """The line of llguidance's message that says what is wrong."""
    lines = [line.strip() for line in matcher.get_error().replace("<non-verbose/>", "").splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "nothing follows it")
    if said.startswith("recursion limit exceeded"):  # llguidance's reader of JSON says so
        return DEEP
    return "no token of the model may come next" if said == DEAD_END else said.removeprefix("error: ")
