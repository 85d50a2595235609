"""The keys of ``duoactor top``: which drafter is to hand over to which, or to leave, and whether that is meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "k": "up", "\x1b[B": "down", "\x1bOB": "down", "j": "down", "\t": "down",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\r": "enter", "\n": "enter", "\x1b": "escape", "\x03": "q",
}  # fmt: skip


def keys_in(data: bytes) -> list[str]:
    """The keys that a terminal sent: ``up``, ``enter``, ``escape`` …, or the character itself."""
    return [_NAMES.get(key, key.lower()) for key in _KEY.findall(data.decode(errors="replace"))]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done. Of ``drain`` there is no ``new``."""

    verb: Literal["swap", "drain"]
    old: str
    new: str = ""


class Dialog:
    """``step`` is what is asked now; ``chosen`` the drafter under the cursor."""

    def __init__(self) -> None:
        self.step: Literal["", "old", "new", "confirm"] = ""
        self.chosen = ""
        self.message = ""  # of the last order, or why there can be none
        self._order = Order("swap", "")

    @property
    def choosing(self) -> bool:
        return self.step in ("old", "new")

    @property
    def question(self) -> str:
        order = self._order
        if self.step == "confirm" and order.verb == "swap":
            return f"Move every stream from {order.old} to {order.new}? y / n"
        if self.step == "confirm":
            return f"Take {order.old} out of service? Its streams move away, then it leaves. y / n"
        if self.step == "new":
            return f"Move from {order.old} to which?"
        return "Move from which drafter?" if order.verb == "swap" else "Which drafter is to leave?"

    def choices(self, drafters: Sequence[str]) -> list[str]:
        """The drafters among which the cursor moves."""
        return [one for one in drafters if self.step != "new" or one != self._order.old]

    def press(self, key: str, drafters: Sequence[str]) -> Order | None:
        """``drafters``: the names of those that are connected. An order that was confirmed."""
        self.message = ""
        if not self.step:
            if key in ("s", "d"):
                self._begin("swap" if key == "s" else "drain", drafters)
        elif key == "escape" or (self.step == "confirm" and key != "y") or key in ("q", "n"):
            self.step = ""
        elif self.step == "confirm":
            self.step = ""
            return self._order
        else:
            self._choose(key, self.choices(drafters))
        return None

    def forget(self, message: str) -> None:
        """It has stood long enough, unless another took its place."""
        if self.message == message:
            self.message = ""

    def _begin(self, verb: Literal["swap", "drain"], drafters: Sequence[str]) -> None:
        if len(drafters) < (2 if verb == "swap" else 1):
            wanted = "a swap needs two drafters" if drafters else "there is no drafter"
            self.message = f"{wanted}; start one with `duoactor drafter`"
            return
        self._order = Order(verb, "")
        self.step, self.chosen = "old", drafters[0]

    def _choose(self, key: str, choices: Sequence[str]) -> None:
        if len(choices) < (2 if self._order.verb == "swap" and self.step == "old" else 1):  # the others have left
            self.step = ""
            return
        at = choices.index(self.chosen) if self.chosen in choices else 0
        if key in ("up", "down"):
            self.chosen = choices[(at + (1 if key == "down" else -1)) % len(choices)]
        elif key.isdigit() and 0 < int(key) <= len(choices):
            self.chosen = choices[int(key) - 1]
        elif key == "enter":
            self._take(choices[at], choices)

    def _take(self, name: str, choices: Sequence[str]) -> None:
        order = self._order
        if self.step == "old" and order.verb == "swap":
            self._order, self.step = Order("swap", name), "new"
            self.chosen = next(one for one in choices if one != name)
        else:
            self._order = Order("swap", order.old, name) if self.step == "new" else Order("drain", name)
            self.step = "confirm"
