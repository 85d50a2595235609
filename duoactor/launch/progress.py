"""Progress of a launch on stderr: a line that replaces itself, and lines that stay."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping

from duoactor import render
from duoactor.launch.child import GATEWAY
from duoactor.launch.supervisor import Event
from protocols.messages import Role

LOADING: Mapping[str, str] = {
    Role.VERIFIER: "loading target",
    Role.DRAFTER: "loading draft",
    Role.CONTROLLER: "starting controller",
    Role.LEARNER: "loading learner",
    GATEWAY: "starting gateway",
}


SAID = 20  # latest sentences that are compared
MARKED = 40  # characters of a sentence that no other fault has


class LaunchReport:
    """Turns events into lines on stderr: progress on a terminal, the children's own lines, each after its actor's name.

    ``lines``: show what the children log. ``quiet``: neither that an actor has left, nor progress.
    """

    def __init__(self, *, lines: bool = True, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._quiet = quiet
        self._clock = clock
        self._began = clock()
        self._waiting: dict[str, str] = {}
        self._moving: dict[str, str] = {}  # those that tell how far they are
        self._said = deque[tuple[str, str]](maxlen=SAID)  # actors and their sentences
        self.is_done = False  # every actor was ready
        self._spinner = render.Spinner(sys.stderr)

    def __call__(self, event: Event) -> None:
        name = event.actor.name
        if not self._waiting:
            self._began = self._clock()
        match event.kind:
            case "starting":
                self._waiting[name] = LOADING[event.actor.role]
            case "progress" if name in self._waiting:
                self._moving[name] = event.text.strip()
            case "stopping":
                self._waiting[name] = f"stopping {name}"
            case "line" if event.text.startswith("ready"):
                self._waiting.pop(name, None)  # itself; the verifier, which it waits for, is shown
            case "line" if name in self._waiting and not self._lines:
                self._waiting[name] = event.text  # such as that it compiles, the first time only
            case "ready" | "left" | "lost" | "restart" | "ended":
                self._waiting.pop(name, None)
        match event.kind:
            case "line" if self._lines and not self._repeats(name, event.text):
                self._say(f"{name} | {event.text}")
            case "restart":
                self._say(f"{name} {event.text}")
            case "lost" if self._repeats(name, event.text):
                self._say(f"{name} has left for that reason; the others go on without it")
            case "lost":
                self._say(f"{event.text}; the others go on without it")
            case "left" if not self._quiet:
                self._say(f"{name} has left")
        self._moving = {name: text for name, text in self._moving.items() if text and name in self._waiting}
        self.tick()

    def _repeats(self, name: str, text: str) -> bool:
        """Whether another actor has just said what follows the first colon: two actors may load one model."""
        sentence = text.partition(": ")[2]
        known = len(sentence) > MARKED and any(said == sentence and who != name for who, said in self._said)
        self._said.append((name, sentence))
        return known

    def tick(self) -> None:
        """Show what is waited for, and since when. What tells its progress is shown alone: the others wait for it, or
        take less time."""
        if not self._waiting or self._quiet:
            self._spinner.show("")
            return
        seconds = int(self._clock() - self._began)
        since = f" ({seconds} s)" if seconds else ""
        told = [text for text in self._waiting.values() if text not in LOADING.values()]
        shown = list(self._moving.values()) or told or self._waiting.values()
        self._spinner.show(", ".join(dict.fromkeys(shown)) + since + " …")

    def _say(self, text: str) -> None:
        render.Spinner.hide()
        with contextlib.suppress(OSError):
            print(render.folded(text, sys.stderr), file=sys.stderr, flush=True)

    def done(self) -> None:
        self.is_done = True
        self.clear()

    def clear(self) -> None:
        """Take the line away that tells what is waited for."""
        self._waiting.clear()
        self._spinner.show("")
