"""``duoactor top`` as its user has it: the command in a terminal, before a verifier that goes and comes back."""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from contextlib import asynccontextmanager

import pyte
import pytest

from duoactor import AsyncClient
from protocols.messages import Method
from protocols.zeromq import ZmqNetwork
from tests.world.caller import ADDRESS
from tests.world.cluster import Cluster

pytestmark = pytest.mark.processes
HANGS_S = 60  # only a hang reaches it


class RealNetwork(ZmqNetwork):
    """ZeroMQ under the names of the in-memory network."""

    def __init__(self, address: str) -> None:
        super().__init__(None)
        self.real = address

    def host(self, name: str) -> "RealNetwork":
        return self

    def listen(self, address):
        return super().listen(self.real)

    def connect(self, address):
        return super().connect(self.real)


class Terminal:
    """A terminal of 80 by 24 with a program in it."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment})
            os.execv(sys.executable, [sys.executable, "-m", "duoactor", *command])
        self.size(80, 24)
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self._fd)
        else:
            self._stream.feed(data)
        self._news.set()

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    async def shows(self, *wanted: str) -> str:
        try:
            async with asyncio.timeout(HANGS_S):
                while not all(one in self.text for one in wanted):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"waited in vain for {wanted}:\n{self.text}") from None
        return self.text

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    async def exit_code(self) -> int:
        code = await asyncio.to_thread(os.waitpid, self.pid, 0)
        return os.waitstatus_to_exitcode(code[1])


@asynccontextmanager
async def watched(tmp_path, **environment: str):
    network = RealNetwork(f"ipc://{tmp_path}/v.ipc")
    cluster = Cluster(network=network, forward_s=0.01)
    terminal = Terminal("top", "--connect", network.real, **environment)
    async with cluster:
        yield cluster, terminal
    network.close()


async def test_it_shows_a_stream_and_survives_the_verifier(tmp_path):
    async with watched(tmp_path) as (cluster, terminal):
        cluster.start_drafter("left")
        await cluster.connected("left")
        await terminal.shows("toy (float32 on cpu)", "left", "no requests", "q quit")
        async with AsyncClient(ADDRESS, network=cluster.network, reconnect_timeout=HANGS_S) as client:
            stream = client.stream((5, 9, 33), max_tokens=15000, method=Method.SPS, ignore_eos=True)
            reading = asyncio.create_task(stream.completion())
            await terminal.shows("tokens/s", "decode", "sps", "of drafts accepted")
            terminal.size(60, 10)
            await terminal.shows("tokens/s", "decode")
            terminal.size(80, 24)
            cluster.crash_verifier()
            await terminal.shows("waiting for a verifier")
            cluster.start_verifier()
            await terminal.shows("tokens/s", "decode")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        terminal.type("q")
        assert await terminal.exit_code() == 0


async def test_without_colour_nothing_is_coloured_and_without_a_verifier_it_says_so(tmp_path):
    network = RealNetwork(f"ipc://{tmp_path}/v.ipc")
    terminal = Terminal("top", "--connect", network.real, NO_COLOR="1")
    await terminal.shows("waiting for a verifier:")
    async with Cluster(network=network) as cluster:
        cluster.start_drafter("d1")
        await terminal.shows("d1", "standby")
        colours = {char.fg for line in terminal.screen.buffer.values() for char in line.values()}
        assert colours == {"default"}
        terminal.type("\x03")
        assert await terminal.exit_code() == 0
    network.close()
