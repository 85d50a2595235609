"""Thoughts of a reasoning model in the text of its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from protocols.messages import NO_THOUGHTS, Generate, Thinking

SWITCHES = ("enable_thinking", "thinking")  # variables of chat templates


class Thoughts:
    """Takes the thoughts from the front of an answer that comes in pieces."""

    def __init__(self, form: Thinking, opened: bool) -> None:
        """``opened``: whether the answer begins inside a thought."""
        self.inside = opened  # a thought
        self.answers = not form.begin  # all is the answer's from here on
        self._form = form
        self._held = ""  # text that may be a thought or the answer
        self._thought = opened  # there was one: space after it is no part of the answer
        self._begun = False  # the present thought has text

    def feed(self, text: str) -> tuple[str, str]:
        """The next pieces of thoughts, and of the answer."""
        self._held += text
        thought = ""
        while not self.answers and self._held:
            before = self._held
            if self.inside:
                thought += self._think()
            else:
                self._between()
            if self._held == before and not self.answers:
                return thought, ""
        if not self.answers:
            return thought, ""
        end = len(self._held) - beginning(self._held, self._form.after, whole=True)
        answer, self._held = self._held[:end], self._held[end:]
        return thought, answer

    def end(self, cut: bool = False) -> tuple[str, str]:
        """What is still held back; nothing where the text was ``cut`` off, for it may be a part of a mark."""
        held, self._held = self._held, ""
        if self.answers and held == self._form.after:
            return "", ""
        if cut or (self._thought and not held.strip()):
            return "", ""
        return (held.rstrip(), "") if self.inside else ("", held)

    def whole(self, text: str, cut: bool) -> tuple[str, str]:
        """The thoughts and the answer of a text that has ended."""
        begun, ended = self.feed(text), self.end(cut)
        return begun[0] + ended[0], begun[1] + ended[1]

    def _think(self) -> str:
        """Space at a thought's ends is no part of it."""
        thought, end, behind = self._held.partition(self._form.end)
        if not end:
            said = thought[: len(thought) - beginning(thought, self._form.end)].rstrip()
            thought, behind = said, thought[len(said) :]
        thought = thought.rstrip() if self._begun else thought.strip()
        if thought:
            self._begun = True
        elif not end and not self._begun:
            behind = behind.lstrip()
        self._held = behind
        if end:
            self.inside = self._begun = False
        return thought

    def _between(self) -> None:
        """Find out what follows: a thought, markup to drop, or the answer."""
        text = self._held.lstrip()
        marks = (self._form.begin, *self._form.markup)
        mark = next((one for one in marks if text.startswith(one)), None)
        if mark is not None:
            self._held, self._thought = text[len(mark) :], True
            self.inside = mark == self._form.begin
        elif text and not any(one.startswith(text) for one in marks):
            self.answers = True
            self._held = text if self._thought else self._held


def opens(form: Thinking, on: bool | None, continued: str | None = None) -> bool:
    """Whether an answer begins inside a thought. ``on``: what the request says of thoughts; ``continued``: the text of
    an assistant's turn that the answer goes on with; None: it begins a turn."""
    if continued is not None:
        return bool(form.begin) and form.begin in continued and form.end not in continued
    return form.opens if on is None else form.opens_on if on else form.opens_off


def beginning(text: str, mark: str, whole: bool = False) -> int:
    """The number of characters at the end of ``text`` that may begin ``mark``, or be the ``whole`` of it."""
    most = min(len(text), len(mark) - (not whole))
    return next((n for n in range(most, 0, -1) if text.endswith(mark[:n])), 0)


def thoughts_in(request: Generate, form: Thinking) -> Thoughts:
    """The reader of thoughts for a request's answer; a prompt without turns has none."""
    if not request.messages:
        return Thoughts(NO_THOUGHTS, False)
    try:
        said = msgspec.json.decode(request.rendering.variables or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:  # the verifier refuses it
        said = {}
    on = next((said[name] for name in SWITCHES if isinstance(said.get(name), bool)), None)
    continued = request.messages[-1].content if request.rendering.continue_final else None
    return Thoughts(form, opens(form, on, continued))
