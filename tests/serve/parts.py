"""A whole answer's parts: thoughts, texts and calls, however many events they came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from duoactor.serve.tool_calls.events import Arguments, CallBegan, Event, Said, Thought


@dataclass(frozen=True, slots=True)
class Called:
    name: str
    arguments: str


def gathered(events: Sequence[Event]) -> list[Thought | Said | Called]:
    parts: list[Thought | Said | Called] = []
    for event in events:
        last = parts[-1] if parts else None
        match event:
            case Thought(text) | Said(text):
                if isinstance(last, type(event)):
                    parts[-1] = replace(last, text=last.text + text)
                else:
                    parts.append(event)
            case CallBegan(name):
                parts.append(Called(name, ""))
            case Arguments(text):
                assert isinstance(last, Called)
                parts[-1] = replace(last, arguments=last.arguments + text)
    return parts
