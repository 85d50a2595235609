"""One process that is sent frames for as long as it takes, but no longer than it may, and what it holds meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable

from tests.world.service import Process

SLICES = 40  # between which memory is looked at
# The verifier's memory of ended texts fills to 28 MB, and the KV cache of prompts is touched. Elsewhere nothing should
# stay: what Python's allocator does not give back of bursts of frames was at most some 10 MB.
GROWTH_MB = {"verifier": 60.0}
GROWTH_ELSEWHERE_MB = 20.0
ENOUGH = 100_000  # frames; with fewer, what grows is what is used for the first time, and no text may be ready
MORE_FILES = 20  # sockets that are about to be closed

Over = Callable[[], bool]
Part = Callable[[int, Over], Awaitable[int]]  # send so many frames unless it is over before; how many it were


class Siege:
    def __init__(self, name: str, process: Process, frames: int, limit_s: float) -> None:
        """``limit_s``: seconds after which fewer frames must do."""
        self.name, self.process, self.frames, self.limit_s = name, process, frames, limit_s
        self.sent = 0
        self.held: list[tuple[float, int]] = []  # megabytes, and open files
        self.faults: list[str] = []
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def over(self) -> bool:
        return self.seconds > self.limit_s

    async def run(self, part: Part) -> None:
        """Tells on stderr how far it is. What the process does is judged afterwards, by :meth:`judge`."""
        try:
            for number in range(1, SLICES + 1):
                self.sent += await part(self.frames * number // SLICES - self.sent, self.over)
                self.held.append(self.process.held())
                told = f"{self.name}: {self.sent:,} of {self.frames:,} frames, {self.seconds:.0f} s"
                print(f"{told}, {self.held[-1][0]:.1f} MB", file=sys.stderr, flush=True)
                if self.over():
                    break
        except (TimeoutError, OSError) as error:
            self.faults.append(f"the {self.name}: {error!r} after {self.sent} frames: {self._said()[-3000:]}")

    def judge(self, texts: int) -> None:
        """``texts``: that came beside the frames."""
        said = self._said()
        if not self.process.alive:
            self.faults.append(f"the {self.name} ended after {self.sent} frames: {said[-3000:]}")
        elif "Traceback" in said and self.name != "gateway":  # there uvicorn logs that clients cut their connections
            self.faults.append(f"the {self.name} said {said[said.index('Traceback') :][:3000]}")
        if not self.held:
            return
        (first, files), most = self._after(0.1), max(size for size, _ in self.held)
        if self.sent >= ENOUGH and most - first > GROWTH_MB.get(self.name, GROWTH_ELSEWHERE_MB):
            self.faults.append(f"the {self.name} has grown from {first:.1f} to {most:.1f} MB")
        if (more := self.held[-1][1] - files) > MORE_FILES:
            self.faults.append(f"the {self.name} has {more} more open files")
        if self.sent >= ENOUGH and not texts:
            self.faults.append(f"no text came while the {self.name} was attacked")

    def line(self, texts: int) -> str:
        """For the report."""
        sizes = ", ".join(f"{self._after(share)[0]:.1f}" for share in (0.1, 0.5, 1.0)) if self.held else "unknown"
        cut = "" if self.sent >= self.frames else f" of {self.frames:,}, where it was cut off,"
        return (
            f"{self.name:10} {self.sent:9,}{cut} frames in {self.seconds:5.0f} s, {texts:4} texts beside; "
            f"{sizes} MB after a tenth, half and all of it"
        )

    def _after(self, share: float) -> tuple[float, int]:
        return self.held[min(int(share * len(self.held)), len(self.held) - 1)]

    def _said(self) -> str:
        return self.process.log.read_text(errors="replace")
