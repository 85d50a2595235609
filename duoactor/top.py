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
from typing import TextIO

import msgspec
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from actors.tasks import until_one_ends
from duoactor.client.async_client import AsyncClient
from duoactor.render import duration, model_name, table
from protocols.errors import ConnectionLost, RefusedError
from protocols.messages import StatusReport

STATUS_S = 0.5  # between two reports
ANSWER_S = 2.0  # a verifier answers between two forwards; longer than those of the slowest target
LATELY_S = 2.0  # that rates are of
SNAPSHOT_S = 1.0  # between the two reports of a picture that is printed once


class TopPicture(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see now. ``report`` is None while no verifier answers."""

    address: str
    problem: str = ""
    tokens_per_second: float = 0.0  # of all streams
    acceptance: float | None = None  # accepted over verified draft tokens, lately
    rates: dict[str, float] = {}  # tokens/s by request
    report: StatusReport | None = None


class RecentReports:
    """Rates from the reports of the last seconds."""

    def __init__(self, address: str) -> None:
        self.address, self.problem = address, ""
        self._reports: deque[tuple[float, StatusReport]] = deque()

    def answered(self, report: StatusReport, now: float) -> None:
        if self._reports and self._reports[-1][1].uptime_ms > report.uptime_ms:  # another verifier
            self._reports.clear()
        self.problem = ""
        self._reports.append((now, report))
        while len(self._reports) > 2 and self._reports[1][0] < now - LATELY_S:
            self._reports.popleft()

    def failed(self, problem: str) -> None:
        self.problem = problem
        self._reports.clear()

    def picture(self) -> TopPicture:
        if not self._reports:
            return TopPicture(address=self.address, problem=self.problem)
        (then, first), (now, last) = self._reports[0], self._reports[-1]
        seconds = max(now - then, 1e-9)
        before = {one.rid: one.tokens for one in first.requests}
        rates = {one.rid: (one.tokens - before[one.rid]) / seconds for one in last.requests if one.rid in before}
        made = last.counters.get("generation_tokens", 0) - first.counters.get("generation_tokens", 0)
        drafted, accepted = (
            sum(getattr(one, name) for one in last.totals) - sum(getattr(one, name) for one in first.totals)
            for name in ("draft_tokens", "accepted_tokens")
        )
        return TopPicture(
            address=self.address,
            tokens_per_second=made / seconds if now > then else 0.0,
            acceptance=accepted / drafted if drafted > 0 else None,
            rates=rates if now > then else {},
            report=last,
        )


def draw(picture: TopPicture, height: int) -> Group:
    """The picture for a terminal of that height; the requests that do not fit are counted."""
    report = picture.report
    if report is None:
        return Group(Text(f"waiting for a verifier: {picture.problem or picture.address}"), Text("q quit", "dim"))
    target, controller = report.target, report.controller.actor_id if report.controller is not None else "none"
    head = Text.assemble(
        (f"{model_name(target.model_id)} ({target.dtype} on {target.device})", "bold"),
        f"  {report.method}  up for {duration(report.uptime_ms)}",
    )
    accepted = "" if picture.acceptance is None else f"  {picture.acceptance:.0%} of drafts accepted"
    now = Text(
        f"{picture.tokens_per_second:.1f} tokens/s{accepted}  KV {target.kv_used:,} of {target.kv_slots:,} tokens"
        f"  controller {controller}"
    )
    drafters = table("drafter", "model", "state", ">leases", ">step", ">accepted", "host")
    for one in report.drafters:
        share = f"{one.accepted / one.drafted:.0%}" if one.drafted else "-"
        step = f"{one.step_us / 1000:.2f} ms"
        drafters.add_row(
            *map(clean, (one.actor_id, model_name(one.model_id), one.state)),
            str(one.leases),
            step,
            share,
            clean(one.host),
        )
    shown = max(1, height - len(report.drafters) - 9)
    requests = table("request", "method", "state", ">tokens", ">tokens/s", "drafter")
    for request in report.requests[:shown]:
        rate = picture.rates.get(request.rid)
        requests.add_row(
            *map(clean, (request.rid[:12], request.method, request.state)),
            str(request.tokens),
            f"{rate:.1f}" if rate else "-",
            clean(request.drafter or "none"),
        )
    rest = len(report.requests) - shown
    below = f"{rest} more requests" if rest > 0 else "" if report.requests else "no requests"
    for line in (head, now):
        line.no_wrap, line.overflow = True, "ellipsis"  # one line each, however narrow the terminal is
    return Group(head, now, "", drafters if report.drafters else Text("no drafters"), "", requests, below)


def clean(text: str) -> str:
    """Names come from other processes: what would move the cursor is shown as ``?``."""
    return "".join(char if char.isprintable() else "?" for char in text)


async def read(client: AsyncClient, watch: RecentReports, clock: Callable[[], float] = time.monotonic) -> None:
    """Ask for reports for ever. ConfigError for an address or keys that cannot work."""
    while True:
        try:
            watch.answered(await asyncio.wait_for(client.status(), ANSWER_S), clock())
        except TimeoutError:
            watch.failed(f"the verifier at {client.address} does not answer")
        except (ConnectionLost, RefusedError) as error:
            watch.failed(str(error))
        await asyncio.sleep(STATUS_S)


async def live(client: AsyncClient, console: Console, keyboard: TextIO) -> None:
    """Show the picture on the terminal until somebody presses q."""
    loop, quit_ = asyncio.get_running_loop(), asyncio.Event()
    watch = RecentReports(client.address)

    def pressed() -> None:
        data = os.read(keyboard.fileno(), 1024)
        if not data or b"q" in data or b"\x03" in data:  # no data: the terminal is gone
            quit_.set()

    async def show(screen: Live) -> None:
        while True:
            width, height = os.get_terminal_size(keyboard.fileno())
            console.size = ConsoleDimensions(width, height)
            screen.update(Group(draw(watch.picture(), height - 1), Text("q quit", "dim")), refresh=True)
            await asyncio.sleep(STATUS_S / 2)

    with _single_keys(keyboard), Live(console=console, screen=True, auto_refresh=False) as screen:
        loop.add_reader(keyboard, pressed)
        try:
            await until_one_ends(read(client, watch), show(screen), quit_.wait())
        finally:
            loop.remove_reader(keyboard)


async def snapshot(client: AsyncClient) -> TopPicture:
    """The picture of now. ConnectionLost where no verifier answers."""
    watch = RecentReports(client.address)
    loop = asyncio.get_running_loop()
    watch.answered(await client.status(), loop.time())
    await asyncio.sleep(SNAPSHOT_S)
    watch.answered(await client.status(), loop.time())
    return watch.picture()


@contextmanager
def _single_keys(keyboard: TextIO) -> Iterator[None]:
    """Keys come one by one, and are not shown. Signals still come."""
    before: Sequence[object] = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, list(before))  # type: ignore[arg-type]
