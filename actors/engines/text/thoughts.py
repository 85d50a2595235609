"""The marks that set thoughts apart from answers, found by rendering a chat template.

A mark in a template's text proves nothing: Phi ends every turn by the mark that closes gpt-oss' thoughts. What counts
is what comes out of known conversations, with both marks in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")  # keys of a message; each template knows one
SWITCHES = ("enable_thinking", "thinking")  # variables of templates that turn thoughts on and off
USER, THOUGHT, ANSWER, AGAIN = "probeuser", "probethought", "probeanswer", "probeagain"
DEFAULT: Mapping[str, Any] = MappingProxyType({})
VARIABLES = (DEFAULT, *(MappingProxyType(dict.fromkeys(SWITCHES, on)) for on in (True, False)))


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands in front of a thought and after it."""

    begin: str
    end: str
    between: tuple[str, ...] = ()  # further texts between a thought and an answer
    after: str = ""  # the text that ends an answer


KNOWN = (
    Marks(
        "<|channel|>analysis<|message|>", "<|end|>", ("<|start|>assistant", "<|channel|>final<|message|>")
    ),  # gpt-oss
    Marks("<|channel>thought", "<channel|>"),  # Gemma 4
    Marks("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>",), "<|END_TEXT|>"),  # Cohere, newer
    Marks("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>",), "<|END_RESPONSE|>"),  # Cohere
    Marks(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>",),
        "<|close|>response<|sep|><|close|>message<|sep|>",
    ),  # Kimi K3
    Marks("<|think|>", "<|end|>", ("<|begin|>assistant", "<|content|>"), "<|end|>"),  # Solar Open
    Marks("to=self<|message|>", "<|eom|>", ("<|start|>assistant", "to=user<|message|>")),  # Muse
    Marks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", (), "[END FINAL RESPONSE]"),  # Apriel
    Marks("[THINK]", "[/THINK]"),  # Mistral
    Marks("<think>", "</think>"),  # Qwen, DeepSeek, GLM and most others
    Marks("<seed:think>", "</seed:think>"),
    Marks("<thought>", "</thought>"),
)
# A pair of tags around a thought, of any name; or around nothing, with a name that speaks of thoughts.
AROUND = re.compile(rf"([<\[])([^\s<>\[\]/|]+)([>\]])\s*{THOUGHT}\s*\1/\2\3")
EMPTY = re.compile(r"([<\[])([^\s<>\[\]/|]*(?:think|thought|reason)[^\s<>\[\]/|]*)([>\]])\s*\1/\2\3", re.IGNORECASE)


class Render(Protocol):
    """Renders a conversation; "" where the template refuses."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], end: bool = True, variables: Mapping[str, Any] = DEFAULT
    ) -> str: ...


def find_marks(render: Render, call: Mapping[str, Any]) -> Marks | None:
    """The marks of a template. ``call``: a tool call as it takes them. None: it shows no thoughts."""
    seen = _Renderings(render, call)
    proofs: tuple[Callable[[Marks], bool], ...] = (seen.surrounded, seen.opened, seen.closed, seen.removed, seen.named)
    for proof in proofs:
        found = next((marks for marks in KNOWN if seen.has(marks.between) and proof(marks)), None)
        if found is None:
            found = seen.tags(AROUND if proof == seen.surrounded else EMPTY if proof == seen.closed else None)
        if found is not None:
            return found
    return None


class _Renderings:
    """What a template makes of conversations with thoughts."""

    def __init__(self, render: Render, call: Mapping[str, Any]) -> None:
        self._render = render
        self._prompts = [render([_user(USER)], True, variables) for variables in VARIABLES]
        self._turns = [
            _behind(render([_user(USER), *turns], False, variables))
            for turns in _thoughtful(call)
            for variables in VARIABLES
        ]
        self._own = [*map(_behind, self._prompts), *self._turns]

    def has(self, texts: Sequence[str]) -> bool:
        """Whether some turn has them all."""
        return not texts or any(all(text in turn for text in texts) for turn in self._turns)

    def surrounded(self, marks: Marks) -> bool:
        """A thought stands between them."""
        parts = (turn.partition(THOUGHT) for turn in self._turns)
        return any(
            thought and front.rstrip().endswith(marks.begin) and rest.lstrip().startswith(marks.end)
            for front, thought, rest in parts
        )

    def opened(self, marks: Marks) -> bool:
        """A prompt ends inside a thought."""
        return any(prompt.rstrip().endswith(marks.begin) for prompt in self._prompts)

    def closed(self, marks: Marks) -> bool:
        """A prompt or a turn has an empty thought."""
        empty = re.compile(rf"{re.escape(marks.begin)}\s*{re.escape(marks.end)}")
        return any(empty.search(text) for text in self._own)

    def removed(self, marks: Marks) -> bool:
        """A thought is taken out of an earlier turn."""
        said = f"{marks.begin}\n{THOUGHT}\n{marks.end}\n\n{ANSWER}"
        later = {"role": "assistant", "content": ANSWER}
        shown = self._render([_user(USER), {"role": "assistant", "content": said}, _user(AGAIN), later], False)
        shown = shown.partition(AGAIN)[0]
        return ANSWER in shown and THOUGHT not in shown

    def named(self, marks: Marks) -> bool:
        """The template's own words tell the model of both."""
        return any(marks.end in prompt.partition(marks.begin)[2] for prompt in self._prompts)

    def tags(self, pattern: re.Pattern[str] | None) -> Marks | None:
        found = (pattern.search(text) for text in self._own) if pattern is not None else ()
        tag = next(filter(None, found), None)
        return Marks(f"{tag[1]}{tag[2]}{tag[3]}", f"{tag[1]}/{tag[2]}{tag[3]}") if tag is not None else None


def _thoughtful(call: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """Turns with a thought, in each way that templates take them."""
    thought: dict[str, Any] = {"role": "assistant", **dict.fromkeys(THOUGHT_KEYS, THOUGHT)}
    yield [thought | {"content": ANSWER}]
    yield [thought | {"content": "", "tool_calls": [call]}]
    parts = [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]
    yield [{"role": "assistant", "content": parts}]


def _user(text: str) -> Mapping[str, Any]:
    return {"role": "user", "content": text}


def _behind(text: str) -> str:
    """What a template has put after the user's turn."""
    return text.rpartition(USER)[2]
