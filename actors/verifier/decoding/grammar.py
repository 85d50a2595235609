"""What a request's output must be (a JSON schema, a regex or a grammar), as masks of tokens. By llguidance.

A mask depends on the grammar and on the output so far, and on nothing else: neither on drafts nor on when it is asked
for. So the text is the same with drafts as without.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from actors.estimate import Estimate
from actors.models import ROOT, Codec, ModelInfo
from actors.tree.tree import FORCED, Node, TokenTree
from actors.tree.window import best_nodes
from protocols.errors import RequestError
from protocols.messages import FailureCode, StructuredOutputs

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions
    from numpy.typing import NDArray

T = TypeVar("T")
LOOKED_AT = 64  # likeliest drafts that are tried before a window is chosen: twice the largest usual window
MOST_FORCED = 64  # tokens that are planted at once: a string of 20,000 forced characters is one grammar's right
ROUND_US = 50_000.0  # that a window's masks may take: others wait for them. One mask takes 0.01 to 0.2 ms, seldom 20
# What one grammar may take, in llguidance's units. Its own limits let a regex such as a{1000000} compute for two
# seconds and hold 250,000 lexer states of 2 kB; with these it is refused after 0.3 s, and a schema of 2,000 properties
# with patterns still compiles.
FUEL = 400_000  # expressions of the lexer
STEP_FUEL = 100_000  # for one mask: some 10 ms
LEXER_STATES = 20_000
MAX_RULES = 1000  # of a Lark grammar: an error within a chain of 3,000 terminals takes it a minute to put into words
STACK_BYTES = 1 << 29  # of address space: 20,000 rules in a chain, more than a text of that length has, take 100 MB
RULE = re.compile(r"^[ \t]*[?!]?\w[^:\n]*:", re.MULTILINE)
LONGEST_REASON = 300  # characters
# As Python's json and most chat models write it. With llguidance's own default any white space may stand between two
# tokens, of which weak models write nothing else, and hardly anything is forced. A schema that says "x-guidance":
# {"whitespace_flexible": true} has it all the same.
JSON_STYLE: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Makes a request's :class:`Grammar`."""

    def __init__(self, codec: Codec, info: ModelInfo, timer: Callable[[], float] = time.perf_counter) -> None:
        """``timer`` measures masks, in seconds."""
        self._codec, self._info, self._timer = codec, info, timer
        self._tokenizer: LLTokenizer | None = None

    def prepare(self) -> None:
        """Index the vocabulary before anybody streams, if there can be grammars at all: it takes 0.1 s for 8,000
        entries, and holds the interpreter's lock."""
        with contextlib.suppress(RequestError):
            self._index()

    def grammar(self, wanted: StructuredOutputs, generated: Sequence[int] = ()) -> Grammar:
        """A grammar that has followed ``generated``. RequestError in one sentence. A big schema takes a second, nearly
        all of it without the interpreter's lock; calls come from one thread at a time."""
        grammar = Grammar(self._index(), _translated(wanted), self._timer)
        grammar.commit(generated)
        return grammar

    def _index(self) -> LLTokenizer:
        try:
            import llguidance
        except ImportError:
            detail = "structured_outputs need llguidance where the verifier runs: pip install 'duoactor[structured]'"
            raise RequestError(FailureCode.UNSUPPORTED, detail) from None
        if self._tokenizer is None:
            ends = sorted(self._info.eos_token_ids)
            if not ends:
                detail = "structured_outputs need a target model that has an end-of-sequence token"
                raise RequestError(FailureCode.UNSUPPORTED, detail)
            text = self._codec.serialized()
            self._tokenizer = llguidance.LLTokenizer(text, n_vocab=self._info.vocab_size, eos_token=ends)
        return self._tokenizer


