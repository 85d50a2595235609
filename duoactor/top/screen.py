"""``duoactor top`` on a terminal: keys in, pictures out, orders to the verifier."""

from __future__ import annotations

import asyncio
import os
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

from actors.tasks import until_one_ends
from duoactor.client.async_client import AsyncClient
from duoactor.monitor.monitor import Monitor
from duoactor.monitor.picture import Picture
from duoactor.monitor.reader import Reader
from duoactor.top.dialog import Dialog, Order, keys_in
from duoactor.top.view import ASCII, Glyphs, draw
from protocols.errors import ConnectionLost, DuoactorError

FRAME_S = 0.25
MESSAGE_S = 8.0  # that an order's result stands where the keys are
SNAPSHOT_S = 1.5  # that a picture which is printed once is of: some hundred rounds of a small target, ten of a large


class Screen:
    def __init__(self, client: AsyncClient, console: Console, keyboard: TextIO) -> None:
        self._client, self._console, self._keyboard = client, console, keyboard
        self._monitor = Monitor(client.address)
        self._dialog = Dialog()
        self._scroll = 0
        self._quit = asyncio.Event()
        self._pressed = asyncio.Event()
        self._orders: set[asyncio.Task[None]] = set()
        self._glyphs = Glyphs() if console.encoding.lower().startswith("utf") else ASCII

    async def run(self) -> None:
        """Until somebody quits. ConfigError for an address or keys that cannot work."""
        loop = asyncio.get_running_loop()
        with single_keys(self._keyboard), Live(console=self._console, screen=True, auto_refresh=False) as live:
            loop.add_reader(self._keyboard, self._read)
            try:
                await until_one_ends(Reader(self._client, self._monitor).run(), self._show(live), self._quit.wait())
            finally:
                loop.remove_reader(self._keyboard)

    async def _show(self, live: Live) -> None:
        while True:
            self._pressed.clear()
            width, height = os.get_terminal_size(self._keyboard.fileno())  # COLUMNS and LINES may be of another time
            self._console.size = ConsoleDimensions(width, height)
            picture = self._monitor.picture(time.monotonic())
            self._scroll = max(0, min(self._scroll, len(picture.streams) - 1))
            lines = draw(picture, self._dialog, width, height, self._scroll, self._glyphs)
            live.update(Text("\n", no_wrap=True).join(lines), refresh=True)
            await wait_at_most(self._pressed, FRAME_S)

    def _read(self) -> None:
        data = os.read(self._keyboard.fileno(), 1024)
        if not data:  # the terminal is gone
            self._quit.set()
        for key in keys_in(data):
            self._press(key)
        self._pressed.set()

    def _press(self, key: str) -> None:
        if not self._dialog.step:
            if key == "q":
                self._quit.set()
            self._scroll += {"up": -1, "down": 1, "page up": -10, "page down": 10}.get(key, 0)
        picture = self._monitor.picture(time.monotonic())
        order = self._dialog.press(key, [one.actor_id for one in picture.actors if one.role == "drafter"])
        if order is not None:
            task = asyncio.create_task(self._carry_out(order))
            self._orders.add(task)
            task.add_done_callback(self._orders.discard)

    async def _carry_out(self, order: Order) -> None:
        try:
            if order.verb == "swap":
                self._dialog.message = await self._client.swap(order.old, order.new)
            else:
                self._dialog.message = await self._client.drain(order.old)
        except DuoactorError as error:
            self._dialog.message = str(error)
        self._pressed.set()
        asyncio.get_running_loop().call_later(MESSAGE_S, self._dialog.forget, self._dialog.message)


async def snapshot(client: AsyncClient) -> Picture:
    """What goes on now, once. ConnectionLost where no verifier answers."""
    await client.connect()
    monitor = Monitor(client.address)
    reading = asyncio.create_task(Reader(client, monitor).run())
    try:
        await asyncio.wait([reading], timeout=SNAPSHOT_S)
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    picture = monitor.picture(time.monotonic())
    if picture.silent_s is not None:
        raise ConnectionLost(picture.problem or f"the verifier at {client.address} does not answer")
    return picture


def whole(picture: Picture, console: Console) -> list[Text]:
    """The picture at the console's width, as long as it is."""
    height = 24 + len(picture.actors) + len(picture.streams)
    lines = draw(picture, Dialog(), console.width, height)[:-1]  # the last are the keys
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


@contextmanager
def single_keys(keyboard: TextIO) -> Iterator[None]:
    """Keys come one by one, and are not shown. Signals still come."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSADRAIN)  # a key that was pressed early counts
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
