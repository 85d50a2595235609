"""Events in a model's text: thoughts, text, and calls of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a thought; those in a row are one."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
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
    """Always comes after a CallBegan, even if the text was cut off inside the call, which then is not ``whole``."""

    whole: bool = True


Event = Thought | Said | CallBegan | Arguments | CallEnded


class Parser(Protocol):
    """Takes the text in pieces. However it is cut into pieces, the events are the same but for where texts and
    arguments are cut."""

    def feed(self, text: str) -> list[Event]: ...

    def end(self, cut: bool = False) -> list[Event]:
        """The held-back events, once the text has ended; none where it was ``cut`` off, for it may be the
        markup of a call."""
        ...


class NoTools:
    """A parser for answers to requests without tools: all is text."""

    def feed(self, text: str) -> list[Event]:
        return [Said(text)] if text else []

    def end(self, cut: bool = False) -> list[Event]:
        return []


class FirstCall:
    """A parser that leaves out all calls but the first, for a request that takes one."""

    def __init__(self, rest: Parser) -> None:
        self._rest = rest
        self._calls = 0

    def feed(self, text: str) -> list[Event]:
        return self._kept(self._rest.feed(text))

    def end(self, cut: bool = False) -> list[Event]:
        return self._kept(self._rest.end(cut))

    def _kept(self, events: list[Event]) -> list[Event]:
        kept = []
        for event in events:
            self._calls += isinstance(event, CallBegan)
            if self._calls < 2 or isinstance(event, Thought | Said):
                kept.append(event)
        return kept
