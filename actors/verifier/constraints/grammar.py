"""Structured outputs (a JSON schema, a regex or a grammar) as masks of allowed tokens, by llguidance.

A mask depends on the grammar and the output so far and on nothing else, so the text is the same with drafts as without.
"""

from __future__ import annotations

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
from actors.models import DEFAULT_NODES, ROOT
from actors.tree.tree import FORCED, Node, TokenTree
from actors.tree.window import best_nodes
from actors.verifier.constraints.binding import Binding
from actors.verifier.constraints.schemas import read_grammar, read_schema
from actors.verifier.sources.bits import GRAMMAR
from protocols.errors import RequestError
from protocols.messages import FailureCode, StructuredOutputs

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

T = TypeVar("T")
# CPU time that one request's grammar may take of a round, in which other streams wait: for all masks of a window, for
# checks of drafts, and for one mask on average. A mask takes 0.01 to 0.2 ms, seldom 20.
ROUND_US = 50_000.0
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


def translated(wanted: StructuredOutputs) -> str:
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
