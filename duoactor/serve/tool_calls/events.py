"""What a model's text turns out to be: text, and calls of functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the call's arguments, which are a JSON object together, as the model wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Always comes behind a CallBegan, even if the text ended inside the call."""


Event = Text | CallBegan | Arguments | CallEnded


class Parser(Protocol):
    """Takes the text in pieces. However it is cut into pieces, the events are the same but for where Text and Arguments
    are cut."""

    def feed(self, text: str) -> list[Event]: ...

    def end(self, cut: bool = False) -> list[Event]:
        """What is still held back, once the text has ended; nothing of it where it was ``cut`` off, for it may be the
        markup of a call."""
        ...


class NoTools:
    """A parser for answers to requests without tools: all is text."""

    def feed(self, text: str) -> list[Event]:
        return [Text(text)] if text else []

    def end(self, cut: bool = False) -> list[Event]:
        return []


@dataclass(slots=True)
class Said:
    text: str


@dataclass(slots=True)
class Called:
    name: str
    arguments: str


def gathered(events: Sequence[Event]) -> list[Said | Called]:
    """The parts of a whole answer."""
    parts: list[Said | Called] = []
    for event in events:
        last = parts[-1] if parts else None
        match event:
            case Text(text):
                if isinstance(last, Said):
                    last.text += text
                else:
                    parts.append(Said(text))
            case CallBegan(name):
                parts.append(Called(name, ""))
            case Arguments(text):
                assert isinstance(last, Called)
                last.arguments += text
    return parts
