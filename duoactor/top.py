"""``duoactor top``: actors and requests at work, from the verifier's status."""

from __future__ import annotations

import asyncio
import os
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from actors.tasks import until_one_ends
from duoactor.client.async_client import AsyncClient
from duoactor.render import duration, fitted, model_name
from duoactor.status import SPARE, drafter_table, request_table
from protocols.errors import ConnectionLost, RefusedError
from protocols.messages import StatusReport

STATUS_S = 0.5  # between two reports
ANSWER_S = 2.0  # longest wait for a report: the verifier answers between two forwards
LATELY_S = 2.0  # age of the reports that rates are taken from


@dataclass(slots=True)
class RecentReports:
    """The reports of the last seconds. ``problem``: why there are none."""

    problem: str
    _reports: deque[tuple[float, StatusReport]] = field(default_factory=deque)

    def answered(self, report: StatusReport, now: float) -> None:
        if self._reports and self._reports[-1][1].uptime_ms > report.uptime_ms:  # another verifier
            self._reports.clear()
        self._reports.append((now, report))
        while len(self._reports) > 2 and self._reports[1][0] < now - LATELY_S:
            self._reports.popleft()

    def failed(self, problem: str) -> None:
        self.problem = problem
        self._reports.clear()

    @property
    def latest(self) -> StatusReport | None:
        return self._reports[-1][1] if self._reports else None

    def rates(self) -> tuple[float, float | None, dict[str, float]]:
        """Tokens/s of all requests; accepted over verified draft tokens, where there were some; tokens/s by request."""
        (then, first), (now, last) = self._reports[0], self._reports[-1]
        if now <= then:
            return 0.0, None, {}
        before = {one.rid: one.tokens for one in first.requests}
        by_request = {r.rid: (r.tokens - before[r.rid]) / (now - then) for r in last.requests if r.rid in before}
        made = last.counters.get("generation_tokens", 0) - first.counters.get("generation_tokens", 0)
        drafted, accepted = (
            sum(getattr(one, name) for one in last.totals) - sum(getattr(one, name) for one in first.totals)
            for name in ("draft_tokens", "accepted_tokens")
        )
        return made / (now - then), accepted / drafted if drafted > 0 else None, by_request


def draw(recent: RecentReports, console: Console) -> Group:
    """The picture for a terminal; requests that do not fit are counted."""
    report, leave = recent.latest, Text("q quit", "dim")
    if report is None:
        return Group(Text(f"waiting for a verifier: {recent.problem}"), leave)
    (rate, acceptance, by_request), target = recent.rates(), report.target
    head = Text.assemble(
        (f"{model_name(target.model_id)} ({target.dtype} on {target.device})", "bold"),
        f"  {report.method}  up for {duration(report.uptime_ms)}",
    )
    accepted = "" if acceptance is None else f"  {acceptance:.0%} of drafts accepted"
    controller = report.controller.actor_id if report.controller is not None else "none"
    now = Text(
        f"{rate:.1f} tokens/s{accepted}  KV {target.kv_used:,} of {target.kv_slots:,} tokens  controller {controller}"
    )
    for line in (head, now):
        line.no_wrap, line.overflow = True, "ellipsis"
    drafters = fitted(drafter_table(report.drafters), SPARE, console) if report.drafters else Text("no drafters")
    shown = max(1, console.height - len(report.drafters) - 10)
    rest = len(report.requests) - shown
    below = f"{rest} more requests" if rest > 0 else "" if report.requests else "no requests"
    return Group(head, now, "", drafters, "", request_table(report.requests[:shown], by_request), below, leave)


async def read(client: AsyncClient, recent: RecentReports, clock: Callable[[], float] = time.monotonic) -> None:
    """Ask for reports for ever. ConfigError for an address or keys that cannot work."""
    while True:
        try:
            recent.answered(await asyncio.wait_for(client.status(), ANSWER_S), clock())
        except TimeoutError:
            recent.failed(f"the verifier at {client.address} does not answer")
        except (ConnectionLost, RefusedError) as error:
            recent.failed(str(error))
        await asyncio.sleep(STATUS_S)


async def live(client: AsyncClient, console: Console, keyboard: TextIO) -> None:
    """Show the picture on the terminal until q is pressed."""
    loop, quit_ = asyncio.get_running_loop(), asyncio.Event()
    recent = RecentReports(client.address)

    def pressed() -> None:
        data = os.read(keyboard.fileno(), 1024)
        if not data or b"q" in data or b"\x03" in data:  # no data: the terminal is gone
            quit_.set()

    async def show(screen: Live) -> None:
        while True:
            console.size = ConsoleDimensions(*os.get_terminal_size(keyboard.fileno()))
            screen.update(draw(recent, console), refresh=True)
            await asyncio.sleep(STATUS_S / 2)

    with _single_keys(keyboard), Live(console=console, screen=True, auto_refresh=False) as screen:
        loop.add_reader(keyboard, pressed)
        try:
            await until_one_ends(read(client, recent), show(screen), quit_.wait())
        finally:
            loop.remove_reader(keyboard)
            await client.aclose()


@contextmanager
def _single_keys(keyboard: TextIO) -> Iterator[None]:
    """Keys come one by one, and are not shown. Signals still come."""
    before: Sequence[object] = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, list(before))  # type: ignore[arg-type]