class Grammar:
    """One request's, behind its committed output. Used by one thread at a time, the loop's or the target's."""

    def __init__(self, tokenizer: LLTokenizer, text: str, timer: Callable[[], float] = time.perf_counter) -> None:
        self._tokenizer, self._text, self._timer = tokenizer, text, timer
        self._ends = frozenset(tokenizer.eos_tokens)
        self._output: list[int] = []
        self._matcher = self._fresh()
        self._mask_us = Estimate(100.0, weight=8)
        self._alone = False  # drafts have led the matcher into a state that it could not compute
        self._rows((), ())  # most grammars that explode do it here; the first mask takes 10 ms, and tells nothing

    # --- masks -------------------------------------------------------------------------------------------------------

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        """See :class:`actors.models.Constraint`."""
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
        """From one path below the root to another."""
        shared = 0
        while shared < min(len(here), len(there)) and here[shared] == there[shared]:
            shared += 1
        if shared < len(here):
            self._matcher.rollback(len(here) - shared)
        self._matcher.try_consume_tokens(list(there[shared:]))

    def row_us(self) -> float:
        """What the mask of one row takes, lately."""
        return self._mask_us.mean

    def most_nodes(self) -> int:
        """Of a window whose masks are worth the time."""
        return 0 if self._alone else int(ROUND_US / max(1.0, self._mask_us.mean))

    # --- drafts ------------------------------------------------------------------------------------------------------

    def fit(self, tree: TokenTree) -> None:
        """Take from the tree the likely drafts that the grammar refuses, and plant what it forces. Each node is tried
        once."""
        if self._alone:
            return
        wanted: set[Node] = set()  # what is tried, and what leads there
        for step in (tree.root, *(one.node for one in best_nodes(tree, LOOKED_AT))):
            node: Node | None = None if step.fits else step
            while node is not None and node not in wanted:
                wanted.add(node)
                node = node.parent
        if wanted:
            self._visit(tree, tree.root, wanted)
            if self._matcher.is_error():
                self._restart()

    def _visit(self, tree: TokenTree, node: Node, wanted: set[Node]) -> None:
        """The matcher stands at ``node``, and does so again afterwards unless it breaks."""
        matcher = self._matcher
        if not node.fits:
            node.fits = True
            wanted |= self._plant(tree, node)
        for child in list(node.children.values()):
            if child not in wanted:
                continue
            if child.token in self._ends and matcher.is_accepting():
                continue
            if child.token in self._ends or matcher.try_consume_tokens([child.token]) == 0:
                tree.drop(child)
                continue
            self._visit(tree, child, wanted)
            if matcher.is_error():
                return
            matcher.rollback(1)

    def _plant(self, tree: TokenTree, node: Node) -> set[Node]:
        """Add what must come behind ``node``; what is to be visited of that."""
        if self._matcher.is_stopped():
            chance = -math.log(len(self._ends))  # several ends are all the same to the grammar
            self._leave(tree, node, self._ends)
            for end in self._ends:
                tree.add(node, end, chance, FORCED).fits = True
            return set()
        planted: set[Node] = set()
        for token in self._matcher.compute_ff_tokens()[:MOST_FORCED]:
            self._leave(tree, node, {token})
            node.fits = True
            node = tree.add(node, token, 0.0, FORCED)
            planted.add(node)
        return planted

    def _leave(self, tree: TokenTree, node: Node, tokens: Set[int]) -> None:
        for child in list(node.children.values()):
            if child.token not in tokens:
                tree.drop(child)

    # --- the output --------------------------------------------------------------------------------------------------

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` were added to the output. RequestError if they do not follow the grammar."""
        text = list(itertools.takewhile(lambda token: token not in self._ends, tokens))
        self._output.extend(text)
        if self._matcher.try_consume_tokens(text) < len(text):
            if self._matcher.is_error():
                raise self._broken()
            detail = f"structured_outputs do not allow what the output has before its token {len(self._output)}"
            raise RequestError(FailureCode.BAD_REQUEST, detail)

    def _fresh(self) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=FUEL, step_lexer_fuel=STEP_FUEL, max_lexer_states=LEXER_STATES, verbose_errors=False
        )
        matcher = _deeply(partial(LLMatcher, self._tokenizer, self._text, log_level=0, limits=limits))
        if matcher.is_error():
            raise RequestError(FailureCode.BAD_REQUEST, f"structured_outputs cannot be used: {_reason(matcher)}")
        return matcher

    def _restart(self) -> None:
        """Drafts led the matcher where it broke, and broken it stays. A new one follows the output, without drafts from
        now on: what breaks that is the grammar's own."""
        self._alone = True
        self._matcher = self._fresh()
        self._matcher.try_consume_tokens(self._output)

    def _broken(self) -> RequestError:
        return RequestError(
            FailureCode.BAD_REQUEST,
            f"structured_outputs cannot be followed behind {len(self._output)} tokens: {_reason(self._matcher)}",
        )


def _deeply(job: Callable[[], T]) -> T:
    """llguidance goes down from rule to rule on the stack: a chain of 3,000 rules, or of references in a schema, takes
    more than the 8 MB that a thread has, and with it the process."""
    with ThreadPoolExecutor(1) as pool:
        before = threading.stack_size(STACK_BYTES)
        try:
            return pool.submit(job).result()
        finally:
            threading.stack_size(before)


def _translated(wanted: StructuredOutputs) -> str:
    """In llguidance's own form."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    try:
        if wanted.json_schema is not None:
            json.loads(wanted.json_schema)
            return LLMatcher.grammar_from_json_schema(wanted.json_schema, defaults=JSON_STYLE)
        if wanted.regex is not None:
            return LLMatcher.grammar_from_regex(wanted.regex)
        assert wanted.grammar is not None  # as validated
        lark = any_to_lark(wanted.grammar)
        if len(RULE.findall(lark)) > MAX_RULES:
            raise ValueError(f"the grammar has more than {MAX_RULES} rules")
        return LLMatcher.grammar_from_lark(lark)
    except (ValueError, RecursionError, GbnfToLarkError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise RequestError(
            FailureCode.BAD_REQUEST, f"structured_outputs cannot be used: {first[:LONGEST_REASON]}"
        ) from None


def _reason(matcher: LLMatcher) -> str:
    """llguidance's message without its drawings: the line that says what is wrong."""
    lines = [line.strip() for line in matcher.get_error().replace("<non-verbose/>", "").splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "nothing follows it")
    return said.removeprefix("error: ")[:LONGEST_REASON]
