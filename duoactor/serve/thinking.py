"""Thoughts of reasoning models: a request's wishes, where they end in the text, and grammars that begin
behind them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from duoactor.serve.errors import bad
from duoactor.serve.structure import StructureParameters
from duoactor.serve.tool_calls.events import Event, Parser, Thought
from duoactor.serve.tool_calls.forms import spelt
from duoactor.thoughts import SWITCHES, Thoughts, opens
from protocols.limits import Count
from protocols.messages import NO_THOUGHTS, Dictation, StructuredOutputs, Thinking

ANYTHING = r"/(.|\n)*/"
_BARE = re.compile(r"\\?[/\n]|\\.")  # what a regex between slashes must not have as it is, and what is escaped
SPACE = r"/[ \n]{0,2}/"  # between a thought and the answer


class ThinkingSwitch(msgspec.Struct, frozen=True):
    """Anthropic's ``thinking``, which others have taken over."""

    type: Literal["enabled", "disabled", "adaptive"] = "enabled"
    budget_tokens: Count = 0


class Reasoning(msgspec.Struct, frozen=True):
    """OpenAI's ``reasoning``, with OpenRouter's fields."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Count = 0


class ThinkingParameters(StructureParameters, frozen=True, kw_only=True):
    """The ways to say in chat completions whether and how long the model thinks."""

    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: str | None = None
    max_thinking_tokens: Count = 0
    thinking_budget: Count = 0  # name in Qwen's API
    thinking_token_budget: Count = 0  # name in vLLM

    @property
    def wish(self) -> Wish:
        switch, reasoning = self.thinking or ThinkingSwitch(), self.reasoning or Reasoning()
        effort = self.reasoning_effort or reasoning.effort
        on = next((one for one in (self.enable_thinking, reasoning.enabled) if one is not None), None)
        if on is None and self.thinking is not None:
            on = switch.type != "disabled"
        budgets = (self.max_thinking_tokens, self.thinking_budget, self.thinking_token_budget)
        budget = next(filter(None, (*budgets, switch.budget_tokens, reasoning.max_tokens)), 0)
        return wish(on, effort, budget, self.chat_template_kwargs)


EFFORTS = ("reasoning_effort", "thinking_effort")  # names that chat templates have for it


@dataclass(frozen=True, slots=True)
class Wish:
    """A request's wish: thoughts or none (None: the model's default), and ``budget`` tokens of them at
    most (0: no limit)."""

    on: bool | None = None
    budget: int = 0
    effort: str = ""  # a word for the chat template
    variables: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template; they win

    def rendered(self, form: Thinking) -> str:
        """The text of ``Rendering.variables``."""
        found: dict[str, Any] = {}
        if form.begin and self.on is not None:
            found |= dict.fromkeys(SWITCHES, self.on)
        if form.begin and self.effort:
            found |= dict.fromkeys(EFFORTS, self.effort)
        found |= self.variables
        return json.dumps(found, ensure_ascii=False) if found else ""


def wish(on: bool | None, effort: str | None, budget: int, variables: Mapping[str, Any]) -> Wish:
    """``effort``: "none" turns thoughts off."""
    if effort == "none" and on is None:
        on = False
    given = (variables[name] for name in SWITCHES if isinstance(variables.get(name), bool))
    return Wish(next(given, on), budget, "" if effort in (None, "none") else str(effort), variables)


@dataclass(frozen=True, slots=True)
class Mind:
    """The served model's form of thoughts, from ``Welcome``, in an answer to one request."""

    form: Thinking = NO_THOUGHTS
    opened: bool = False  # the answer begins inside a thought
    allowed: bool = False  # it may begin with one
    begun: bool = False  # the prompt ends in what stands in front of an answer

    @classmethod
    def of(cls, form: Thinking, on: bool | None, continued: str | None) -> Mind:
        """``continued``: the text of an assistant's turn that the answer goes on with; None: it begins a turn."""
        if not form.begin:
            return cls()
        opened = opens(form, on, continued)
        begun = form.answers_off and on is False and continued is None
        return cls(form, opened, opened or (continued is None and on is not False), begun)

    def parser(self, rest: Parser) -> Parser:
        return ThoughtParser(self.form, self.opened, rest) if self.form.begin else rest

    def dictation(self, budget: int) -> Dictation | None:
        """The dictation that ends a thought at its budget."""
        if not budget or not self.allowed:
            return None
        if self.opened:
            return Dictation(at=budget, text=self.form.end)
        return Dictation(at=budget + 1, text=self.form.end, behind=self.form.begin)  # a token for the mark

    def structure(self, wanted: StructuredOutputs | None, param: str, headed: bool = False) -> StructuredOutputs | None:
        """``wanted`` is for what follows the thought; ``headed``: with what is in front of an answer."""
        lead = () if headed or self.begun else self.form.markup[-1:]  # markup in front of an answer
        if wanted is None or not (self.allowed or lead):
            return wanted
        end, plain = self._lark(self.form.end), " ".join(map(self._lark, lead))
        rules = [f"thought: {ANYTHING} {end}"]
        if self.form.end not in dict(self.form.special):
            rules = [f"thought[suffix={json.dumps(self.form.end)}]: {ANYTHING}"]
        between = self.form.markup[:-1] if headed else self.form.markup
        thought = " ".join(["thought", *map(self._lark, between), SPACE])
        if not self.opened:
            thought = (
                f"({self._lark(self.form.begin)} {thought} | {plain})"
                if plain
                else (f"({self._lark(self.form.begin)} {thought})?")
            )
        if not self.allowed:
            thought, rules = plain, []
        return StructuredOutputs(grammar="\n".join([f"start: {thought} answer", *rules, _answer(wanted, param)]))

    def _lark(self, text: str) -> str:
        return spelt(text, dict(self.form.special))


def _answer(wanted: StructuredOutputs, param: str) -> str:
    if wanted.json_schema is not None:
        return f"answer: %json {wanted.json_schema}"
    if wanted.regex is not None:
        return f"answer: /{_BARE.sub(_in_slashes, wanted.regex)}/"
    if "::=" in (wanted.grammar or ""):
        raise bad(param, "in GBNF cannot follow a thought: write it in Lark, or turn thinking off")
    return f"answer: %lark {{\n{wanted.grammar}\n}}"


def _in_slashes(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(found[0][-1], found[0])


class ThoughtParser:
    """A :class:`Parser` that takes thoughts from the front of a text; what follows them is for ``rest``."""

    def __init__(self, form: Thinking, opened: bool, rest: Parser) -> None:
        self.thoughts = Thoughts(form, opened)
        self._rest = rest

    def feed(self, text: str) -> list[Event]:
        thought, answer = self.thoughts.feed(text)
        return [*_thought(thought), *(self._rest.feed(answer) if answer else ())]

    def end(self, cut: bool = False) -> list[Event]:
        thought, answer = self.thoughts.end(cut)
        return [*_thought(thought), *(self._rest.feed(answer) if answer else ()), *self._rest.end(cut)]


def _thought(text: str) -> list[Event]:
    return [Thought(text)] if text else []
