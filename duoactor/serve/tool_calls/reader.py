"""Reads text that comes in pieces. Parsers are generators above it: each ``yield`` waits for the next piece.

Nothing is decided before enough of the text is there, so that the pieces' borders make no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from duoactor.serve.tool_calls.events import Arguments, CallBegan, CallEnded, Event, Said, Thought
from duoactor.thoughts import beginning
from protocols.limits import LONGEST_LABEL
from protocols.validation import is_object

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_BEHIND_SCALAR = re.compile(r"[\s,:\]}]")


class ValueEnd:
    """Finds the end of a JSON value by its brackets and quotes alone. What lies between them is not checked."""

    def __init__(self, depth: int = 0) -> None:
        """``depth``: how many objects or arrays have begun already."""
        self._depth = depth
        self._string = self._escaped = self._scalar = False

    def find(self, text: str, at: int) -> int:
        """Goes on at ``at``. The position after the value's last character, or -1 while it is not in ``text``."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._string:
                found = _INSIDE.search(text, at)
                if found is None:
                    return -1
                at = found.end()
                self._escaped = found[0] == "\\"
                self._string = self._escaped
                if not self._string and self._depth == 0:
                    return at
            elif self._depth == 0 and (self._scalar or text[at] not in '"{['):
                self._scalar = True
                found = _BEHIND_SCALAR.search(text, at)
                return -1 if found is None else found.start()
            else:
                found = _OUTSIDE.search(text, at)
                if found is None:
                    return -1
                at = found.end()
                self._string = found[0] == '"'
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
                if self._depth == 0 and not self._string:
                    return at
        return -1


Steps = Generator[None, None, None]


class Reader:
    """A text that comes in pieces. ``text``: the part that was not taken yet; ``ended``: there is no more."""

    def __init__(self, sure: bool = False) -> None:
        """``sure``: a grammar sees to it that calls end as such, so their arguments are handed on as they come."""
        self.text = ""
        self.ended = False
        self._sure = sure
        self._held: tuple[str, int] | None = None  # the name of a call, and where its arguments begin
        self._refused = 0  # characters of the text that look like a call and are none
        self._events: list[Event] = []
        self._space = ""  # white space at the end of the text: dropped if a call follows
        self._called = self._behind_call = self._in_call = False

    # --- in ----------------------------------------------------------------------------------------------------------

    def skip(self, count: int) -> None:
        self.text = self.text[count:]

    def starts(self, word: str, at: int = 0) -> Generator[None, None, bool]:
        while not self.ended and len(self.text) - at < len(word) and word.startswith(self.text[at:]):
            yield
        return self.text.startswith(word, at)

    def past(self, characters: str, at: int = 0) -> Generator[None, None, int]:
        """The position of the first character from ``at`` on that is neither one of ``characters`` nor space."""
        while True:
            while at < len(self.text) and (self.text[at].isspace() or self.text[at] in characters):
                at += 1
            if at < len(self.text) or self.ended:
                return at
            yield

    def value(self, at: int, depth: int = 0) -> Generator[None, None, int]:
        """The position after the JSON value at ``at``, or inside which that is; -1: the text ends inside it."""
        end = ValueEnd(depth)
        seen = at
        while (found := end.find(self.text, seen)) < 0 and not self.ended:
            seen = len(self.text)
            yield
        return found

    # --- out ---------------------------------------------------------------------------------------------------------

    def taken(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def say(self, text: str) -> None:
        """Space around calls is no text: it belongs to the form."""
        text = self._space + text
        if self._behind_call:
            text = text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._behind_call = False
            self._events.append(Said(said))

    def say_until(self, mark: str, thought: bool = False) -> Generator[None, None, bool]:
        """Say, or think, what stands before ``mark``, which is not taken. False: it does not come."""
        while True:
            at = self.text.find(mark)
            if at < 0:
                at = len(self.text) - (0 if self.ended else beginning(self.text, mark))
            if not thought:
                self.say(self.text[:at])
            elif at:
                self._events.append(Thought(self.text[:at]))
            self.skip(at)
            if self.text.startswith(mark):
                return True
            if self.ended:
                return False
            yield

    def begin(self, name: str) -> None:
        self._space = ""
        self._called = self._behind_call = self._in_call = True
        self._events.append(CallBegan(name))

    def argue(self, text: str) -> None:
        if text:
            self._events.append(Arguments(text))

    def finish(self, whole: bool = True) -> None:
        self._in_call = False
        self._events.append(CallEnded(whole))

    def call(self, name: str, at: int) -> Generator[None, None, bool]:
        """Take a call with arguments from ``at`` on. False: they are no JSON object, and nothing was taken."""
        if self._sure:
            self.skip(at)
            self.begin(name)
            yield from self._argue_as_written()
            return True
        self._held = name, at
        end = yield from self.value(at)
        self._held = None
        return self.call_with(name, self.text[at:end] if end >= 0 else "", end)

    def call_with(self, name: str, arguments: str, end: int) -> bool:
        """Take a call that is read up to ``end``; -1: the text ends inside it. False as :meth:`call`."""
        if not 0 < len(name) <= LONGEST_LABEL or not is_object(arguments):
            self.refuse(end if end >= 0 else len(self.text))
            return False
        self.skip(end)
        self.begin(name)
        self.argue(arguments)
        self.finish()
        return True

    def _argue_as_written(self) -> Steps:
        """The JSON value at the start of the text, as it comes, and the end of the call."""
        end = ValueEnd()
        while (at := end.find(self.text, 0)) < 0:
            self.argue(self.text)
            self.skip(len(self.text))
            if self.ended:
                break
            yield
        else:
            self.argue(self.text[:at])
            self.skip(at)
        self.finish()

    def refuse(self, count: int) -> None:
        """Note that the text begins with ``count`` characters that are no call."""
        self._refused = max(self._refused, count)

    def say_refused(self) -> None:
        """Say them: what a call that is none holds is no call either."""
        count, self._refused = self._refused, 0
        self.say(self.text[:count])
        self.skip(count)

    def cut_off(self) -> None:
        """The text ends here, and not by the model's will: an open call ends, and what is held back may be markup."""
        if self._held is not None:
            name, at = self._held
            self.begin(name)
            self.argue(self.text[at:])
            self._held = None
        if self._in_call:
            self.finish(whole=False)

    def close(self) -> None:
        """The text has ended and all of it was taken."""
        if self._space and not self._called:
            self._events.append(Said(self._space))


class ReadingParser:
    """A :class:`~duoactor.serve.tool_calls.events.Parser` that reads step by step; ``steps`` pauses where text ends."""

    def __init__(self, steps: Callable[[Reader], Steps], sure: bool = False) -> None:
        self._reader = Reader(sure)
        self._steps = steps(self._reader)

    def feed(self, text: str) -> list[Event]:
        self._reader.text += text
        next(self._steps, None)
        return self._reader.taken()

    def end(self, cut: bool = False) -> list[Event]:
        if cut:
            self._reader.cut_off()
        else:
            self._reader.ended = True
            next(self._steps, None)
        self._reader.close()
        return self._reader.taken()
